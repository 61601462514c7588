//! Decisions [D1–D9]: what becomes of an answer, and of a delivery that gave none.

use std::collections::BTreeSet;
use std::sync::Arc;

use belljar_protocol::Json;
use belljar_protocol::agent::{AgentConfig, Handler, RetryPolicy};
use belljar_protocol::call::{
    CallError, CallRequest, CallStatus, LlmWork, Outcome, SubAgentWork, ToolWork, Work,
};
use belljar_protocol::decision::{
    Action, Answer, DecisionFailure, ErrorAction, FailureClass, LlmCallAction, Records, Response,
    ToolCallAction, Trigger,
};
use belljar_protocol::event::{
    AgentSet, CallDeferred, CallRequested, DecisionAnswered, DecisionFailed, DecisionRedelivered,
    Event, FileDelivered, HeadMoved, MessagesRecorded, ScratchCommitted, Seed, StateSet, TurnError,
};
use belljar_protocol::id::{CallId, MessageId, SessionId, TurnId};
use belljar_protocol::message::{Message, Role};
use belljar_protocol::model::{LlmResponse, LlmTool};
use belljar_protocol::ports::SessionView;
use belljar_protocol::run::RunRecord;

use crate::calls::{AttemptFailure, DEFERRED_SECS, Entry, default_llm_retry, default_tool_retry};
use crate::command::{AnswerIn, Reply};
use crate::draft::Draft;
use crate::proposals::ProposedMessages;
use crate::schema;
use crate::state::Live;
use crate::tree::NodeIx;
use crate::view::Composed;

/// Deliveries of one decision, at most [§5].
pub const MAX_ATTEMPTS: u32 = 5;
/// Deliveries of a decision that fails deterministically or takes too long, at most [D7].
pub const MAX_ATTEMPTS_SAME_END: u32 = 2;
/// First wait between deliveries; doubles up to [`BACKOFF_MAX_SECS`].
pub const BACKOFF_BASE_SECS: f64 = 1.0;
/// Longest wait between deliveries.
pub const BACKOFF_MAX_SECS: f64 = 30.0;
/// Longest time a decision is tried for, from when it went live.
pub const TOTAL_SECS: f64 = 300.0;

/// Most retries a policy may ask for.
const MAX_RETRIES: u32 = 100;
/// Longest time a policy may name: a day.
const MAX_POLICY_SECS: f64 = 86_400.0;

/// What is wrong with an answer: the field and the reason. Nothing of it is applied [D4].
type Wrong = String;

impl Draft {
    /// `Command::Answer`. An answer for a settled decision changes nothing and is no error [D2].
    pub(crate) fn answer(&mut self, input: AnswerIn) -> Reply {
        let live = self.state.live.clone();
        let Some(live) = live.filter(|live| live.queued.decision_id == input.decision_id) else {
            return Reply::Answered { accepted: false };
        };
        let run = input.run.clone().map(Box::new);
        let failure = match &input.outcome {
            Ok(answer) => {
                let mut draft = self.clone();
                match draft.accept_answer(&live, answer, &input) {
                    Ok(()) => {
                        *self = draft;
                        return Reply::Answered { accepted: true };
                    }
                    Err(wrong) => DecisionFailure {
                        class: FailureClass::Terminal,
                        code: "answer_refused".into(),
                        message: wrong,
                        detail: None,
                    },
                }
            }
            Err(failure) => failure.clone(),
        };
        self.delivery_failed(&live, failure, run);
        Reply::Answered { accepted: false }
    }

    /// D7: tries again, or ends it for good.
    fn delivery_failed(
        &mut self,
        live: &Live,
        failure: DecisionFailure,
        run: Option<Box<RunRecord>>,
    ) {
        let most = match failure.class {
            FailureClass::Deterministic | FailureClass::TimedOut => MAX_ATTEMPTS_SAME_END,
            FailureClass::Retryable => MAX_ATTEMPTS,
            FailureClass::Terminal => 0,
        };
        let doubled = BACKOFF_BASE_SECS * 2_f64.powi(live.attempts.min(32) as i32 - 1);
        let retry_at = self.at().plus_secs(doubled.min(BACKOFF_MAX_SECS));
        let again = live.attempts < most && retry_at <= live.live_at.plus_secs(TOTAL_SECS);
        let error = TurnError {
            code: failure.code,
            message: failure.message,
            detail: failure.detail,
        };
        self.emit(Event::DecisionFailed(DecisionFailed {
            decision_id: live.queued.decision_id.clone(),
            attempt: live.attempts,
            class: failure.class,
            error: error.clone(),
            retry_at: again.then_some(retry_at),
            run,
        }));
        if !again {
            self.after_terminal(live, failure.class, error);
        }
    }

