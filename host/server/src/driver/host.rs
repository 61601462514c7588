//! The host: what routes and commands ask of sessions and agents.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_engine::{Command, Party, Reply, SettleError};
use belljar_protocol::decision::Identity;
use belljar_protocol::event::{Commit, Event};
use belljar_protocol::id::{AgentId, CallId, DecisionId, SessionId, TenantId, VersionId};
use belljar_protocol::input::ClientInput;
use belljar_protocol::ports::{DeltaSink, Refused, SessionRow, Store, StoreError};
use belljar_protocol::problem::Problem;
use belljar_protocol::scratch::Digest;
use belljar_protocol::version::{LabelMove, Swap, Version};
use belljar_protocol::{Json, Timestamp};
use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;

use super::records::{Records, Wanted};
use super::roster::{Key, Mail, Roster};
use super::session::Session;
use super::versions::{self, LIVE, Labels};
use super::watchers::{Subscription, Watchers};
use super::{
    AgentInfo, Counters, DecisionRecord, FileInfo, HostConfig, LogEvent, LogPage, Parts,
    SessionState, Submitted, Uploaded, wakeups,
};

/// Commits read at once where a whole log is walked.
const PAGE: u32 = 1_024;

/// A running host. Cheap to clone; all clones are the same host.
///
/// Dropping the last clone ends its tasks where they are, as a crash would; [`Host::drain`] first
/// ends them in order. What either cuts off goes on when a host starts on the same store.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
    _alive: Arc<Alive>,
}

/// Held by the clones of a host, and by none of its tasks: what they hold is [`Inner`].
struct Alive {
    inner: Arc<Inner>,
    wakeups: AbortHandle,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.inner.draining.store(true, Ordering::Release);
        self.inner.stopped.store(true, Ordering::Release);
        self.wakeups.abort();
        self.inner.roster.abort();
        self.inner.watchers.stop();
    }
}

pub(super) struct Inner {
    pub(super) parts: Parts,
    pub(super) config: HostConfig,
    pub(super) roster: Roster,
    pub(super) watchers: Arc<Watchers>,
    pub(super) labels: Labels,
    pub(super) counters: Tallies,
    /// Free places for model calls, by tenant.
    models: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
    draining: AtomicBool,
    /// The last handle is gone: nothing is begun any more.
    stopped: AtomicBool,
    failed: AtomicBool,
    /// Told when a session is written with a timer.
    wake: Notify,
    /// The earliest timer written since the wake-up loop last looked, in ms.
    earliest: AtomicU64,
}

/// Counts since the start.
#[derive(Default)]
pub(super) struct Tallies {
    decisions: AtomicU64,
    failed: AtomicU64,
    model_calls: AtomicU64,
    loaded: AtomicU64,
}

