//! What the host needs of its adapters, as traits; `cli` alone names who implements them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::agent::AgentConfig;
use crate::call::Call;
use crate::decision::{Answer, Ask, DecisionFailure, Response};
use crate::event::Commit;
use crate::id::{AgentId, MessageId, SessionId, TenantId, VersionId};
use crate::message::Message;
use crate::model::{LlmRequest, LlmResponse, ModelFailure, StreamDelta};
use crate::run::RunRecord;
use crate::scratch::{DeliveredFile, Digest, ScratchChange, ScratchManifest};
use crate::snapshot::Snapshot;
use crate::version::{LabelMove, Swap, Version, World};
use crate::{Json, Timestamp};

/// A boxed future, so that ports can be trait objects.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The session around a decision, frozen when it went live and read on demand.
///
/// Every getter is constant or logarithmic in the history. Indices out of range give none.
pub trait SessionView: Send + Sync {
    /// The agent's state.
    fn state(&self) -> Option<&Json>;
    /// The agent's config.
    fn config(&self) -> Option<Arc<AgentConfig>>;
    /// Messages on the active path.
    fn message_count(&self) -> u32;
    /// One message of the active path, from the root.
    fn message(&self, ix: u32) -> Option<Arc<Message>>;
    /// Messages of the client's whole view; 0 unless the trigger is `client.messages`.
    fn view_count(&self) -> u32;
    /// One message of the client's view.
    fn view_message(&self, ix: u32) -> Option<Arc<Message>>;
    /// Nodes of the message tree, in the order they were recorded.
    fn node_count(&self) -> u32;
    /// One node and its parent.
    fn node(&self, ix: u32) -> Option<(Arc<Message>, Option<MessageId>)>;
    /// The head of the active path.
    fn head_id(&self) -> Option<MessageId>;
    /// The open calls.
    fn calls(&self) -> Vec<Call>;
    /// The proposal; its `records` is `Proposed` when it records any message, else `None`.
    fn proposed(&self) -> &Response;
    /// Messages the proposal records.
    fn proposed_count(&self) -> u32;
    /// One of them.
    fn proposed_message(&self, ix: u32) -> Option<Arc<Message>>;
}

/// Receives the tokens of a model call while it is being answered. Must not block.
pub type DeltaSink = Arc<dyn Fn(StreamDelta) + Send + Sync>;

/// Who answers decisions: a component in the sandbox, or anything else that can.
pub trait Worker: Send + Sync {
    /// Runs one decision. Never panics, never hangs: the limits end it.
    fn decide(&self, job: Job) -> Boxed<'static, Decided>;
    /// Says what became of what a decision wrote: until this is called the session's scratch
    /// directory is in doubt and is rebuilt from the manifest before the next decision.
    fn conclude(&self, tenant: &TenantId, session: &SessionId, scratch: Conclusion);
}

/// What became of a decision's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// Committed; the directory holds this generation.
    Accepted {
        /// The generation the commit made (or left).
        generation: u64,
    },
    /// The answer was not accepted; the directory is to be rebuilt.
    Discarded,
}

/// One decision to run.
pub struct Job {
    /// The tenant.
    pub tenant: TenantId,
    /// The component.
    pub version: VersionId,
    /// The question.
    pub ask: Ask,
    /// The conversation behind it.
    pub view: Arc<dyn SessionView>,
    /// What `/scratch` holds.
    pub scratch: Arc<ScratchManifest>,
    /// Where tokens go, when the trigger is an `llm.execute` that streams.
    pub deltas: Option<DeltaSink>,
}

/// What running a decision gave.
#[derive(Debug)]
pub struct Decided {
    /// The answer, or how the delivery failed.
    pub outcome: Result<Answer, DecisionFailure>,
    /// What the run used and said.
    pub run: RunRecord,
    /// What it changed in `/scratch`; empty when it failed.
    pub scratch: ScratchChange,
    /// Files it delivered; empty when it failed.
    pub delivered: Vec<DeliveredFile>,
    /// The contents of what it wrote and delivered, by digest.
    pub blobs: Vec<(Digest, Bytes)>,
}

