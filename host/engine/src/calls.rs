//! Calls [C1–C15]: requesting, dispatching, retrying, settling, voiding.

use std::collections::BTreeSet;
use std::sync::Arc;

use belljar_protocol::agent::{Handler, RetryPolicy};
use belljar_protocol::call::{
    Call, CallError, CallKind, CallRequest, CallStatus, ErrorCode, LlmReply, Outcome, ToolResult,
    Work,
};
use belljar_protocol::decision::Trigger;
use belljar_protocol::event::{
    CallAttempted, CallRetryScheduled, CallSeed, CallSettled, CallsVoided, DecisionQueued,
    DecisionsDropped, Event, Seed,
};
use belljar_protocol::id::{CallId, DecisionId, MessageId, TurnId};
use belljar_protocol::message::{Content, Message, Role};
use belljar_protocol::model::{LlmResponse, LlmTool, ModelFailure};
use belljar_protocol::{Json, Timestamp};
use imbl::{OrdMap, OrdSet};

use crate::command::{Party, Rejection, SettleError};
use crate::draft::Draft;
use crate::money;
use crate::tree::Config;

/// How long a deferred tool stays open unless its own policy says otherwise: 24 h [C9].
pub const DEFERRED_SECS: f64 = 86_400.0;

/// The policy of a model call that names none: 4 retries, 180 s, 1 s doubling to 60 s [C5].
pub fn default_llm_retry() -> RetryPolicy {
    RetryPolicy {
        timeout_secs: Some(180.0),
        max_retries: 4,
        backoff_base_secs: 1.0,
        backoff_max_secs: 60.0,
    }
}

/// The policy of a tool call that names none: no retry, 120 s; a client's tool has no timeout [C5].
pub fn default_tool_retry(handler: Handler) -> RetryPolicy {
    RetryPolicy {
        timeout_secs: (handler != Handler::Client).then_some(120.0),
        max_retries: 0,
        backoff_base_secs: 1.0,
        backoff_max_secs: 60.0,
    }
}

/// One call, open or over.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) request: Arc<CallRequest>,
    pub(crate) status: CallStatus,
    pub(crate) attempt: u32,
    /// Attempts that failed; crashes are not counted.
    pub(crate) failures: u32,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) retry_at: Option<Timestamp>,
    /// The config that held when it was requested: what a model call without explicit tools offers.
    pub(crate) config: Option<Arc<Config>>,
    /// How it ended; none while open, and for one that was voided.
    pub(crate) outcome: Option<Arc<Outcome>>,
    /// Place in the order of requests.
    pub(crate) order: u64,
}

impl Entry {
    pub(crate) fn is_open(&self) -> bool {
        matches!(
            self.status,
            CallStatus::Queued | CallStatus::Pending | CallStatus::RetryScheduled
        )
    }

    pub(crate) fn is_llm(&self) -> bool {
        matches!(self.request.work, Work::Llm(_))
    }

    /// The call as agents and clients see it.
    pub(crate) fn wire(&self, stream: bool) -> Call {
        let mut call = Call {
            id: self.request.id.clone(),
            kind: self.request.work.call_kind(),
            status: self.status,
            attempt: self.attempt,
            deadline: self.deadline,
            anchor: self.request.anchor.clone(),
            name: None,
            arguments: None,
            handler: Some(self.request.handler),
            stream: None,
            agent_id: None,
            session_id: None,
        };
        match &self.request.work {
            Work::Llm(_) => call.stream = Some(stream),
            Work::Tool(tool) => {
                call.name = Some(tool.name.clone());
                call.arguments = Some(tool.arguments.clone());
            }
            Work::SubAgent(child) => {
                call.agent_id = Some(child.agent_id.clone());
                call.session_id = Some(child.session_id.clone());
            }
        }
        call
    }
}

/// All calls of a session.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    pub(crate) all: OrdMap<CallId, Arc<Entry>>,
    /// Open calls, in the order they were requested.
    open: OrdMap<u64, CallId>,
    /// Tool and sub-agent calls that have settled while their `*.finished` waits or is live.
    pub(crate) unprocessed: OrdSet<CallId>,
    /// Tool-call id → the model call whose reply contains it.
    pub(crate) asked_by: OrdMap<CallId, CallId>,
    requested: u64,
}

impl Calls {
    pub(crate) fn get(&self, id: &CallId) -> Option<&Arc<Entry>> {
        self.all.get(id)
    }

