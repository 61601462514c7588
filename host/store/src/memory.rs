//! The store in memory, for tests: the same promises until the process ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_protocol::Timestamp;
use belljar_protocol::event::Commit;
use belljar_protocol::id::{AgentId, SessionId, TenantId, VersionId};
use belljar_protocol::ports::{Append, Blobs, Boxed, SessionRow, Store, StoreCounters, StoreError};
use belljar_protocol::scratch::Digest;
use belljar_protocol::snapshot::Snapshot;
use belljar_protocol::version::{LabelMove, Swap, Version};
use bytes::Bytes;

use crate::append;

/// A store in memory. Clones share what they hold, as handles of one store.
///
/// Every write is done when its future is first polled, so a test that polls in a fixed order is
/// repeatable. Each append counts as one transaction.
#[derive(Clone, Default)]
pub struct MemoryStore {
    all: Arc<Mutex<All>>,
}

#[derive(Default)]
struct All {
    sessions: BTreeMap<(TenantId, SessionId), Stored>,
    blobs: BTreeMap<(TenantId, Digest), Bytes>,
    /// In the order they came.
    versions: BTreeMap<(TenantId, AgentId), Vec<Version>>,
    moves: BTreeMap<(TenantId, AgentId), Vec<LabelMove>>,
    counters: StoreCounters,
}

struct Stored {
    row: SessionRow,
    commits: Vec<Commit>,
    snapshot: Option<Snapshot>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore")
            .field("counters", &self.lock().counters)
            .finish()
    }
}

impl All {
    fn append(&mut self, append: Append) -> Result<(), StoreError> {
        let head_seq = append::check(&append)?;
        let Append {
            tenant,
            session,
            agent,
            expected_seq,
            commits,
            blobs,
            status,
            next_wake,
        } = append;
        let key = (tenant.clone(), session.clone());
        let found = self
            .sessions
            .get(&key)
            .map_or(0, |stored| stored.row.head_seq);
        if found != expected_seq {
            return Err(StoreError::Conflict {
                session,
                expected: expected_seq,
                found,
            });
        }
        let (Some(first), Some(last)) = (commits.first(), commits.last()) else {
            return Ok(());
        };
        let (created_at, updated_at) = (first.at, last.at);
        self.counters.commits += commits.len() as u64;
        self.counters.transactions += 1;
        let stored = self.sessions.entry(key).or_insert_with(|| Stored {
            row: SessionRow {
                session,
                agent,
                head_seq,
                status: String::new(),
                next_wake,
                created_at,
                updated_at,
            },
            commits: Vec::new(),
            snapshot: None,
        });
        stored.row.head_seq = head_seq;
        stored.row.status = status;
        stored.row.next_wake = next_wake;
        stored.row.updated_at = updated_at;
        stored.commits.extend(commits);
        for (digest, body) in blobs {
            self.blobs.entry((tenant.clone(), digest)).or_insert(body);
        }
        Ok(())
    }

    fn sessions(
        &self,
        tenant: &TenantId,
        before: Option<&(Timestamp, SessionId)>,
        limit: u32,
    ) -> Vec<SessionRow> {
        let mut rows: Vec<_> = self
            .sessions
            .iter()
            .filter(|((whose, _), _)| whose == tenant)
            .map(|(_, stored)| stored.row.clone())
            .filter(|row| {
                before.is_none_or(|(at, session)| (row.updated_at, &row.session) < (*at, session))
            })
            .collect();
        rows.sort_by(|a, b| (b.updated_at, &b.session).cmp(&(a.updated_at, &a.session)));
        rows.truncate(limit as usize);
        rows
    }

    fn read(&self, tenant: &TenantId, session: &SessionId, after: u64, limit: u32) -> Vec<Commit> {
        let Some(stored) = self.sessions.get(&(tenant.clone(), session.clone())) else {
            return Vec::new();
        };
        let from = stored
            .commits
            .partition_point(|commit| commit.last_seq() <= after);
        stored
            .commits
            .iter()
            .skip(from)
            .take(limit as usize)
            .cloned()
            .collect()
    }

    /// Sessions that have a time to wake, with it.
    fn wakes(&self) -> impl Iterator<Item = (Timestamp, &(TenantId, SessionId))> {
        self.sessions
            .iter()
            .filter_map(|(key, stored)| Some((stored.row.next_wake?, key)))
    }

    fn put_version(
        &mut self,
        tenant: TenantId,
        version: Version,
        component: Bytes,
    ) -> Result<bool, StoreError> {
        let digest = Digest::of(&component);
        if version.version.as_str().strip_prefix("sha256:") != Some(digest.as_str()) {
            let version = &version.version;
            return Err(StoreError::Failed(format!(
                "version {version} does not name its component, whose sha256 is {digest}"
            )));
        }
        let known = self
            .versions
            .entry((tenant.clone(), version.agent.clone()))
            .or_default();
        if known.iter().any(|other| other.version == version.version) {
            return Ok(false);
        }
        known.push(version);
        self.blobs.entry((tenant, digest)).or_insert(component);
        Ok(true)
    }

