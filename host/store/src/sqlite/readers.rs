//! The threads that read, each with a connection of its own.
//!
//! Threads of our own rather than the runtime's blocking pool: reads are bounded by the
//! connections there are, and need no particular runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use belljar_protocol::ports::StoreError;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::schema;

type Read = Box<dyn FnOnce(&Connection) + Send>;

/// The pool. Dropping it finishes what waits and ends the threads.
pub(super) struct Readers {
    inbox: Option<Sender<Read>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts `count` threads (at least one) on the database.
    pub(super) fn start(path: &Path, count: usize) -> Result<Self, StoreError> {
        let (inbox, waiting) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut readers = Self {
            inbox: Some(inbox),
            threads: Vec::new(),
        };
        for _ in 0..count.max(1) {
            let db = schema::open_reader(path)?;
            let waiting = Arc::clone(&waiting);
            let thread = std::thread::Builder::new()
                .name("store-reader".into())
                .spawn(move || serve(&db, &waiting))
                .map_err(|e| StoreError::Failed(format!("start a reader: {e}")))?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Runs `work` on one of the threads. A read whose caller went away before it began is
    /// skipped.
    pub(super) fn read<T, F>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        if let Some(inbox) = &self.inbox {
            // Threads that are gone drop the read and with it the reply.
            let _ = inbox.send(Box::new(move |db| {
                if !reply.is_closed() {
                    let _ = reply.send(work(db));
                }
            }));
        }
        async move {
            answer
                .await
                .unwrap_or_else(|_| Err(StoreError::Failed("a read broke off".into())))
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.inbox = None;
        for thread in self.threads.drain(..) {
            // A reader's thread does not panic: `serve` catches what a read does.
            let _ = thread.join();
        }
    }
}

fn serve(db: &Connection, waiting: &Mutex<Receiver<Read>>) {
    loop {
        let next = waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(read) = next else { return };
        // One read's panic must not take the connection from the others.
        if catch_unwind(AssertUnwindSafe(|| read(db))).is_err() {
            tracing::error!("a read panicked");
        }
    }
}
