//! `/scratch`: a folder per session that is a cache of one generation of its manifest.
//!
//! On disk a session has `scratch/<sha256 of tenant and session>/` with the folder `files`, all
//! a guest ever sees, and beside it the file `generation`, the marker. The rules:
//!
//! * Nothing happens before a guest asks for the folder. Then the session's room is locked, so
//!   that two decisions never share it, and the folder is made to hold the job's manifest:
//!   it does when the room or the marker says so, otherwise it is emptied and filled from blobs.
//! * Before the first call that may change anything the marker is taken away. A decision that
//!   only reads keeps it, is not scanned and needs no rebuilding afterwards.
//! * After a decision that may have changed something, the folder is compared with the manifest.
//! * The marker comes back when the change is known to be committed ([`Scratches::accept`]).
//!   A process that dies before leaves no marker, and so no doubt.
//!
//! The marker also names the machine's boot: after a power cut the page cache is gone, and a
//! folder whose files were never synced proves nothing.

mod names;
mod tree;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_protocol::id::{SessionId, TenantId};
use belljar_protocol::ports::Blobs;
use belljar_protocol::scratch::{Digest, ScratchChange, ScratchEntry, ScratchManifest};
use bytes::Bytes;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirBuilder, DirBuilderExt};
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedMutexGuard;

use crate::error::SandboxError;
use crate::limits::Limits;

pub(crate) use names::parts;
pub(crate) use tree::{Found, ReadError, parent, read_file};

const FILES: &str = "files";
const MARKER: &str = "generation";
/// Sessions remembered beyond those in use; a forgotten one asks its marker again.
const REMEMBERED: usize = 1_024;

/// All sessions' folders.
pub(crate) struct Scratches {
    base: Dir,
    boot: String,
    rooms: Mutex<HashMap<(TenantId, SessionId), Arc<Room>>>,
}

type Room = tokio::sync::Mutex<State>;

/// What is known of one session's folder.
#[derive(Default)]
struct State {
    /// The generation the folder holds; none: the marker knows, or nobody.
    holds: Option<u64>,
    /// Scanned after a change that is not accepted yet.
    pending: bool,
    known: tree::Known,
}

impl Scratches {
    /// Keeps folders under `data_dir/scratch`.
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let base = data_dir.join("scratch");
        private_dir(&base)?;
        Ok(Self {
            base: Dir::open_ambient_dir(&base, ambient_authority())?,
            // Where there is no such file each process trusts only what it did itself.
            boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| {
                format!(
                    "process {} at {:?}",
                    std::process::id(),
                    std::time::SystemTime::now()
                )
            }),
            rooms: Mutex::default(),
        })
    }

    fn room(&self, tenant: &TenantId, session: &SessionId) -> Arc<Room> {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if rooms.len() > REMEMBERED {
            rooms.retain(|_, room| Arc::strong_count(room) > 1);
        }
        rooms
            .entry((tenant.clone(), session.clone()))
            .or_default()
            .clone()
    }

    /// What the marker has to say for `generation`.
    fn mark(&self, generation: u64) -> String {
        format!("{generation} {}", self.boot.trim())
    }

    /// Makes the folder hold `manifest` and locks it.
    async fn enter(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        manifest: &ScratchManifest,
        blobs: &dyn Blobs,
    ) -> Result<Held, SandboxError> {
        let mut state = self.room(tenant, session).lock_owned().await;
        let key = key(tenant, session);
        state.pending = false;
        if state.holds == Some(manifest.generation) {
            let folder = self.base.open_dir(&key).map_err(opening)?;
            return Held::new(state, folder);
        }
        let folder = match self.base.open_dir(&key) {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut private = DirBuilder::new();
                private.mode(0o700);
                self.base.create_dir_with(&key, &private).map_err(opening)?;
                self.base.open_dir(&key).map_err(opening)?
            }
            Err(error) => return Err(opening(error)),
        };
        let marked = folder
            .read_to_string(MARKER)
            .is_ok_and(|mark| mark == self.mark(manifest.generation));
        if marked {
            state.known = tree::Known::default();
        } else {
            state.holds = None;
            let contents = contents(tenant, manifest, blobs).await?;
            let filling = |error| SandboxError::host("rebuilding a scratch folder", error);
            remove_marker(&folder).map_err(filling)?;
            match folder.create_dir(FILES) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    tree::clear(&folder.open_dir(FILES).map_err(filling)?).map_err(filling)?;
                }
                Err(error) => return Err(filling(error)),
            }
            let files = folder.open_dir(FILES).map_err(filling)?;
            state.known = tree::fill(&files, manifest, &contents).map_err(filling)?;
            folder
                .write(MARKER, self.mark(manifest.generation))
                .map_err(filling)?;
        }
        state.holds = Some(manifest.generation);
        Held::new(state, folder)
    }

    /// The last decision's change is committed, as `generation`.
    pub(crate) fn accept(&self, tenant: &TenantId, session: &SessionId, generation: u64) {
        let room = self.room(tenant, session);
        // Locked: the next decision has begun, and has rebuilt the folder already.
        let Ok(mut state) = room.try_lock() else {
            return;
        };
        if !std::mem::take(&mut state.pending) {
            return;
        }
        let marked = self
            .base
            .open_dir(key(tenant, session))
            .and_then(|f| f.write(MARKER, self.mark(generation)));
        match marked {
            Ok(()) => state.holds = Some(generation),
            // No marker and no memory: the folder is rebuilt.
            Err(error) => {
                tracing::warn!(%session, %error, "a scratch folder's marker was not written");
            }
        }
    }

    /// Removes a session's folder, and what is known of it.
    pub(crate) fn forget(&self, tenant: &TenantId, session: &SessionId) {
        let room = self.room(tenant, session);
        let Ok(_state) = room.try_lock() else { return };
        let key = key(tenant, session);
        let removed = self.base.open_dir(&key).and_then(|folder| {
            remove_marker(&folder)?;
            tree::clear(&folder)?;
            self.base.remove_dir(&key)
        });
        if let Err(error) = removed.or_else(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                Ok(())
            } else {
                Err(error)
            }
        }) {
            tracing::warn!(%session, %error, "a scratch folder was not removed");
        }
        self.rooms
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(tenant.clone(), session.clone()));
    }

    /// The last decision's change is void.
    pub(crate) fn discard(&self, tenant: &TenantId, session: &SessionId) {
        if let Ok(mut state) = self.room(tenant, session).try_lock() {
            state.pending = false;
        }
    }
}

