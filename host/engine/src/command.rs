//! Commands: everything that can be asked of a session, and what comes back.

use std::collections::BTreeMap;

use belljar_protocol::decision::{Answer, DecisionFailure, Identity};
use belljar_protocol::event::Commit;
use belljar_protocol::id::{CallId, DecisionId, TurnId, VersionId};
use belljar_protocol::input::ClientInput;
use belljar_protocol::model::{LlmResponse, ModelFailure};
use belljar_protocol::problem::Problem;
use belljar_protocol::run::RunRecord;
use belljar_protocol::scratch::{DeliveredFile, ScratchChange};
use belljar_protocol::{Json, Timestamp};

use crate::State;

/// The moment a command is handled, and the entropy its ids are made of.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The time.
    pub at: Timestamp,
    /// Fresh random bytes; the same bytes and time give the same ids.
    pub seed: [u8; 32],
}

/// What is asked of a session.
#[derive(Debug, Clone)]
pub enum Command {
    /// A client's input.
    Submit {
        /// The input.
        input: ClientInput,
        /// The owner, taken when the session is created.
        identity: Identity,
        /// The version a turn opened by this input is pinned to.
        version: Option<VersionId>,
    },
    /// What a delivery of a decision gave.
    Answer(Box<AnswerIn>),
    /// What a model gave for one attempt of a call the host made.
    Reply {
        /// The call.
        call_id: CallId,
        /// The attempt it answers; another one is dropped silently [C4].
        attempt: u32,
        /// The reply or the failure.
        outcome: Result<LlmResponse, ModelFailure>,
    },
    /// A result from outside, by call id [C4].
    Settle {
        /// The call.
        call_id: CallId,
        /// Who settles it.
        by: Party,
        /// The attempt it is for; none: the current one.
        attempt: Option<u32>,
        /// The result or the failure.
        outcome: Result<Option<Json>, SettleError>,
    },
    /// Ends the running turn now [S8].
    Abort {
        /// Who.
        by: Party,
    },
    /// Ends the session for good [S8].
    Close {
        /// Who.
        by: Party,
    },
    /// Time has passed: fires the timers that are due.
    Tick,
    /// The host came up and found this session with open work [D2, C15].
    Recover,
}

/// What a delivery of a decision gave.
#[derive(Debug, Clone)]
pub struct AnswerIn {
    /// The decision.
    pub decision_id: DecisionId,
    /// The answer, or how the delivery failed.
    pub outcome: Result<Answer, DecisionFailure>,
    /// What the run used and said; none for an answer that came late, over HTTP.
    pub run: Option<RunRecord>,
    /// What it changed in `/scratch`; committed with the answer or not at all.
    pub scratch: ScratchChange,
    /// Files it delivered; committed with the answer or not at all.
    pub delivered: Vec<DeliveredFile>,
}

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The session's owner or its program.
    Client,
    /// The agent's side.
    Worker,
    /// Whoever runs the host; may do what each of the others may.
    Operator,
}

impl Party {
    /// The name that events carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Worker => "worker",
            Self::Operator => "operator",
        }
    }
}

/// A failure from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettleError {
    /// What the model reads.
    pub error: String,
    /// Whether the call's policy may try again.
    pub retryable: bool,
}

/// A command that was taken.
#[derive(Debug, Clone)]
pub struct Handled {
    /// What changed; none: nothing did, and there is nothing to store.
    pub commit: Option<Commit>,
    /// The state after it.
    pub state: State,
    /// What the asker is told.
    pub reply: Reply,
}

/// What the asker is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// 202: the turn that took the input in; none for inputs that belong to no turn.
    Submitted {
        /// The turn.
        turn_id: Option<TurnId>,
    },
    /// Whether an answer was taken. One that was not changes nothing, and what it wrote is
    /// thrown away.
    Answered {
        /// Taken.
        accepted: bool,
    },
    /// Done, nothing more to say.
    Done,
}

/// A command that was refused; nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Rejection {
    /// The HTTP status it maps to.
    pub status: u16,
    /// A stable code.
    pub code: &'static str,
    /// What was wrong and what to do.
    pub message: String,
    /// More fields, such as `turn_id`.
    pub more: BTreeMap<&'static str, String>,
}

impl Rejection {
    /// A refusal with a status, a code and a sentence.
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            more: BTreeMap::new(),
        }
    }

    /// The same with one more field.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.more.insert(key, value.into());
        self
    }
}

impl From<Rejection> for Problem {
    fn from(from: Rejection) -> Self {
        from.more.into_iter().fold(
            Self::new(from.status, from.code, from.message),
            |problem, (key, value)| problem.with(key, value),
        )
    }
}
