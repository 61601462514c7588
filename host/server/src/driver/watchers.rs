//! What subscribers see: the log from where they left off, then what is committed, live.
//!
//! A subscriber registers first and reads the store afterwards, so that nothing falls between.
//! One that does not read for long loses its live buffer and goes on from the store where it
//! was; it never slows a session.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_protocol::event::Commit;
use belljar_protocol::id::{CallId, SessionId, TenantId};
use belljar_protocol::model::StreamDelta;
use belljar_protocol::ports::{Store, StoreError};
use tokio::sync::mpsc;

use super::Item;
use super::roster::Key;

/// Commits read from the store at once while a subscriber is replayed: a commit may hold a message
/// of many megabytes, and each subscriber holds its page.
const PAGE: u32 = 16;

/// What is sent to a subscriber's buffer.
#[derive(Clone)]
enum Live {
    Commit(Arc<Commit>),
    Delta(CallId, u32, Arc<StreamDelta>),
}

/// The subscribers of all sessions.
#[derive(Default)]
pub(super) struct Watchers {
    watching: Mutex<Watching>,
    count: AtomicU64,
}

#[derive(Default)]
struct Watching {
    by_session: HashMap<Key, Vec<mpsc::Sender<Live>>>,
    /// Nothing will be shown any more.
    over: bool,
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many subscriptions there are.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Shows durable commits to a session's subscribers. One whose buffer is full is let go: its
    /// subscription notices, and reads the store.
    pub(super) fn publish(&self, key: &Key, commits: &[Arc<Commit>]) {
        let all = &mut self.lock().by_session;
        let Some(senders) = all.get_mut(key) else {
            return;
        };
        senders.retain(|sender| {
            commits
                .iter()
                .all(|commit| sender.try_send(Live::Commit(commit.clone())).is_ok())
        });
        if senders.is_empty() {
            all.remove(key);
        }
    }

    /// Shows a token. Deltas may be missed: half of a buffer is kept for events.
    pub(super) fn delta(&self, key: &Key, call_id: &CallId, attempt: u32, delta: StreamDelta) {
        let all = self.lock();
        let Some(senders) = all.by_session.get(key) else {
            return;
        };
        let delta = Arc::new(delta);
        for sender in senders
            .iter()
            .filter(|sender| sender.capacity() > sender.max_capacity() / 2)
        {
            let live = Live::Delta(call_id.clone(), attempt, delta.clone());
            // Full or gone: the delta is missed, as deltas may be.
            drop(sender.try_send(live));
        }
    }

    /// A buffer for one more subscriber; one that is closed when the host is gone.
    fn register(&self, key: &Key, buffer: usize) -> mpsc::Receiver<Live> {
        let (sender, receiver) = mpsc::channel(buffer.max(2));
        let mut all = self.lock();
        if !all.over {
            all.by_session.entry(key.clone()).or_default().push(sender);
        }
        receiver
    }

    /// Lets go of subscribers that are gone, so that a session nobody writes to keeps nothing.
    fn prune(&self, key: &Key) {
        let all = &mut self.lock().by_session;
        if let Some(senders) = all.get_mut(key) {
            senders.retain(|sender| !sender.is_closed());
            if senders.is_empty() {
                all.remove(key);
            }
        }
    }

    /// The host is gone: subscriptions end.
    pub(super) fn stop(&self) {
        let mut all = self.lock();
        all.over = true;
        all.by_session.clear();
    }

    fn is_over(&self) -> bool {
        self.lock().over
    }
}

/// A view of a session's log that goes on for ever.
pub struct Subscription {
    watchers: Arc<Watchers>,
    store: Arc<dyn Store>,
    key: Key,
    buffer: usize,
    live: mpsc::Receiver<Live>,
    /// The last seq given.
    last: u64,
    /// Items ready to be given.
    ready: VecDeque<Item>,
    replaying: bool,
    caught_up: bool,
    over: bool,
}

impl Subscription {
    pub(super) fn new(
        watchers: Arc<Watchers>,
        store: Arc<dyn Store>,
        key: Key,
        after: u64,
        buffer: usize,
    ) -> Self {
        watchers.count.fetch_add(1, Ordering::Relaxed);
        let live = watchers.register(&key, buffer);
        Self {
            watchers,
            store,
            key,
            buffer,
            live,
            last: after,
            ready: VecDeque::new(),
            replaying: true,
            caught_up: false,
            over: false,
        }
    }

    /// The next thing to see; none after `Item::Closed`. May be dropped and called again.
    pub async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item);
            }
            if self.over {
                return None;
            }
            if self.replaying {
                if let Err(error) = self.replay().await {
                    self.over = true;
                    return Some(Item::Closed {
                        reason: error.to_string(),
                        read_from: self.last,
                    });
                }
                continue;
            }
            match self.live.recv().await {
                Some(Live::Commit(commit)) => self.take(&commit),
                Some(Live::Delta(call_id, attempt, delta)) => {
                    let delta = StreamDelta::clone(&delta);
                    return Some(Item::Delta {
                        call_id,
                        attempt,
                        delta,
                    });
                }
                None if self.watchers.is_over() => {
                    self.over = true;
                    return Some(Item::Closed {
                        reason: "the host stopped".into(),
                        read_from: self.last,
                    });
                }
                // Let go for reading too slowly: register again, and go on from the store.
                None => {
                    self.live = self.watchers.register(&self.key, self.buffer);
                    self.replaying = true;
                }
            }
        }
    }

    /// Reads the next page of the log; the end of it is where live events go on.
    async fn replay(&mut self) -> Result<(), StoreError> {
        let (tenant, session): (&TenantId, &SessionId) = (&self.key.tenant, &self.key.session);
        let page = self.store.read(tenant, session, self.last, PAGE).await?;
        if page.is_empty() {
            self.replaying = false;
            if !std::mem::replace(&mut self.caught_up, true) {
                self.ready.push_back(Item::CaughtUp { seq: self.last });
            }
        }
        page.iter().for_each(|commit| self.take(commit));
        Ok(())
    }

    fn take(&mut self, commit: &Commit) {
        for (seq, event) in (commit.first_seq..).zip(&commit.events) {
            if seq > self.last {
                self.last = seq;
                let event = Arc::new(event.clone());
                self.ready.push_back(Item::Event {
                    seq,
                    at: commit.at,
                    event,
                });
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.live.close();
        self.watchers.prune(&self.key);
        self.watchers.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use belljar_store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_subscriber_that_is_gone_leaves_nothing_behind() {
        let watchers = Arc::new(Watchers::default());
        let key = Key {
            tenant: TenantId::built_in(),
            session: SessionId::from("s"),
        };
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let subscribe = || Subscription::new(watchers.clone(), store.clone(), key.clone(), 0, 16);
        let (one, two) = (subscribe(), subscribe());
        drop(one);
        assert_eq!(watchers.lock().by_session[&key].len(), 1);
        drop(two);
        assert!(watchers.lock().by_session.is_empty());
        assert_eq!(watchers.count(), 0);
    }
}