    /// D8, D9: what a terminal failure ends.
    fn after_terminal(&mut self, live: &Live, class: FailureClass, error: TurnError) {
        match &live.queued.trigger {
            Seed::ToolExecute(seed) | Seed::LlmExecute(seed) => {
                let again = matches!(class, FailureClass::Retryable | FailureClass::TimedOut);
                let mut failure = AttemptFailure::new(error.message, again);
                failure.error.detail = error.detail;
                self.fail_attempt(&seed.call_id, failure);
            }
            // A failed action ends only a turn that it opened itself.
            Seed::ClientAction(_)
                if self.state.turn.as_ref().is_some_and(|turn| {
                    turn.opened_by.as_ref() != Some(&live.queued.decision_id)
                }) => {}
            Seed::SessionStart(_)
            | Seed::ClientMessages(_)
            | Seed::ClientAction(_)
            | Seed::ToolFinished(_)
            | Seed::LlmFinished(_) => {
                if let Some(turn_id) = &live.queued.turn_id {
                    self.fail_turn(turn_id, error);
                }
            }
        }
        self.end_if_stalled(None);
    }

    /// D2: a recovery that finds a decision live counts as one attempt, so that a decision that
    /// kills the host ends too. One that waits for its retry was not being delivered.
    pub(crate) fn redeliver(&mut self) {
        let Some(live) = self.state.live.clone() else {
            return;
        };
        if live.not_before.is_some_and(|at| at > self.at()) {
            return;
        }
        if live.attempts >= MAX_ATTEMPTS {
            let failure = DecisionFailure {
                class: FailureClass::Terminal,
                code: "decision_failed".into(),
                message: format!(
                    "delivered {} times without an answer: the host went down each time",
                    live.attempts
                ),
                detail: None,
            };
            return self.delivery_failed(&live, failure, None);
        }
        self.emit(Event::DecisionRedelivered(DecisionRedelivered {
            decision_id: live.queued.decision_id.clone(),
            attempts: live.attempts + 1,
        }));
    }

    /// D3: complete the decision → messages → void what a fork stranded → state → agent →
    /// actions in order.
    fn accept_answer(
        &mut self,
        live: &Live,
        answer: &Answer,
        input: &AnswerIn,
    ) -> Result<(), Wrong> {
        let composed = live.composed().clone();
        let proposal = &composed.view.proposal;
        let response = match answer {
            Answer::Accept => &proposal.response,
            Answer::Respond(response) => response,
        };
        let model_error = composed
            .ask
            .turn_id
            .is_some()
            .then(|| self.model_error(&live.queued.trigger))
            .flatten();
        let answered = Event::DecisionAnswered(DecisionAnswered {
            decision_id: live.queued.decision_id.clone(),
            attempt: live.attempts,
            accepted_proposal: matches!(answer, Answer::Accept),
            raced: self.raced(&composed, response),
            run: input.run.clone().map(Box::new),
        });
        self.emit(answered);
        if !input.scratch.is_empty() {
            let generation = self.state.scratch.generation + 1;
            self.emit(Event::ScratchCommitted(ScratchCommitted {
                generation,
                change: input.scratch.clone(),
            }));
        }
        for file in &input.delivered {
            self.emit(Event::FileDelivered(FileDelivered {
                decision_id: live.queued.decision_id.clone(),
                file: file.clone(),
            }));
        }
        self.record(&composed, &response.records)?;
        self.void_stranded(&composed);
        let starts = matches!(composed.ask.trigger, Trigger::SessionStart);
        self.set_state(response.state.as_ref(), starts);
        self.set_agent(response.agent.as_ref(), starts)?;
        Actions {
            composed: &composed,
            spawned: Vec::new(),
        }
        .take(self, &response.actions)?;
        self.defer_unanswered(&composed);
        self.end_if_stalled(model_error);
        Ok(())
    }

