//! `files`: what the guest hands to the person or program on the other side.

use belljar_protocol::scratch::{DeliveredFile, Digest};

use super::Host;
use crate::bindings::files::{DeliverError, Delivered, Host as Files};
use crate::scratch::{ReadError, parent, parts, read_file};

/// Most bytes of a delivery's description.
const DESCRIPTION: usize = 4 << 10;

impl Files for Host {
    async fn deliver(
        &mut self,
        path: String,
        description: Option<String>,
    ) -> Result<Delivered, DeliverError> {
        if self.deliveries.files.len() >= self.limits.deliveries {
            return Err(DeliverError::Quota);
        }
        let parts =
            parts(&path).map_err(|reason| DeliverError::BadPath(format!("the path {reason}")))?;
        let description = description.map(|text| crate::journal::cleaned(&text));
        if description
            .as_ref()
            .is_some_and(|text| text.len() > DESCRIPTION)
        {
            return Err(DeliverError::Failed(format!(
                "the description has more than {DESCRIPTION} bytes"
            )));
        }
        let cap = self.limits.file_bytes;
        let root = self
            .scratch
            .files()
            .await
            .map_err(|error| DeliverError::Failed(error.to_string()))?;
        let bytes = parent(root, &parts)
            .map_err(ReadError::Io)
            .and_then(|(folder, name)| read_file(&folder, name, cap))
            .map_err(|error| match error {
                ReadError::NotAFile => DeliverError::NotAFile,
                ReadError::TooLarge => DeliverError::TooLarge(cap),
                ReadError::Io(error) => match error.kind() {
                    std::io::ErrorKind::NotFound => DeliverError::NotFound,
                    std::io::ErrorKind::NotADirectory => DeliverError::NotAFile,
                    _ => DeliverError::Failed(error.to_string()),
                },
            })?;
        let size = bytes.len() as u64;
        if self.deliveries.bytes + size > self.limits.delivery_bytes {
            return Err(DeliverError::Quota);
        }
        let sha256 = Digest::of(&bytes);
        self.deliveries.bytes += size;
        if self
            .deliveries
            .blobs
            .iter()
            .all(|(known, _)| *known != sha256)
        {
            self.deliveries.blobs.push((sha256.clone(), bytes));
        }
        self.deliveries.files.push(DeliveredFile {
            path: path.clone(),
            bytes: size,
            sha256: sha256.clone(),
            description,
        });
        Ok(Delivered {
            path,
            bytes: size,
            sha256: sha256.to_string(),
        })
    }
}
