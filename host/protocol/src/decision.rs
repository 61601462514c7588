//! A decision: the question to an agent, and its answer, in the shapes of the decision protocol.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent::{AgentConfig, Handler, RetryPolicy, WireFormat, null_is_empty};
use crate::call::{Call, CallError, ErrorCode};
use crate::id::{AgentId, CallId, DecisionId, MessageId, SessionId, TurnId, VersionId};
use crate::message::Message;
use crate::model::{LlmTool, Reasoning};
use crate::{Json, Timestamp};

/// The session's owner, as the agent sees it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Identity {
    /// The owner's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What the client said of the owner.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// What a client sends beside its view; passed through untouched.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ClientContext {
    /// Tools the client runs itself, as JSON of the client's making.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Json>,
    /// Context items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Json>,
    /// The client's own state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Json>,
    /// Whatever else it passes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarded_props: Option<Json>,
}

/// The host's check of a tool call's arguments against the schema the model was offered [C7].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum ToolInput {
    /// Parsed, and of the schema.
    Valid {
        /// The arguments.
        value: Json,
    },
    /// Parsed, not of the schema.
    Invalid {
        /// The arguments.
        value: Json,
        /// The first three violations.
        error: String,
    },
    /// Not a JSON object.
    Malformed {
        /// What the parser said.
        error: String,
    },
}

/// Why the agent is asked. In `client.messages` the messages are those from `new_from` on; the
/// whole view is read through [`crate::ports::SessionView`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Trigger {
    SessionStart,
    ClientMessages {
        new_from: u32,
        new_messages: Vec<Arc<Message>>,
        client: ClientContext,
    },
    ClientAction {
        name: String,
        args: Option<Json>,
    },
    ToolExecute {
        id: CallId,
        name: String,
        arguments: String,
        input: ToolInput,
        attempt: u32,
        deadline: Option<Timestamp>,
    },
    ToolFinished {
        id: CallId,
        name: String,
        outcome: Result<String, String>,
    },
    LlmExecute {
        id: CallId,
        /// An `LlmRequest`, or the provider's own when `format` is set.
        request: Json,
        format: Option<WireFormat>,
        stream: bool,
        attempt: u32,
        deadline: Option<Timestamp>,
    },
    LlmFinished {
        id: CallId,
        outcome: Result<Arc<Message>, CallError>,
        truncated: bool,
        usage: Option<Json>,
        cost: Option<String>,
    },
    SubAgentFinished {
        id: CallId,
        session_id: SessionId,
        agent_id: AgentId,
        outcome: Result<String, String>,
    },
    InterruptResumed {
        interrupt_id: String,
        payload: Option<Json>,
    },
}

impl Trigger {
    /// The trigger's `type` on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SessionStart => "session.start",
            Self::ClientMessages { .. } => "client.messages",
            Self::ClientAction { .. } => "client.action",
            Self::ToolExecute { .. } => "tool.execute",
            Self::ToolFinished { .. } => "tool.finished",
            Self::LlmExecute { .. } => "llm.execute",
            Self::LlmFinished { .. } => "llm.finished",
            Self::SubAgentFinished { .. } => "sub_agent.finished",
            Self::InterruptResumed { .. } => "interrupt.resumed",
        }
    }

    /// The call this decision is about, if any.
    pub fn call_id(&self) -> Option<&CallId> {
        match self {
            Self::ToolExecute { id, .. }
            | Self::ToolFinished { id, .. }
            | Self::LlmExecute { id, .. }
            | Self::LlmFinished { id, .. }
            | Self::SubAgentFinished { id, .. } => Some(id),
            Self::SessionStart
            | Self::ClientMessages { .. }
            | Self::ClientAction { .. }
            | Self::InterruptResumed { .. } => None,
        }
    }
}

