//! Agents, their versions, and the labels that point at them.

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::id::{AgentId, VersionId};

/// Which world a component exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum World {
    /// `belljar:agent/agent@0.1.0`: typed, the history read on demand.
    #[serde(rename = "agent")]
    Agent,
    /// `belljar:agent/agent-json@0.1.0`: the protocol's JSON in and out.
    #[serde(rename = "agent-json")]
    AgentJson,
}

/// One uploaded component of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// `sha256:<hex>` of the component's bytes.
    pub version: VersionId,
    /// The agent it belongs to.
    pub agent: AgentId,
    /// Bytes of the component.
    pub size: u64,
    /// Which world it exports.
    pub world: World,
    /// Interfaces it imports.
    pub imports: Vec<String>,
    /// Time to compile it, milliseconds.
    pub compile_ms: u64,
    /// When it was uploaded.
    pub uploaded_at: Timestamp,
}

/// When a move of a label reaches turns that are already running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Swap {
    /// With their next turn.
    #[default]
    Turn,
    /// With their next decision, and with the next attempt of a failing one.
    Decision,
}

/// One move of a label, kept for ever.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelMove {
    /// Counts the moves of all labels of an agent, from 1.
    pub id: u64,
    /// The label, such as `live`.
    pub label: String,
    /// Where it points now; none: it was removed.
    pub version: Option<VersionId>,
    /// Where it pointed before.
    pub previous: Option<VersionId>,
    /// When it reaches running turns.
    pub swap: Swap,
    /// Who moved it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}
