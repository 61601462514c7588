//! A decision as its agent sees it: composed from the session as it was when it went live.

use std::sync::Arc;

use belljar_protocol::Json;
use belljar_protocol::agent::AgentConfig;
use belljar_protocol::call::Call;
use belljar_protocol::decision::{Ask, ClientContext, Response, ToolInput, Trigger};
use belljar_protocol::event::{ClientMessagesSeed, Seed, ViewBase};
use belljar_protocol::id::MessageId;
use belljar_protocol::message::Message;
use belljar_protocol::ports::SessionView;
use imbl::Vector;

use crate::calls::{self, Entry};
use crate::proposals::{self, Proposal, ProposedMessages};
use crate::state::{Live, State};
use crate::tree::NodeIx;

/// A decision ready to be delivered.
#[derive(Debug, Clone)]
pub struct Composed {
    /// The question.
    pub ask: Ask,
    /// The conversation behind it.
    pub view: Arc<View>,
}

/// The session around a decision, frozen [D1, §3].
#[derive(Debug)]
pub struct View {
    pub(crate) frozen: Arc<State>,
    /// Where state and config are read: the head, or the last recorded message of a client's view.
    pub(crate) at: Option<NodeIx>,
    /// A client's view: what of it is recorded …
    pub(crate) recorded: Vector<NodeIx>,
    /// … and what is new.
    pub(crate) new: Vec<Arc<Message>>,
    pub(crate) proposal: Proposal,
}

/// Composes the live decision. Pure in what was frozen: a redelivered decision is the same, ids
/// included [D2].
pub(crate) fn compose(live: &Live) -> Composed {
    let frozen = &live.frozen;
    let queued = &live.queued;
    let (recorded, new) = match &queued.trigger {
        Seed::ClientMessages(seed) => client_view(frozen, seed),
        _ => (Vector::new(), Vec::new()),
    };
    let at = match &queued.trigger {
        Seed::ClientMessages(_) => recorded.last().copied(),
        _ => frozen.tree.head(),
    };
    let trigger = trigger(frozen, &queued.trigger, recorded.len(), &new);
    let running = frozen.turn.as_ref().map(|turn| &turn.turn_id);
    let turn_id = queued.turn_id.clone().filter(|id| Some(id) == running);
    let mut view = View {
        frozen: frozen.clone(),
        at,
        recorded,
        new,
        proposal: Proposal::default(),
    };
    view.proposal = proposals::propose(&view, &queued.decision_id, turn_id.is_some(), &trigger);
    let info = frozen.info.as_deref();
    let ask = Ask {
        session_id: frozen.session_id.clone(),
        decision_id: queued.decision_id.clone(),
        agent_id: info.map_or_else(|| "".into(), |info| info.agent_id.clone()),
        identity: info.map(|info| info.identity.clone()).unwrap_or_default(),
        trigger,
        previous_version: frozen.last_version.clone(),
        pending_calls: frozen.calls.pending(queued.trigger.call_id()),
        ancestry: info.map(|info| info.ancestry.clone()).unwrap_or_default(),
        attempts: live.attempts,
        deadline: None,
        turn_id,
        live_at: live.live_at,
    };
    Composed {
        ask,
        view: Arc::new(view),
    }
}

/// What of a client's view is recorded by now, as one chain from the root [I2], and the rest.
fn client_view(frozen: &State, seed: &ClientMessagesSeed) -> (Vector<NodeIx>, Vec<Arc<Message>>) {
    let tree = &frozen.tree;
    let base = match &seed.base {
        ViewBase::ActivePath => tree.head(),
        ViewBase::Node(id) => tree.find(id),
        ViewBase::Root => None,
    };
    let (more, end) = tree.matching(base, seed.rest.iter());
    (tree.path_to(end), seed.rest[more..].to_vec())
}

fn trigger(frozen: &State, seed: &Seed, recorded: usize, new: &[Arc<Message>]) -> Trigger {
    // A decision about a call exists only while the call does.
    let about = |id| frozen.calls.get(id);
    match seed {
        Seed::SessionStart(_) => Trigger::SessionStart,
        Seed::ClientMessages(seed) => Trigger::ClientMessages {
            new_from: recorded as u32,
            new_messages: new.to_vec(),
            client: seed.client.clone().unwrap_or_else(ClientContext::default),
        },
        Seed::ClientAction(seed) => Trigger::ClientAction {
            name: seed.name.clone(),
            args: seed.args.clone(),
        },
        Seed::ToolExecute(seed) => about(&seed.call_id).map_or(Trigger::SessionStart, |entry| {
            let (name, arguments) = match &entry.request.work {
                belljar_protocol::call::Work::Tool(tool) => {
                    (tool.name.clone(), tool.arguments.clone())
                }
                _ => Default::default(),
            };
            Trigger::ToolExecute {
                id: seed.call_id.clone(),
                input: check_input(frozen, entry, &name, &arguments),
                name,
                arguments,
                attempt: entry.attempt,
                deadline: entry.deadline,
            }
        }),
        Seed::LlmExecute(seed) => {
            about(&seed.call_id).map_or(Trigger::SessionStart, |entry| Trigger::LlmExecute {
                id: seed.call_id.clone(),
                request: Json::of(&crate::prompt::request(&frozen.tree, &frozen.calls, entry)),
                format: None,
                stream: frozen.call_streams(entry),
                attempt: entry.attempt,
                deadline: entry.deadline,
            })
        }
        Seed::ToolFinished(seed) => {
            about(&seed.call_id).map_or(Trigger::SessionStart, |entry| calls::tool_finished(entry))
        }
        Seed::LlmFinished(seed) => {
            about(&seed.call_id).map_or(Trigger::SessionStart, |entry| calls::llm_finished(entry))
        }
    }
}

