//! The log: everything that ever changed a session, in the order it did.
//!
//! A session's state is a fold of these. They are persisted: an event type may gain optional
//! fields, never lose or re-mean one (golden logs in `tests/logs/v1/` hold this).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent::AgentConfig;
use crate::call::{CallError, CallRequest, Outcome};
use crate::decision::{ClientContext, FailureClass, Identity};
use crate::id::{AgentId, CallId, DecisionId, MessageId, SessionId, TurnId, VersionId};
use crate::message::Message;
use crate::run::RunRecord;
use crate::scratch::{DeliveredFile, ScratchChange};
use crate::{Json, Timestamp};

tagged! {
    /// One change of a session.
    pub enum Event as "event" {
        /// The session exists.
        "session.created" => SessionCreated(SessionCreated),
        /// The session takes no more input.
        "session.closed" => SessionClosed(SessionClosed),
        /// An input was accepted under a turn id.
        "input.accepted" => InputAccepted(InputAccepted),
        /// A turn began.
        "turn.started" => TurnStarted(TurnStarted),
        /// A turn ended.
        "turn.ended" => TurnEnded(TurnEnded),
        /// A decision waits its turn.
        "decision.queued" => DecisionQueued(DecisionQueued),
        /// A live decision is delivered again after a crash.
        "decision.redelivered" => DecisionRedelivered(DecisionRedelivered),
        /// A delivery failed.
        "decision.failed" => DecisionFailed(DecisionFailed),
        /// An answer was accepted; the events after it in the same commit are its effects.
        "decision.answered" => DecisionAnswered(DecisionAnswered),
        /// Decisions will not be delivered.
        "decisions.dropped" => DecisionsDropped(DecisionsDropped),
        /// A chain of messages was recorded; the last is the new head.
        "messages.recorded" => MessagesRecorded(MessagesRecorded),
        /// The head moved to a recorded message.
        "head.moved" => HeadMoved(HeadMoved),
        /// The agent's state changed.
        "state.set" => StateSet(StateSet),
        /// The agent's config changed.
        "agent.set" => AgentSet(AgentSet),
        /// A call was requested.
        "call.requested" => CallRequested(CallRequested),
        /// A further attempt of a call began.
        "call.attempted" => CallAttempted(CallAttempted),
        /// An attempt failed and another is due.
        "call.retry_scheduled" => CallRetryScheduled(CallRetryScheduled),
        /// A tool call stays open until somebody settles it.
        "call.deferred" => CallDeferred(CallDeferred),
        /// A call ended.
        "call.settled" => CallSettled(CallSettled),
        /// Calls ended without anybody being told.
        "calls.voided" => CallsVoided(CallsVoided),
        /// What `/scratch` holds changed.
        "scratch.committed" => ScratchCommitted(ScratchCommitted),
        /// The agent handed over a file.
        "file.delivered" => FileDelivered(FileDelivered),
    }
}

/// Events appended together: all of them or none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The seq of the first event; those after it follow without gaps.
    pub first_seq: u64,
    /// When it was made.
    pub at: Timestamp,
    /// The events, at least one.
    pub events: Vec<Event>,
}

impl Commit {
    /// The seq of the last event.
    pub fn last_seq(&self) -> u64 {
        self.first_seq + self.events.len() as u64 - 1
    }
}

/// Why a turn ended without `done`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnError {
    /// `answer_refused`, `decision_failed`, `stalled`, `aborted`, a model call's code, or the
    /// sandbox's own.
    pub code: String,
    /// What happened.
    pub message: String,
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Json>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum TurnStatus {
    Completed,
    Failed,
}

/// `session.created`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionCreated {
    /// The agent, fixed for ever [S1].
    pub agent_id: AgentId,
    /// The owner, fixed for ever.
    #[serde(default)]
    pub identity: Identity,
    /// From the root session to the direct parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestry: Vec<SessionId>,
}

/// `session.closed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionClosed {
    /// Who closed it.
    pub by: String,
}

/// `input.accepted`: remembers a turn id for ever, so that a repeat runs nothing [S4].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputAccepted {
    /// The id the input came with, or was given.
    pub turn_id: TurnId,
    /// sha256 of the input's body in canonical form.
    pub body: String,
    /// The turn that took it in, when that is another: `turn_id` is its alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<TurnId>,
}

/// `turn.started`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnStarted {
    /// The turn.
    pub turn_id: TurnId,
    /// Overrides the config's `stream` while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The version it is pinned to; none: the agent is no component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionId>,
    /// Opened by a `client.action`: it completes when nothing is open after its answer [I10].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_action: bool,
}

/// `turn.ended`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnEnded {
    /// The turn.
    pub turn_id: TurnId,
    /// How.
    pub status: TurnStatus,
    /// The data of its `done`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// Token counts of its model calls, summed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Json>,
    /// Dollars of its model calls, summed: a normalised decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
}

