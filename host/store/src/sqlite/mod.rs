//! The store on SQLite: one directory, one process, one writer.
//!
//! ```text
//! append ─▶ (large blobs: files, synced) ─▶ writer thread ── group ─▶ one transaction, one sync
//! read   ─▶ reader threads, each with its own connection
//! log full ─▶ checkpoint thread
//! ```
//!
//! Nothing here runs SQL on the caller's thread, so no method blocks an async runtime.

mod agents;
mod blobs;
mod checkpoint;
mod fate;
mod gate;
mod lock;
mod log;
mod readers;
mod schema;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use belljar_protocol::Timestamp;
use belljar_protocol::event::Commit;
use belljar_protocol::id::{AgentId, SessionId, TenantId, VersionId};
use belljar_protocol::ports::{Append, Blobs, Boxed, SessionRow, Store, StoreCounters, StoreError};
use belljar_protocol::scratch::Digest;
use belljar_protocol::snapshot::Snapshot;
use belljar_protocol::version::{LabelMove, Swap, Version};
use bytes::Bytes;

use self::blobs::{BlobRow, Files, Found};
use self::checkpoint::{Checkpointer, Watch};
use self::fate::{Fate, OnFatal};
use self::lock::DirLock;
use self::log::Prepared;
use self::readers::Readers;
use self::writer::{Cost, Writer};

/// How a [`SqliteStore`] is opened.
pub struct Options {
    readers: usize,
    wal_bytes: u64,
    on_fatal: Option<OnFatal>,
}

impl Default for Options {
    /// Four readers, checkpoints from 8 MiB, nobody told of a fatal error.
    fn default() -> Self {
        Self {
            readers: 4,
            wal_bytes: 8 * 1024 * 1024,
            on_fatal: None,
        }
    }
}

impl Options {
    /// How many reads run at the same time; at least 1.
    #[must_use]
    pub fn readers(self, count: usize) -> Self {
        Self {
            readers: count,
            ..self
        }
    }

    /// The bytes of write-ahead log that call for a checkpoint. The log's file stays below about
    /// five times this, also under load that never pauses.
    #[must_use]
    pub fn wal_bytes(self, bytes: u64) -> Self {
        Self {
            wal_bytes: bytes,
            ..self
        }
    }

    /// Called once, on a thread of the store, with the reason, when a commit, a sync or a
    /// checkpoint has failed: nobody knows then what is on disk, and every later write fails. A
    /// host ends its process here; the appends that wait are told after this returns. It must
    /// not drop the store, which waits for the thread it is called on.
    #[must_use]
    pub fn on_fatal(self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            on_fatal: Some(Box::new(hook)),
            ..self
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("readers", &self.readers)
            .field("wal_bytes", &self.wal_bytes)
            .finish_non_exhaustive()
    }
}

/// The durable store in a directory:
///
/// * `belljar.db` (with `-wal` and `-shm` beside it): everything but large blobs;
/// * `blobs/<sha256 of the tenant>/<sha256>`: contents over [`crate::INLINE_BLOB_BYTES`];
/// * `belljar.lock`: held while a process has the directory open.
///
/// An acknowledged write is synced: it outlives the process and the machine's power. Futures of
/// writes do nothing until they are first polled; from then on the write may happen even if the
/// future is dropped. Appends of one session that are in flight together are written in the order
/// they were polled, unless they bring large blobs; a caller that cares has one in flight.
///
/// Dropping the store waits until what is queued is written and its threads have ended; after
/// that (and the last future of `append`) the directory is free. Large blobs are read and written
/// through the tokio runtime of the caller; everything else needs none.
pub struct SqliteStore {
    inner: Arc<Inner>,
}

/// Fields are dropped in this order: the connections that only read, the writer's, and last that
/// of the checkpoints, which then closes the database without leaving a log.
struct Inner {
    readers: Readers,
    writer: Writer,
    _checkpointer: Checkpointer,
    files: Files,
    fate: Arc<Fate>,
    _lock: DirLock,
}

impl SqliteStore {
    /// Opens the store in `dir` with the default options, creating what is missing.
    ///
    /// Blocks on the disk: for the start of a process, not for a running runtime.
    ///
    /// # Errors
    /// * `Failed` when another process has the directory open, with its name and, where known,
    ///   the process; or when the disk says no.
    /// * `Unreadable` when a newer build wrote it, or the database is not Belljar's.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, Options::default())
    }

    /// Opens the store in `dir`, as [`SqliteStore::open`] does.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub fn open_with(dir: &Path, options: Options) -> Result<Self, StoreError> {
        let Options {
            readers,
            wal_bytes,
            on_fatal,
        } = options;
        let blobs = dir.join("blobs");
        std::fs::create_dir_all(&blobs)
            .map_err(|e| StoreError::Failed(format!("create {}: {e}", blobs.display())))?;
        let lock = DirLock::take(dir)?;
        let path = dir.join("belljar.db");
        let fate = Arc::new(Fate::new(on_fatal));
        let mut db = schema::open(&path)?;
        sync_names(dir)?;
        let watch = Watch::on(&mut db, wal_bytes)?;
        let again = schema::open_again(&path)?;
        let readers = Readers::start(&path, readers)?;
        let writer = Writer::start(db, Arc::clone(&fate))?;
        let checkpointer = watch.start(again, writer.gate(), Arc::clone(&fate))?;
        let files = Files::open(&blobs, Arc::clone(&fate))?;
        Ok(Self {
            inner: Arc::new(Inner {
                readers,
                writer,
                _checkpointer: checkpointer,
                files,
                fate,
                _lock: lock,
            }),
        })
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("counters", &self.inner.fate.counters())
            .finish()
    }
}

