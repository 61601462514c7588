//! Which sessions are in use: each has one task with a mailbox, made when somebody has mail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use belljar_engine::{Command, Reply};
use belljar_protocol::id::{SessionId, TenantId};
use belljar_protocol::problem::Problem;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::AbortHandle;

use super::SessionState;

/// A session of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) tenant: TenantId,
    pub(super) session: SessionId,
}

/// What a session's task is sent.
pub(super) enum Mail {
    /// A command, and where its outcome goes once it is on disk.
    Command(Box<Command>, oneshot::Sender<Result<Reply, Problem>>),
    /// What is it like, on disk? None: the session does not exist.
    Look(oneshot::Sender<Result<Option<Box<SessionState>>, Problem>>),
    /// Something outside may have become due. The place among those being loaded is given back
    /// when this is read, which is after the session is loaded.
    Nudge(OwnedSemaphorePermit),
}

/// The mailboxes of sessions in use.
#[derive(Default)]
pub(super) struct Roster {
    boxes: Mutex<HashMap<Key, InUse>>,
    /// Of them, those that have nothing to do.
    idle: AtomicUsize,
    /// Told when there are more than there should be. Whoever has been idle longest hears it
    /// first: waiters are served in the order they came.
    crowded: Notify,
}

struct InUse {
    mailbox: mpsc::Sender<Mail>,
    task: AbortHandle,
}

impl Roster {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, InUse>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session's mailbox; `start` is called with a new one's other end when it has none. Above
    /// `most` an idle session is told to leave.
    pub(super) fn mailbox(
        &self,
        key: &Key,
        capacity: usize,
        most: usize,
        start: impl FnOnce(mpsc::Receiver<Mail>) -> AbortHandle,
    ) -> mpsc::Sender<Mail> {
        let mut boxes = self.lock();
        if let Some(used) = boxes.get(key).filter(|used| !used.mailbox.is_closed()) {
            return used.mailbox.clone();
        }
        let (mailbox, receiver) = mpsc::channel(capacity);
        let task = start(receiver);
        let used = InUse {
            mailbox: mailbox.clone(),
            task,
        };
        boxes.insert(key.clone(), used);
        if boxes.len() > most {
            self.crowded.notify_one();
        }
        mailbox
    }

    /// Closes a mailbox that is empty, under the lock that hands mailboxes out: after this a
    /// sender finds it closed, and asks for a new one. False: there is mail after all.
    pub(super) fn retire(&self, key: &Key, receiver: &mut mpsc::Receiver<Mail>) -> bool {
        let mut boxes = self.lock();
        if !receiver.is_empty() {
            return false;
        }
        // A sender that was handed out before may still be quicker than this: what it sends is
        // left in the receiver, and goes to the next task's mailbox.
        receiver.close();
        boxes.remove(key);
        true
    }

    /// Takes a mailbox out of use, so that the next mail makes a new one.
    pub(super) fn remove(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Takes a mailbox out of use if it is closed; one that was made since stays.
    pub(super) fn sweep(&self, key: &Key) {
        let mut boxes = self.lock();
        if boxes.get(key).is_some_and(|used| used.mailbox.is_closed()) {
            boxes.remove(key);
        }
    }

    /// Ends all tasks where they are, as a crash would.
    pub(super) fn abort(&self) {
        let boxes = std::mem::take(&mut *self.lock());
        boxes.into_values().for_each(|used| used.task.abort());
    }

    /// The sessions in use.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.lock().keys().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.lock()
            .get(key)
            .is_some_and(|used| !used.mailbox.is_closed())
    }

    /// Whether `most` sessions are at work, and this is none of those in use.
    pub(super) fn is_full_for(&self, key: &Key, most: usize) -> bool {
        let boxes = self.lock();
        let idle = self.idle.load(Ordering::Relaxed);
        boxes.len().saturating_sub(idle) >= most && !boxes.contains_key(key)
    }

    /// Counts the caller's session as idle until the guard is dropped.
    pub(super) fn idle(&self) -> Idle<'_> {
        self.idle.fetch_add(1, Ordering::Relaxed);
        Idle(&self.idle)
    }

    /// Resolves when there are more sessions in use than there should be.
    pub(super) async fn crowded(&self) {
        self.crowded.notified().await;
    }
}

/// A session that has nothing to do.
pub(super) struct Idle<'a>(&'a AtomicUsize);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