    /// The open calls, oldest first.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.open.values().filter_map(|id| self.all.get(id))
    }

    fn edit(&mut self, id: &CallId, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.all.get(id) else {
            return;
        };
        let mut entry = Entry::clone(entry);
        change(&mut entry);
        if entry.is_open() {
            self.open.insert(entry.order, id.clone());
        } else {
            self.open.remove(&entry.order);
        }
        self.all.insert(id.clone(), Arc::new(entry));
    }

    pub(crate) fn request(
        &mut self,
        request: &CallRequest,
        config: Option<Arc<Config>>,
        at: Timestamp,
    ) {
        self.requested += 1;
        // Asked for again after it failed: a late reply to an earlier attempt is none of this one.
        let attempt = self
            .get(&request.id)
            .map_or(1, |entry| entry.attempt.saturating_add(1));
        // Only a worker's call waits for its decision; all others leave with the commit's sync.
        let dispatched = request.handler != Handler::Worker;
        let entry = Entry {
            request: Arc::new(request.clone()),
            status: if dispatched {
                CallStatus::Pending
            } else {
                CallStatus::Queued
            },
            attempt,
            failures: 0,
            deadline: request
                .retry
                .timeout_secs
                .filter(|_| dispatched)
                .map(|secs| at.plus_secs(secs)),
            retry_at: None,
            config,
            outcome: None,
            order: self.requested,
        };
        self.open.insert(entry.order, request.id.clone());
        self.all.insert(request.id.clone(), Arc::new(entry));
    }

    /// An execute decision went live, or a further attempt left: the clock of C5 runs.
    pub(crate) fn dispatch(&mut self, id: &CallId, at: Timestamp) {
        self.edit(id, |entry| {
            entry.status = CallStatus::Pending;
            entry.deadline = entry
                .request
                .retry
                .timeout_secs
                .map(|secs| at.plus_secs(secs));
        });
    }

    pub(crate) fn attempted(&mut self, event: &CallAttempted, at: Timestamp) {
        self.edit(&event.call_id, |entry| {
            entry.attempt = event.attempt;
            entry.retry_at = None;
            entry.deadline = None;
            entry.status = CallStatus::Queued;
        });
        if self
            .get(&event.call_id)
            .is_some_and(|entry| entry.request.handler != Handler::Worker)
        {
            self.dispatch(&event.call_id, at);
        }
    }

    pub(crate) fn retry_scheduled(&mut self, event: &CallRetryScheduled) {
        self.edit(&event.call_id, |entry| {
            entry.status = CallStatus::RetryScheduled;
            entry.failures += 1;
            entry.deadline = None;
            entry.retry_at = Some(event.retry_at);
        });
    }

    pub(crate) fn deferred(&mut self, id: &CallId, deadline: Option<Timestamp>) {
        self.edit(id, |entry| entry.deadline = deadline);
    }

    pub(crate) fn settled(&mut self, event: &CallSettled) {
        let outcome = Arc::new(event.outcome.clone());
        if let Outcome::Reply(reply) = &*outcome {
            for tool_call in &reply.message.tool_calls {
                self.asked_by
                    .insert(tool_call.id.clone(), event.call_id.clone());
            }
        }
        let failed = matches!(*outcome, Outcome::Error(_));
        self.edit(&event.call_id, |entry| {
            entry.status = if failed {
                CallStatus::Failed
            } else {
                CallStatus::Completed
            };
            entry.deadline = None;
            entry.outcome = Some(outcome);
        });
        if self
            .get(&event.call_id)
            .is_some_and(|entry| !entry.is_llm())
        {
            self.unprocessed.insert(event.call_id.clone());
        }
    }

    pub(crate) fn voided(&mut self, id: &CallId) {
        self.edit(id, |entry| {
            entry.status = CallStatus::Failed;
            entry.deadline = None;
            entry.retry_at = None;
        });
    }

    /// A `*.finished` decision is over: its call no longer counts as pending [C1].
    pub(crate) fn processed(&mut self, id: &CallId) {
        self.unprocessed.remove(id);
    }

    /// Open tool and sub-agent calls, and those that settled while their decision waits; the
    /// call the live decision is about is being processed and does not count [C1].
    pub(crate) fn pending(&self, live: Option<&CallId>) -> u32 {
        let open = self.open().filter(|entry| !entry.is_llm()).count();
        let settled = self
            .unprocessed
            .iter()
            .filter(|id| Some(*id) != live)
            .count();
        (open + settled) as u32
    }

    /// Calls of the same model reply as `id`, `id` itself left out.
    pub(crate) fn siblings<'a>(&'a self, id: &'a CallId) -> impl Iterator<Item = &'a Arc<Entry>> {
        let reply = self.parent(id).and_then(|parent| parent.outcome.as_deref());
        let siblings = match reply {
            Some(Outcome::Reply(reply)) => reply.message.tool_calls.as_slice(),
            _ => &[],
        };
        siblings
            .iter()
            .filter(move |call| call.id != *id)
            .filter_map(|call| self.get(&call.id))
    }

    /// The model call whose reply asked for a tool call.
    pub(crate) fn parent(&self, id: &CallId) -> Option<&Arc<Entry>> {
        self.get(self.asked_by.get(id)?)
    }

    /// Whether an id was ever used, by a call or inside a model's reply [C14].
    pub(crate) fn is_known(&self, id: &CallId) -> bool {
        self.all.contains_key(id) || self.asked_by.contains_key(id)
    }

    pub(crate) fn restore(&mut self, entry: Entry) {
        self.requested = self.requested.max(entry.order);
        if entry.is_open() {
            self.open.insert(entry.order, entry.request.id.clone());
        }
        self.all.insert(entry.request.id.clone(), Arc::new(entry));
    }
}