tagged! {
    /// Why a decision is wanted; composed into a trigger when it goes live.
    pub enum Seed as "trigger" {
        /// The session is new.
        "session.start" => SessionStart(NoFields),
        /// A client spoke.
        "client.messages" => ClientMessages(ClientMessagesSeed),
        /// A person did something.
        "client.action" => ClientAction(ClientActionSeed),
        /// A worker-handled tool is to be run.
        "tool.execute" => ToolExecute(CallSeed),
        /// A tool call settled.
        "tool.finished" => ToolFinished(CallSeed),
        /// A worker-handled model call is to be made.
        "llm.execute" => LlmExecute(CallSeed),
        /// A model call settled.
        "llm.finished" => LlmFinished(CallSeed),
    }
}

impl Seed {
    /// The call it is about, if any.
    pub fn call_id(&self) -> Option<&CallId> {
        match self {
            Self::ToolExecute(seed)
            | Self::ToolFinished(seed)
            | Self::LlmExecute(seed)
            | Self::LlmFinished(seed) => Some(&seed.call_id),
            Self::SessionStart(_) | Self::ClientMessages(_) | Self::ClientAction(_) => None,
        }
    }
}

/// A variant without fields.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NoFields {}

/// A decision about one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSeed {
    /// The call.
    pub call_id: CallId,
}

/// A client's view: what of it is recorded by id, the rest as drafts with ids given on arrival.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientMessagesSeed {
    /// Where the view begins.
    pub base: ViewBase,
    /// What follows, as it came.
    pub rest: Vec<Arc<Message>>,
    /// What the client sent beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientContext>,
}

/// Where a client's view begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ViewBase {
    /// The active path as it is when the decision goes live (`client.message`).
    ActivePath,
    /// The path from the root to this recorded message (a prefix of `client.messages`).
    Node(MessageId),
    /// Nothing of it is recorded.
    Root,
}

/// A `client.action`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ClientActionSeed {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Json>,
}

/// `decision.queued`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionQueued {
    /// The decision.
    pub decision_id: DecisionId,
    /// Its turn; none outside one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// Ahead of those that wait already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub front: bool,
    /// Why it is wanted.
    pub trigger: Seed,
}

/// `decision.redelivered` [D2].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionRedelivered {
    /// The decision.
    pub decision_id: DecisionId,
    /// Which delivery this is.
    pub attempts: u32,
}

/// `decision.failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionFailed {
    /// The decision.
    pub decision_id: DecisionId,
    /// Which delivery failed.
    pub attempt: u32,
    /// How it counts [D7].
    pub class: FailureClass,
    /// What happened.
    pub error: TurnError,
    /// When it is delivered again; none: never, the failure is terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// What the run used and said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Box<RunRecord>>,
}

/// `decision.answered`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionAnswered {
    /// The decision.
    pub decision_id: DecisionId,
    /// Which delivery answered.
    pub attempt: u32,
    /// Whether the answer was plain acceptance of the proposal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepted_proposal: bool,
    /// Results it carried for calls that were over: ignored [D4].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raced: Vec<CallId>,
    /// What the run used and said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Box<RunRecord>>,
}

/// `decisions.dropped`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecisionsDropped {
    /// The decisions, live or queued.
    pub decision_ids: Vec<DecisionId>,
}

/// `messages.recorded`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessagesRecorded {
    /// The recorded message the chain hangs from; none: the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<MessageId>,
    /// The chain; each has an id.
    pub messages: Vec<Arc<Message>>,
}

/// `head.moved`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadMoved {
    /// The new head; none: before the first message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<MessageId>,
}

/// `state.set`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateSet {
    /// The new state; none: cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Json>,
    /// Written at the root, so that every branch has it [T6].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_root: bool,
}

/// `agent.set`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSet {
    /// The new config.
    pub agent: Arc<AgentConfig>,
    /// Written at the root, so that every branch has it [T6].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_root: bool,
}

/// `call.requested`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallRequested {
    /// The call.
    pub call: CallRequest,
}

/// `call.attempted`: for the host's own calls, dispatch follows the sync of this event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallAttempted {
    /// The call.
    pub call_id: CallId,
    /// The attempt that begins.
    pub attempt: u32,
}

/// `call.retry_scheduled`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallRetryScheduled {
    /// The call.
    pub call_id: CallId,
    /// The attempt that failed.
    pub attempt: u32,
    /// Why.
    pub error: CallError,
    /// When the next one is due.
    pub retry_at: Timestamp,
}

/// `call.deferred` [C9].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallDeferred {
    /// The call.
    pub call_id: CallId,
    /// When it is given up; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// `call.settled`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallSettled {
    /// The call.
    pub call_id: CallId,
    /// The attempt that ended it.
    pub attempt: u32,
    /// How.
    pub outcome: Outcome,
}

/// `calls.voided`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallsVoided {
    /// The calls.
    pub call_ids: Vec<CallId>,
}

/// `scratch.committed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScratchCommitted {
    /// The generation this makes.
    pub generation: u64,
    /// What changed.
    pub change: ScratchChange,
}

/// `file.delivered`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileDelivered {
    /// The decision that delivered it.
    pub decision_id: DecisionId,
    /// The file.
    pub file: DeliveredFile,
}
