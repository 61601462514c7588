//! The one thread that writes, and how it joins what waits into one transaction and one sync.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use belljar_protocol::ports::StoreError;
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::failed;
use super::fate::Fate;
use super::gate::Gate;

/// The most writes in one transaction.
const GROUP: usize = 1024;

/// The bytes after which a group takes no more writes: the first of them waits for the last.
const GROUP_BYTES: usize = 16 * 1024 * 1024;

/// Why a write was not done.
pub(super) enum Refusal {
    /// The caller's request does not fit what is stored. It must be raised before anything is
    /// written: its neighbours' transaction goes on.
    Refused(StoreError),
    /// The database failed, and with it the whole group.
    Broken(rusqlite::Error),
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Self::Broken(error)
    }
}

/// Anything that can take part in a group's transaction.
trait Write: Send {
    /// Runs inside the transaction. An error ends the transaction for the whole group.
    fn run(&mut self, db: &Connection) -> rusqlite::Result<()>;
    /// Commits it adds to the log; 0 when it was refused.
    fn commits(&self) -> u64;
    /// Bytes it writes, roughly.
    fn bytes(&self) -> usize;
    /// Tells the caller, once it is known how the transaction ended.
    fn finish(self: Box<Self>, fate: Result<(), StoreError>);
}

struct Pending<T, F> {
    work: Option<F>,
    outcome: Option<Result<T, StoreError>>,
    cost: Cost,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

/// What a write brings into its group.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    /// Commits it adds to the log.
    pub(super) commits: u64,
    /// Bytes it writes, roughly.
    pub(super) bytes: usize,
}

impl<T, F> Write for Pending<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> Result<T, Refusal> + Send,
{
    fn run(&mut self, db: &Connection) -> rusqlite::Result<()> {
        let Some(work) = self.work.take() else {
            return Ok(());
        };
        let before = db.total_changes();
        self.outcome = Some(match work(db) {
            Ok(value) => Ok(value),
            Err(Refusal::Refused(error)) => {
                debug_assert_eq!(
                    before,
                    db.total_changes(),
                    "a refused write wrote something"
                );
                Err(error)
            }
            Err(Refusal::Broken(error)) => return Err(error),
        });
        Ok(())
    }

    fn commits(&self) -> u64 {
        if matches!(self.outcome, Some(Ok(_))) {
            self.cost.commits
        } else {
            0
        }
    }

    fn bytes(&self) -> usize {
        self.cost.bytes
    }

    fn finish(self: Box<Self>, fate: Result<(), StoreError>) {
        let outcome = match (fate, self.outcome) {
            // Also a refusal is void then: it may rest on what a neighbour failed to store.
            (Err(error), _) => Err(error),
            (Ok(()), Some(outcome)) => outcome,
            (Ok(()), None) => Err(StoreError::Failed("the write was not run".into())),
        };
        // A caller that went away does not want to know.
        let _ = self.reply.send(outcome);
    }
}

/// The writer's thread and the way to it. Dropping it finishes what waits and ends the thread.
pub(super) struct Writer {
    inbox: Option<Sender<Box<dyn Write>>>,
    thread: Option<JoinHandle<()>>,
    /// Held by the writer during each transaction; whoever else holds it has the log to itself.
    gate: Arc<Gate>,
}

impl Writer {
    /// Starts the thread on its connection.
    pub(super) fn start(db: Connection, fate: Arc<Fate>) -> Result<Self, StoreError> {
        let (inbox, waiting) = mpsc::channel();
        let gate = Arc::new(Gate::default());
        let turn = Turn {
            db,
            fate: Arc::clone(&fate),
            gate: Arc::clone(&gate),
        };
        let body = move || {
            // A panic leaves a transaction in an unknown state, which is what `stop` is for. Those
            // who wait see their reply dropped.
            if catch_unwind(AssertUnwindSafe(|| turn.serve(&waiting))).is_err() {
                fate.stop("the writer's thread panicked");
            }
        };
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(body);
        let thread = thread.map_err(|e| StoreError::Failed(format!("start the writer: {e}")))?;
        Ok(Self {
            inbox: Some(inbox),
            thread: Some(thread),
            gate,
        })
    }