    /// Results for calls of this agent that are over: ignored, and named in the log [D4].
    fn raced(&self, composed: &Composed, response: &Response) -> Vec<CallId> {
        let mut over = Vec::new();
        for action in &response.actions {
            let (id, attempt) = match action {
                Action::ToolResult(action) => (&action.id, action.attempt),
                Action::LlmResult(action) => (&action.id, action.attempt),
                Action::ToolError(action) | Action::LlmError(action) => {
                    (&action.id, action.attempt)
                }
                _ => continue,
            };
            let Some(id) = id.as_ref().or(composed.ask.trigger.call_id()) else {
                continue;
            };
            if self
                .state
                .calls
                .get(id)
                .is_some_and(|entry| is_raced(entry, attempt))
            {
                over.push(id.clone());
            }
        }
        over
    }

    /// T2–T4: reconciles the answer's messages with the tree.
    fn record(&mut self, composed: &Composed, records: &Records) -> Result<(), Wrong> {
        let view = &composed.view;
        let (end, list): (Option<NodeIx>, &[Arc<Message>]) = match records {
            Records::None => return Ok(()),
            Records::Proposed => match &view.proposal.messages {
                ProposedMessages::None => return Ok(()),
                // The view as it is: what of it is recorded is known already.
                ProposedMessages::View => (view.recorded.last().copied(), &view.new),
                ProposedMessages::These(list) => self.reconcile(composed, list),
            },
            Records::These(list) => {
                check_messages(list)?;
                self.reconcile(composed, list)
            }
        };
        if list.is_empty() {
            if end != self.state.tree.head() {
                let head = self.state.tree.id_of(end).cloned();
                self.emit(Event::HeadMoved(HeadMoved { head }));
            }
            return Ok(());
        }
        let mut messages: Vec<Arc<Message>> = Vec::with_capacity(list.len());
        let mut chain = imbl::OrdSet::<MessageId>::new();
        for message in list {
            // A known id in a new place is a new node: it gets an id of its own.
            let fresh = message.id.as_ref().is_none_or(|id| {
                id.as_str().is_empty() || self.state.tree.find(id).is_some() || chain.contains(id)
            });
            let message = match fresh {
                true => {
                    Arc::new(Message::clone(message).with_id(MessageId::from(self.ids.fresh())))
                }
                false => message.clone(),
            };
            chain.extend(message.id.clone());
            messages.push(message);
        }
        let parent = self.state.tree.id_of(end).cloned();
        self.emit(Event::MessagesRecorded(MessagesRecorded {
            parent,
            messages,
        }));
        Ok(())
    }