/// Makes a folder, and those above it, that only this user can enter.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

/// The name of a session's folder: says nothing, holds nothing of the client's making.
fn key(tenant: &TenantId, session: &SessionId) -> String {
    let mut hash = Sha256::new();
    hash.update((tenant.as_str().len() as u64).to_le_bytes());
    hash.update(tenant.as_str());
    hash.update(session.as_str());
    hex::encode(hash.finalize())
}

fn opening(error: io::Error) -> SandboxError {
    SandboxError::host("opening a scratch folder", error)
}

fn remove_marker(folder: &Dir) -> io::Result<()> {
    match folder.remove_file(MARKER) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Fetches every content a manifest names.
async fn contents(
    tenant: &TenantId,
    manifest: &ScratchManifest,
    blobs: &dyn Blobs,
) -> Result<HashMap<Digest, Bytes>, SandboxError> {
    let mut contents = HashMap::new();
    for (path, entry) in &manifest.entries {
        let ScratchEntry::File { sha256, .. } = entry else {
            continue;
        };
        if contents.contains_key(sha256) {
            continue;
        }
        let bytes = blobs
            .blob(tenant, sha256)
            .await
            .map_err(|error| SandboxError::host("reading a blob of the scratch manifest", error))?
            .ok_or_else(|| SandboxError::BlobMissing {
                path: path.clone(),
                digest: sha256.to_string(),
            })?;
        contents.insert(sha256.clone(), bytes);
    }
    Ok(contents)
}

/// A session's folder while a decision uses it; locked until dropped.
struct Held {
    state: OwnedMutexGuard<State>,
    folder: Dir,
    files: Dir,
    changing: bool,
}

impl Held {
    fn new(state: OwnedMutexGuard<State>, folder: Dir) -> Result<Self, SandboxError> {
        let files = folder.open_dir(FILES).map_err(opening)?;
        Ok(Self {
            state,
            folder,
            files,
            changing: false,
        })
    }
}

/// One decision's use of `/scratch`: nothing until the guest asks.
pub(crate) struct ScratchUse {
    all: Arc<Scratches>,
    blobs: Arc<dyn Blobs>,
    tenant: TenantId,
    session: SessionId,
    manifest: Arc<ScratchManifest>,
    held: Option<Held>,
}

impl ScratchUse {
    pub(crate) fn new(
        all: Arc<Scratches>,
        blobs: Arc<dyn Blobs>,
        tenant: TenantId,
        session: SessionId,
        manifest: Arc<ScratchManifest>,
    ) -> Self {
        Self {
            all,
            blobs,
            tenant,
            session,
            manifest,
            held: None,
        }
    }

    /// The folder the guest may see, made to hold what the manifest says on first use.
    pub(crate) async fn files(&mut self) -> Result<&Dir, SandboxError> {
        if self.held.is_none() {
            let held = self
                .all
                .enter(&self.tenant, &self.session, &self.manifest, &*self.blobs)
                .await?;
            self.held = Some(held);
        }
        match &self.held {
            Some(held) => Ok(&held.files),
            None => Err(SandboxError::host(
                "opening a scratch folder",
                "it is not held",
            )),
        }
    }

    /// To be called before anything in the folder may change.
    pub(crate) fn changing(&mut self) -> io::Result<()> {
        if let Some(held) = self.held.as_mut().filter(|held| !held.changing) {
            held.state.holds = None;
            remove_marker(&held.folder)?;
            held.changing = true;
        }
        Ok(())
    }

    /// What the decision changed; the folder stays in doubt until that is accepted.
    pub(crate) fn finish(
        self,
        limits: &Limits,
    ) -> Result<(ScratchChange, Vec<(Digest, Bytes)>), SandboxError> {
        match self.held {
            Some(mut held) if held.changing => {
                let Found {
                    change,
                    blobs,
                    known,
                } = tree::scan(&held.files, &self.manifest, &held.state.known, limits)?;
                held.state.known = known;
                held.state.pending = true;
                Ok((change, blobs))
            }
            _ => Ok(Default::default()),
        }
    }
}
