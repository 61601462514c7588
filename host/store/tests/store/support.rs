//! Beds to run a store in, and small values to fill it with.

use std::path::Path;
use std::sync::Arc;

use belljar_protocol::Timestamp;
use belljar_protocol::event::{Commit, Event, HeadMoved, SessionCreated};
use belljar_protocol::id::{AgentId, MessageId, SessionId, TenantId};
use belljar_protocol::ports::{Append, Store};
use belljar_store::{MemoryStore, SqliteStore};
use tempfile::TempDir;

/// Where a store lives, so that it can be opened again.
pub(crate) trait Bed {
    fn open(&self) -> Arc<dyn Store>;
}

/// A directory that goes away with the test.
pub(crate) struct SqliteBed(TempDir);

impl SqliteBed {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }
}

impl Bed for SqliteBed {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(self.dir()).unwrap())
    }
}

/// Memory that lasts as long as the test.
#[derive(Default)]
pub(crate) struct MemoryBed(MemoryStore);

impl Bed for MemoryBed {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }
}

pub(crate) fn tenant() -> TenantId {
    TenantId::built_in()
}

pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_764_547_200_000 + millis)
}

/// A commit of `events` events from `first_seq`, made at `millis`.
pub(crate) fn commit(first_seq: u64, events: u64, millis: i64) -> Commit {
    let event = |seq| match seq {
        1 => Event::SessionCreated(SessionCreated {
            agent_id: AgentId::from("ledger"),
            identity: Default::default(),
            ancestry: vec![],
        }),
        seq => Event::HeadMoved(HeadMoved {
            head: Some(MessageId::from(format!("m-{seq}"))),
        }),
    };
    Commit {
        first_seq,
        at: at(millis),
        events: (first_seq..first_seq + events).map(event).collect(),
    }
}

/// One commit of `events` events on a log that ends at `expected_seq`.
pub(crate) fn append(session: &str, expected_seq: u64, events: u64) -> Append {
    Append {
        tenant: tenant(),
        session: SessionId::from(session),
        agent: AgentId::from("ledger"),
        expected_seq,
        commits: vec![commit(expected_seq + 1, events, expected_seq as i64)],
        blobs: vec![],
        status: "running".into(),
        next_wake: None,
    }
}

/// Bytes that nothing compresses or repeats, told apart by `seed`.
pub(crate) fn noise(seed: u64, len: usize) -> bytes::Bytes {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}