/// Checks and keeps components.
pub trait Components: Send + Sync {
    /// Checks an uploaded component through every step before it is stored.
    fn admit(&self, component: Bytes) -> Boxed<'static, Result<Admitted, Refused>>;
}

/// What is known of a component that passed the checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// Which world it exports.
    pub world: World,
    /// The interfaces it imports.
    pub imports: Vec<String>,
    /// Time to compile it, milliseconds.
    pub compile_ms: u64,
}

/// Why a component is refused: 413 or 422.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {reason}; {fix}")]
pub struct Refused {
    /// The step that failed: `size`, `component`, `imports`, `compile`, `exports`, `resources`, `smoke`.
    pub step: &'static str,
    /// What was wrong.
    pub reason: String,
    /// What to do.
    pub fix: String,
}

/// Bytes by digest: what a sandbox rebuilds a scratch directory and loads components from.
pub trait Blobs: Send + Sync {
    /// The bytes; none when no such blob is known to the tenant.
    fn blob(
        &self,
        tenant: &TenantId,
        digest: &Digest,
    ) -> Boxed<'_, Result<Option<Bytes>, StoreError>>;
}

/// A model API.
pub trait Model: Send + Sync {
    /// Asks once. `sink` gets tokens as they come; the reply is the whole of it. The caller
    /// bounds the time by dropping the future.
    fn ask(
        &self,
        request: Arc<LlmRequest>,
        sink: Option<DeltaSink>,
    ) -> Boxed<'_, Result<LlmResponse, ModelFailure>>;
}

/// Finds the model API for a name.
pub trait Models: Send + Sync {
    /// Resolves `provider/name` or an alias to the API and the name that API knows.
    ///
    /// # Errors
    /// A terminal failure that names the model and lists what there is.
    fn resolve(&self, model: &str) -> Result<(Arc<dyn Model>, String), ModelFailure>;
}

/// The time. The core is handed it, so that tests move it.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
    /// Resolves once the clock shows `at` or later. May resolve early; the caller looks again.
    fn wait_until(&self, at: Timestamp) -> Boxed<'static, ()>;
}

/// Randomness. The core is handed it, so that tests repeat it.
pub trait Entropy: Send + Sync {
    /// 32 fresh bytes.
    fn seed(&self) -> [u8; 32];
}

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The log has moved on: reload and decide again.
    #[error("session {session}: expected the log to end at seq {expected}, it ends at {found}")]
    Conflict {
        /// The session.
        session: SessionId,
        /// The seq the caller built on.
        expected: u64,
        /// The seq the log ends at.
        found: u64,
    },
    /// The disk, the database or the file system said no. Nothing of the append is stored, or
    /// it is not known whether it is: the process must not go on as if it knew.
    #[error("store: {0}")]
    Failed(String),
    /// What is stored cannot be read by this build.
    #[error("store: {what} is damaged or of another version: {reason}")]
    Unreadable {
        /// Which object.
        what: String,
        /// What the reader said.
        reason: String,
    },
}

/// Where a session stands, for lists and for waking it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// The session.
    pub session: SessionId,
    /// Its agent.
    pub agent: AgentId,
    /// The seq of its last event.
    pub head_seq: u64,
    /// `idle`, `running`, `closed`, ….
    pub status: String,
    /// When it has work next; none: only when somebody speaks to it.
    pub next_wake: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its last commit was made.
    pub updated_at: Timestamp,
}

/// The `next_wake` of a session that has work due right now: before any timer, so that a host
/// that starts finds all of them first, and one that runs never looks at them again.
pub const WORK_DUE: Timestamp = Timestamp::from_millis(0);

