//! A store that fails where a plan says so.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use belljar_protocol::Timestamp;
use belljar_protocol::event::Commit;
use belljar_protocol::id::{AgentId, SessionId, TenantId, VersionId};
use belljar_protocol::ports::{Append, Blobs, Boxed, SessionRow, Store, StoreCounters, StoreError};
use belljar_protocol::scratch::Digest;
use belljar_protocol::snapshot::Snapshot;
use belljar_protocol::version::{LabelMove, Swap, Version};
use bytes::Bytes;

/// What goes wrong, and when.
///
/// Appends are counted from 1 in the order `append` is called, so a plan hits the same append
/// whenever the caller does the same things in the same order.
#[derive(Clone, Default)]
pub struct FaultPlan {
    fail_before: Vec<u64>,
    fail_after: Vec<u64>,
    delays: BTreeMap<u64, Duration>,
    every: Option<Duration>,
    crash: Option<(u64, Crash)>,
    transient: bool,
}

type Crash = Arc<dyn Fn() + Send + Sync>;

impl FaultPlan {
    /// A plan of nothing: the store works as the one inside.
    pub fn new() -> Self {
        Self::default()
    }

    /// The `nth` append fails and nothing of it is stored.
    #[must_use]
    pub fn fail_before(mut self, nth: u64) -> Self {
        self.fail_before.push(nth);
        self
    }

    /// The `nth` append is stored, and its caller is told that it failed: what a sync that broke
    /// off late looks like.
    #[must_use]
    pub fn fail_after(mut self, nth: u64) -> Self {
        self.fail_after.push(nth);
        self
    }

    /// The `nth` append begins only after `delay`, so that later ones overtake it. Needs a tokio
    /// runtime with a timer.
    #[must_use]
    pub fn delay(mut self, nth: u64, delay: Duration) -> Self {
        self.delays.insert(nth, delay);
        self
    }

    /// Every append without a delay of its own begins only after `delay`.
    #[must_use]
    pub fn delay_every(mut self, delay: Duration) -> Self {
        self.every = Some(delay);
        self
    }

    /// Calls `crash` right after the `nth` append that became durable, before anybody hears of
    /// it. These are counted as they become durable, refused ones not at all.
    ///
    /// A kill test has `crash` end the process (`std::process::abort`), so that the
    /// acknowledgement never leaves; in a simulation it drops the host and returns. The append's
    /// future resolves after it returned.
    #[must_use]
    pub fn crash_after(mut self, nth: u64, crash: impl Fn() + Send + Sync + 'static) -> Self {
        self.crash = Some((nth, Arc::new(crash)));
        self
    }

    /// Failures pass: what comes after one works again. Without this a failed append stops all
    /// later writes, as it does in a real store.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.transient = true;
        self
    }
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultPlan")
            .field("fail_before", &self.fail_before)
            .field("fail_after", &self.fail_after)
            .field("delays", &self.delays)
            .field("every", &self.every)
            .field("crash_after", &self.crash.as_ref().map(|(nth, _)| nth))
            .field("transient", &self.transient)
            .finish()
    }
}

/// Any store, with the faults of a plan. A "restart" in a test is a new one around the same
/// store.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    script: Arc<Script>,
}

struct Script {
    plan: FaultPlan,
    begun: AtomicU64,
    durable: AtomicU64,
    stopped: AtomicBool,
}

impl FaultyStore {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Store>, plan: FaultPlan) -> Self {
        let (begun, durable) = (AtomicU64::new(0), AtomicU64::new(0));
        let script = Script {
            plan,
            begun,
            durable,
            stopped: AtomicBool::new(false),
        };
        Self {
            inner,
            script: Arc::new(script),
        }
    }

    /// Appends begun so far: what the next fault's `nth` is counted by.
    pub fn appends(&self) -> u64 {
        self.script.begun.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore")
            .field("plan", &self.script.plan)
            .field("appends", &self.appends())
            .finish_non_exhaustive()
    }
}

