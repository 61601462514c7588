//! What one run of a decision used and said.

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::id::VersionId;

/// How loud a log line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// One line a guest wrote, control bytes stripped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// How loud; stdout is `info`, stderr `warn`.
    pub level: LogLevel,
    /// The line.
    pub line: String,
}

/// What one delivery of a decision used and said, kept with its event.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunRecord {
    /// The component that ran; none for an HTTP worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionId>,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Wall time, microseconds.
    #[serde(default)]
    pub wall_us: u64,
    /// Time on a processor, microseconds.
    #[serde(default)]
    pub cpu_us: u64,
    /// Units of fuel burnt.
    #[serde(default)]
    pub fuel: u64,
    /// Most linear memory held at once, bytes over all memories.
    #[serde(default)]
    pub peak_memory: u64,
    /// Calls from the guest into the host.
    #[serde(default)]
    pub host_calls: u64,
    /// What the guest wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LogLine>,
    /// Bytes of log that did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub log_dropped: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