/// One question to an agent, without the conversation: that is read through
/// [`crate::ports::SessionView`], so that a decision costs what it reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The session.
    pub session_id: SessionId,
    /// The decision; the same on every delivery.
    pub decision_id: DecisionId,
    /// The agent.
    pub agent_id: AgentId,
    /// The session's owner.
    pub identity: Identity,
    /// Why the agent is asked.
    pub trigger: Trigger,
    /// The version that decided last in this session.
    pub previous_version: Option<VersionId>,
    /// Open tool and sub-agent calls, and settled siblings not yet processed [C1].
    pub pending_calls: u32,
    /// From the root session to the direct parent.
    pub ancestry: Vec<SessionId>,
    /// Which delivery this is, from 1 [D2].
    pub attempts: u32,
    /// When this delivery is given up.
    pub deadline: Option<Timestamp>,
    /// The turn; none outside one.
    pub turn_id: Option<TurnId>,
    /// When the decision went live: the time the agent's clock shows.
    pub live_at: Timestamp,
}

tagged! {
    /// What the engine should do next.
    pub enum Action as "action" {
        /// Ask a model.
        "llm.call" => LlmCall(LlmCallAction),
        /// Run a tool.
        "tool.call" => ToolCall(ToolCallAction),
        /// Settle a tool call with a result.
        "tool.result" => ToolResult(ToolResultAction),
        /// Settle a tool call with a failure.
        "tool.error" => ToolError(ErrorAction),
        /// Settle a model call with a reply.
        "llm.result" => LlmResult(LlmResultAction),
        /// Settle a model call with a failure.
        "llm.error" => LlmError(ErrorAction),
        /// Start a child session.
        "sub_agent.spawn" => SubAgentSpawn(SubAgentSpawnAction),
        /// Send a message to another session.
        "message.send" => MessageSend(MessageSendAction),
        /// Pause this branch.
        "interrupt" => Interrupt(InterruptAction),
        /// End the turn.
        "done" => Done(DoneAction),
    }
}

/// Fields of `llm.call`; what is absent comes from the config [D5].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LlmCallAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Arc<Message>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Arc<Vec<LlmTool>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<Handler>,
}

/// Fields of `tool.call`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ToolCallAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    pub name: String,
    /// A string is the raw argument text; anything else is taken as its JSON text.
    pub arguments: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<Handler>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
}

/// Fields of `tool.result`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ToolResultAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// None and null are the empty string.
    #[serde(default)]
    pub result: Option<Json>,
}

/// Fields of `tool.error` and `llm.error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ErrorAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    pub error: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Json>,
}

/// Fields of `llm.result`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LlmResultAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// An `LlmResponse`.
    pub response: Json,
}

/// Fields of `sub_agent.spawn`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SubAgentSpawnAction {
    pub session_id: SessionId,
    pub agent_id: AgentId,
    pub tool_call_id: CallId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
}

/// Fields of `message.send`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MessageSendAction {
    pub session_id: SessionId,
    pub message: Arc<Message>,
}

/// Fields of `interrupt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct InterruptAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_id: Option<String>,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
}

/// Fields of `done`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct DoneAction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
}

/// An answer as JSON carries it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DecisionResponse {
    /// Messages to record.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub messages: Vec<Arc<Message>>,
    /// What to do next, in order.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub actions: Vec<Action>,
    /// The agent's state; absent or null: keep, `{}`: clear [D6].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Json>,
    /// The agent's config; absent or null: keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Arc<AgentConfig>>,
}

/// Which messages an answer records.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Records {
    /// None.
    #[default]
    None,
    /// Those of the proposal.
    Proposed,
    /// These.
    These(Vec<Arc<Message>>),
}

/// An agent's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Do what was proposed.
    Accept,
    /// Do this instead.
    Respond(Response),
}

/// An answer that is not plain acceptance.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Response {
    /// Messages to record.
    pub records: Records,
    /// What to do next, in order.
    pub actions: Vec<Action>,
    /// The agent's state; none: keep, `{}`: clear.
    pub state: Option<Json>,
    /// The agent's config; none: keep.
    pub agent: Option<Arc<AgentConfig>>,
}

