//! Proposals [P0–P6]: what the engine would do by itself. Advice: only the answer counts.

use std::sync::Arc;

use belljar_protocol::Json;
use belljar_protocol::agent::Handler;
use belljar_protocol::call::{CallStatus, Work};
use belljar_protocol::decision::{
    Action, DoneAction, ErrorAction, LlmCallAction, MessageSendAction, Records, Response,
    SubAgentSpawnAction, ToolCallAction, ToolInput, Trigger,
};
use belljar_protocol::id::{AgentId, CallId, DecisionId, MessageId, SessionId};
use belljar_protocol::message::{Content, Message, Role, ToolCall};
use belljar_protocol::ports::SessionView;

use crate::calls::offered;
use crate::ids;
use crate::view::View;

/// What the engine proposes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Proposal {
    /// Actions, and whether messages are recorded.
    pub(crate) response: Response,
    /// The messages.
    pub(crate) messages: ProposedMessages,
}

/// The messages of a proposal, without copying a view.
#[derive(Debug, Clone, Default)]
pub(crate) enum ProposedMessages {
    #[default]
    None,
    /// The client's whole view.
    View,
    These(Vec<Arc<Message>>),
}

impl Proposal {
    fn new(messages: ProposedMessages, actions: Vec<Action>) -> Self {
        let records = match messages {
            ProposedMessages::None => Records::None,
            ProposedMessages::View | ProposedMessages::These(_) => Records::Proposed,
        };
        Self {
            response: Response {
                records,
                actions,
                ..Response::default()
            },
            messages,
        }
    }

    fn only(action: Action) -> Self {
        Self::new(ProposedMessages::None, vec![action])
    }
}

/// What the engine would do for a trigger. `in_turn`: the decision belongs to the running turn.
pub(crate) fn propose(
    view: &View,
    decision: &DecisionId,
    in_turn: bool,
    trigger: &Trigger,
) -> Proposal {
    match trigger {
        Trigger::ClientMessages { .. } => client_messages(view),
        Trigger::ToolExecute {
            id, name, input, ..
        } => tool_execute(view, id, name, input),
        Trigger::LlmFinished {
            outcome: Ok(message),
            truncated: false,
            ..
        } => llm_finished(view, decision, in_turn, message),
        Trigger::ToolFinished { id, outcome, .. } => {
            let text = outcome.as_ref().unwrap_or_else(|error| error);
            call_finished(view, decision, in_turn, id, text)
        }
        Trigger::SubAgentFinished { id, outcome, .. } => {
            let text = outcome.as_ref().unwrap_or_else(|error| error);
            call_finished(view, decision, in_turn, id, text)
        }
        // A failed or truncated reply would be a pause [P5]; until there are pauses, nothing is
        // proposed, and a turn left with nothing ends with the model's error.
        Trigger::LlmFinished { .. }
        | Trigger::SessionStart
        | Trigger::ClientAction { .. }
        | Trigger::LlmExecute { .. }
        | Trigger::InterruptResumed { .. } => Proposal::default(),
    }
}

/// P1: the view and one model call, when there is a config.
fn client_messages(view: &View) -> Proposal {
    if view.frozen.tree.holds_at(view.at).config.is_none() {
        return Proposal::default();
    }
    // An empty list of messages records nothing, also when it is a view.
    let messages = match view.view_count() {
        0 => ProposedMessages::None,
        _ => ProposedMessages::View,
    };
    Proposal::new(messages, vec![Action::LlmCall(LlmCallAction::default())])
}

/// P2: an error for a tool the model was not offered, or for arguments that are not valid.
fn tool_execute(view: &View, id: &CallId, name: &str, input: &ToolInput) -> Proposal {
    let offered = view
        .frozen
        .calls
        .parent(id)
        .and_then(|parent| offered(parent));
    let error = match (offered, input) {
        (Some(tools), _) if tools.iter().all(|tool| tool.name != name) => {
            let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
            format!("unknown tool `{name}`; the tools are: {}", names.join(", "))
        }
        (_, ToolInput::Malformed { error } | ToolInput::Invalid { error, .. }) => {
            format!("invalid arguments: {error}")
        }
        (_, ToolInput::Valid { .. }) => return Proposal::default(),
    };
    Proposal::only(Action::ToolError(ErrorAction {
        id: None,
        attempt: None,
        error,
        retryable: None,
        code: None,
        detail: None,
    }))
}

