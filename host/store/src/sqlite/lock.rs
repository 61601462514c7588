//! One process per data directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

use belljar_protocol::ports::StoreError;

/// The lock of a data directory, let go when dropped or when the process ends, however it ends.
pub(super) struct DirLock {
    /// Held open: the lock belongs to it.
    _file: File,
}

impl DirLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// `Failed`, naming the directory, when somebody has it.
    pub(super) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("belljar.lock");
        let failed =
            |e: std::io::Error| StoreError::Failed(format!("lock {}: {e}", path.display()));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Only for the message; where locked files cannot be read it says less.
                let _ = file.read_to_string(&mut holder);
                let holder = holder.trim();
                let holder = if holder.is_empty() { "unknown" } else { holder };
                return Err(StoreError::Failed(format!(
                    "the data directory {} is in use by another process (pid {holder}): \
                     stop that one, or choose another directory",
                    dir.display(),
                )));
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}
