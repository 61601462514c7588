//! Client inputs become triggers [I1–I12], and open turns [S1–S4].

use std::sync::Arc;

use belljar_protocol::decision::Identity;
use belljar_protocol::event::{
    ClientActionSeed, ClientMessagesSeed, Event, InputAccepted, NoFields, Seed, SessionCreated,
    TurnStarted, ViewBase,
};
use belljar_protocol::id::{MessageId, TurnId, VersionId};
use belljar_protocol::input::{ClientInput, MessageInput, MessagesInput};
use belljar_protocol::message::{Message, Role};
use belljar_protocol::scratch::Digest;
use belljar_protocol::{Json, json};

use crate::command::{Party, Rejection, Reply, SettleError};
use crate::draft::Draft;

impl Draft {
    /// `Command::Submit`. Checked in the order of S4: closed, agent, known turn id, belongs to
    /// the running turn, turn active.
    pub(crate) fn submit(
        &mut self,
        input: ClientInput,
        identity: Identity,
        version: Option<VersionId>,
    ) -> Result<Reply, Rejection> {
        if self.state.closed {
            let id = &self.state.session_id;
            return Err(Rejection::new(
                409,
                "session_closed",
                format!("session `{id}` is closed"),
            ));
        }
        if let (Some(named), Some(own)) = (input.agent_id(), self.state.agent_id())
            && named != own
        {
            return Err(Rejection::new(
                409,
                "agent_mismatch",
                format!("this session belongs to agent `{own}`, not `{named}`"),
            )
            .with("agent_id", own.as_str()));
        }
        let body = body_hash(&input);
        match input {
            ClientInput::Message(input) => {
                check_client_message(&input)?;
                let MessageInput {
                    agent_id,
                    turn_id,
                    message,
                    stream,
                    ..
                } = input;
                let turn = self.open(
                    agent_id,
                    identity,
                    turn_id,
                    &body,
                    stream,
                    version,
                    Opens::Message,
                )?;
                let Opened::New(turn_id) = turn else {
                    return Ok(turn.into());
                };
                let rest = vec![self.with_id(message)];
                let seed = ClientMessagesSeed {
                    base: ViewBase::ActivePath,
                    rest,
                    client: None,
                };
                self.queue(Some(turn_id.clone()), Seed::ClientMessages(seed), false);
                Ok(Reply::Submitted {
                    turn_id: Some(turn_id),
                })
            }
            ClientInput::Messages(input) => {
                check_view(&input)?;
                let MessagesInput {
                    agent_id,
                    turn_id,
                    messages,
                    stream,
                    client,
                } = input;
                let turn = self.open(
                    agent_id,
                    identity,
                    turn_id,
                    &body,
                    stream,
                    version,
                    Opens::View,
                )?;
                let Opened::New(turn_id) = turn else {
                    return Ok(turn.into());
                };
                let seed = ClientMessagesSeed {
                    client,
                    ..self.view_seed(messages)
                };
                self.queue(Some(turn_id.clone()), Seed::ClientMessages(seed), false);
                Ok(Reply::Submitted {
                    turn_id: Some(turn_id),
                })
            }
            ClientInput::Action(input) => {
                let turn = self.open(
                    input.agent_id,
                    identity,
                    input.turn_id,
                    &body,
                    None,
                    version,
                    Opens::Action,
                )?;
                let Opened::New(turn_id) = turn else {
                    return Ok(turn.into());
                };
                let seed = ClientActionSeed {
                    name: input.name,
                    args: input.args,
                };
                self.queue(Some(turn_id.clone()), Seed::ClientAction(seed), false);
                Ok(Reply::Submitted {
                    turn_id: Some(turn_id),
                })
            }
            // I11: an unknown pause is resumed by nothing, and that is no error.
            ClientInput::Resume(_) => {
                self.must_exist()?;
                Ok(Reply::Submitted { turn_id: None })
            }
            ClientInput::ToolResult(input) => {
                self.must_exist()?;
                self.settle_from_outside(
                    &input.id,
                    Party::Client,
                    input.attempt,
                    Ok(input.result),
                )?;
                Ok(Reply::Submitted { turn_id: None })
            }
            ClientInput::ToolError(input) => {
                self.must_exist()?;
                let failure = SettleError {
                    error: input.error,
                    retryable: input.retryable,
                };
                self.settle_from_outside(&input.id, Party::Client, input.attempt, Err(failure))?;
                Ok(Reply::Submitted { turn_id: None })
            }
        }
    }

    fn must_exist(&self) -> Result<(), Rejection> {
        if self.state.exists() {
            return Ok(());
        }
        let id = &self.state.session_id;
        Err(Rejection::new(
            404,
            "session_unknown",
            format!("there is no session `{id}`"),
        ))
    }

