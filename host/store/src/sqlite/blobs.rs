//! Contents by digest: small ones in the database, large ones in files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_protocol::id::TenantId;
use belljar_protocol::ports::StoreError;
use belljar_protocol::scratch::Digest;
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutPayload};
use rusqlite::{Connection, OptionalExtension, params};
use tokio::task::JoinSet;

use super::fate::Fate;
use super::{failed, unreadable};
use crate::INLINE_BLOB_BYTES;

/// Files written at a time for one append: syncs of several files share the disk's journal.
const FILES_AT_ONCE: usize = 8;

/// A row of the index, ready to be written.
pub(super) struct BlobRow {
    digest: Digest,
    size: i64,
    /// None: it lies in its file.
    body: Option<Bytes>,
}

impl BlobRow {
    /// For bytes that live in the database.
    pub(super) fn inline(digest: Digest, body: Bytes) -> Self {
        Self {
            digest,
            size: body.len() as i64,
            body: Some(body),
        }
    }

    /// For bytes that are in their file, synced.
    fn filed(digest: Digest, size: usize) -> Self {
        Self {
            digest,
            size: size as i64,
            body: None,
        }
    }

    /// Bytes it writes, roughly.
    pub(super) fn bytes(&self) -> usize {
        self.body.as_ref().map_or(0, Bytes::len)
    }

    /// Writes it, inside the writer's transaction. One that is there stays as it is.
    pub(super) fn write(&self, db: &Connection, tenant: &TenantId) -> rusqlite::Result<()> {
        db.prepare_cached(
            "INSERT INTO blobs (tenant, digest, size, body) VALUES (?, ?, ?, ?)
             ON CONFLICT (tenant, digest) DO NOTHING",
        )?
        .execute(params![
            tenant.as_str(),
            self.digest.as_str(),
            self.size,
            self.body.as_deref(),
        ])?;
        Ok(())
    }
}

/// Whether the bytes have to go into a file.
pub(super) fn is_large(body: &Bytes) -> bool {
    body.len() > INLINE_BLOB_BYTES
}

/// Which of `digests` the tenant does not have.
pub(super) fn missing(
    db: &Connection,
    tenant: &TenantId,
    digests: Vec<Digest>,
) -> Result<Vec<Digest>, StoreError> {
    let has = |digest: &Digest| {
        db.prepare_cached("SELECT 1 FROM blobs WHERE tenant = ? AND digest = ?")?
            .exists(params![tenant.as_str(), digest.as_str()])
    };
    let mut missing = Vec::new();
    for digest in digests {
        if !has(&digest).map_err(failed)? {
            missing.push(digest);
        }
    }
    Ok(missing)
}

/// What the index says of a blob.
pub(super) enum Found {
    /// The bytes themselves.
    Inline(Bytes),
    /// They are in the file.
    Filed,
}

pub(super) fn find(
    db: &Connection,
    tenant: &TenantId,
    digest: &Digest,
) -> Result<Option<Found>, StoreError> {
    let body: Option<Option<Vec<u8>>> = db
        .prepare_cached("SELECT body FROM blobs WHERE tenant = ? AND digest = ?")
        .and_then(|mut select| {
            select
                .query_row(params![tenant.as_str(), digest.as_str()], |row| row.get(0))
                .optional()
        })
        .map_err(failed)?;
    match body {
        None => Ok(None),
        Some(None) => Ok(Some(Found::Filed)),
        Some(Some(body)) => {
            let body = Bytes::from(body);
            check(tenant, digest, &body)?;
            Ok(Some(Found::Inline(body)))
        }
    }
}

/// Fails when the bytes are not those the digest names. Takes time; not for the runtime.
pub(super) fn check(tenant: &TenantId, digest: &Digest, body: &[u8]) -> Result<(), StoreError> {
    if Digest::of(body) == *digest {
        return Ok(());
    }
    let what = format!("blob {digest} of tenant {tenant}");
    Err(unreadable(
        what,
        format!("its {} bytes have another digest", body.len()),
    ))
}

/// The folder of large blobs: `<sha256 of the tenant>/<sha256 of the bytes>`.
///
/// The tenant's name is hashed because it may be no name a file system takes.
#[derive(Clone)]
pub(super) struct Files {
    store: LocalFileSystem,
    fate: Arc<Fate>,
}

impl Files {
    /// Opens the folder, which must exist.
    pub(super) fn open(dir: &Path, fate: Arc<Fate>) -> Result<Self, StoreError> {
        let store = LocalFileSystem::new_with_prefix(dir)
            .map_err(|e| StoreError::Failed(format!("open the folder {}: {e}", dir.display())))?;
        // Off by default: a file would be renamed into place before its bytes are on disk.
        Ok(Self {
            store: store.with_fsync(true),
            fate,
        })
    }

    /// Writes and syncs the files, and gives their rows for the index.
    ///
    /// A file that is there already without being in the index (a crash came between) is replaced:
    /// whether its bytes ever reached the disk is not known.
    pub(super) async fn put(
        &self,
        tenant: &TenantId,
        blobs: Vec<(Digest, Bytes)>,
    ) -> Result<Vec<BlobRow>, StoreError> {
        let mut rows = Vec::with_capacity(blobs.len());
        let mut waiting = blobs.into_iter();
        let mut running = JoinSet::new();
        loop {
            while running.len() < FILES_AT_ONCE {
                let Some((digest, body)) = waiting.next() else {
                    break;
                };
                let (files, path) = (self.clone(), path(tenant, &digest));
                running.spawn(async move { files.put_one(path, digest, body).await });
            }
            match running.join_next().await {
                None => return Ok(rows),
                Some(Ok(row)) => rows.push(row?),
                Some(Err(e)) => {
                    return Err(StoreError::Failed(format!("write a blob's file: {e}")));
                }
            }
        }
    }

    async fn put_one(
        self,
        path: ObjectPath,
        digest: Digest,
        body: Bytes,
    ) -> Result<BlobRow, StoreError> {
        let size = body.len();
        self.store
            .put(&path, PutPayload::from_bytes(body))
            .await
            .map_err(|e| StoreError::Failed(format!("write the file of blob {digest}: {e}")))?;
        // The file and the folder that names it.
        self.fate.file_syncs.fetch_add(2, Ordering::Relaxed);
        Ok(BlobRow::filed(digest, size))
    }

    /// The bytes of a blob that the index says has a file; unchecked.
    pub(super) async fn get(
        &self,
        tenant: &TenantId,
        digest: &Digest,
    ) -> Result<Bytes, StoreError> {
        let file = async { self.store.get(&path(tenant, digest)).await?.bytes().await };
        file.await.map_err(|e| match e {
            object_store::Error::NotFound { .. } => unreadable(
                format!("blob {digest} of tenant {tenant}"),
                "its file is gone",
            ),
            e => StoreError::Failed(format!("read the file of blob {digest}: {e}")),
        })
    }
}

fn path(tenant: &TenantId, digest: &Digest) -> ObjectPath {
    let folder = Digest::of(tenant.as_str().as_bytes());
    ObjectPath::from_iter([folder.as_str(), digest.as_str()])
}
