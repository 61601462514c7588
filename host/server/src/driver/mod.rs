//! The driver: command → events → commit → plan → work → command, and nothing beside it.
//!
//! | module | decides |
//! |---|---|
//! | `session` | what a session in use does next, and when its commits go to the store |
//! | `roster` | which sessions are in use |
//! | `wakeups` | when a session that sleeps is looked at again; recovery is the first look |
//! | `watchers` | what subscribers see |
//! | `versions` | which version a decision runs on |
//! | `records` | what the log says of decisions and files |

mod host;
mod records;
mod roster;
mod session;
mod versions;
mod wakeups;
mod watchers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belljar_protocol::call::Call;
use belljar_protocol::decision::FailureClass;
use belljar_protocol::event::{Event, TurnEnded, TurnError};
use belljar_protocol::id::{AgentId, CallId, DecisionId, MessageId, SessionId, TurnId, VersionId};
use belljar_protocol::message::Message;
use belljar_protocol::model::StreamDelta;
use belljar_protocol::ports::{Clock, Components, Entropy, Models, Store, Worker};
use belljar_protocol::run::RunRecord;
use belljar_protocol::version::Version;
use belljar_protocol::{Json, Timestamp};
use serde::Serialize;

pub use host::Host;
pub use watchers::Subscription;

/// What a host is made of.
#[derive(Clone)]
pub struct Parts {
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// Who answers decisions.
    pub worker: Arc<dyn Worker>,
    /// Who checks uploaded components.
    pub components: Arc<dyn Components>,
    /// The model APIs.
    pub models: Arc<dyn Models>,
    /// The time that events carry and timers follow.
    pub clock: Arc<dyn Clock>,
    /// What ids are made of.
    pub entropy: Arc<dyn Entropy>,
}

/// Called once, with a sentence, when the host cannot go on: its store failed.
pub type OnFatal = Arc<dyn Fn(&str) + Send + Sync>;

/// How a host behaves.
#[derive(Clone)]
pub struct HostConfig {
    /// How long commits wait for a component that is at work on what comes next, so that one
    /// sync covers both. Default 5 ms, about a sync. A longer decision does not hold them back.
    pub linger: Duration,
    /// How long a session without work stays loaded. Default 10 s; then it costs a row.
    pub idle_unload: Duration,
    /// Sessions loaded at once. Default 10 000. Above, idle ones go at once, those that have
    /// been idle longest first; when this many are at work, further ones are answered 503
    /// `host_full`. Sessions whose timers are due are loaded all the same.
    pub loaded_sessions: usize,
    /// Commands that wait for one session, or for its disk. Default 1 000; then submitters are
    /// answered 429.
    pub mailbox: usize,
    /// Model calls in flight for one tenant. Default 64; further ones wait.
    pub model_calls_per_tenant: usize,
    /// Events held for a subscriber that does not read. Default 1 024; then it reads on from the
    /// store where it was.
    pub subscriber_buffer: usize,
    /// Sessions folded at once while the host recovers. Default 32.
    pub recovering: usize,
    /// What is done when the store fails.
    pub on_fatal: Option<OnFatal>,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            linger: Duration::from_millis(5),
            idle_unload: Duration::from_secs(10),
            loaded_sessions: 10_000,
            mailbox: 1_000,
            model_calls_per_tenant: 64,
            subscriber_buffer: 1_024,
            recovering: 32,
            on_fatal: None,
        }
    }
}

/// A submit that was accepted, and is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Submitted {
    /// The session.
    pub session_id: SessionId,
    /// The turn that took it in; none for inputs that belong to no turn.
    pub turn_id: Option<TurnId>,
}

/// One thing a subscriber sees.
#[derive(Debug, Clone)]
pub enum Item {
    /// A committed event.
    Event {
        /// Its seq.
        seq: u64,
        /// When it was committed.
        at: Timestamp,
        /// The event.
        event: Arc<Event>,
    },
    /// The replay is over; what follows is live. Once per subscription.
    CaughtUp {
        /// The last seq of the replay.
        seq: u64,
    },
    /// A piece of a model's reply. Never stored; a slow reader may miss some.
    Delta {
        /// The call.
        call_id: CallId,
        /// The attempt: a further one replaces what an earlier one said.
        attempt: u32,
        /// The piece.
        delta: StreamDelta,
    },
    /// The subscription ends; subscribe again after `read_from`.
    Closed {
        /// Why.
        reason: String,
        /// The last seq that was given.
        read_from: u64,
    },
}

/// An event as lists show it.
#[derive(Debug, Clone, Serialize)]
pub struct LogEvent {
    /// Its seq.
    pub seq: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// The event.
    pub event: Arc<Event>,
}

