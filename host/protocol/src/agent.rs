//! What an agent says of itself: its model, tools and sub-agents.

use serde::{Deserialize, Serialize};

use crate::Json;
use crate::id::AgentId;

/// Who runs a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handler {
    /// The host: model calls only.
    Server,
    /// The agent itself, through an `*.execute` decision.
    Worker,
    /// The client, which settles the call by an input.
    Client,
}

/// A provider's wire format, for model calls an agent makes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum WireFormat {
    Openai,
    Anthropic,
}

/// How often, and how patiently, a call is tried [C5]. Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Most time for one attempt, from its dispatch; none: no limit.
    #[serde(default)]
    pub timeout_secs: Option<f64>,
    /// Retries after the first try, 0 to 100.
    pub max_retries: u32,
    /// Wait before the first retry; doubles with each.
    pub backoff_base_secs: f64,
    /// Longest wait.
    pub backoff_max_secs: f64,
}

/// A tool the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentTool {
    /// The name the model sees.
    pub name: String,
    /// What it does, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of its arguments; none: it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    /// JSON Schema its results must satisfy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Json>,
    /// `worker` (the default) or `client`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<Handler>,
}

/// Another agent this one may delegate to; the model sees a tool of that name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubAgent {
    /// The agent to spawn.
    pub id: AgentId,
    /// What it is good for, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// An agent's configuration in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentConfig {
    /// `provider/name`, or an alias such as `default`.
    pub model: String,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Whether clients see tokens as they come; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Where model calls run; default `server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<Handler>,
    /// Wire format of worker-handled model calls; requires handler `worker`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<WireFormat>,
    /// For model calls only; tools carry their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Tools offered to the model.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub tools: Vec<AgentTool>,
    /// Agents it may delegate to.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub sub_agents: Vec<SubAgent>,
}

/// Reads a list where `null` means no items.
pub(crate) fn null_is_empty<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(from)?.unwrap_or_default())
}
