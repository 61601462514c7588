//! Sessions and turns [S1–S8]: opening, ending, stalling, aborting.

use belljar_protocol::Json;
use belljar_protocol::call::{CallError, Outcome};
use belljar_protocol::event::{Event, Seed, SessionClosed, TurnError};
use belljar_protocol::id::TurnId;

use crate::command::Party;
use crate::draft::Draft;
use crate::state::turn_ended;

impl Draft {
    /// Ends the running turn [S5, S7, S8, D8].
    pub(crate) fn end_turn(&mut self, outcome: Result<Option<Json>, TurnError>) {
        if let Some(turn) = self.state.turn.clone() {
            self.emit(Event::TurnEnded(turn_ended(&turn, outcome)));
        }
    }

    /// S7: a turn with no open call of its own, no waiting decision and no pause can never move
    /// again; it ends. One that a client's action opened completes instead [I10].
    pub(crate) fn end_if_stalled(&mut self, model_error: Option<CallError>) {
        let Some(turn) = &self.state.turn else { return };
        let own = Some(&turn.turn_id);
        let waits = self
            .state
            .queue
            .iter()
            .chain(self.state.live.iter().map(|live| &live.queued));
        if waits
            .into_iter()
            .any(|queued| queued.turn_id.as_ref() == own)
            || self
                .state
                .calls
                .open()
                .any(|entry| entry.request.turn_id.as_ref() == own)
        {
            return;
        }
        let outcome = match (turn.by_action, model_error) {
            (true, None) => Ok(None),
            (_, Some(error)) => Err(TurnError {
                code: error
                    .code
                    .map_or("llm_failed", |code| code.as_str())
                    .to_owned(),
                message: error.message,
                detail: error.detail,
            }),
            (false, None) => Err(TurnError {
                code: "stalled".into(),
                message:
                    "the answer left nothing to wait for: no open call, no decision, no `done`"
                        .into(),
                detail: None,
            }),
        };
        self.end_turn(outcome);
    }

    /// A terminal failure ends a turn: its calls are voided, its decisions dropped [D8].
    pub(crate) fn fail_turn(&mut self, turn_id: &TurnId, error: TurnError) {
        if self
            .state
            .turn
            .as_ref()
            .is_none_or(|turn| turn.turn_id != *turn_id)
        {
            return;
        }
        self.void_open(|entry| entry.request.turn_id.as_ref() == Some(turn_id));
        self.drop_decisions(|queued| queued.turn_id.as_ref() == Some(turn_id));
        self.end_turn(Err(error));
    }

    /// S8: every open call is voided, all decisions are dropped, the turn ends; the session is
    /// usable.
    pub(crate) fn abort(&mut self, by: Party) {
        self.void_open(|_| true);
        self.drop_decisions(|_| true);
        self.end_turn(Err(TurnError {
            code: "aborted".into(),
            message: format!("the turn was aborted by the {}", by.as_str()),
            detail: None,
        }));
    }

    /// S8: closing aborts, and is final.
    pub(crate) fn close(&mut self, by: Party) {
        if self.state.closed {
            return;
        }
        self.abort(by);
        self.emit(Event::SessionClosed(SessionClosed {
            by: by.as_str().into(),
        }));
    }

    /// The error of the model call a decision reported, if that is what it reported.
    pub(crate) fn model_error(&self, trigger: &Seed) -> Option<CallError> {
        let Seed::LlmFinished(seed) = trigger else {
            return None;
        };
        match self.state.calls.get(&seed.call_id)?.outcome.as_deref()? {
            Outcome::Error(error) => Some(error.clone()),
            Outcome::Reply(reply) if reply.truncated => Some(CallError {
                message: "the model's reply was cut short (finish reason `length`)".into(),
                code: None,
                detail: None,
            }),
            Outcome::Reply(_) | Outcome::Result(_) => None,
        }
    }
}