/// A page of a log.
#[derive(Debug, Clone, Serialize)]
pub struct LogPage {
    /// The events, in order.
    pub events: Vec<LogEvent>,
    /// The seq of the session's last event.
    pub head_seq: u64,
}

/// The running turn, as clients see it.
#[derive(Debug, Clone, Serialize)]
pub struct TurnView {
    /// Its id.
    pub turn_id: TurnId,
    /// The version it is pinned to.
    pub version: Option<VersionId>,
    /// When it began.
    pub started_at: Timestamp,
}

/// A session, as `GET …/state` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct SessionState {
    /// The session.
    pub session_id: SessionId,
    /// Its agent.
    pub agent_id: Option<AgentId>,
    /// `idle`, `running` or `closed`.
    pub status: &'static str,
    /// The seq of its last event.
    pub seq: u64,
    /// When it was created.
    pub created_at: Option<Timestamp>,
    /// The running turn.
    pub turn: Option<TurnView>,
    /// How the last one ended.
    pub last_turn: Option<Arc<TurnEnded>>,
    /// The active path, from the root.
    pub messages: Vec<Arc<Message>>,
    /// The active path's last message.
    pub head_id: Option<MessageId>,
    /// Recorded messages on all branches.
    pub tree_size: usize,
    /// Open calls.
    pub calls: Vec<Call>,
    /// Open tool and sub-agent calls, and settled ones whose decision waits [C1].
    pub pending_calls: u32,
    /// Pauses; none exist in this version of the host.
    pub pauses: [(); 0],
    /// The agent's config.
    pub config: Option<Arc<belljar_protocol::agent::AgentConfig>>,
    /// The agent's state.
    pub state: Option<Json>,
    /// Dollars of all turns.
    pub cost: Option<String>,
    /// Token counts of all turns.
    pub usage: Option<Json>,
    /// The version that decided last.
    pub version: Option<VersionId>,
}

/// One delivery of a decision.
#[derive(Debug, Clone, Serialize)]
pub struct Delivery {
    /// Which delivery, from 1.
    pub attempt: u32,
    /// When it ended.
    pub at: Timestamp,
    /// `answered` or `failed`.
    pub outcome: &'static str,
    /// How a failure counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<FailureClass>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// When it was tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// What it used and said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Box<RunRecord>>,
}

/// A decision, as the log tells it.
#[derive(Debug, Clone, Serialize)]
pub struct DecisionRecord {
    /// The decision.
    pub decision_id: DecisionId,
    /// Its turn.
    pub turn_id: Option<TurnId>,
    /// The seq of the event that queued it.
    pub seq: u64,
    /// When it was queued.
    pub queued_at: Timestamp,
    /// Why it was wanted.
    pub trigger: belljar_protocol::event::Seed,
    /// `waiting`, `retrying`, `answered`, `failed` or `dropped`.
    pub status: &'static str,
    /// Whether the answer was the proposal.
    pub accepted_proposal: bool,
    /// Its deliveries, oldest first; one that a crash cut off leaves none.
    pub deliveries: Vec<Delivery>,
    /// What its answer changed: the events after it in its commit.
    pub effects: Vec<LogEvent>,
}

/// A delivered file.
#[derive(Debug, Clone, Serialize)]
pub struct FileInfo {
    /// Its path.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// The sha256 of its content.
    pub sha256: belljar_protocol::scratch::Digest,
    /// What the agent said of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The seq of its event.
    pub seq: u64,
    /// When it was delivered.
    pub at: Timestamp,
}

/// An agent and its labels.
#[derive(Debug, Clone, Serialize)]
pub struct AgentInfo {
    /// Its name.
    pub agent: AgentId,
    /// Where its labels point.
    pub labels: BTreeMap<String, VersionId>,
    /// How many versions it has.
    pub versions: usize,
}

/// What an upload gave.
#[derive(Debug, Clone, Serialize)]
pub struct Uploaded {
    /// The version.
    pub version: Version,
    /// Whether it is new; the same bytes again are the same version.
    pub created: bool,
}

/// What the host has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Decisions delivered to their worker, each delivery once.
    pub decisions: u64,
    /// Of them, those that ended without an answer.
    pub decisions_failed: u64,
    /// Model calls that left, each attempt once.
    pub model_calls: u64,
    /// Sessions in memory now.
    pub sessions_loaded: u64,
    /// Subscriptions open now.
    pub subscribers: u64,
    /// Commits the store made durable.
    pub commits: u64,
    /// The store's transactions, each one sync of the database.
    pub transactions: u64,
    /// The store's syncs beside the database.
    pub file_syncs: u64,
}