impl Script {
    fn check(&self) -> Result<(), StoreError> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(StoreError::Failed("planned: writing has stopped".into()));
        }
        Ok(())
    }

    fn fail(&self, nth: u64, how: &str) -> StoreError {
        if !self.plan.transient {
            self.stopped.store(true, Ordering::Relaxed);
        }
        StoreError::Failed(format!("planned: append {nth} failed {how} it was stored"))
    }

    async fn append(
        &self,
        nth: u64,
        inner: Arc<dyn Store>,
        append: Append,
    ) -> Result<(), StoreError> {
        if let Some(delay) = self.plan.delays.get(&nth).copied().or(self.plan.every) {
            tokio::time::sleep(delay).await;
        }
        self.check()?;
        if self.plan.fail_before.contains(&nth) {
            return Err(self.fail(nth, "before"));
        }
        inner.append(append).await?;
        let durable = self.durable.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some((at, crash)) = &self.plan.crash
            && *at == durable
        {
            crash();
        }
        if self.plan.fail_after.contains(&nth) {
            return Err(self.fail(nth, "after"));
        }
        Ok(())
    }
}

impl Blobs for FaultyStore {
    fn blob(
        &self,
        tenant: &TenantId,
        digest: &Digest,
    ) -> Boxed<'_, Result<Option<Bytes>, StoreError>> {
        self.inner.blob(tenant, digest)
    }
}

impl Store for FaultyStore {
    fn append(&self, append: Append) -> Boxed<'static, Result<(), StoreError>> {
        let nth = self.script.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let (inner, script) = (Arc::clone(&self.inner), Arc::clone(&self.script));
        Box::pin(async move { script.append(nth, inner, append).await })
    }

    fn session(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Boxed<'_, Result<Option<SessionRow>, StoreError>> {
        self.inner.session(tenant, session)
    }

    fn sessions(
        &self,
        tenant: &TenantId,
        before: Option<(Timestamp, SessionId)>,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<SessionRow>, StoreError>> {
        self.inner.sessions(tenant, before, limit)
    }

    fn read(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<Commit>, StoreError>> {
        self.inner.read(tenant, session, after, limit)
    }

    fn snapshot(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Boxed<'_, Result<Option<Snapshot>, StoreError>> {
        self.inner.snapshot(tenant, session)
    }

    fn put_snapshot(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        snapshot: Snapshot,
    ) -> Boxed<'_, Result<(), StoreError>> {
        let (tenant, session) = (tenant.clone(), session.clone());
        Box::pin(async move {
            self.script.check()?;
            self.inner.put_snapshot(&tenant, &session, snapshot).await
        })
    }

    fn due(
        &self,
        after: Timestamp,
        now: Timestamp,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<(TenantId, SessionId)>, StoreError>> {
        self.inner.due(after, now, limit)
    }

    fn next_wake(&self, after: Timestamp) -> Boxed<'_, Result<Option<Timestamp>, StoreError>> {
        self.inner.next_wake(after)
    }

    fn put_version(
        &self,
        tenant: &TenantId,
        version: Version,
        component: Bytes,
    ) -> Boxed<'_, Result<bool, StoreError>> {
        let tenant = tenant.clone();
        Box::pin(async move {
            self.script.check()?;
            self.inner.put_version(&tenant, version, component).await
        })
    }

    fn versions(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Boxed<'_, Result<Vec<Version>, StoreError>> {
        self.inner.versions(tenant, agent)
    }

    fn agents(&self, tenant: &TenantId) -> Boxed<'_, Result<Vec<AgentId>, StoreError>> {
        self.inner.agents(tenant)
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
        Box::pin(async move {
            self.script.check()?;
            self.inner
                .move_label(&tenant, &agent, &label, version, swap, &by, at)
                .await
        })
    }

    fn label_moves(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Boxed<'_, Result<Vec<LabelMove>, StoreError>> {
        self.inner.label_moves(tenant, agent)
    }

    fn counters(&self) -> StoreCounters {
        self.inner.counters()
    }
}