    /// T2: where a list begins, and how much of it is recorded from there. Gives the end of what
    /// is recorded, and the rest.
    fn reconcile<'a>(
        &self,
        composed: &Composed,
        list: &'a [Arc<Message>],
    ) -> (Option<NodeIx>, &'a [Arc<Message>]) {
        let tree = &self.state.tree;
        let Some(first) = list.first() else {
            return (tree.head(), list);
        };
        let first_of_view = composed.view.view_message(0);
        let whole_view =
            first.id.is_some() && first_of_view.is_some_and(|view| view.id == first.id);
        let base = if whole_view {
            None
        } else if let Some(ix) = first.id.as_ref().and_then(|id| tree.find(id)) {
            tree.node(ix).and_then(|node| node.parent)
        } else {
            tree.head()
        };
        let (recorded, end) = tree.matching(base, list.iter());
        (end, &list[recorded..])
    }

    /// T5: a client's correction voids the turn's open model calls; after a fork, calls anchored
    /// off the new path are voided and waiting decisions about such calls are dropped.
    fn void_stranded(&mut self, composed: &Composed) {
        let corrects = matches!(composed.ask.trigger, Trigger::ClientMessages { .. });
        let turn = composed.ask.turn_id.clone();
        let tree = self.state.tree.clone();
        let stranded = |entry: &Entry| {
            let anchor = entry.request.anchor.as_ref().and_then(|id| tree.find(id));
            anchor.is_some_and(|ix| !tree.is_on_path(ix))
        };
        self.void_open(|entry| {
            (corrects && entry.is_llm() && turn.is_some() && entry.request.turn_id == turn)
                || stranded(entry)
        });
        let calls = self.state.calls.clone();
        self.drop_decisions(|queued| {
            // A reply that came while the correction waited answers a prompt that is no more.
            let superseded = corrects
                && turn.is_some()
                && queued.turn_id == turn
                && matches!(queued.trigger, Seed::LlmFinished(_));
            let entry = queued.trigger.call_id().and_then(|id| calls.get(id));
            superseded || entry.is_some_and(|entry| stranded(entry))
        });
    }

    /// D6: an equal value writes nothing, `{}` clears.
    fn set_state(&mut self, state: Option<&Json>, at_root: bool) {
        let Some(state) = state.filter(|state| !state.is_null()) else {
            return;
        };
        let next = (!state.is_empty_object()).then(|| state.clone());
        let holds = if at_root {
            self.state.tree.root_holds()
        } else {
            self.state.tree.holds()
        };
        if holds.state != next {
            self.emit(Event::StateSet(StateSet {
                state: next,
                at_root,
            }));
        }
    }

    fn set_agent(&mut self, agent: Option<&Arc<AgentConfig>>, at_root: bool) -> Result<(), Wrong> {
        let Some(agent) = agent else { return Ok(()) };
        let holds = if at_root {
            self.state.tree.root_holds()
        } else {
            self.state.tree.holds()
        };
        let known = holds.config.as_ref();
        if known.is_some_and(|config| config.wire == *agent) {
            return Ok(());
        }
        check_agent(agent)?;
        self.emit(Event::AgentSet(AgentSet {
            agent: agent.clone(),
            at_root,
        }));
        Ok(())
    }

    /// C9: `tool.execute` answered with neither result nor error makes its call deferred: it
    /// stays open until somebody settles it.
    fn defer_unanswered(&mut self, composed: &Composed) {
        let Trigger::ToolExecute { id, attempt, .. } = &composed.ask.trigger else {
            return;
        };
        let Some(entry) = self.state.calls.get(id) else {
            return;
        };
        if entry.status != CallStatus::Pending || entry.attempt != *attempt {
            return;
        }
        // Its own policy's clock has been running since dispatch [C5].
        let deadline = match entry.request.explicit_retry {
            true => entry.deadline,
            false => Some(self.at().plus_secs(DEFERRED_SECS)),
        };
        self.emit(Event::CallDeferred(CallDeferred {
            call_id: id.clone(),
            deadline,
        }));
    }
}

/// An answer's actions, applied in order, each seeing the effects of those before it.
struct Actions<'a> {
    composed: &'a Composed,
    /// Child sessions this answer spawned: messages to them go down with them.
    spawned: Vec<SessionId>,
}

