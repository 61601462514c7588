//! Moving the write-ahead log into the database, off the writer's thread.
//!
//! A passive checkpoint copies what it can while the writer goes on, but the log starts over at
//! its beginning only when *all* of it was copied at the moment of a write. Under steady load that
//! moment never comes by itself and the log would grow for ever; so beyond a second size the rest,
//! which is short by then, is copied while the writer is held between two transactions.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use belljar_protocol::ports::StoreError;
use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::failed;
use super::fate::Fate;
use super::gate::Gate;

/// SQLite's own size of a page, which the schema does not change.
const PAGE_BYTES: u64 = 4096;

/// The log is made to start over when it is this many times the size checkpoints begin at.
const HOLD_FACTOR: u32 = 4;

/// The longest the writer is held for readers that still need the log.
const PATIENCE: Duration = Duration::from_millis(100);

/// The checkpointing thread. Dropping it ends the thread; drop the writer first, whose connection
/// holds the other end, so that this one closes last and leaves no log behind.
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A log that is watched and has no thread yet, because its writer has none.
pub(super) struct Watch {
    copied: Arc<AtomicU32>,
    limit: u32,
    wake: SyncSender<()>,
    woken: Receiver<()>,
}

impl Watch {
    /// Watches the log that `writer` writes: more than `limit` bytes that are in the log alone
    /// call for a checkpoint.
    pub(super) fn on(writer: &mut Connection, limit: u64) -> Result<Self, StoreError> {
        let most = u32::MAX / HOLD_FACTOR;
        let limit = u32::try_from(limit / PAGE_BYTES)
            .unwrap_or(most)
            .clamp(1, most);
        let copied = Arc::new(AtomicU32::new(0));
        let (wake, woken) = mpsc::sync_channel(1);
        let done = Arc::clone(&copied);
        let ring = wake.clone();
        writer
            .wal_hook(Some(move |_: &mut Wal, pages: c_int| {
                let pages = u32::try_from(pages).unwrap_or(0);
                if pages < done.load(Ordering::Relaxed) {
                    // The log started over.
                    done.store(0, Ordering::Relaxed);
                }
                if pages.saturating_sub(done.load(Ordering::Relaxed)) >= limit {
                    // Full means that it is awake already.
                    let _ = ring.try_send(());
                }
                Ok(())
            }))
            .map_err(failed)?;
        Ok(Self {
            copied,
            limit,
            wake,
            woken,
        })
    }

    /// Starts the thread on its own connection; `gate` is the writer's.
    pub(super) fn start(
        self,
        db: Connection,
        gate: Arc<Gate>,
        fate: Arc<Fate>,
    ) -> Result<Checkpointer, StoreError> {
        db.busy_timeout(PATIENCE).map_err(failed)?;
        let Self {
            copied,
            limit,
            wake,
            woken,
        } = self;
        let sweeper = Sweeper {
            db,
            gate,
            fate,
            copied,
            limit,
        };
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".into())
            .spawn(move || while woken.recv().is_ok() && sweeper.sweep() {})
            .map_err(|e| StoreError::Failed(format!("start the checkpointer: {e}")))?;
        Ok(Checkpointer {
            wake: Some(wake),
            thread: Some(thread),
        })
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // It does nothing that panics.
            let _ = thread.join();
        }
    }
}

struct Sweeper {
    db: Connection,
    gate: Arc<Gate>,
    fate: Arc<Fate>,
    /// Pages of the log that are in the database already.
    copied: Arc<AtomicU32>,
    limit: u32,
}

impl Sweeper {
    /// One round; `false` ends the thread.
    fn sweep(&self) -> bool {
        let swept = self.checkpoint("PASSIVE").and_then(|log| {
            // Whether all was copied says nothing: these are the pages there were when it began.
            if log.pages >= self.limit.saturating_mul(HOLD_FACTOR) {
                let _held = self.gate.enter();
                self.checkpoint("RESTART")?;
            }
            Ok(())
        });
        if let Err(error) = &swept {
            // A failed sync of the database may be followed by one that succeeds without the
            // pages being there, after which the log that still has them would be overwritten.
            self.fate.stop(&format!("a checkpoint failed: {error}"));
        }
        swept.is_ok()
    }

    fn checkpoint(&self, mode: &str) -> rusqlite::Result<Log> {
        let mut run = self
            .db
            .prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
        let log = run.query_row([], |row| {
            // -1 stands for "could not look".
            let pages = |column| -> rusqlite::Result<u32> {
                Ok(u32::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
            };
            Ok(Log {
                pages: pages(1)?,
                copied: pages(2)?,
            })
        })?;
        if log.copied > self.copied.swap(log.copied, Ordering::Relaxed) {
            self.fate.checkpoints.fetch_add(1, Ordering::Relaxed);
        }
        Ok(log)
    }
}

/// What a checkpoint says of the log.
struct Log {
    /// Pages in it.
    pages: u32,
    /// How many of them are in the database.
    copied: u32,
}