/// The tools a model was offered by a call: its own list, or the agent's tools and sub-agents of
/// the config that held [A3]. None when there are none.
pub(crate) fn offered(entry: &Entry) -> Option<Arc<Vec<LlmTool>>> {
    let Work::Llm(work) = &entry.request.work else {
        return None;
    };
    if let Some(tools) = &work.tools {
        return (!tools.is_empty()).then(|| tools.clone());
    }
    let config = &entry.config.as_ref()?.wire;
    let tools = config.tools.iter().map(|tool| LlmTool {
        name: tool.name.clone(),
        description: tool.description.clone().unwrap_or_default(),
        input: tool.input.clone(),
        output: tool.output.clone(),
    });
    let delegates = config.sub_agents.iter().map(|agent| LlmTool {
        name: agent.id.as_str().to_owned(),
        description: agent.description.clone().unwrap_or_default(),
        input: Some(delegate_schema()),
        output: None,
    });
    let all: Vec<_> = tools.chain(delegates).collect();
    (!all.is_empty()).then(|| Arc::new(all))
}

/// A sub-agent is a tool with one required string [A3].
fn delegate_schema() -> Json {
    #[derive(serde::Serialize)]
    struct Schema {
        r#type: &'static str,
        properties: Properties,
        required: [&'static str; 1],
    }
    #[derive(serde::Serialize)]
    struct Properties {
        message: Property,
    }
    #[derive(serde::Serialize)]
    struct Property {
        r#type: &'static str,
    }
    Json::of(&Schema {
        r#type: "object",
        properties: Properties {
            message: Property { r#type: "string" },
        },
        required: ["message"],
    })
}

/// How one attempt of a call failed.
#[derive(Debug, Clone)]
pub(crate) struct AttemptFailure {
    pub(crate) error: CallError,
    pub(crate) retryable: bool,
    /// Seconds the other side asks us to wait: a floor for the backoff [C5].
    pub(crate) wait_secs: Option<f64>,
}

impl AttemptFailure {
    pub(crate) fn new(message: impl Into<String>, retryable: bool) -> Self {
        Self {
            error: CallError {
                message: message.into(),
                code: None,
                detail: None,
            },
            retryable,
            wait_secs: None,
        }
    }
}

impl From<ModelFailure> for AttemptFailure {
    fn from(from: ModelFailure) -> Self {
        Self {
            error: CallError {
                message: from.message,
                code: Some(from.code),
                detail: from.detail,
            },
            retryable: from.retryable,
            wait_secs: from.retry_after_secs,
        }
    }
}

/// Longest wait a provider's Retry-After can impose: one hour. A longer one would outlive any
/// turn, and a hostile header could park a session for years.
const LONGEST_RETRY_AFTER_SECS: f64 = 3_600.0;

impl Draft {
    /// An attempt failed: tries again under the call's policy, or settles it for good [C5, C6].
    pub(crate) fn fail_attempt(&mut self, id: &CallId, failure: AttemptFailure) {
        let Some(entry) = self.state.calls.get(id).cloned() else {
            return;
        };
        self.drop_execute(id);
        let policy = &entry.request.retry;
        let retry = entry.failures + 1;
        if !failure.retryable || retry > policy.max_retries {
            return self.settle(id, Outcome::Error(failure.error));
        }
        let doubled = policy.backoff_base_secs * 2_f64.powi(retry.min(64) as i32 - 1);
        let asked = failure
            .wait_secs
            .filter(|secs| !secs.is_nan())
            .unwrap_or(0.0)
            .min(LONGEST_RETRY_AFTER_SECS);
        let wait = doubled.min(policy.backoff_max_secs).max(asked);
        self.emit(Event::CallRetryScheduled(CallRetryScheduled {
            call_id: id.clone(),
            attempt: entry.attempt,
            error: failure.error,
            retry_at: self.at().plus_secs(wait),
        }));
    }

    /// Ends a call and asks the agent what next.
    pub(crate) fn settle(&mut self, id: &CallId, outcome: Outcome) {
        let Some(entry) = self.state.calls.get(id).cloned() else {
            return;
        };
        self.drop_execute(id);
        let is_llm = entry.is_llm();
        self.emit(Event::CallSettled(CallSettled {
            call_id: id.clone(),
            attempt: entry.attempt,
            outcome,
        }));
        let seed = CallSeed {
            call_id: id.clone(),
        };
        let trigger = if is_llm {
            Seed::LlmFinished(seed)
        } else {
            Seed::ToolFinished(seed)
        };
        self.queue(entry.request.turn_id.clone(), trigger, false);
    }

    /// Settles a tool call with a result: strings as they are, anything else as JSON text [D5].
    pub(crate) fn settle_result(&mut self, id: &CallId, result: Option<&Json>) {
        let text = result.map(Json::to_argument_text).unwrap_or_default();
        self.settle(id, Outcome::Result(ToolResult { text }));
    }

    /// Settles a model call with its reply: the message takes the call's id [C11], repeated
    /// tool-call ids are replaced [C14], cost and usage are added to the turn [S5].
    pub(crate) fn settle_reply(&mut self, id: &CallId, response: LlmResponse) {
        let truncated = response.finish_reason.as_deref() == Some("length");
        let mut tool_calls = response.tool_calls;
        let mut seen = OrdSet::new();
        for call in &mut tool_calls {
            if call.id.as_str().is_empty()
                || self.state.calls.is_known(&call.id)
                || seen.contains(&call.id)
            {
                call.id = CallId::from(self.ids.fresh());
            }
            seen.insert(call.id.clone());
        }
        let content = match (response.images.is_empty(), response.content) {
            (true, Some(text)) => Some(Content::Text(text)),
            (true, None) if tool_calls.is_empty() => Some(Content::Text(String::new())),
            (true, None) => None,
            (false, text) => Some(Content::Parts(image_parts(text, &response.images))),
        };
        let extra = response
            .extra
            .and_then(|extra| {
                extra
                    .read::<std::collections::BTreeMap<String, Json>>()
                    .ok()
            })
            .unwrap_or_default();
        let message = Message {
            id: Some(MessageId::from(id.as_str())),
            role: Role::Assistant,
            content,
            tool_calls,
            tool_call_id: None,
            name: None,
            extra: extra
                .into_iter()
                .filter(|(key, _)| !is_message_field(key))
                .collect(),
        };
        let reply = LlmReply {
            message: Arc::new(message),
            truncated,
            model: response.model,
            usage: response.usage,
            cost: response.cost.as_deref().and_then(money::normalised),
        };
        self.settle(id, Outcome::Reply(reply));
    }

    /// Ends calls without telling the agent, and drops the decisions about them.
    pub(crate) fn void(&mut self, ids: Vec<CallId>) {
        if ids.is_empty() {
            return;
        }
        let voided: BTreeSet<_> = ids.iter().collect();
        let about = |seed: &Seed| seed.call_id().is_some_and(|id| voided.contains(id));
        self.drop_decisions(|queued| about(&queued.trigger));
        self.emit(Event::CallsVoided(CallsVoided { call_ids: ids }));
    }

    /// Voids the open calls that `which` picks.
    pub(crate) fn void_open(&mut self, which: impl Fn(&Entry) -> bool) {
        let ids = self
            .state
            .calls
            .open()
            .filter(|entry| which(entry))
            .map(|entry| entry.request.id.clone())
            .collect();
        self.void(ids);
    }

    /// A call that leaves `pending` drops its execute decision, live or queued [C4].
    fn drop_execute(&mut self, id: &CallId) {
        self.drop_decisions(|queued| match &queued.trigger {
            Seed::ToolExecute(seed) | Seed::LlmExecute(seed) => seed.call_id == *id,
            _ => false,
        });
    }

    /// Drops the waiting and the live decisions that `which` picks.
    pub(crate) fn drop_decisions(&mut self, which: impl Fn(&crate::state::Queued) -> bool) {
        let live = self.state.live.iter().map(|live| &live.queued);
        let ids: Vec<DecisionId> = live
            .chain(self.state.queue.iter())
            .filter(|queued| which(queued))
            .map(|queued| queued.decision_id.clone())
            .collect();
        if !ids.is_empty() {
            self.emit(Event::DecisionsDropped(DecisionsDropped {
                decision_ids: ids,
            }));
        }
    }

    /// Puts a decision in the queue.
    pub(crate) fn queue(&mut self, turn_id: Option<TurnId>, trigger: Seed, front: bool) {
        let decision_id = DecisionId::from(self.ids.fresh());
        self.emit(Event::DecisionQueued(DecisionQueued {
            decision_id,
            turn_id,
            front,
            trigger,
        }));
    }

    /// Puts the execute decision of a worker's call in the queue.
    pub(crate) fn queue_execute(&mut self, id: &CallId) {
        let Some(entry) = self.state.calls.get(id).cloned() else {
            return;
        };
        if entry.request.handler != Handler::Worker {
            return;
        }
        let seed = CallSeed {
            call_id: id.clone(),
        };
        let trigger = if entry.is_llm() {
            Seed::LlmExecute(seed)
        } else {
            Seed::ToolExecute(seed)
        };
        self.queue(entry.request.turn_id.clone(), trigger, false);
    }

    /// `Command::Reply`: a model answered one of the host's own calls. A late one is dropped
    /// silently [C4].
    pub(crate) fn reply(
        &mut self,
        id: &CallId,
        attempt: u32,
        outcome: Result<LlmResponse, ModelFailure>,
    ) {
        let current = self.state.calls.get(id).is_some_and(|entry| {
            entry.status == CallStatus::Pending
                && entry.attempt == attempt
                && entry.request.handler == Handler::Server
                && entry.is_llm()
        });
        if !current {
            return;
        }
        match outcome {
            Ok(response) => self.settle_reply(id, response),
            Err(failure) => self.fail_attempt(id, failure.into()),
        }
    }

    /// `Command::Settle`: a result from outside. Checked in this order: 404, 403, 409 [C4].
    pub(crate) fn settle_from_outside(
        &mut self,
        id: &CallId,
        by: Party,
        attempt: Option<u32>,
        outcome: Result<Option<Json>, SettleError>,
    ) -> Result<(), Rejection> {
        let Some(entry) = self.state.calls.get(id).cloned() else {
            return Err(Rejection::new(
                404,
                "call_unknown",
                format!("this session has no call `{id}`"),
            ));
        };
        let allowed = match (by, entry.request.handler) {
            (Party::Operator, Handler::Client | Handler::Worker) => true,
            (Party::Client, handler) => handler == Handler::Client,
            (Party::Worker, handler) => handler == Handler::Worker,
            (Party::Operator, Handler::Server) => false,
        };
        if !allowed || entry.request.work.call_kind() != CallKind::ToolCall {
            return Err(Rejection::new(
                403,
                "call_not_yours",
                format!(
                    "call `{id}` is settled by its handler, which is not the {}",
                    by.as_str()
                ),
            ));
        }
        if entry.status != CallStatus::Pending {
            return Err(Rejection::new(
                409,
                "call_not_pending",
                format!(
                    "call `{id}` is {} and takes no result",
                    Json::of(&entry.status).as_str().trim_matches('"')
                ),
            ));
        }
        if let Some(attempt) = attempt.filter(|attempt| *attempt != entry.attempt) {
            return Err(Rejection::new(
                409,
                "call_attempt_over",
                format!("call `{id}` is at attempt {}, not {attempt}", entry.attempt),
            ));
        }
        match outcome {
            Ok(result) => self.settle_result(id, result.as_ref()),
            Err(failure) => {
                self.fail_attempt(id, AttemptFailure::new(failure.error, failure.retryable));
            }
        }
        Ok(())
    }

    /// `Command::Tick`: fires the timers of calls at or before now, in the order they are due.
    pub(crate) fn fire_timers(&mut self) {
        let now = self.at();
        let mut due: Vec<(Timestamp, u64, CallId)> = self
            .state
            .calls
            .open()
            .filter_map(|entry| {
                let at = entry.retry_at.or(entry.deadline)?;
                (at <= now).then(|| (at, entry.order, entry.request.id.clone()))
            })
            .collect();
        due.sort();
        for (_, _, id) in due {
            // An earlier timer may have ended the turn this one belonged to.
            let Some(entry) = self
                .state
                .calls
                .get(&id)
                .filter(|entry| entry.is_open())
                .cloned()
            else {
                continue;
            };
            if entry.retry_at.is_some() {
                self.emit(Event::CallAttempted(CallAttempted {
                    call_id: id.clone(),
                    attempt: entry.attempt.saturating_add(1),
                }));
                self.queue_execute(&id);
            } else {
                let at = entry.deadline.unwrap_or(now);
                let mut failure =
                    AttemptFailure::new(format!("no result by its deadline, {at}"), true);
                failure.error.code = Some(ErrorCode::DeadlineExceeded);
                self.fail_attempt(&id, failure);
            }
        }
    }

    /// C15: model calls that were in flight when the host went down leave again, as their next
    /// attempt.
    pub(crate) fn redispatch(&mut self) {
        let in_flight: Vec<_> = self
            .state
            .calls
            .open()
            .filter(|entry| {
                entry.status == CallStatus::Pending && entry.request.handler == Handler::Server
            })
            .map(|entry| (entry.request.id.clone(), entry.attempt))
            .collect();
        for (call_id, attempt) in in_flight {
            self.emit(Event::CallAttempted(CallAttempted {
                call_id,
                attempt: attempt.saturating_add(1),
            }));
        }
    }
}

/// The trigger's view of a settled tool call.
pub(crate) fn tool_finished(entry: &Entry) -> Trigger {
    let name = match &entry.request.work {
        Work::Tool(tool) => tool.name.clone(),
        Work::SubAgent(child) => child.agent_id.as_str().to_owned(),
        Work::Llm(work) => work.model.clone(),
    };
    let outcome = match entry.outcome.as_deref() {
        Some(Outcome::Result(result)) => Ok(result.text.clone()),
        Some(Outcome::Reply(reply)) => Ok(reply
            .message
            .content
            .as_ref()
            .map(Content::text)
            .unwrap_or_default()),
        Some(Outcome::Error(error)) => Err(error.message.clone()),
        None => Err("the call was voided".to_owned()),
    };
    Trigger::ToolFinished {
        id: entry.request.id.clone(),
        name,
        outcome,
    }
}

/// The trigger's view of a settled model call.
pub(crate) fn llm_finished(entry: &Entry) -> Trigger {
    let id = entry.request.id.clone();
    match entry.outcome.as_deref() {
        Some(Outcome::Reply(reply)) => Trigger::LlmFinished {
            id,
            outcome: Ok(reply.message.clone()),
            truncated: reply.truncated,
            usage: reply.usage.clone(),
            cost: reply.cost.clone(),
        },
        other => {
            let error = match other {
                Some(Outcome::Error(error)) => error.clone(),
                _ => CallError {
                    message: "the call was voided".into(),
                    code: None,
                    detail: None,
                },
            };
            Trigger::LlmFinished {
                id,
                outcome: Err(error),
                truncated: false,
                usage: None,
                cost: None,
            }
        }
    }
}

fn image_parts(text: Option<String>, images: &[belljar_protocol::model::Image]) -> Json {
    #[derive(serde::Serialize)]
    #[serde(tag = "type", rename_all = "snake_case")]
    enum Part<'a> {
        Text {
            text: &'a str,
        },
        ImageUrl {
            image_url: &'a belljar_protocol::model::Image,
        },
    }
    let parts: Vec<_> = text
        .iter()
        .map(|text| Part::Text { text })
        .chain(images.iter().map(|image_url| Part::ImageUrl { image_url }))
        .collect();
    Json::of(&parts)
}

/// Fields of a message the host owns; a provider's extra fields never replace them.
fn is_message_field(key: &str) -> bool {
    matches!(
        key,
        "id" | "role" | "content" | "tool_calls" | "tool_call_id" | "name"
    )
}
