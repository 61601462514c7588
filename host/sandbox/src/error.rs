//! Why a decision gave no answer: a closed set, each with its numbers.

use std::time::Duration;

use belljar_protocol::Json;
use belljar_protocol::decision::{DecisionFailure, FailureClass};

/// Why a decision gave no answer.
///
/// [`SandboxError::code`] is what programs look at, the text is for people, and
/// [`SandboxError::class`] says whether another try may help.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SandboxError {
    /// The guest used up its instructions.
    #[error("fuel exhausted: all {limit} units used{at}", at = doing(.at))]
    FuelExhausted {
        /// Units it had.
        limit: u64,
        /// What it was doing, innermost function first; empty when not known.
        at: String,
    },
    /// The guest was on a processor for too long.
    #[error("cpu timeout: {used:?} of processor time used, {limit:?} allowed{at}", at = doing(.at))]
    CpuTimeout {
        /// Time used.
        used: Duration,
        /// Time allowed.
        limit: Duration,
        /// What it was doing, innermost function first; empty when not known.
        at: String,
    },
    /// The decision took too long, waiting included.
    #[error("wall timeout: no answer within {limit:?}")]
    WallTimeout {
        /// Time allowed.
        limit: Duration,
    },
    /// The guest trapped after it had been refused more memory.
    #[error("memory exhausted: {wanted} bytes asked for, {limit} allowed{at}", at = doing(.at))]
    MemoryExhausted {
        /// Bytes over all memories the refused growth would have brought it to.
        wanted: u64,
        /// Bytes allowed.
        limit: u64,
        /// What it was doing, innermost function first; empty when not known.
        at: String,
    },
    /// The guest ran out of table elements or handles.
    #[error("table exhausted: more than {limit} {what}{at}", at = doing(.at))]
    TableExhausted {
        /// `table elements` or `handles`.
        what: &'static str,
        /// How many are allowed.
        limit: u64,
        /// What it was doing, innermost function first; empty when not known.
        at: String,
    },
    /// The guest's calls nested too deep.
    #[error("stack overflow: more than {limit} bytes of stack{at}", at = doing(.at))]
    StackOverflow {
        /// Bytes allowed.
        limit: usize,
        /// What it was doing, innermost function first; empty when not known.
        at: String,
    },
    /// The guest called the host too often.
    #[error("host call limit: more than {limit} calls into the host{at}", at = doing(.at))]
    HostCallLimit {
        /// Calls allowed.
        limit: u64,
        /// What it was doing, innermost function first; empty when not known.
        at: String,
    },
    /// One call handed the host too many bytes.
    #[error("host call bytes: one call into the host carried more than {limit} bytes{at}", at = doing(.at))]
    HostCallBytes {
        /// Bytes allowed.
        limit: usize,
        /// What it was doing, innermost function first; empty when not known.
        at: String,
    },
    /// The answer is larger than an answer may be.
    #[error("answer too large: {what} is {used}, {limit} allowed")]
    AnswerTooLarge {
        /// What of it: `bytes`, `actions`, `messages`.
        what: &'static str,
        /// How much it is; when the host stopped reading before the end, at least this.
        used: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// `state` is larger than it may be.
    #[error("state too large: `state` is {used} bytes of JSON, {limit} allowed")]
    StateTooLarge {
        /// Bytes it is.
        used: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The answer is not one: a field holds what it may not.
    #[error("the answer's {field} {reason}")]
    AnswerInvalid {
        /// Where, as in `actions[2].arguments`.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The guest trapped.
    #[error("trap: {reason}{at}", at = doing(.at))]
    Trap {
        /// What the trap says.
        reason: String,
        /// What it was doing, innermost function first; empty when not known.
        at: String,
    },
    /// The guest ended its process instead of answering.
    #[error("guest exit: it exited with status {status} instead of answering")]
    GuestExit {
        /// The status it gave.
        status: i32,
    },
    /// `/scratch` holds more than it may.
    #[error("scratch quota: {what} is {used}, {limit} allowed")]
    ScratchQuota {
        /// What of it: `bytes`, `entries`, or a file's path.
        what: String,
        /// How much it is; when the host stopped counting before the end, at least this.
        used: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// `/scratch` holds an entry that may not be there.
    #[error("scratch entry: `{path}` {reason}")]
    ScratchEntry {
        /// Its path.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The guest answered that it failed.
    #[error("{message}")]
    GuestFailure {
        /// What it said.
        message: String,
        /// Whether it thinks another try may help.
        retryable: bool,
        /// What it added.
        detail: Option<Json>,
    },
    /// The component's bytes are not to be had.
    #[error("component missing: no component {version} is stored")]
    ComponentMissing {
        /// Which version.
        version: String,
    },
    /// The component's bytes are there, but cannot be run by this host.
    #[error("component unusable: {version} cannot be run: {reason}")]
    ComponentUnusable {
        /// Which version.
        version: String,
        /// Why not.
        reason: String,
    },
    /// A file of the session's manifest is not to be had.
    #[error(
        "blob missing: `/scratch/{path}` cannot be restored, its content {digest} is not stored"
    )]
    BlobMissing {
        /// The file's path.
        path: String,
        /// Its content.
        digest: String,
    },
    /// The host could not do its part.
    #[error("host failure: {doing}: {reason}")]
    Host {
        /// What it was doing.
        doing: &'static str,
        /// What went wrong.
        reason: String,
    },
}

fn doing(place: &str) -> String {
    if place.is_empty() {
        String::new()
    } else {
        format!(", in {place}")
    }
}

impl SandboxError {
    /// A stable code, as it is written in events and over HTTP.
    pub fn code(&self) -> &'static str {
        match self {
            Self::FuelExhausted { .. } => "fuel_exhausted",
            Self::CpuTimeout { .. } => "cpu_timeout",
            Self::WallTimeout { .. } => "wall_timeout",
            Self::MemoryExhausted { .. } => "memory_exhausted",
            Self::TableExhausted { .. } => "table_exhausted",
            Self::StackOverflow { .. } => "stack_overflow",
            Self::HostCallLimit { .. } => "host_call_limit",
            Self::HostCallBytes { .. } => "host_call_bytes",
            Self::AnswerTooLarge { .. } => "answer_too_large",
            Self::StateTooLarge { .. } => "state_too_large",
            Self::AnswerInvalid { .. } => "answer_invalid",
            Self::Trap { .. } => "trap",
            Self::GuestExit { .. } => "guest_exit",
            Self::ScratchQuota { .. } => "scratch_quota",
            Self::ScratchEntry { .. } => "scratch_entry",
            Self::GuestFailure { .. } => "decision_failed",
            Self::ComponentMissing { .. } => "component_missing",
            Self::ComponentUnusable { .. } => "component_unusable",
            Self::BlobMissing { .. } => "blob_missing",
            Self::Host { .. } => "host_failure",
        }
    }

    /// Whether another try may help (rule D7): what follows from the guest and its input alone is
    /// deterministic, what the host could not do may go well another time, an answer that is
    /// none is terminal.
    pub fn class(&self) -> FailureClass {
        match self {
            Self::FuelExhausted { .. }
            | Self::MemoryExhausted { .. }
            | Self::TableExhausted { .. }
            | Self::StackOverflow { .. }
            | Self::HostCallLimit { .. }
            | Self::HostCallBytes { .. }
            | Self::AnswerTooLarge { .. }
            | Self::StateTooLarge { .. }
            | Self::Trap { .. }
            | Self::GuestExit { .. }
            | Self::ScratchQuota { .. }
            | Self::ScratchEntry { .. } => FailureClass::Deterministic,
            Self::CpuTimeout { .. } | Self::WallTimeout { .. } => FailureClass::TimedOut,
            Self::AnswerInvalid { .. }
            | Self::ComponentMissing { .. }
            | Self::ComponentUnusable { .. } => FailureClass::Terminal,
            Self::GuestFailure { retryable, .. } if !retryable => FailureClass::Terminal,
            Self::GuestFailure { .. } | Self::BlobMissing { .. } | Self::Host { .. } => {
                FailureClass::Retryable
            }
        }
    }

    pub(crate) fn host(doing: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Host {
            doing,
            reason: reason.to_string(),
        }
    }
}

impl From<SandboxError> for DecisionFailure {
    fn from(from: SandboxError) -> Self {
        let (class, code, message) = (from.class(), from.code().to_owned(), from.to_string());
        let detail = match from {
            SandboxError::GuestFailure { detail, .. } => detail,
            _ => None,
        };
        Self {
            class,
            code,
            message,
            detail,
        }
    }
}