    /// What the writer holds while it is in a transaction.
    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Queues a write at once; the future resolves when it is durable or refused. Dropping the
    /// future does not take the write back.
    pub(super) fn write<T, F>(
        &self,
        cost: Cost,
        work: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Refusal> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let pending = Pending {
            work: Some(work),
            outcome: None,
            cost,
            reply,
        };
        if let Some(inbox) = &self.inbox {
            // A thread that is gone drops the write and with it the reply.
            let _ = inbox.send(Box::new(pending));
        }
        async move {
            answer
                .await
                .unwrap_or_else(|_| Err(StoreError::Failed("the writer is gone".into())))
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was dealt with inside.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Turn {
    db: Connection,
    fate: Arc<Fate>,
    gate: Arc<Gate>,
}

impl Turn {
    fn serve(&self, waiting: &Receiver<Box<dyn Write>>) {
        // What came while the last group synced is the next group. Nothing waits for company: the
        // busier the store, the longer its groups, and a lone write goes at once.
        let mut group = Vec::new();
        while let Ok(first) = waiting.recv() {
            let mut bytes = first.bytes();
            group.push(first);
            while group.len() < GROUP && bytes < GROUP_BYTES {
                let Ok(next) = waiting.try_recv() else { break };
                bytes = bytes.saturating_add(next.bytes());
                group.push(next);
            }
            self.settle(&mut group);
        }
    }

    /// Makes a group durable and tells everybody in it.
    fn settle(&self, group: &mut Vec<Box<dyn Write>>) {
        let fate = self.fate.check().and_then(|()| {
            self.transact(group).map_err(|error| {
                self.fate.stop(&format!("a transaction failed: {error}"));
                // Every write of the group gets the same answer: none is known to be stored.
                failed(error)
            })
        });
        if fate.is_ok() {
            let commits = group.iter().map(|write| write.commits()).sum();
            self.fate.commits.fetch_add(commits, Ordering::Relaxed);
        }
        for write in group.drain(..) {
            write.finish(fate.clone());
        }
    }

    fn transact(&self, group: &mut [Box<dyn Write>]) -> rusqlite::Result<()> {
        let _turn = self.gate.enter();
        let before = self.db.total_changes();
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let ran = group.iter_mut().try_for_each(|write| write.run(&self.db));
        let ended = ran.and_then(|()| self.db.prepare_cached("COMMIT")?.execute([]).map(drop));
        if ended.is_err() {
            // The store stops either way; this only lets go of the lock.
            let _ = self.db.execute_batch("ROLLBACK");
        } else if self.db.total_changes() != before {
            // One that changed nothing wrote no page and synced nothing.
            self.fate.transactions.fetch_add(1, Ordering::Relaxed);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::task::{Context, Waker};

    use super::*;

    /// What a test write does to its table.
    fn insert(db: &Connection, n: i64) -> Result<i64, Refusal> {
        db.execute("INSERT INTO t VALUES (?)", [n])?;
        Ok(n)
    }

    /// A writer on a table of numbers, and how often `on_fatal` was called.
    fn writer() -> (Writer, Arc<Fate>, Arc<AtomicU64>) {
        let calls = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&calls);
        let on_fatal = move |_: &str| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let fate = Arc::new(Fate::new(Some(Box::new(on_fatal))));
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch("CREATE TABLE t (n INTEGER) STRICT")
            .unwrap();
        (Writer::start(db, Arc::clone(&fate)).unwrap(), fate, calls)
    }

    /// Queues the works while the writer is held, so that they are sure to share a group.
    async fn together<F>(writer: &Writer, works: Vec<F>) -> Vec<Result<i64, StoreError>>
    where
        F: FnOnce(&Connection) -> Result<i64, Refusal> + Send + 'static,
    {
        let gate = writer.gate();
        let futures: Vec<_> = {
            let held = gate.enter();
            // The first is a group of its own, which waits for the gate while the rest queue up.
            let mut first = Box::pin(writer.write(Cost::default(), |db| insert(db, 0)));
            let _ = first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            std::thread::sleep(std::time::Duration::from_millis(20));
            let rest = works
                .into_iter()
                .map(|work| writer.write(Cost::default(), work))
                .collect();
            drop(held);
            rest
        };
        let mut results = Vec::new();
        for future in futures {
            results.push(future.await);
        }
        results
    }

    type Work = Box<dyn FnOnce(&Connection) -> Result<i64, Refusal> + Send>;

    fn good(n: i64) -> Work {
        Box::new(move |db| insert(db, n))
    }

    #[tokio::test]
    async fn a_refused_write_does_not_fail_the_group() {
        let (writer, fate, calls) = writer();
        let refused = || StoreError::Failed("refused".into());
        let refuse: Work = Box::new(move |_| Err(Refusal::Refused(refused())));
        let results = together(&writer, vec![good(1), refuse, good(2)]).await;
        assert_eq!(results, [Ok(1), Err(refused()), Ok(2)]);
        assert_eq!(fate.counters().transactions, 2);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_failed_statement_fails_the_group_and_stops_writing() {
        let (writer, fate, calls) = writer();
        let full: Work = Box::new(|db| {
            let pages: i64 = db.pragma_query_value(None, "page_count", |row| row.get(0))?;
            db.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
            db.execute("CREATE TABLE more (n)", [])?;
            Ok(0)
        });
        let results = together(&writer, vec![good(1), full, good(2)]).await;
        assert!(
            results
                .iter()
                .all(|r| matches!(r, Err(StoreError::Failed(_)))),
            "{results:?}"
        );
        stopped(&writer, &fate, &calls).await;
    }

    #[tokio::test]
    async fn a_failed_commit_fails_the_group_and_stops_writing() {
        let (writer, fate, calls) = writer();
        // Leaves the writer's COMMIT without a transaction.
        let sabotage: Work = Box::new(|db| Ok(db.execute_batch("ROLLBACK").map(|()| 0)?));
        let results = together(&writer, vec![good(1), sabotage]).await;
        assert!(
            results
                .iter()
                .all(|r| matches!(r, Err(StoreError::Failed(_)))),
            "{results:?}"
        );
        stopped(&writer, &fate, &calls).await;
    }

    #[tokio::test]
    async fn a_panic_fails_the_group_and_stops_writing() {
        let (writer, fate, calls) = writer();
        let panic: Work = Box::new(|_| panic!("planned"));
        let results = together(&writer, vec![good(1), panic]).await;
        assert!(
            results
                .iter()
                .all(|r| matches!(r, Err(StoreError::Failed(_)))),
            "{results:?}"
        );
        let later = writer.write(Cost::default(), good(3)).await;
        assert!(matches!(later, Err(StoreError::Failed(_))));
        drop(writer);
        assert!(fate.check().is_err());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    /// Later writes fail and say what to do; the hook was called once.
    async fn stopped(writer: &Writer, fate: &Fate, calls: &AtomicU64) {
        for _ in 0..2 {
            let later = writer
                .write(Cost::default(), good(3))
                .await
                .unwrap_err()
                .to_string();
            assert!(later.contains("until the process is restarted"), "{later}");
        }
        assert_eq!(
            fate.counters().transactions,
            1,
            "only the first write's own"
        );
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