impl Actions<'_> {
    fn take(mut self, draft: &mut Draft, actions: &[Action]) -> Result<(), Wrong> {
        for (ix, action) in actions.iter().enumerate() {
            let at = |wrong: Wrong| {
                format!(
                    "actions[{ix}]{}{wrong}",
                    if wrong.starts_with(':') { "" } else { "." }
                )
            };
            if matches!(action, Action::Done(_)) && ix + 1 != actions.len() {
                return Err(at(": `done` must be the last action".into()));
            }
            self.take_one(draft, action).map_err(at)?;
        }
        Ok(())
    }

    fn take_one(&mut self, draft: &mut Draft, action: &Action) -> Result<(), Wrong> {
        match action {
            Action::LlmCall(action) => self.llm_call(draft, action),
            Action::ToolCall(action) => self.tool_call(draft, action),
            Action::ToolResult(action) => {
                let call = self.to_settle(draft, &action.id, action.attempt, false)?;
                if let Some(id) = call {
                    draft.settle_result(&id, action.result.as_ref());
                }
                Ok(())
            }
            Action::ToolError(action) => self.fail(draft, action, false),
            Action::LlmError(action) => self.fail(draft, action, true),
            Action::LlmResult(action) => {
                let response: LlmResponse = action
                    .response
                    .read()
                    .map_err(|e| format!("response: not an `LlmResponse`: {e}"))?;
                if let Some(id) = self.to_settle(draft, &action.id, action.attempt, true)? {
                    draft.settle_reply(&id, response);
                }
                Ok(())
            }
            Action::SubAgentSpawn(action) => {
                check_retry(action.retry.as_ref())?;
                if action.tool_call_id.as_str().is_empty() {
                    return Err("tool_call_id: must not be empty".into());
                }
                self.spawned.push(action.session_id.clone());
                if draft.state.calls.get(&action.tool_call_id).is_some() {
                    return Ok(());
                }
                let agent_id = action.agent_id.clone();
                let message =
                    format!("agent `{agent_id}` was not asked: this host does not run sub-agents");
                let work = SubAgentWork {
                    session_id: action.session_id.clone(),
                    agent_id,
                };
                let retry = default_tool_retry(Handler::Server);
                self.request(
                    draft,
                    action.tool_call_id.clone(),
                    Work::SubAgent(work),
                    Handler::Server,
                    retry,
                    false,
                );
                let error = CallError {
                    message,
                    code: None,
                    detail: None,
                };
                draft.settle(&action.tool_call_id, Outcome::Error(error));
                Ok(())
            }
            Action::MessageSend(action) => {
                if action.message.role != Role::User {
                    return Err("message.role: a message to a session must have role `user`".into());
                }
                if self.spawned.contains(&action.session_id) {
                    return Ok(());
                }
                Err(": `message.send` to another session is not supported by this host".into())
            }
            Action::Interrupt(_) => {
                Err(": `interrupt` is not supported by this host; end the turn with `done`".into())
            }
            Action::Done(action) => {
                if self.turn().is_some() {
                    draft.end_turn(Ok(action.data.clone()));
                }
                Ok(())
            }
        }
    }

    /// The running turn, if the decision belongs to it.
    fn turn(&self) -> Option<&TurnId> {
        self.composed.ask.turn_id.as_ref()
    }

    fn request(
        &self,
        draft: &mut Draft,
        id: CallId,
        work: Work,
        handler: Handler,
        retry: RetryPolicy,
        explicit_retry: bool,
    ) {
        let call = CallRequest {
            id: id.clone(),
            work,
            handler,
            turn_id: self.turn().cloned(),
            anchor: draft.state.tree.head_id().cloned(),
            retry,
            explicit_retry,
        };
        draft.emit(Event::CallRequested(CallRequested { call }));
        draft.queue_execute(&id);
    }

    /// D5: explicit > the config that holds now > the engine's defaults.
    fn llm_call(&self, draft: &mut Draft, action: &LlmCallAction) -> Result<(), Wrong> {
        if self.turn().is_none()
            && draft.state.turn.is_some()
            && self.composed.ask.trigger.call_id().is_some()
        {
            return Err(
                ": a decision about a call of a turn that has ended may not ask for a model call while another turn runs"
                    .into(),
            );
        }
        let config = draft
            .state
            .tree
            .holds()
            .config
            .as_ref()
            .map(|config| config.wire.clone());
        let config = config.as_deref();
        let model = action.model.clone().or_else(|| Some(config?.model.clone()));
        let model = model.filter(|model| !model.is_empty());
        let model =
            model.ok_or("model: neither the action nor the agent's config names a model")?;
        let handler = action
            .handler
            .or_else(|| config?.handler)
            .unwrap_or(Handler::Server);
        if handler == Handler::Client {
            return Err(
                "handler: a model call is run by `server` or `worker`, not by `client`".into(),
            );
        }
        check_retry(action.retry.as_ref())?;
        if action.temperature.is_some_and(|t| !t.is_finite()) {
            return Err("temperature: must be a finite number".into());
        }
        if let Some(tools) = &action.tools {
            check_llm_tools(tools)?;
        }
        check_messages(action.messages.as_deref().unwrap_or_default())?;
        let id = given_or_fresh(action.id.as_ref(), draft);
        // C2: an id that is known writes nothing, unless it is a model call that failed.
        if let Some(entry) = draft.state.calls.get(&id) {
            if !entry.is_llm() || entry.status != CallStatus::Failed {
                return Ok(());
            }
            draft.drop_decisions(|queued| queued.trigger.call_id() == Some(&id));
        } else if draft
            .state
            .tree
            .find(&MessageId::from(id.as_str()))
            .is_some()
        {
            return Err(format!(
                "id: `{id}` is the id of a recorded message, and the reply would have it too"
            ));
        }
        let turn = draft.state.turn.as_ref();
        let turn_stream = turn
            .filter(|turn| Some(&turn.turn_id) == self.turn())
            .and_then(|turn| turn.stream);
        let stream = action
            .stream
            .or(turn_stream)
            .or_else(|| config?.stream)
            .unwrap_or(false);
        let retry = action
            .retry
            .clone()
            .or_else(|| config?.retry.clone())
            .unwrap_or_else(default_llm_retry);
        let work = LlmWork {
            model,
            messages: action.messages.clone(),
            tools: action.tools.clone(),
            temperature: action.temperature,
            max_completion_tokens: action.max_completion_tokens,
            reasoning: action.reasoning.clone(),
            stream,
        };
        self.request(
            draft,
            id,
            Work::Llm(work),
            handler,
            retry,
            action.retry.is_some(),
        );
        Ok(())
    }

    fn tool_call(&self, draft: &mut Draft, action: &ToolCallAction) -> Result<(), Wrong> {
        check_retry(action.retry.as_ref())?;
        let config = draft.state.tree.holds().config.as_ref();
        let declared = config.and_then(|config| {
            config
                .wire
                .tools
                .iter()
                .find(|tool| tool.name == action.name)
        });
        let handler = action
            .handler
            .or_else(|| declared?.handler)
            .unwrap_or(Handler::Worker);
        if handler == Handler::Server {
            return Err("handler: a tool is run by `worker` or `client`, not by `server`".into());
        }
        let id = given_or_fresh(action.id.as_ref(), draft);
        if draft.state.calls.get(&id).is_some() {
            return Ok(());
        }
        let arguments = action
            .arguments
            .as_ref()
            .map(Json::to_argument_text)
            .unwrap_or_default();
        let work = ToolWork {
            name: action.name.clone(),
            arguments,
        };
        let retry = action
            .retry
            .clone()
            .unwrap_or_else(|| default_tool_retry(handler));
        self.request(
            draft,
            id,
            Work::Tool(work),
            handler,
            retry,
            action.retry.is_some(),
        );
        Ok(())
    }

    fn fail(&self, draft: &mut Draft, action: &ErrorAction, llm: bool) -> Result<(), Wrong> {
        if let Some(id) = self.to_settle(draft, &action.id, action.attempt, llm)? {
            let mut failure =
                AttemptFailure::new(action.error.clone(), action.retryable.unwrap_or(false));
            failure.error.code = action.code;
            failure.error.detail = action.detail.clone();
            draft.fail_attempt(&id, failure);
        }
        Ok(())
    }

    /// The call a result is for: named, or that of the execute trigger being answered [D5]. None
    /// for one that is over: it raced, and is ignored. Wrong for one that is not this agent's.
    fn to_settle(
        &self,
        draft: &Draft,
        id: &Option<CallId>,
        attempt: Option<u32>,
        llm: bool,
    ) -> Result<Option<CallId>, Wrong> {
        let (own, own_attempt) = match &self.composed.ask.trigger {
            Trigger::ToolExecute { id, attempt, .. } if !llm => (Some(id), Some(*attempt)),
            Trigger::LlmExecute { id, attempt, .. } if llm => (Some(id), Some(*attempt)),
            _ => (None, None),
        };
        let kind = if llm { "llm.execute" } else { "tool.execute" };
        let id = id.as_ref().or(own).ok_or_else(|| {
            format!("id: no `{kind}` is being answered, so the call must be named")
        })?;
        let attempt = attempt.or(own_attempt.filter(|_| own == Some(id)));
        let Some(entry) = draft.state.calls.get(id) else {
            return Err(format!("id: there is no call `{id}` in this session"));
        };
        let of_kind = matches!(
            (&entry.request.work, llm),
            (Work::Tool(_), false) | (Work::Llm(_), true)
        );
        if !of_kind || entry.request.handler != Handler::Worker {
            return Err(format!(
                "id: call `{id}` is not one that this agent settles"
            ));
        }
        if let Some(attempt) = attempt.filter(|attempt| *attempt > entry.attempt) {
            return Err(format!(
                "attempt: call `{id}` is at attempt {}, there was no attempt {attempt} yet",
                entry.attempt
            ));
        }
        Ok((!is_raced(entry, attempt)).then(|| id.clone()))
    }
}

