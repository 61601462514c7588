//! Which sessions are in use: each has one task with a mailbox, made when somebody has mail.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use belljar_engine::{Command, Reply};
use belljar_protocol::id::{SessionId, TenantId};
use belljar_protocol::problem::Problem;
use tokio::sync::{mpsc, oneshot};

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
    /// Something outside may have become due.
    Nudge,
}

/// The mailboxes of sessions in use.
#[derive(Default)]
pub(super) struct Roster {
    boxes: Mutex<HashMap<Key, mpsc::Sender<Mail>>>,
}

impl Roster {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, mpsc::Sender<Mail>>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session's mailbox; `start` is called with a new one's other end when it has none.
    pub(super) fn mailbox(
        &self,
        key: &Key,
        capacity: usize,
        start: impl FnOnce(mpsc::Receiver<Mail>),
    ) -> mpsc::Sender<Mail> {
        let mut boxes = self.lock();
        if let Some(sender) = boxes.get(key).filter(|sender| !sender.is_closed()) {
            return sender.clone();
        }
        let (sender, receiver) = mpsc::channel(capacity);
        boxes.insert(key.clone(), sender.clone());
        start(receiver);
        sender
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

    /// Takes a mailbox out of use.
    pub(super) fn remove(&self, key: &Key) {
        self.lock().remove(key);
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
            .is_some_and(|sender| !sender.is_closed())
    }
}