    fn move_label(&mut self, tenant: TenantId, agent: AgentId, wanted: LabelMove) -> LabelMove {
        let moves = self.moves.entry((tenant, agent)).or_default();
        let last = moves.iter().rev().find(|made| made.label == wanted.label);
        let previous = last.and_then(|made| made.version.clone());
        let made = LabelMove {
            id: moves.len() as u64 + 1,
            previous,
            ..wanted
        };
        moves.push(made.clone());
        made
    }
}

impl Blobs for MemoryStore {
    fn blob(
        &self,
        tenant: &TenantId,
        digest: &Digest,
    ) -> Boxed<'_, Result<Option<Bytes>, StoreError>> {
        let key = (tenant.clone(), digest.clone());
        Box::pin(async move { Ok(self.lock().blobs.get(&key).cloned()) })
    }
}

impl Store for MemoryStore {
    fn append(&self, append: Append) -> Boxed<'static, Result<(), StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.lock().append(append) })
    }

    fn session(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Boxed<'_, Result<Option<SessionRow>, StoreError>> {
        let key = (tenant.clone(), session.clone());
        Box::pin(async move {
            Ok(self
                .lock()
                .sessions
                .get(&key)
                .map(|stored| stored.row.clone()))
        })
    }

    fn sessions(
        &self,
        tenant: &TenantId,
        before: Option<(Timestamp, SessionId)>,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<SessionRow>, StoreError>> {
        let tenant = tenant.clone();
        Box::pin(async move { Ok(self.lock().sessions(&tenant, before.as_ref(), limit)) })
    }

    fn read(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<Commit>, StoreError>> {
        let (tenant, session) = (tenant.clone(), session.clone());
        Box::pin(async move { Ok(self.lock().read(&tenant, &session, after, limit)) })
    }

    fn snapshot(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Boxed<'_, Result<Option<Snapshot>, StoreError>> {
        let key = (tenant.clone(), session.clone());
        Box::pin(async move {
            Ok(self
                .lock()
                .sessions
                .get(&key)
                .and_then(|stored| stored.snapshot.clone()))
        })
    }

    fn put_snapshot(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        snapshot: Snapshot,
    ) -> Boxed<'_, Result<(), StoreError>> {
        let key = (tenant.clone(), session.clone());
        Box::pin(async move {
            if let Some(stored) = self.lock().sessions.get_mut(&key) {
                stored.snapshot = Some(snapshot);
            }
            Ok(())
        })
    }

    fn due(
        &self,
        after: Timestamp,
        now: Timestamp,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<(TenantId, SessionId)>, StoreError>> {
        Box::pin(async move {
            let all = self.lock();
            let mut due: Vec<_> = all
                .wakes()
                .filter(|(at, _)| *at > after && *at <= now)
                .collect();
            due.sort();
            Ok(due
                .into_iter()
                .take(limit as usize)
                .map(|(_, key)| key.clone())
                .collect())
        })
    }

    fn next_wake(&self, after: Timestamp) -> Boxed<'_, Result<Option<Timestamp>, StoreError>> {
        Box::pin(async move {
            Ok(self
                .lock()
                .wakes()
                .map(|(at, _)| at)
                .filter(|at| *at > after)
                .min())
        })
    }

    fn put_version(
        &self,
        tenant: &TenantId,
        version: Version,
        component: Bytes,
    ) -> Boxed<'_, Result<bool, StoreError>> {
        let tenant = tenant.clone();
        Box::pin(async move { self.lock().put_version(tenant, version, component) })
    }

    fn versions(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Boxed<'_, Result<Vec<Version>, StoreError>> {
        let key = (tenant.clone(), agent.clone());
        Box::pin(async move {
            let all = self.lock();
            Ok(all
                .versions
                .get(&key)
                .into_iter()
                .flatten()
                .rev()
                .cloned()
                .collect())
        })
    }

    fn agents(&self, tenant: &TenantId) -> Boxed<'_, Result<Vec<AgentId>, StoreError>> {
        let tenant = tenant.clone();
        Box::pin(async move {
            let all = self.lock();
            let of = all.versions.keys().filter(|(whose, _)| *whose == tenant);
            Ok(of.map(|(_, agent)| agent.clone()).collect())
        })
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
        Box::pin(async move { Ok(self.lock().move_label(tenant, agent, wanted)) })
    }

    fn label_moves(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Boxed<'_, Result<Vec<LabelMove>, StoreError>> {
        let key = (tenant.clone(), agent.clone());
        Box::pin(async move { Ok(self.lock().moves.get(&key).cloned().unwrap_or_default()) })
    }

    fn counters(&self) -> StoreCounters {
        self.lock().counters
    }
}