impl Tallies {
    pub(super) fn decided(&self) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
    }
    pub(super) fn answered(&self, ok: bool) {
        self.failed.fetch_add(u64::from(!ok), Ordering::Relaxed);
    }
    pub(super) fn asked(&self) {
        self.model_calls.fetch_add(1, Ordering::Relaxed);
    }
    pub(super) fn loaded(&self) {
        self.loaded.fetch_add(1, Ordering::Relaxed);
    }
    pub(super) fn unloaded(&self) {
        self.loaded.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    pub(super) fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The store failed: says so once.
    pub(super) fn fatal(&self, reason: &str) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!(reason, "the store failed; the host cannot go on");
            if let Some(hook) = &self.config.on_fatal {
                hook(reason);
            }
        }
    }

    /// Resolves when a session that has nothing to do may leave memory. One that does not exist,
    /// and was loaded for a stranger's words, goes at once.
    pub(super) async fn idle(&self, idle: bool, exists: bool) {
        if !idle {
            return pending().await;
        }
        if !exists {
            return;
        }
        let _counted = self.roster.idle();
        let mut unload = pin!(tokio::time::sleep(self.config.idle_unload));
        while self.roster.len() <= self.config.loaded_sessions {
            tokio::select! {
                () = &mut unload => return,
                () = self.roster.crowded() => {}
            }
        }
    }

    /// A place among the tenant's model calls.
    pub(super) async fn model_permit(&self, tenant: &TenantId) -> Option<OwnedSemaphorePermit> {
        let places = self
            .models
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(tenant.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(self.config.model_calls_per_tenant.max(1))))
            .clone();
        // The semaphore is never closed; none would only mean that nothing is held back.
        places.acquire_owned().await.ok()
    }

    /// Where the tokens of a call go.
    pub(super) fn sink(&self, key: &Key, call_id: CallId, attempt: u32) -> DeltaSink {
        let (watchers, key) = (self.watchers.clone(), key.clone());
        Arc::new(move |delta| watchers.delta(&key, &call_id, attempt, delta))
    }

    /// A session was written with a timer at `at`.
    pub(super) fn wakes_at(&self, at: Timestamp) {
        let at = u64::try_from(at.millis()).unwrap_or(0);
        self.earliest.fetch_min(at, Ordering::AcqRel);
        self.wake.notify_one();
    }

    /// Resolves when a timer earlier than `next` was written, or the host drains.
    pub(super) async fn wake_moved(&self, next: Option<Timestamp>) {
        let next = next.map_or(u64::MAX, |at| u64::try_from(at.millis()).unwrap_or(0));
        loop {
            self.wake.notified().await;
            let earliest = self.earliest.swap(u64::MAX, Ordering::AcqRel);
            if earliest < next || self.is_draining() {
                return;
            }
        }
    }

    /// Puts mail in a session's box, waking the session when it sleeps.
    pub(super) async fn send(self: &Arc<Self>, key: &Key, mail: Mail) {
        let mut mail = mail;
        while !self.stopped.load(Ordering::Acquire) {
            let sender = self.mailbox(key);
            match sender.send(mail).await {
                Ok(()) => return,
                // It left memory at this moment: the next mailbox takes it.
                Err(returned) => mail = returned.0,
            }
        }
    }

    /// The same, refusing when too much waits already.
    fn try_send(self: &Arc<Self>, key: &Key, mail: Mail) -> Result<(), Problem> {
        let mut mail = mail;
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return Err(gone());
            }
            let most = self.config.loaded_sessions.max(1);
            if self.roster.is_full_for(key, most) {
                let detail =
                    format!("{most} sessions are at work on this host; try again in a moment");
                return Err(Problem::new(503, "host_full", detail).with("retry_after", 1));
            }
            match self.mailbox(key).try_send(mail) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(returned)) => mail = returned,
                Err(TrySendError::Full(_)) => {
                    let most = self.config.mailbox;
                    let detail =
                        format!("{most} commands wait for this session; try again in a moment");
                    return Err(Problem::new(429, "session_busy", detail).with("retry_after", 1));
                }
            }
        }
    }

    fn mailbox(self: &Arc<Self>, key: &Key) -> tokio::sync::mpsc::Sender<Mail> {
        let (capacity, most) = (self.config.mailbox.max(1), self.config.loaded_sessions);
        self.roster.mailbox(key, capacity, most, |mail| {
            tokio::spawn(Session::run(self.clone(), key.clone(), mail)).abort_handle()
        })
    }
}

fn store(error: StoreError) -> Problem {
    Problem::new(503, "store_failed", error.to_string())
}

fn session_unknown(session: &SessionId) -> Problem {
    Problem::new(
        404,
        "session_unknown",
        format!("there is no session `{session}`"),
    )
}

fn agent_unknown(agent: &AgentId) -> Problem {
    let detail =
        format!("there is no agent `{agent}`; upload a component to /v1/agents/{agent}/versions");
    Problem::new(404, "agent_unknown", detail)
}