impl From<DecisionResponse> for Answer {
    fn from(from: DecisionResponse) -> Self {
        Self::Respond(Response {
            records: if from.messages.is_empty() {
                Records::None
            } else {
                Records::These(from.messages)
            },
            actions: from.actions,
            state: from.state,
            agent: from.agent,
        })
    }
}

/// How a failed delivery counts [D7].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The same input gives the same end: one more try, then terminal.
    Deterministic,
    /// Took too long: retryable, at most two tries.
    TimedOut,
    /// May go well another time.
    Retryable,
    /// Never tried again.
    Terminal,
}

/// A delivery that gave no answer.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionFailure {
    /// How it counts.
    pub class: FailureClass,
    /// A stable code: the sandbox's own, or `decision_failed`.
    pub code: String,
    /// What happened, with its numbers.
    pub message: String,
    /// What the agent added.
    pub detail: Option<Json>,
}

/// The message tree as JSON carries it.
#[derive(Debug, Serialize)]
struct TreeJson {
    nodes: Vec<NodeJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head_id: Option<MessageId>,
}

#[derive(Debug, Serialize)]
struct NodeJson {
    message: Arc<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<MessageId>,
}

#[derive(Debug, Serialize)]
struct RequestJson<'a> {
    session_id: &'a SessionId,
    decision_id: &'a DecisionId,
    agent_id: &'a AgentId,
    identity: &'a Identity,
    trigger: TriggerJson<'a>,
    proposed: DecisionResponse,
    state: Option<&'a Json>,
    agent: Option<Arc<AgentConfig>>,
    calls: Vec<Call>,
    pending_calls: u32,
    messages: Vec<Arc<Message>>,
    message_tree: TreeJson,
    ancestry: &'a [SessionId],
    attempts: u32,
    deadline: Option<Timestamp>,
    turn_id: Option<&'a TurnId>,
    version: Option<&'a VersionId>,
    previous_version: Option<&'a VersionId>,
}

