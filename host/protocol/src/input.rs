//! What clients send into a session.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Json;
use crate::decision::ClientContext;
use crate::id::{AgentId, CallId, TurnId};
use crate::message::Message;

tagged! {
    /// A client's input.
    pub enum ClientInput as "input" {
        /// One more message on the active path.
        "client.message" => Message(MessageInput),
        /// The client's whole view of the conversation.
        "client.messages" => Messages(MessagesInput),
        /// Something a person did that is not a message.
        "client.action" => Action(ActionInput),
        /// Resumes a pause.
        "interrupt.resume" => Resume(ResumeInput),
        /// The result of a client-handled call.
        "tool.result" => ToolResult(ToolResultInput),
        /// The failure of a client-handled call.
        "tool.error" => ToolError(ToolErrorInput),
    }
}

impl ClientInput {
    /// The agent the input names, where its kind names one.
    pub fn agent_id(&self) -> Option<&AgentId> {
        match self {
            Self::Message(input) => Some(&input.agent_id),
            Self::Messages(input) => Some(&input.agent_id),
            Self::Action(input) => Some(&input.agent_id),
            Self::Resume(_) | Self::ToolResult(_) | Self::ToolError(_) => None,
        }
    }
}

/// `client.message`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MessageInput {
    pub agent_id: AgentId,
    /// Idempotency key; minted when absent [S3].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    pub message: Arc<Message>,
    /// Overrides the config's `stream` for this turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Wait for the running turn instead of being refused [S4].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<bool>,
}

/// `client.messages`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MessagesInput {
    pub agent_id: AgentId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    pub messages: Vec<Arc<Message>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientContext>,
}

/// `client.action`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ActionInput {
    pub agent_id: AgentId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Json>,
}

/// `interrupt.resume`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ResumeInput {
    pub interrupt_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
}

/// `tool.result`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ToolResultInput {
    pub id: CallId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(default)]
    pub result: Option<Json>,
}

/// `tool.error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ToolErrorInput {
    pub id: CallId,
    pub error: String,
    #[serde(default)]
    pub retryable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}