/// Commits of one session to make durable together.
#[derive(Debug, Clone)]
pub struct Append {
    /// The tenant.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
    /// Its agent.
    pub agent: AgentId,
    /// The seq the log must end at; 0: the session must not exist.
    pub expected_seq: u64,
    /// The commits, in order, at least one.
    pub commits: Vec<Commit>,
    /// Contents the commits name: at most 64 KiB each go into the same transaction, larger ones
    /// are written and synced before it.
    pub blobs: Vec<(Digest, Bytes)>,
    /// Where the session stands after them.
    pub status: String,
    /// When it has work next: [`WORK_DUE`] for a session that has work right now, the earliest
    /// timer for one that waits, none for one that waits only for somebody to speak.
    pub next_wake: Option<Timestamp>,
}

/// The store. Every method's future resolves when what it says is durable.
pub trait Store: Blobs {
    /// Appends to a session's log: all of it or nothing, after one sync. A refusal harms none
    /// of the appends that share the sync.
    fn append(&self, append: Append) -> Boxed<'static, Result<(), StoreError>>;
    /// A session's row.
    fn session(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Boxed<'_, Result<Option<SessionRow>, StoreError>>;
    /// Sessions by last change, newest first, at most `limit`; `before` pages.
    fn sessions(
        &self,
        tenant: &TenantId,
        before: Option<(Timestamp, SessionId)>,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<SessionRow>, StoreError>>;
    /// Commits that hold events after `after`, in order, at most `limit` of them. The first may
    /// begin at or before `after`.
    fn read(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        after: u64,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<Commit>, StoreError>>;
    /// The newest snapshot.
    fn snapshot(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Boxed<'_, Result<Option<Snapshot>, StoreError>>;
    /// Replaces the snapshot.
    fn put_snapshot(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        snapshot: Snapshot,
    ) -> Boxed<'_, Result<(), StoreError>>;
    /// Sessions whose `next_wake` is after `after` and at or before `now`, earliest first, at
    /// most `limit`.
    fn due(
        &self,
        after: Timestamp,
        now: Timestamp,
        limit: u32,
    ) -> Boxed<'_, Result<Vec<(TenantId, SessionId)>, StoreError>>;
    /// The earliest `next_wake` of all sessions after `after`.
    fn next_wake(&self, after: Timestamp) -> Boxed<'_, Result<Option<Timestamp>, StoreError>>;

    /// Stores a version and its component's bytes. `Ok(false)`: it was there already.
    fn put_version(
        &self,
        tenant: &TenantId,
        version: Version,
        component: Bytes,
    ) -> Boxed<'_, Result<bool, StoreError>>;
    /// An agent's versions, newest first.
    fn versions(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Boxed<'_, Result<Vec<Version>, StoreError>>;
    /// The agents that have any version, by name.
    fn agents(&self, tenant: &TenantId) -> Boxed<'_, Result<Vec<AgentId>, StoreError>>;
    /// Moves a label to `version`, or removes it; gives the move as it was recorded.
    #[allow(
        clippy::too_many_arguments,
        reason = "they are the row that is written"
    )]
    fn move_label(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        label: &str,
        version: Option<VersionId>,
        swap: Swap,
        by: &str,
        at: Timestamp,
    ) -> Boxed<'_, Result<LabelMove, StoreError>>;
    /// All moves of an agent's labels, oldest first.
    fn label_moves(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Boxed<'_, Result<Vec<LabelMove>, StoreError>>;
    /// What the store has done since it was opened, for benchmarks and metrics.
    fn counters(&self) -> StoreCounters;
}

/// Counts since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreCounters {
    /// Commits made durable.
    pub commits: u64,
    /// Transactions, each one sync of the database.
    pub transactions: u64,
    /// Syncs beside the database: of files, and of the folders that name them.
    pub file_syncs: u64,
    /// Checkpoints that moved pages, each two more syncs that no append waits for.
    pub checkpoints: u64,
}

/// The longest a port may take before a caller looks after it, where it has no limit of its own.
pub const PATIENCE: Duration = Duration::from_secs(60);
