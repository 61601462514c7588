//! Handling a command: events are applied to a draft as they are made, so that each rule sees
//! the effects of those before it.

use belljar_protocol::Timestamp;
use belljar_protocol::event::{Commit, Event};

use crate::command::{Command, Handled, Now, Rejection, Reply};
use crate::ids::Ids;
use crate::state::{State, apply_event, promote};

/// A state under way, and the events that led to it.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) state: State,
    pub(crate) ids: Ids,
    now: Now,
    events: Vec<Event>,
}

impl Draft {
    pub(crate) fn at(&self) -> Timestamp {
        self.now.at
    }

    /// Makes an event happen.
    pub(crate) fn emit(&mut self, event: Event) {
        self.state.seq += 1;
        apply_event(&mut self.state, self.now.at, &event);
        self.events.push(event);
    }
}

/// Checks a command against the state and says what it changes.
///
/// # Errors
/// A [`Rejection`] when the command is refused; then nothing changed.
pub fn handle(state: &State, command: Command, now: &Now) -> Result<Handled, Rejection> {
    let mut draft = Draft {
        state: state.clone(),
        ids: Ids::new(*now),
        now: *now,
        events: Vec::new(),
    };
    let reply = draft.take(command)?;
    let first_seq = state.seq + 1;
    let Draft {
        mut state, events, ..
    } = draft;
    promote(&mut state, now.at);
    let commit = (!events.is_empty()).then_some(Commit {
        first_seq,
        at: now.at,
        events,
    });
    Ok(Handled {
        commit,
        state,
        reply,
    })
}

impl Draft {
    fn take(&mut self, command: Command) -> Result<Reply, Rejection> {
        let unknown = || {
            let id = &self.state.session_id;
            Rejection::new(
                404,
                "session_unknown",
                format!("there is no session `{id}`"),
            )
        };
        if !self.state.exists() && !matches!(command, Command::Submit { .. }) {
            return Err(unknown());
        }
        match command {
            Command::Submit {
                input,
                identity,
                version,
            } => self.submit(input, identity, version),
            Command::Answer(answer) => Ok(self.answer(*answer)),
            Command::Reply {
                call_id,
                attempt,
                outcome,
            } => {
                self.reply(&call_id, attempt, outcome);
                Ok(Reply::Done)
            }
            Command::Settle {
                call_id,
                by,
                attempt,
                outcome,
            } => {
                self.settle_from_outside(&call_id, by, attempt, outcome)?;
                Ok(Reply::Done)
            }
            Command::Abort { by } => {
                self.abort(by);
                Ok(Reply::Done)
            }
            Command::Close { by } => {
                self.close(by);
                Ok(Reply::Done)
            }
            Command::Tick => {
                self.fire_timers();
                Ok(Reply::Done)
            }
            Command::Recover => {
                self.redispatch();
                self.redeliver();
                Ok(Reply::Done)
            }
        }
    }
}