/// C7: checks arguments against the schema the model was offered; no coercion, no defaults.
fn check_input(frozen: &State, entry: &Entry, name: &str, arguments: &str) -> ToolInput {
    let text = if arguments.trim().is_empty() {
        "{}"
    } else {
        arguments
    };
    let value = match Json::parse(text) {
        Ok(value) => value,
        Err(error) => {
            return ToolInput::Malformed {
                error: error.to_string(),
            };
        }
    };
    let parsed: serde_json::Value = match value.read() {
        Ok(parsed) => parsed,
        Err(error) => {
            return ToolInput::Malformed {
                error: error.to_string(),
            };
        }
    };
    if !parsed.is_object() {
        return ToolInput::Malformed {
            error: "the arguments must be a JSON object".into(),
        };
    }
    match schema_check(frozen, entry, name, &parsed) {
        Ok(()) => ToolInput::Valid { value },
        Err(error) => ToolInput::Invalid { value, error },
    }
}

fn schema_check(
    frozen: &State,
    entry: &Entry,
    name: &str,
    value: &serde_json::Value,
) -> Result<(), String> {
    let Some(parent) = frozen.calls.parent(&entry.request.id) else {
        return Ok(());
    };
    let explicit = match &parent.request.work {
        belljar_protocol::call::Work::Llm(work) => work.tools.as_ref(),
        _ => None,
    };
    if let Some(tools) = explicit {
        let schema = tools
            .iter()
            .find(|tool| tool.name == name)
            .and_then(|tool| tool.input.as_ref());
        return schema.map_or(Ok(()), |schema| crate::schema::check(schema, value));
    }
    let Some(config) = &parent.config else {
        return Ok(());
    };
    let tool = config
        .wire
        .tools
        .iter()
        .enumerate()
        .find(|(_, tool)| tool.name == name);
    match tool.and_then(|(ix, tool)| Some((ix, tool.input.as_ref()?))) {
        Some((ix, schema)) => config.schemas.check(ix, schema, value),
        None => Ok(()),
    }
}

impl View {
    fn message_of(&self, ix: NodeIx) -> Option<Arc<Message>> {
        self.frozen.tree.node(ix).map(|node| node.message.clone())
    }
}

impl SessionView for View {
    fn state(&self) -> Option<&Json> {
        self.frozen.tree.holds_at(self.at).state.as_ref()
    }
    fn config(&self) -> Option<Arc<AgentConfig>> {
        self.frozen
            .tree
            .holds_at(self.at)
            .config
            .as_ref()
            .map(|config| config.wire.clone())
    }
    fn message_count(&self) -> u32 {
        self.frozen.tree.path_len() as u32
    }
    fn message(&self, ix: u32) -> Option<Arc<Message>> {
        self.frozen.tree.on_path(ix as usize).cloned()
    }
    fn view_count(&self) -> u32 {
        (self.recorded.len() + self.new.len()) as u32
    }
    fn view_message(&self, ix: u32) -> Option<Arc<Message>> {
        let ix = ix as usize;
        match self.recorded.get(ix) {
            Some(node) => self.message_of(*node),
            None => self.new.get(ix - self.recorded.len()).cloned(),
        }
    }
    fn node_count(&self) -> u32 {
        self.frozen.tree.len() as u32
    }
    fn node(&self, ix: u32) -> Option<(Arc<Message>, Option<MessageId>)> {
        let node = self.frozen.tree.node(ix)?;
        Some((
            node.message.clone(),
            self.frozen.tree.id_of(node.parent).cloned(),
        ))
    }
    fn head_id(&self) -> Option<MessageId> {
        self.frozen.tree.head_id().cloned()
    }
    fn calls(&self) -> Vec<Call> {
        self.frozen.open_calls()
    }
    fn proposed(&self) -> &Response {
        &self.proposal.response
    }
    fn proposed_count(&self) -> u32 {
        match &self.proposal.messages {
            ProposedMessages::None => 0,
            ProposedMessages::View => self.view_count(),
            ProposedMessages::These(messages) => messages.len() as u32,
        }
    }
    fn proposed_message(&self, ix: u32) -> Option<Arc<Message>> {
        match &self.proposal.messages {
            ProposedMessages::None => None,
            ProposedMessages::View => self.view_message(ix),
            ProposedMessages::These(messages) => messages.get(ix as usize).cloned(),
        }
    }
}
