//! Model calls in the host's own shapes; providers map them to theirs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Json;
use crate::call::ErrorCode;
use crate::message::{Message, ToolCall};

/// How hard to think; a provider that lacks a level gets its nearest, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

/// Reasoning controls of a model call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reasoning {
    /// How hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Most tokens spent on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Whether to leave it out of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<bool>,
    /// Whether to reason at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// A tool as the model is offered it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LlmTool {
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its arguments; none: it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    /// JSON Schema of its results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Json>,
}

/// One request to a model, complete: what leaves the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LlmRequest {
    /// `provider/name` or an alias.
    pub model: String,
    /// The prompt, every tool call followed by its result [T7].
    pub messages: Vec<Arc<Message>>,
    /// Tools on offer; none: none were configured.
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
}

/// An image in a model's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// Where it is, often a `data:` URL.
    pub url: String,
}

/// One reply of a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LlmResponse {
    /// The model that answered.
    #[serde(default)]
    pub model: String,
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Tools it calls.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "crate::agent::null_is_empty"
    )]
    pub tool_calls: Vec<ToolCall>,
    /// Why it stopped, in the provider's words; `length` means the reply was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Token counts, as the provider gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Json>,
    /// Dollars, as a decimal string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// Images of the reply.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "crate::agent::null_is_empty"
    )]
    pub images: Vec<Image>,
    /// Fields the message must keep for the next request (thinking blocks, signatures), an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Json>,
}

/// Part of a tool call in a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCallDelta {
    /// The call's id.
    pub id: String,
    /// Its name, in the first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of its argument text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

/// A piece of a reply while it is being written. Never stored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StreamDelta {
    /// More text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// More reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// More of tool calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
    /// Why it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
}

/// Why a model gave no reply.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ModelFailure {
    /// For people, and for the agent: what happened, with the provider's words.
    pub message: String,
    /// Whether trying again may help [C12].
    pub retryable: bool,
    /// What kind of failure it was.
    pub code: ErrorCode,
    /// Seconds the provider asks us to wait; a floor for the backoff [C5].
    pub retry_after_secs: Option<f64>,
    /// The provider's own error body, when it was JSON.
    pub detail: Option<Json>,
}