/// P3, P4: the message, then `done` or the calls it asks for. Outside its turn the message only.
fn llm_finished(
    view: &View,
    decision: &DecisionId,
    in_turn: bool,
    message: &Arc<Message>,
) -> Proposal {
    let actions = if !in_turn {
        Vec::new()
    } else if message.tool_calls.is_empty() {
        let text = message
            .content
            .as_ref()
            .map(Content::text)
            .unwrap_or_default();
        vec![Action::Done(DoneAction {
            data: Some(Json::string(&text)),
        })]
    } else {
        message
            .tool_calls
            .iter()
            .flat_map(|call| requested(view, decision, call))
            .collect()
    };
    Proposal::new(ProposedMessages::These(vec![message.clone()]), actions)
}

/// P4: what one tool call of a reply becomes.
fn requested(view: &View, decision: &DecisionId, call: &ToolCall) -> Vec<Action> {
    let name = call.function.name.as_str();
    let config = view
        .frozen
        .tree
        .holds_at(view.at)
        .config
        .as_ref()
        .map(|config| &config.wire);
    if config.is_some_and(|config| {
        config
            .sub_agents
            .iter()
            .any(|agent| agent.id.as_str() == name)
    }) {
        #[derive(serde::Deserialize)]
        struct Delegation {
            message: String,
        }
        let child = SessionId::from(ids::derived(decision, call.id.as_str()));
        let arguments = &call.function.arguments;
        let text = serde_json::from_str::<Delegation>(arguments)
            .map_or_else(|_| arguments.clone(), |delegation| delegation.message);
        return vec![
            Action::SubAgentSpawn(SubAgentSpawnAction {
                session_id: child.clone(),
                agent_id: AgentId::from(name),
                tool_call_id: call.id.clone(),
                retry: None,
            }),
            Action::MessageSend(MessageSendAction {
                session_id: child,
                message: Arc::new(Message::text(Role::User, text)),
            }),
        ];
    }
    let declared = config.and_then(|config| config.tools.iter().find(|tool| tool.name == name));
    vec![Action::ToolCall(ToolCallAction {
        id: Some(call.id.clone()),
        name: name.to_owned(),
        arguments: Some(Json::string(&call.function.arguments)),
        handler: Some(
            declared
                .and_then(|tool| tool.handler)
                .unwrap_or(Handler::Worker),
        ),
        retry: None,
    })]
}

/// P6: the result as a message; once no sibling is left, the model is asked again as it was
/// before. A call that no model reply asked for proposes nothing.
fn call_finished(
    view: &View,
    decision: &DecisionId,
    in_turn: bool,
    id: &CallId,
    text: &str,
) -> Proposal {
    let calls = &view.frozen.calls;
    let Some(parent) = calls.parent(id) else {
        return Proposal::default();
    };
    let message = Message::tool_result(id.clone(), text)
        .with_id(MessageId::from(ids::derived(decision, "message")));
    let waits = calls
        .siblings(id)
        .any(|sibling| sibling.is_open() || calls.unprocessed.contains(&sibling.request.id));
    let messages = ProposedMessages::These(vec![Arc::new(message)]);
    let Work::Llm(work) = &parent.request.work else {
        return Proposal::default();
    };
    if waits || !in_turn || parent.status != CallStatus::Completed {
        return Proposal::new(messages, Vec::new());
    }
    // A call without a tool list of its own offered the config's: while that holds, leaving the
    // list out says the same, and is not stored with every prompt.
    let current = view.frozen.tree.holds_at(view.at).config.as_ref();
    let unchanged = match (current, &parent.config) {
        (Some(now), Some(then)) => Arc::ptr_eq(now, then),
        (None, None) => true,
        _ => false,
    };
    let tools = match (&work.tools, unchanged) {
        (None, true) => None,
        _ => Some(offered(parent).unwrap_or_default()),
    };
    let default_handler = current
        .and_then(|config| config.wire.handler)
        .unwrap_or(Handler::Server);
    let action = LlmCallAction {
        id: None,
        model: Some(work.model.clone()),
        messages: None,
        tools,
        temperature: work.temperature,
        max_completion_tokens: work.max_completion_tokens,
        reasoning: work.reasoning.clone(),
        stream: Some(work.stream),
        retry: parent
            .request
            .explicit_retry
            .then(|| parent.request.retry.clone()),
        handler: (parent.request.handler != default_handler).then_some(parent.request.handler),
    };
    Proposal::new(messages, vec![Action::LlmCall(action)])
}