/// The id an action names, else a fresh one [D5]. An empty one names nothing.
fn given_or_fresh(id: Option<&CallId>, draft: &mut Draft) -> CallId {
    let given = id.filter(|id| !id.as_str().is_empty());
    given
        .cloned()
        .unwrap_or_else(|| CallId::from(draft.ids.fresh()))
}

/// Role `tool` needs `tool_call_id` [§7].
fn check_messages(messages: &[Arc<Message>]) -> Result<(), Wrong> {
    let lacks =
        |message: &Arc<Message>| message.role == Role::Tool && message.tool_call_id.is_none();
    match messages.iter().position(lacks) {
        Some(ix) => Err(format!(
            "messages[{ix}].tool_call_id: a message of role `tool` must name the call it answers"
        )),
        None => Ok(()),
    }
}

fn is_raced(entry: &Entry, attempt: Option<u32>) -> bool {
    !matches!(entry.status, CallStatus::Pending | CallStatus::Queued)
        || attempt.is_some_and(|attempt| attempt != entry.attempt)
}

fn check_retry(retry: Option<&RetryPolicy>) -> Result<(), Wrong> {
    let Some(retry) = retry else { return Ok(()) };
    if retry.max_retries > MAX_RETRIES {
        return Err(format!(
            "retry.max_retries: {} is over {MAX_RETRIES}",
            retry.max_retries
        ));
    }
    let times = [
        ("timeout_secs", retry.timeout_secs),
        ("backoff_base_secs", Some(retry.backoff_base_secs)),
        ("backoff_max_secs", Some(retry.backoff_max_secs)),
    ];
    for (field, secs) in times {
        if secs.is_some_and(|secs| !(0.0..=MAX_POLICY_SECS).contains(&secs)) {
            return Err(format!(
                "retry.{field}: must be from 0 to {MAX_POLICY_SECS} seconds"
            ));
        }
    }
    Ok(())
}