/// The trigger's wire form: a flat object, absent fields left out.
#[derive(Debug, Serialize)]
struct TriggerJson<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    fields: TriggerFields<'a>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TriggerFields<'a> {
    None {},
    Messages {
        messages: Vec<Arc<Message>>,
        new_from: u32,
        client: &'a ClientContext,
    },
    Action {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        args: Option<&'a Json>,
    },
    ToolExecute {
        id: &'a CallId,
        name: &'a str,
        arguments: &'a str,
        input: &'a ToolInput,
        attempt: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    LlmExecute {
        id: &'a CallId,
        request: &'a Json,
        #[serde(skip_serializing_if = "Option::is_none")]
        format: Option<WireFormat>,
        stream: bool,
        attempt: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    Finished(Box<FinishedJson<'a>>),
    Resumed {
        interrupt_id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload: Option<&'a Json>,
    },
}

#[derive(Debug, Default, Serialize)]
struct FinishedJson<'a> {
    id: Option<&'a CallId>,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<&'a AgentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<ErrorCode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a Json>,
}

/// The whole decision as one `DecisionRequest` document, for the JSON world and HTTP workers.
///
/// Linear in the conversation by its nature: that protocol carries all of it.
pub fn request_json(
    ask: &Ask,
    view: &dyn crate::ports::SessionView,
    version: Option<&VersionId>,
) -> String {
    let view_messages = || {
        (0..view.view_count())
            .filter_map(|ix| view.view_message(ix))
            .collect()
    };
    let request = RequestJson {
        session_id: &ask.session_id,
        decision_id: &ask.decision_id,
        agent_id: &ask.agent_id,
        identity: &ask.identity,
        trigger: TriggerJson {
            kind: ask.trigger.kind(),
            fields: trigger_fields(&ask.trigger, view_messages),
        },
        proposed: proposed_json(view),
        state: view.state(),
        agent: view.config(),
        calls: view.calls(),
        pending_calls: ask.pending_calls,
        messages: (0..view.message_count())
            .filter_map(|ix| view.message(ix))
            .collect(),
        message_tree: TreeJson {
            nodes: (0..view.node_count())
                .filter_map(|ix| view.node(ix))
                .map(|(message, parent_id)| NodeJson { message, parent_id })
                .collect(),
            head_id: view.head_id(),
        },
        ancestry: &ask.ancestry,
        attempts: ask.attempts,
        deadline: ask.deadline,
        turn_id: ask.turn_id.as_ref(),
        version,
        previous_version: ask.previous_version.as_ref(),
    };
    Json::of(&request).as_str().to_owned()
}

/// The proposal as a `DecisionResponse`, its messages written out.
pub fn proposed_json(view: &dyn crate::ports::SessionView) -> DecisionResponse {
    let proposed = view.proposed();
    DecisionResponse {
        messages: (0..view.proposed_count())
            .filter_map(|ix| view.proposed_message(ix))
            .collect(),
        actions: proposed.actions.clone(),
        state: proposed.state.clone(),
        agent: proposed.agent.clone(),
    }
}

fn trigger_fields(trigger: &Trigger, view: impl Fn() -> Vec<Arc<Message>>) -> TriggerFields<'_> {
    let finished = |id, outcome: &'_ Result<String, String>| FinishedJson {
        id: Some(id),
        ok: outcome.is_ok(),
        ..FinishedJson::default()
    };
    match trigger {
        Trigger::SessionStart => TriggerFields::None {},
        Trigger::ClientMessages {
            new_from, client, ..
        } => TriggerFields::Messages {
            messages: view(),
            new_from: *new_from,
            client,
        },
        Trigger::ClientAction { name, args } => TriggerFields::Action {
            name,
            args: args.as_ref(),
        },
        Trigger::ToolExecute {
            id,
            name,
            arguments,
            input,
            attempt,
            deadline,
        } => TriggerFields::ToolExecute {
            id,
            name,
            arguments,
            input,
            attempt: *attempt,
            deadline: *deadline,
        },
        Trigger::ToolFinished { id, name, outcome } => {
            TriggerFields::Finished(Box::new(FinishedJson {
                name: Some(name),
                result: outcome.as_ref().ok().map(String::as_str),
                error: outcome.as_ref().err().map(String::as_str),
                ..finished(id, outcome)
            }))
        }
        Trigger::LlmExecute {
            id,
            request,
            format,
            stream,
            attempt,
            deadline,
        } => TriggerFields::LlmExecute {
            id,
            request,
            format: *format,
            stream: *stream,
            attempt: *attempt,
            deadline: *deadline,
        },
        Trigger::LlmFinished {
            id,
            outcome,
            truncated,
            usage,
            cost,
        } => {
            let error = outcome.as_ref().err();
            TriggerFields::Finished(Box::new(FinishedJson {
                id: Some(id),
                ok: outcome.is_ok(),
                message: outcome.as_ref().ok().map(Arc::as_ref),
                truncated: Some(*truncated),
                usage: usage.as_ref(),
                cost: cost.as_deref(),
                error: error.map(|e| e.message.as_str()),
                code: error.and_then(|e| e.code),
                detail: error.and_then(|e| e.detail.as_ref()),
                ..FinishedJson::default()
            }))
        }
        Trigger::SubAgentFinished {
            id,
            session_id,
            agent_id,
            outcome,
        } => TriggerFields::Finished(Box::new(FinishedJson {
            session_id: Some(session_id),
            agent_id: Some(agent_id),
            result: outcome.as_ref().ok().map(String::as_str),
            error: outcome.as_ref().err().map(String::as_str),
            ..finished(id, outcome)
        })),
        Trigger::InterruptResumed {
            interrupt_id,
            payload,
        } => TriggerFields::Resumed {
            interrupt_id,
            payload: payload.as_ref(),
        },
    }
}