impl Host {
    /// Starts a host on its parts: sessions with open work are found and go on.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn start(parts: Parts, config: HostConfig) -> Result<Self, StoreError> {
        // A store that cannot be read is found here, and not by the first client.
        parts.store.next_wake(parts.clock.now()).await?;
        let inner = Arc::new(Inner {
            parts,
            config,
            roster: Roster::default(),
            watchers: Arc::default(),
            labels: Labels::default(),
            counters: Tallies::default(),
            models: Mutex::default(),
            draining: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            wake: Notify::new(),
            earliest: AtomicU64::new(u64::MAX),
        });
        let wakeups = tokio::spawn(wakeups::run(inner.clone())).abort_handle();
        let alive = Alive {
            inner: inner.clone(),
            wakeups,
        };
        Ok(Self {
            inner,
            _alive: Arc::new(alive),
        })
    }

    /// Takes no new input and starts no new work, and waits until what was made is on disk, at
    /// most this long. Decisions and model calls under way are abandoned: the next start finds
    /// them.
    pub async fn drain(&self, at_most: Duration) {
        self.inner.draining.store(true, Ordering::Release);
        self.inner.wake.notify_one();
        let keys = self.inner.roster.keys();
        let settle = async {
            for key in keys {
                let (to, done) = oneshot::channel();
                self.inner.send(&key, Mail::Look(to)).await;
                // A session that ended meanwhile has nothing left to write.
                drop(done.await);
            }
        };
        if tokio::time::timeout(at_most, settle).await.is_err() {
            tracing::warn!(
                "drained for as long as allowed; the rest is recovered at the next start"
            );
        }
    }

    /// Whether the host takes work.
    ///
    /// # Errors
    /// 503 while it drains, or when its store fails.
    pub async fn ready(&self) -> Result<(), Problem> {
        self.accepts()?;
        self.store()
            .next_wake(self.inner.now())
            .await
            .map_err(store)?;
        Ok(())
    }

    fn store(&self) -> &dyn Store {
        self.inner.parts.store.as_ref()
    }

    fn accepts(&self) -> Result<(), Problem> {
        if self.inner.is_draining() {
            let detail = "this host is shutting down; try again in a moment";
            return Err(Problem::new(503, "draining", detail).with("retry_after", 5));
        }
        if self.inner.failed.load(Ordering::Acquire) {
            let detail = "this host's store has failed; it must be restarted";
            return Err(Problem::new(503, "store_failed", detail));
        }
        Ok(())
    }

    // ---- sessions ----

    /// Takes a client's input. Answers once it is on disk.
    ///
    /// # Errors
    /// The refusals of S4, I1 and I12; 404 `agent_unknown` and 409 `agent_not_live` for an agent
    /// that cannot answer; 429, 503.
    pub async fn submit(
        &self,
        tenant: &TenantId,
        session: Option<SessionId>,
        input: ClientInput,
        identity: Identity,
    ) -> Result<Submitted, Problem> {
        self.accepts()?;
        let session_id =
            session.unwrap_or_else(|| SessionId::from(uuid::Uuid::now_v7().to_string()));
        let version = match input.agent_id() {
            Some(agent) => self.version_for(tenant, &session_id, agent).await?,
            None => None,
        };
        let command = Command::Submit {
            input,
            identity,
            version,
        };
        match self.command(tenant, &session_id, command).await? {
            Reply::Submitted { turn_id } => Ok(Submitted {
                session_id,
                turn_id,
            }),
            Reply::Answered { .. } | Reply::Done => Ok(Submitted {
                session_id,
                turn_id: None,
            }),
        }
    }

    /// The version a turn would run on. An agent that cannot answer is refused before a session
    /// is made for it; on a session that exists, the session's own agent decides.
    async fn version_for(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Option<VersionId>, Problem> {
        let live = self.live(tenant, agent).await?;
        if live.is_some()
            || self
                .store()
                .session(tenant, session)
                .await
                .map_err(store)?
                .is_some()
        {
            return Ok(live);
        }
        if self
            .store()
            .versions(tenant, agent)
            .await
            .map_err(store)?
            .is_empty()
        {
            return Err(agent_unknown(agent));
        }
        Err(Problem::new(
            409,
            "agent_not_live",
            versions::not_live(agent),
        ))
    }

    /// Settles an open call from outside [C4]. Answers once it is on disk.
    ///
    /// # Errors
    /// 404, 403, 409 in that order; 429, 503.
    #[allow(clippy::too_many_arguments, reason = "they are the request")]
    pub async fn settle(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        call_id: CallId,
        by: Party,
        attempt: Option<u32>,
        outcome: Result<Option<Json>, SettleError>,
    ) -> Result<(), Problem> {
        self.accepts()?;
        let command = Command::Settle {
            call_id,
            by,
            attempt,
            outcome,
        };
        self.command(tenant, session, command).await.map(drop)
    }

    /// Ends the running turn now [S8].
    ///
    /// # Errors
    /// 404 for an unknown session; 429, 503.
    pub async fn abort(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        by: Party,
    ) -> Result<(), Problem> {
        self.accepts()?;
        self.command(tenant, session, Command::Abort { by })
            .await
            .map(drop)
    }

    /// Ends the session for good [S8].
    ///
    /// # Errors
    /// 404 for an unknown session; 429, 503.
    pub async fn close(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        by: Party,
    ) -> Result<(), Problem> {
        self.accepts()?;
        self.command(tenant, session, Command::Close { by })
            .await
            .map(drop)
    }

    async fn command(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        command: Command,
    ) -> Result<Reply, Problem> {
        let key = Key {
            tenant: tenant.clone(),
            session: session.clone(),
        };
        let (to, outcome) = oneshot::channel();
        self.inner
            .try_send(&key, Mail::Command(Box::new(command), to))?;
        outcome.await.unwrap_or_else(|_| Err(gone()))
    }

    /// The session as it is on disk.
    ///
    /// # Errors
    /// 404 for an unknown session; 429, 503.
    pub async fn state(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Result<SessionState, Problem> {
        let key = Key {
            tenant: tenant.clone(),
            session: session.clone(),
        };
        self.row(tenant, session).await?;
        let (to, view) = oneshot::channel();
        self.inner.try_send(&key, Mail::Look(to))?;
        let view = view.await.unwrap_or_else(|_| Err(gone()))?;
        view.map(|view| *view)
            .ok_or_else(|| session_unknown(session))
    }

    /// The session's row. Strangers' session ids end here, before anything is loaded for them.
    async fn row(&self, tenant: &TenantId, session: &SessionId) -> Result<SessionRow, Problem> {
        let row = self.store().session(tenant, session).await.map_err(store)?;
        row.ok_or_else(|| session_unknown(session))
    }

    /// Events after `after`, at most `limit`.
    ///
    /// # Errors
    /// 404 for an unknown session; 503.
    pub async fn log(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Result<LogPage, Problem> {
        let head_seq = self.row(tenant, session).await?.head_seq;
        // Every commit holds an event at least, so this many commits are enough.
        let commits = self
            .store()
            .read(tenant, session, after, limit)
            .await
            .map_err(store)?;
        let events = commits
            .iter()
            .flat_map(events)
            .filter(|event| event.seq > after);
        Ok(LogPage {
            events: events.take(limit as usize).collect(),
            head_seq,
        })
    }

    /// The log from `after` on, and on for ever.
    ///
    /// # Errors
    /// 404 for an unknown session; 503.
    pub async fn subscribe(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
    ) -> Result<Subscription, Problem> {
        self.row(tenant, session).await?;
        let key = Key {
            tenant: tenant.clone(),
            session: session.clone(),
        };
        let buffer = self.inner.config.subscriber_buffer;
        Ok(Subscription::new(
            self.inner.watchers.clone(),
            self.inner.parts.store.clone(),
            key,
            after,
            buffer,
        ))
    }

    /// Decisions queued after seq `after`, at most `limit`, oldest first. Walks the log.
    ///
    /// # Errors
    /// 404 for an unknown session; 503.
    pub async fn decisions(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<DecisionRecord>, Problem> {
        self.row(tenant, session).await?;
        let wanted = Wanted::After {
            seq: after,
            most: limit as usize,
        };
        self.records(tenant, session, after, wanted).await
    }

    async fn records(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
        wanted: Wanted,
    ) -> Result<Vec<DecisionRecord>, Problem> {
        let mut records = Records::new(wanted);
        self.walk(tenant, session, after, |commits| {
            commits.iter().for_each(|commit| records.take(commit));
            match records.is_complete() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
        .await?;
        Ok(records.into_vec())
    }

    /// One decision. Walks the log.
    ///
    /// # Errors
    /// 404 for an unknown session or decision; 503.
    pub async fn decision(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        id: &DecisionId,
    ) -> Result<DecisionRecord, Problem> {
        self.row(tenant, session).await?;
        let found = self
            .records(tenant, session, 0, Wanted::One(id.clone()))
            .await?;
        found.into_iter().next().ok_or_else(|| {
            Problem::new(
                404,
                "decision_unknown",
                format!("session `{session}` has no decision `{id}`"),
            )
        })
    }

    /// All deliveries, oldest first.
    ///
    /// # Errors
    /// 404 for an unknown session; 503.
    pub async fn files(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Result<Vec<FileInfo>, Problem> {
        self.row(tenant, session).await?;
        let mut files = Vec::new();
        self.walk(tenant, session, 0, |commits| {
            for event in commits.iter().flat_map(events) {
                if let Event::FileDelivered(delivered) = &*event.event {
                    let file = &delivered.file;
                    files.push(FileInfo {
                        path: file.path.clone(),
                        bytes: file.bytes,
                        sha256: file.sha256.clone(),
                        description: file.description.clone(),
                        seq: event.seq,
                        at: event.at,
                    });
                }
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(files)
    }

    /// The newest delivery of a path, and its content.
    ///
    /// # Errors
    /// 404 for an unknown session or path; 503.
    pub async fn file(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        path: &str,
    ) -> Result<(FileInfo, Bytes), Problem> {
        let unknown = || {
            Problem::new(
                404,
                "file_unknown",
                format!("session `{session}` has delivered no `{path}`"),
            )
        };
        let files = self.files(tenant, session).await?;
        let file = files
            .into_iter()
            .rfind(|file| file.path == path)
            .ok_or_else(unknown)?;
        let content = self
            .store()
            .blob(tenant, &file.sha256)
            .await
            .map_err(store)?;
        let content = content.ok_or_else(|| {
            let detail = format!(
                "the content of `{path}` ({}) is missing from the store",
                file.sha256
            );
            Problem::new(500, "blob_missing", detail)
        })?;
        Ok((file, content))
    }

    /// Sessions by last change, newest first.
    ///
    /// # Errors
    /// 503.
    pub async fn sessions(
        &self,
        tenant: &TenantId,
        before: Option<(Timestamp, SessionId)>,
        limit: u32,
    ) -> Result<Vec<SessionRow>, Problem> {
        self.store()
            .sessions(tenant, before, limit)
            .await
            .map_err(store)
    }

    /// Reads a log page by page, until its end or until no more is wanted.
    async fn walk(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
        mut take: impl FnMut(&[Commit]) -> ControlFlow<()>,
    ) -> Result<(), Problem> {
        let mut after = after;
        loop {
            let commits = self
                .store()
                .read(tenant, session, after, PAGE)
                .await
                .map_err(store)?;
            let Some(last) = commits.last() else {
                return Ok(());
            };
            after = last.last_seq();
            if take(&commits).is_break() {
                return Ok(());
            }
        }
    }

    // ---- agents ----

    /// Checks and stores a component. The same bytes again are the same version.
    ///
    /// # Errors
    /// 413, 422 with the step, the reason and the fix; 503.
    pub async fn upload(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        component: Bytes,
        make_live: bool,
        by: &str,
    ) -> Result<Uploaded, Problem> {
        self.accepts()?;
        let bytes = component.clone();
        let digest = tokio::task::spawn_blocking(move || Digest::of(&bytes)).await;
        let digest =
            digest.map_err(|_| Problem::new(500, "internal", "the digest was not made"))?;
        let id = VersionId::from(format!("sha256:{digest}"));
        let known = self
            .versions_of(tenant, agent)
            .await?
            .into_iter()
            .find(|version| version.version == id);
        let uploaded = match known {
            Some(version) => Uploaded {
                version,
                created: false,
            },
            None => {
                let size = component.len() as u64;
                let admitted = self
                    .inner
                    .parts
                    .components
                    .admit(component.clone())
                    .await
                    .map_err(refused)?;
                let version = Version {
                    version: id.clone(),
                    agent: agent.clone(),
                    size,
                    world: admitted.world,
                    imports: admitted.imports,
                    compile_ms: admitted.compile_ms,
                    uploaded_at: self.inner.now(),
                };
                let created = self
                    .store()
                    .put_version(tenant, version.clone(), component)
                    .await
                    .map_err(store)?;
                Uploaded { version, created }
            }
        };
        if make_live && self.live(tenant, agent).await?.as_ref() != Some(&id) {
            self.move_label(tenant, agent, LIVE, Some(id), Swap::Turn, by)
                .await?;
        }
        Ok(uploaded)
    }

    /// The moves of an agent's labels, from memory where they are known.
    async fn moves(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Arc<Vec<LabelMove>>, Problem> {
        let moves = self.inner.labels.of(self.store(), tenant, agent).await;
        moves.map_err(store)
    }

    /// Where `live` points.
    async fn live(&self, tenant: &TenantId, agent: &AgentId) -> Result<Option<VersionId>, Problem> {
        let moves = self.moves(tenant, agent).await?;
        Ok(versions::at(&moves, LIVE))
    }

    /// The agents, by name.
    ///
    /// # Errors
    /// 503.
    pub async fn agents(&self, tenant: &TenantId) -> Result<Vec<AgentInfo>, Problem> {
        let mut all = Vec::new();
        for agent in self.store().agents(tenant).await.map_err(store)? {
            all.push(self.agent(tenant, &agent).await?);
        }
        Ok(all)
    }

    /// One agent.
    ///
    /// # Errors
    /// 404; 503.
    pub async fn agent(&self, tenant: &TenantId, agent: &AgentId) -> Result<AgentInfo, Problem> {
        let versions = self.versions(tenant, agent).await?.len();
        let moves = self.moves(tenant, agent).await?;
        let mut labels = BTreeMap::new();
        for moved in moves.iter() {
            match &moved.version {
                Some(version) => labels.insert(moved.label.clone(), version.clone()),
                None => labels.remove(&moved.label),
            };
        }
        Ok(AgentInfo {
            agent: agent.clone(),
            labels,
            versions,
        })
    }

    /// An agent's versions, newest first.
    ///
    /// # Errors
    /// 404 `agent_unknown`; 503.
    pub async fn versions(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Vec<Version>, Problem> {
        let versions = self.versions_of(tenant, agent).await?;
        if versions.is_empty() {
            Err(agent_unknown(agent))
        } else {
            Ok(versions)
        }
    }

    async fn versions_of(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Vec<Version>, Problem> {
        self.store().versions(tenant, agent).await.map_err(store)
    }

    /// One version.
    ///
    /// # Errors
    /// 404 `agent_unknown`, `version_unknown`; 503.
    pub async fn version(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        version: &VersionId,
    ) -> Result<Version, Problem> {
        let versions = self.versions(tenant, agent).await?;
        versions
            .into_iter()
            .find(|known| known.version == *version)
            .ok_or_else(|| {
                Problem::new(
                    404,
                    "version_unknown",
                    format!("agent `{agent}` has no version `{version}`"),
                )
            })
    }

    /// Points a label at a version, or removes it (`version` none).
    ///
    /// # Errors
    /// 404 for an unknown agent, version, or label to remove; 503.
    #[allow(clippy::too_many_arguments, reason = "they are the move")]
    pub async fn move_label(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        label: &str,
        version: Option<VersionId>,
        swap: Swap,
        by: &str,
    ) -> Result<LabelMove, Problem> {
        self.accepts()?;
        match &version {
            Some(version) => drop(self.version(tenant, agent, version).await?),
            None if !self.agent(tenant, agent).await?.labels.contains_key(label) => {
                let detail = format!("agent `{agent}` has no label `{label}`");
                return Err(Problem::new(404, "label_unknown", detail));
            }
            None => {}
        }
        let at = self.inner.now();
        let (inner, label, by) = (self.inner.clone(), label.to_owned(), by.to_owned());
        let (tenant, agent) = (tenant.clone(), agent.clone());
        // A task of its own: a client that hangs up must not leave a move that memory missed.
        let moved = tokio::spawn(async move {
            let moved = inner
                .parts
                .store
                .move_label(&tenant, &agent, &label, version, swap, &by, at)
                .await;
            inner.labels.forget(&tenant, &agent);
            moved
        });
        moved.await.map_err(|_| gone())?.map_err(store)
    }

    /// All moves of an agent's labels, oldest first.
    ///
    /// # Errors
    /// 404; 503.
    pub async fn label_history(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Vec<LabelMove>, Problem> {
        self.versions(tenant, agent).await?;
        self.store().label_moves(tenant, agent).await.map_err(store)
    }

    /// Points `live` back where it pointed before its last move. A move to where it pointed
    /// already does not count.
    ///
    /// # Errors
    /// 404; 409 `nothing_to_roll_back`; 503.
    pub async fn rollback_live(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        by: &str,
    ) -> Result<LabelMove, Problem> {
        let moves = self.label_history(tenant, agent).await?;
        let last = moves
            .iter()
            .rfind(|moved| moved.label == LIVE && moved.previous != moved.version);
        let Some(previous) = last.and_then(|moved| moved.previous.clone()) else {
            let detail = format!("`live` of agent `{agent}` has pointed nowhere else");
            return Err(Problem::new(409, "nothing_to_roll_back", detail));
        };
        self.move_label(tenant, agent, LIVE, Some(previous), Swap::Turn, by)
            .await
    }

    /// What the host has done since it started.
    pub fn counters(&self) -> Counters {
        let tallies = &self.inner.counters;
        let store = self.store().counters();
        Counters {
            decisions: tallies.decisions.load(Ordering::Relaxed),
            decisions_failed: tallies.failed.load(Ordering::Relaxed),
            model_calls: tallies.model_calls.load(Ordering::Relaxed),
            sessions_loaded: tallies.loaded.load(Ordering::Relaxed),
            subscribers: self.inner.watchers.count(),
            commits: store.commits,
            transactions: store.transactions,
            file_syncs: store.file_syncs,
        }
    }
}

fn events(commit: &Commit) -> impl Iterator<Item = LogEvent> {
    (commit.first_seq..)
        .zip(&commit.events)
        .map(|(seq, event)| LogEvent {
            seq,
            at: commit.at,
            event: Arc::new(event.clone()),
        })
}

fn refused(refused: Refused) -> Problem {
    let status = if refused.step == "size" { 413 } else { 422 };
    let detail = refused.to_string();
    Problem::new(status, "component_refused", detail)
        .with("step", refused.step)
        .with("reason", refused.reason)
        .with("fix", refused.fix)
}

/// A session's task ended without a word: the host is going down, or it failed.
fn gone() -> Problem {
    Problem::new(
        503,
        "host_stopping",
        "the host stopped before it could answer; try again",
    )
    .with("retry_after", 1)
}