fn check_llm_tools(tools: &[LlmTool]) -> Result<(), Wrong> {
    check_tools(tools.iter().map(|tool| {
        (
            tool.name.as_str(),
            tool.input.as_ref(),
            tool.output.as_ref(),
        )
    }))
}

/// Names are there and unique, schemas compile [C7].
fn check_tools<'a>(
    tools: impl ExactSizeIterator<Item = (&'a str, Option<&'a Json>, Option<&'a Json>)>,
) -> Result<(), Wrong> {
    if tools.len() > schema::MAX_TOOLS {
        return Err(format!(
            "tools: {} tools, at most {} are allowed",
            tools.len(),
            schema::MAX_TOOLS
        ));
    }
    let mut names = BTreeSet::new();
    for (ix, (name, input, output)) in tools.enumerate() {
        if name.is_empty() {
            return Err(format!("tools[{ix}].name: must not be empty"));
        }
        if !names.insert(name) {
            return Err(format!("tools[{ix}].name: `{name}` is declared twice"));
        }
        for (field, schema) in [("input", input), ("output", output)] {
            if let Some(schema) = schema {
                schema::compile(schema).map_err(|e| format!("tools[{ix}].{field}: {e}"))?;
            }
        }
    }
    Ok(())
}

/// D4: what a config may say.
fn check_agent(agent: &AgentConfig) -> Result<(), Wrong> {
    let wrong = |wrong: Wrong| format!("agent.{wrong}");
    if agent.model.is_empty() {
        return Err("agent.model: must not be empty".into());
    }
    if agent.handler == Some(Handler::Client) {
        return Err(
            "agent.handler: model calls are run by `server` or `worker`, not by `client`".into(),
        );
    }
    if agent.format.is_some() {
        return Err(match agent.handler {
            Some(Handler::Worker) => {
                "agent.format: provider formats are not supported by this host".into()
            }
            _ => "agent.format: needs `handler` to be `worker`".into(),
        });
    }
    check_retry(agent.retry.as_ref()).map_err(wrong)?;
    for (ix, tool) in agent.tools.iter().enumerate() {
        if tool.handler == Some(Handler::Server) {
            return Err(format!(
                "agent.tools[{ix}].handler: a tool is run by `worker` or `client`, not by `server`"
            ));
        }
    }
    check_tools(agent.tools.iter().map(|tool| {
        (
            tool.name.as_str(),
            tool.input.as_ref(),
            tool.output.as_ref(),
        )
    }))
    .map_err(wrong)?;
    let offered = agent.tools.len() + agent.sub_agents.len();
    if offered > schema::MAX_TOOLS {
        return Err(format!(
            "agent.sub_agents: {offered} tools and sub-agents, at most {} are allowed",
            schema::MAX_TOOLS
        ));
    }
    let mut names: BTreeSet<&str> = agent.tools.iter().map(|tool| tool.name.as_str()).collect();
    for (ix, sub_agent) in agent.sub_agents.iter().enumerate() {
        let id = sub_agent.id.as_str();
        if id.is_empty() || !names.insert(id) {
            return Err(format!(
                "agent.sub_agents[{ix}].id: `{id}` is empty or also the name of another tool or sub-agent"
            ));
        }
    }
    Ok(())
}