impl Inner {
    /// Makes rows of blobs, having written and synced the files of the large ones.
    async fn stow(
        &self,
        tenant: &TenantId,
        blobs: Vec<(Digest, Bytes)>,
    ) -> Result<Vec<BlobRow>, StoreError> {
        let (large, small): (Vec<_>, Vec<_>) = blobs
            .into_iter()
            .partition(|(_, body)| blobs::is_large(body));
        let mut rows: Vec<_> = small
            .into_iter()
            .map(|(digest, body)| BlobRow::inline(digest, body))
            .collect();
        if large.is_empty() {
            return Ok(rows);
        }
        self.fate.check()?;
        let digests: Vec<_> = large.iter().map(|(digest, _)| digest.clone()).collect();
        let whose = tenant.clone();
        let mut missing = self
            .readers
            .read(move |db| blobs::missing(db, &whose, digests))
            .await?;
        missing.sort();
        missing.dedup();
        // Each once, however often the append names it.
        let new = large
            .into_iter()
            .filter(|(digest, _)| match missing.binary_search(digest) {
                Ok(ix) => {
                    missing.remove(ix);
                    true
                }
                Err(_) => false,
            });
        rows.extend(self.files.put(tenant, new.collect()).await?);
        Ok(rows)
    }

    async fn append(&self, mut append: Append) -> Result<(), StoreError> {
        let blobs = std::mem::take(&mut append.blobs);
        let prepared = if blobs.is_empty() {
            Prepared::new(&append, Vec::new())?
        } else {
            crate::append::check(&append)?;
            Prepared::new(&append, self.stow(&append.tenant, blobs).await?)?
        };
        self.writer
            .write(prepared.cost(), move |db| prepared.write(db))
            .await
    }

    async fn put_version(
        &self,
        tenant: TenantId,
        version: Version,
        component: Bytes,
    ) -> Result<bool, StoreError> {
        let (whose, wanted, bytes) = (tenant.clone(), version.clone(), component.clone());
        // On a reader's thread: the digest of a component takes time.
        let digest = self
            .readers
            .read(move |db| {
                let digest = Digest::of(&bytes);
                if wanted.version.as_str().strip_prefix("sha256:") != Some(digest.as_str()) {
                    let version = &wanted.version;
                    return Err(StoreError::Failed(format!(
                        "version {version} does not name its component, whose sha256 is {digest}"
                    )));
                }
                Ok((!agents::has_version(db, &whose, &wanted)?).then_some(digest))
            })
            .await?;
        let Some(digest) = digest else {
            return Ok(false);
        };
        let rows = self.stow(&tenant, vec![(digest, component)]).await?;
        let about = serde_json::to_string(&version)
            .map_err(|e| StoreError::Failed(format!("encode version {}: {e}", version.version)))?;
        let cost = Cost {
            commits: 0,
            bytes: rows.iter().map(BlobRow::bytes).sum(),
        };
        self.writer
            .write(cost, move |db| {
                for row in &rows {
                    row.write(db, &tenant)?;
                }
                agents::put_version(db, &tenant, &version, &about)
            })
            .await
    }

    async fn blob(&self, tenant: TenantId, digest: Digest) -> Result<Option<Bytes>, StoreError> {
        let (whose, wanted) = (tenant.clone(), digest.clone());
        match self
            .readers
            .read(move |db| blobs::find(db, &whose, &wanted))
            .await?
        {
            None => Ok(None),
            Some(Found::Inline(body)) => Ok(Some(body)),
            Some(Found::Filed) => {
                let body = self.files.get(&tenant, &digest).await?;
                let read = body.clone();
                self.readers
                    .read(move |_| blobs::check(&tenant, &digest, &read))
                    .await?;
                Ok(Some(body))
            }
        }
    }
}

impl Blobs for SqliteStore {
    fn blob(
        &self,
        tenant: &TenantId,
        digest: &Digest,
    ) -> Boxed<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(self.inner.blob(tenant.clone(), digest.clone()))
    }
}