    /// Finds the turn an input belongs to, or opens one; creates the session when it is new.
    #[allow(clippy::too_many_arguments)]
    fn open(
        &mut self,
        agent_id: belljar_protocol::id::AgentId,
        identity: Identity,
        turn_id: Option<TurnId>,
        body: &str,
        stream: Option<bool>,
        version: Option<VersionId>,
        opens: Opens,
    ) -> Result<Opened, Rejection> {
        let running = self.state.turn.as_ref().map(|turn| turn.turn_id.clone());
        let known = turn_id.as_ref().and_then(|id| self.state.turns.get(id));
        if let (Some(id), Some(record)) = (&turn_id, known) {
            let names = record.joined.clone().unwrap_or_else(|| id.clone());
            if record.bodies.iter().any(|accepted| **accepted == *body) {
                return Ok(Opened::Repeat(names));
            }
            // A correction of the running turn: it forks, and voids what it leaves behind [T5].
            if opens == Opens::View && running.as_ref() == Some(&names) {
                self.accept(id.clone(), body, record.joined.clone());
                return Ok(Opened::New(names));
            }
            if running.as_ref() != Some(&names) {
                return Err(Rejection::new(
                    409,
                    "turn_id_reused",
                    format!("turn `{id}` is over and was another input; use a fresh turn id"),
                )
                .with("turn_id", id.as_str()));
            }
        }
        if let Some(running) = running {
            if opens != Opens::Action {
                return Err(Rejection::new(
                    409,
                    "turn_active",
                    format!("turn `{running}` is running; wait for its end, or abort it"),
                )
                .with("turn_id", running.as_str()));
            }
            // I10: an action joins the running turn; its own id becomes an alias.
            let own = turn_id.unwrap_or_else(|| TurnId::from(self.ids.fresh()));
            self.accept(own, body, Some(running.clone()));
            return Ok(Opened::New(running));
        }
        if !self.state.exists() {
            self.emit(Event::SessionCreated(SessionCreated {
                agent_id,
                identity,
                ancestry: Vec::new(),
            }));
        }
        let turn_id = turn_id.unwrap_or_else(|| TurnId::from(self.ids.fresh()));
        self.accept(turn_id.clone(), body, None);
        self.emit(Event::TurnStarted(TurnStarted {
            turn_id: turn_id.clone(),
            stream,
            version,
            by_action: opens == Opens::Action,
        }));
        let starting = self
            .state
            .queue
            .iter()
            .chain(self.state.live.iter().map(|live| &live.queued));
        if !self.state.started
            && !starting
                .into_iter()
                .any(|queued| matches!(queued.trigger, Seed::SessionStart(_)))
        {
            self.queue(Some(turn_id.clone()), Seed::SessionStart(NoFields {}), true);
        }
        Ok(Opened::New(turn_id))
    }

    fn accept(&mut self, turn_id: TurnId, body: &str, joined: Option<TurnId>) {
        self.emit(Event::InputAccepted(InputAccepted {
            turn_id,
            body: body.to_owned(),
            joined,
        }));
    }

    /// I2, I8: what of a view is recorded is named by its last message, the rest is kept as it
    /// came, with ids given on arrival [T2]; system messages are dropped.
    fn view_seed(&mut self, view: Vec<Arc<Message>>) -> ClientMessagesSeed {
        let view: Vec<_> = view
            .into_iter()
            .filter(|message| message.role != Role::System)
            .collect();
        let (recorded, end) = self.state.tree.matching(None, view.iter());
        let base = match self.state.tree.id_of(end) {
            Some(id) => ViewBase::Node(id.clone()),
            None => ViewBase::Root,
        };
        let rest = view
            .into_iter()
            .skip(recorded)
            .map(|message| self.with_id(message))
            .collect();
        ClientMessagesSeed {
            base,
            rest,
            client: None,
        }
    }

    pub(crate) fn with_id(&mut self, message: Arc<Message>) -> Arc<Message> {
        let named = message
            .id
            .as_ref()
            .is_some_and(|id| !id.as_str().is_empty());
        if named {
            return message;
        }
        let id = MessageId::from(self.ids.fresh());
        Arc::new(Arc::unwrap_or_clone(message).with_id(id))
    }
}

/// What kind of input asks for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opens {
    Message,
    View,
    Action,
}

/// The turn an input belongs to.
enum Opened {
    /// It is to be carried out in this turn.
    New(TurnId),
    /// It was accepted before; nothing runs.
    Repeat(TurnId),
}

impl From<Opened> for Reply {
    fn from(from: Opened) -> Self {
        let (Opened::New(turn_id) | Opened::Repeat(turn_id)) = from;
        Self::Submitted {
            turn_id: Some(turn_id),
        }
    }
}

/// I1: a single message is the user's.
fn check_client_message(input: &MessageInput) -> Result<(), Rejection> {
    if input.message.role != Role::User {
        return Err(Rejection::new(
            422,
            "message_role",
            "message.role: a `client.message` must have role `user`; send other roles in a `client.messages` view",
        ));
    }
    Ok(())
}

fn check_view(input: &MessagesInput) -> Result<(), Rejection> {
    for (ix, message) in input.messages.iter().enumerate() {
        if message.role == Role::Tool && message.tool_call_id.is_none() {
            return Err(Rejection::new(
                422,
                "message_tool_call_id",
                format!(
                    "messages[{ix}].tool_call_id: a message of role `tool` must name the call it answers"
                ),
            ));
        }
    }
    Ok(())
}

/// What makes two submits the same [S4]: the body as a value, white space, key order and the
/// turn id (under which it is kept) apart.
fn body_hash(input: &ClientInput) -> String {
    let mut input = input.clone();
    match &mut input {
        ClientInput::Message(input) => input.turn_id = None,
        ClientInput::Messages(input) => input.turn_id = None,
        ClientInput::Action(input) => input.turn_id = None,
        ClientInput::Resume(_) | ClientInput::ToolResult(_) | ClientInput::ToolError(_) => {}
    }
    Digest::of(json::canonical(&Json::of(&input)).as_bytes())
        .as_str()
        .to_owned()
}
