//! Calls: units of outside work an agent asked for.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent::{Handler, RetryPolicy};
use crate::id::{AgentId, CallId, MessageId, SessionId, TurnId};
use crate::message::Message;
use crate::model::{LlmTool, Reasoning};
use crate::{Json, Timestamp};

/// What a failure was; `retryable` beside it decides, the code describes [C12].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ErrorCode {
    ProviderError,
    RateLimited,
    Refused,
    BudgetExceeded,
    DeadlineExceeded,
}

impl ErrorCode {
    /// The code as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProviderError => "provider_error",
            Self::RateLimited => "rate_limited",
            Self::Refused => "refused",
            Self::BudgetExceeded => "budget_exceeded",
            Self::DeadlineExceeded => "deadline_exceeded",
        }
    }
}

/// The kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum CallKind {
    ToolCall,
    LlmCall,
    SubAgent,
}

/// Where a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// Requested, not dispatched.
    Queued,
    /// Dispatched: its request left, or its execute decision went live.
    Pending,
    /// Failed, and due again at a known time.
    RetryScheduled,
    /// Settled with a result.
    Completed,
    /// Settled with an error, or voided.
    Failed,
}

/// An open call, as agents and clients see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The call's id.
    pub id: CallId,
    /// What kind of work it is.
    pub kind: CallKind,
    /// Where it stands.
    pub status: CallStatus,
    /// Which try this is, from 1.
    pub attempt: u32,
    /// When this attempt is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// The head of the tree when it was requested [T5].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<MessageId>,
    /// The tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tool's raw argument text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// Who runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<Handler>,
    /// Whether a model call streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The sub-agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The sub-agent's session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

tagged! {
    /// What is to be done, as it is persisted when a call is requested.
    pub enum Work as "call" {
        /// A request to a model.
        "llm_call" => Llm(LlmWork),
        /// A tool.
        "tool_call" => Tool(ToolWork),
        /// A child session.
        "sub_agent" => SubAgent(SubAgentWork),
    }
}

impl Work {
    /// The kind agents and clients see.
    pub fn call_kind(&self) -> CallKind {
        match self {
            Self::Llm(_) => CallKind::LlmCall,
            Self::Tool(_) => CallKind::ToolCall,
            Self::SubAgent(_) => CallKind::SubAgent,
        }
    }
}

/// A model call as requested. What is absent came from the config that held then [D5]; the
/// prompt is the path to the anchor unless messages are given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LlmWork {
    /// The model.
    pub model: String,
    /// An explicit prompt, without the system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Arc<Message>>>,
    /// Explicit tools; absent: those of the config that held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Arc<Vec<LlmTool>>>,
    /// Sampling temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Most tokens of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u32>,
    /// Reasoning controls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
    /// Whether clients see tokens as they come.
    #[serde(default)]
    pub stream: bool,
}

/// A tool call as requested.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolWork {
    /// The tool's name.
    pub name: String,
    /// Raw argument text.
    pub arguments: String,
}

/// A delegation as requested.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubAgentWork {
    /// The child's session.
    pub session_id: SessionId,
    /// The child's agent.
    pub agent_id: AgentId,
}

/// A call as requested: everything the log needs to carry it out, however often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallRequest {
    /// The call's id.
    pub id: CallId,
    /// The work.
    pub work: Work,
    /// Who runs it, frozen [C3].
    pub handler: Handler,
    /// The turn of the decision that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The head of the tree at that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<MessageId>,
    /// How often and how patiently it is tried.
    pub retry: RetryPolicy,
    /// Whether the asker set the policy itself (a deferred tool keeps its own deadline [C9]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub explicit_retry: bool,
}

/// Why a call ended without a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallError {
    /// What the model, the agent and people read.
    pub message: String,
    /// What kind of failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// More of it, in the failing party's own form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Json>,
}

/// A model's reply as it is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LlmReply {
    /// The assistant message; its id is the call's [C11], its tool-call ids are unique [C14].
    pub message: Arc<Message>,
    /// Whether the reply was cut short.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The model that answered.
    #[serde(default)]
    pub model: String,
    /// Token counts, as they came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Json>,
    /// Dollars, a normalised decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
}

tagged! {
    /// How a call ended.
    pub enum Outcome as "outcome" {
        /// A tool's result.
        "result" => Result(ToolResult),
        /// A model's reply.
        "reply" => Reply(LlmReply),
        /// A failure for good.
        "error" => Error(CallError),
    }
}

/// A tool's result as text [D5].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The text the model reads.
    pub text: String,
}