impl Store for SqliteStore {
    fn append(&self, append: Append) -> Boxed<'static, Result<(), StoreError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.append(append).await })
    }

    fn session(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Boxed<'_, Result<Option<SessionRow>, StoreError>> {
        let (tenant, session) = (tenant.clone(), session.clone());
        Box::pin(
            self.inner
                .readers
                .read(move |db| log::session(db, &tenant, &session)),
        )
    }

    fn sessions(
        &self,
        tenant: &TenantId,
        before: Option<(Timestamp, SessionId)>,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<SessionRow>, StoreError>> {
        let tenant = tenant.clone();
        let list = move |db: &_| log::sessions(db, &tenant, before.as_ref(), limit);
        Box::pin(self.inner.readers.read(list))
    }

    fn read(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<Commit>, StoreError>> {
        let (tenant, session) = (tenant.clone(), session.clone());
        let read = move |db: &_| log::read(db, &tenant, &session, after, limit);
        Box::pin(self.inner.readers.read(read))
    }

    fn snapshot(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Boxed<'_, Result<Option<Snapshot>, StoreError>> {
        let (tenant, session) = (tenant.clone(), session.clone());
        Box::pin(
            self.inner
                .readers
                .read(move |db| log::snapshot(db, &tenant, &session)),
        )
    }

    fn put_snapshot(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        snapshot: Snapshot,
    ) -> Boxed<'_, Result<(), StoreError>> {
        let (tenant, session) = (tenant.clone(), session.clone());
        let cost = Cost {
            commits: 0,
            bytes: snapshot.body.as_str().len(),
        };
        Box::pin(async move {
            let put = move |db: &_| log::put_snapshot(db, &tenant, &session, &snapshot);
            self.inner.writer.write(cost, put).await
        })
    }

    fn due(
        &self,
        after: Timestamp,
        now: Timestamp,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<(TenantId, SessionId)>, StoreError>> {
        Box::pin(
            self.inner
                .readers
                .read(move |db| log::due(db, after, now, limit)),
        )
    }

    fn next_wake(&self, after: Timestamp) -> Boxed<'_, Result<Option<Timestamp>, StoreError>> {
        Box::pin(self.inner.readers.read(move |db| log::next_wake(db, after)))
    }

    fn put_version(
        &self,
        tenant: &TenantId,
        version: Version,
        component: Bytes,
    ) -> Boxed<'_, Result<bool, StoreError>> {
        Box::pin(self.inner.put_version(tenant.clone(), version, component))
    }

    fn versions(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Boxed<'_, Result<Vec<Version>, StoreError>> {
        let (tenant, agent) = (tenant.clone(), agent.clone());
        Box::pin(
            self.inner
                .readers
                .read(move |db| agents::versions(db, &tenant, &agent)),
        )
    }

    fn agents(&self, tenant: &TenantId) -> Boxed<'_, Result<Vec<AgentId>, StoreError>> {
        let tenant = tenant.clone();
        Box::pin(
            self.inner
                .readers
                .read(move |db| agents::agents(db, &tenant)),
        )
    }

    fn move_label(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        label: &str,
        version: Option<VersionId>,
        swap: Swap,
        by: &str,
        at: Timestamp,
    ) -> Boxed<'_, Result<LabelMove, StoreError>> {
        let (tenant, agent) = (tenant.clone(), agent.clone());
        let (label, by) = (label.to_owned(), by.to_owned());
        let wanted = LabelMove {
            id: 0,
            label,
            version,
            previous: None,
            swap,
            by,
            at,
        };
        Box::pin(async move {
            let made = move |db: &_| agents::move_label(db, &tenant, &agent, wanted);
            self.inner.writer.write(Cost::default(), made).await
        })
    }

    fn label_moves(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Boxed<'_, Result<Vec<LabelMove>, StoreError>> {
        let (tenant, agent) = (tenant.clone(), agent.clone());
        Box::pin(
            self.inner
                .readers
                .read(move |db| agents::label_moves(db, &tenant, &agent)),
        )
    }

    fn counters(&self) -> StoreCounters {
        self.inner.fate.counters()
    }
}

/// Syncs the directory and the one it lies in: SQLite syncs what is in its files, and nobody but
/// us the names of a database and folders that are new.
fn sync_names(dir: &Path) -> Result<(), StoreError> {
    #[cfg(unix)]
    for folder in std::iter::once(dir).chain(dir.parent()) {
        // `dir` may be relative, and its parent then the empty path.
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        std::fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|e| StoreError::Failed(format!("sync {}: {e}", folder.display())))?;
    }
    #[cfg(not(unix))]
    let _ = dir;
    Ok(())
}

/// What the database said, as the store's error.
fn failed(error: rusqlite::Error) -> StoreError {
    use rusqlite::Error as E;
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let damaged = matches!(
        error.sqlite_error_code(),
        Some(DatabaseCorrupt | NotADatabase)
    ) || matches!(
        error,
        E::FromSqlConversionFailure(..)
            | E::IntegralValueOutOfRange(..)
            | E::InvalidColumnType(..)
            | E::Utf8Error(..)
    );
    if damaged {
        unreadable("the database", error)
    } else {
        StoreError::Failed(error.to_string())
    }
}

fn unreadable(what: impl Into<String>, reason: impl fmt::Display) -> StoreError {
    StoreError::Unreadable {
        what: what.into(),
        reason: reason.to_string(),
    }
}

/// A seq as SQLite has it, whose integers are signed; no log is longer than the largest of them.
fn stored_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
