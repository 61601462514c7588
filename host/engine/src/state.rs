//! A session's state: the fold of its log.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use belljar_protocol::Timestamp;
use belljar_protocol::decision::{Identity, Trigger};
use belljar_protocol::event::{Commit, Event, Seed, TurnEnded, TurnError, TurnStatus};
use belljar_protocol::id::{AgentId, CallId, DecisionId, SessionId, TurnId, VersionId};
use belljar_protocol::scratch::{DeliveredFile, ScratchManifest};
use imbl::{OrdMap, Vector};

use crate::calls::{self, Calls};
use crate::money::Sum;
use crate::tree::{Config, Tree};
use crate::view::{self, Composed};

/// Everything a session is. Cheap to clone: its parts are shared.
#[derive(Debug, Clone)]
pub struct State {
    pub(crate) session_id: SessionId,
    pub(crate) seq: u64,
    pub(crate) info: Option<Arc<Info>>,
    pub(crate) closed: bool,
    /// `session.start` has been answered [S2].
    pub(crate) started: bool,
    pub(crate) turns: OrdMap<TurnId, TurnRecord>,
    pub(crate) turn: Option<ActiveTurn>,
    pub(crate) last_turn: Option<Arc<TurnEnded>>,
    pub(crate) queue: Vector<Queued>,
    pub(crate) live: Option<Arc<Live>>,
    pub(crate) tree: Tree,
    pub(crate) calls: Calls,
    pub(crate) scratch: Arc<ScratchManifest>,
    pub(crate) files: Vector<Delivered>,
    pub(crate) last_version: Option<VersionId>,
    pub(crate) total: Sum,
}

/// What creation fixed.
#[derive(Debug, Clone)]
pub(crate) struct Info {
    pub(crate) agent_id: AgentId,
    pub(crate) identity: Identity,
    pub(crate) ancestry: Vec<SessionId>,
    pub(crate) created_at: Timestamp,
}

/// What is remembered of a turn id, for ever [S4].
#[derive(Debug, Clone, Default)]
pub(crate) struct TurnRecord {
    /// Bodies accepted under it.
    pub(crate) bodies: Vector<Arc<str>>,
    /// The turn it is an alias of.
    pub(crate) joined: Option<TurnId>,
}

/// The running turn.
#[derive(Debug, Clone)]
pub struct ActiveTurn {
    /// Its id.
    pub turn_id: TurnId,
    /// The version it is pinned to.
    pub version: Option<VersionId>,
    /// When it began.
    pub started_at: Timestamp,
    /// The input's override of the config's `stream`.
    pub stream: Option<bool>,
    pub(crate) by_action: bool,
    /// The decision that a `client.action` opened it for: its failure ends the turn [D8].
    pub(crate) opened_by: Option<DecisionId>,
    pub(crate) spent: Sum,
}

/// A decision that waits, or is live.
#[derive(Debug, Clone)]
pub(crate) struct Queued {
    pub(crate) decision_id: DecisionId,
    pub(crate) turn_id: Option<TurnId>,
    pub(crate) trigger: Seed,
}

/// The live decision, and the session as it was when it went live.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) queued: Queued,
    pub(crate) live_at: Timestamp,
    /// Which delivery is due or under way, from 1.
    pub(crate) attempts: u32,
    /// When the next delivery is due, after a failure.
    pub(crate) not_before: Option<Timestamp>,
    pub(crate) frozen: Arc<State>,
    /// Composed once, when somebody asks; a pure function of `frozen`.
    composed: Arc<OnceLock<Arc<Composed>>>,
}

impl Live {
    pub(crate) fn composed(&self) -> &Arc<Composed> {
        self.composed.get_or_init(|| Arc::new(view::compose(self)))
    }
}

/// A delivered file and when.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivered {
    /// The seq of its event.
    pub seq: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// The file.
    pub file: DeliveredFile,
}

impl State {
    /// A session nobody has spoken to.
    pub fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            seq: 0,
            info: None,
            closed: false,
            started: false,
            turns: OrdMap::new(),
            turn: None,
            last_turn: None,
            queue: Vector::new(),
            live: None,
            tree: Tree::default(),
            calls: Calls::default(),
            scratch: Arc::default(),
            files: Vector::new(),
            last_version: None,
            total: Sum::default(),
        }
    }

    /// Whether anything was ever recorded.
    pub fn exists(&self) -> bool {
        self.info.is_some()
    }

    /// The session's id.
    pub fn session_id(&self) -> &SessionId {
        &self.session_id
    }

    /// The seq of the last event folded in; 0 when there is none.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The agent it belongs to; none before it exists.
    pub fn agent_id(&self) -> Option<&AgentId> {
        self.info.as_ref().map(|info| &info.agent_id)
    }

    /// Its owner.
    pub fn identity(&self) -> Option<&Identity> {
        self.info.as_ref().map(|info| &info.identity)
    }

    /// When it was created.
    pub fn created_at(&self) -> Option<Timestamp> {
        self.info.as_ref().map(|info| info.created_at)
    }

    /// `closed`, `running` or `idle`.
    pub fn status(&self) -> &'static str {
        match (self.closed, self.turn.is_some() || self.live.is_some()) {
            (true, _) => "closed",
            (false, true) => "running",
            (false, false) => "idle",
        }
    }

    /// Whether a decision is live, delivered or waiting to be delivered again.
    pub fn is_deciding(&self) -> bool {
        self.live.is_some()
    }

    /// The running turn.
    pub fn turn(&self) -> Option<&ActiveTurn> {
        self.turn.as_ref()
    }

    /// How the last turn ended.
    pub fn last_turn(&self) -> Option<&Arc<TurnEnded>> {
        self.last_turn.as_ref()
    }

    /// The message tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The agent's state, as it holds at the head.
    pub fn agent_state(&self) -> Option<&belljar_protocol::Json> {
        self.tree.holds().state.as_ref()
    }

    /// The agent's config, as it holds at the head.
    pub fn config(&self) -> Option<&Arc<belljar_protocol::agent::AgentConfig>> {
        self.tree.holds().config.as_ref().map(|config| &config.wire)
    }

    /// What `/scratch` holds.
    pub fn scratch(&self) -> &Arc<ScratchManifest> {
        &self.scratch
    }

    /// Files delivered, oldest first.
    pub fn files(&self) -> &Vector<Delivered> {
        &self.files
    }

    /// The version that decided last.
    pub fn last_version(&self) -> Option<&VersionId> {
        self.last_version.as_ref()
    }

    /// Dollars of all turns, a normalised decimal; none when nothing was priced.
    pub fn total_cost(&self) -> Option<String> {
        self.total.cost()
    }

    /// Token counts of all turns, summed.
    pub fn total_usage(&self) -> Option<belljar_protocol::Json> {
        self.total.usage()
    }

    /// The open calls, oldest first, as agents and clients see them.
    pub fn open_calls(&self) -> Vec<belljar_protocol::call::Call> {
        self.calls
            .open()
            .map(|entry| entry.wire(self.call_streams(entry)))
            .collect()
    }

    /// Open tool and sub-agent calls and settled ones whose decision waits [C1].
    pub fn pending_calls(&self) -> u32 {
        let live = self
            .live
            .as_ref()
            .and_then(|live| live.queued.trigger.call_id());
        self.calls.pending(live)
    }

    /// The live decision, ready to be delivered: none when there is none. Composed when first
    /// asked for, the same ever after [D2].
    pub fn composed(&self) -> Option<Composed> {
        let live = self.live.as_ref()?;
        let mut composed = Composed::clone(live.composed());
        let ask = &mut composed.ask;
        ask.attempts = live.attempts;
        ask.deadline = ask
            .trigger
            .call_id()
            .and_then(|id| self.calls.get(id))
            .and_then(|entry| entry.deadline);
        if let Trigger::ToolExecute { deadline, .. } | Trigger::LlmExecute { deadline, .. } =
            &mut ask.trigger
        {
            *deadline = ask.deadline;
        }
        Some(composed)
    }

    /// The request of an open model call, complete. Linear in the prompt, as the provider wants
    /// all of it.
    pub fn llm_request(&self, call: &CallId) -> Option<belljar_protocol::model::LlmRequest> {
        crate::prompt::request(&self.tree, &self.calls, self.calls.get(call)?)
    }

    /// Whether clients are to see the tokens of a model call.
    pub fn streams(&self, call: &CallId) -> bool {
        self.calls
            .get(call)
            .is_some_and(|entry| self.call_streams(entry))
    }

    pub(crate) fn call_streams(&self, entry: &calls::Entry) -> bool {
        matches!(&entry.request.work, belljar_protocol::call::Work::Llm(work) if work.stream)
    }
}

/// Folds one commit into the state. Total: an event that names what does not exist changes
/// nothing. After the last event the next waiting decision goes live, if none is [D1].
pub fn apply(state: &mut State, commit: &Commit) {
    for (seq, event) in (commit.first_seq..).zip(&commit.events) {
        state.seq = seq;
        apply_event(state, commit.at, event);
    }
    promote(state, commit.at);
}

/// The next waiting decision goes live: the session is frozen for it as it is now.
pub(crate) fn promote(state: &mut State, at: Timestamp) {
    if state.live.is_some() {
        return;
    }
    let Some(queued) = state.queue.pop_front() else {
        return;
    };
    if let Seed::ToolExecute(seed) | Seed::LlmExecute(seed) = &queued.trigger {
        state.calls.dispatch(&seed.call_id, at);
    }
    state.live = Some(Arc::new(Live {
        queued,
        live_at: at,
        attempts: 1,
        not_before: None,
        frozen: Arc::new(state.clone()),
        composed: Arc::default(),
    }));
}

pub(crate) fn apply_event(state: &mut State, at: Timestamp, event: &Event) {
    match event {
        Event::SessionCreated(event) => {
            state.info = Some(Arc::new(Info {
                agent_id: event.agent_id.clone(),
                identity: event.identity.clone(),
                ancestry: event.ancestry.clone(),
                created_at: at,
            }));
        }
        Event::SessionClosed(_) => state.closed = true,
        Event::InputAccepted(event) => {
            let mut record = state.turns.get(&event.turn_id).cloned().unwrap_or_default();
            record.bodies.push_back(event.body.as_str().into());
            record.joined = event.joined.clone();
            state.turns.insert(event.turn_id.clone(), record);
        }
        Event::TurnStarted(event) => {
            state.turn = Some(ActiveTurn {
                turn_id: event.turn_id.clone(),
                version: event.version.clone(),
                started_at: at,
                stream: event.stream,
                by_action: event.by_action,
                opened_by: None,
                spent: Sum::default(),
            });
        }
        Event::TurnEnded(event) => {
            if state
                .turn
                .as_ref()
                .is_some_and(|turn| turn.turn_id == event.turn_id)
            {
                state.turn = None;
            }
            state.last_turn = Some(Arc::new(event.clone()));
        }
        Event::DecisionQueued(event) => {
            if let (Seed::ClientAction(_), Some(turn)) = (&event.trigger, &mut state.turn)
                && turn.by_action
                && event.turn_id.as_ref() == Some(&turn.turn_id)
            {
                turn.opened_by
                    .get_or_insert_with(|| event.decision_id.clone());
            }
            let queued = Queued {
                decision_id: event.decision_id.clone(),
                turn_id: event.turn_id.clone(),
                trigger: event.trigger.clone(),
            };
            match event.front {
                true => state.queue.push_front(queued),
                false => state.queue.push_back(queued),
            }
        }
        Event::DecisionRedelivered(event) => {
            edit_live(state, &event.decision_id, |live| {
                live.attempts = event.attempts;
                live.not_before = None;
            });
            // The time the host was down is not the tool's: its clock starts anew.
            if let Some(live) = &state.live
                && let Seed::ToolExecute(seed) | Seed::LlmExecute(seed) = &live.queued.trigger
            {
                state.calls.dispatch(&seed.call_id, at);
            }
        }
        Event::DecisionFailed(event) => match event.retry_at {
            Some(retry_at) => edit_live(state, &event.decision_id, |live| {
                live.attempts = event.attempt.saturating_add(1);
                live.not_before = Some(retry_at);
            }),
            None => end_live(state, &event.decision_id),
        },
        Event::DecisionAnswered(event) => {
            if let Some(live) = state
                .live
                .as_ref()
                .filter(|live| live.queued.decision_id == event.decision_id)
                && matches!(live.queued.trigger, Seed::SessionStart(_))
            {
                state.started = true;
            }
            end_live(state, &event.decision_id);
            if let Some(version) = event.run.as_ref().and_then(|run| run.version.clone()) {
                state.last_version = Some(version);
            }
        }
        Event::DecisionsDropped(event) => {
            let ids: BTreeSet<_> = event.decision_ids.iter().collect();
            if let Some(live) = &state.live
                && ids.contains(&live.queued.decision_id)
            {
                end_live(state, &live.queued.decision_id.clone());
            }
            if state
                .queue
                .iter()
                .any(|queued| ids.contains(&queued.decision_id))
            {
                let (dropped, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut state.queue)
                    .into_iter()
                    .partition(|queued| ids.contains(&queued.decision_id));
                state.queue = kept.into_iter().collect();
                for queued in dropped {
                    forget(state, &queued.trigger);
                }
            }
        }
        Event::MessagesRecorded(event) => state.tree.record(event.parent.as_ref(), &event.messages),
        Event::HeadMoved(event) => state.tree.move_head(event.head.as_ref()),
        Event::StateSet(event) => state.tree.set_state(event.state.clone(), event.at_root),
        Event::AgentSet(event) => {
            state
                .tree
                .set_config(Config::new(event.agent.clone()), event.at_root);
        }
        Event::CallRequested(event) => {
            let config = state.tree.holds().config.clone();
            state.calls.request(&event.call, config, at);
        }
        Event::CallAttempted(event) => state.calls.attempted(event, at),
        Event::CallRetryScheduled(event) => state.calls.retry_scheduled(event),
        Event::CallDeferred(event) => state.calls.deferred(&event.call_id, event.deadline),
        Event::CallSettled(event) => {
            state.calls.settled(event);
            if let belljar_protocol::call::Outcome::Reply(reply) = &event.outcome {
                state.total.add(reply.usage.as_ref(), reply.cost.as_deref());
                let turn = state
                    .calls
                    .get(&event.call_id)
                    .and_then(|entry| entry.request.turn_id.clone());
                if let Some(active) = &mut state.turn
                    && turn.as_ref() == Some(&active.turn_id)
                {
                    active
                        .spent
                        .add(reply.usage.as_ref(), reply.cost.as_deref());
                }
            }
        }
        Event::CallsVoided(event) => {
            for id in &event.call_ids {
                state.calls.voided(id);
            }
        }
        Event::ScratchCommitted(event) => {
            let mut next = state.scratch.after(&event.change);
            next.generation = event.generation;
            state.scratch = Arc::new(next);
        }
        Event::FileDelivered(event) => {
            state.files.push_back(Delivered {
                seq: state.seq,
                at,
                file: event.file.clone(),
            });
        }
    }
}

fn edit_live(state: &mut State, id: &DecisionId, change: impl FnOnce(&mut Live)) {
    if let Some(live) = state
        .live
        .as_ref()
        .filter(|live| live.queued.decision_id == *id)
    {
        let mut live = Live::clone(live);
        change(&mut live);
        state.live = Some(Arc::new(live));
    }
}

fn end_live(state: &mut State, id: &DecisionId) {
    if let Some(live) = state.live.take_if(|live| live.queued.decision_id == *id) {
        forget(state, &live.queued.trigger);
    }
}

/// A decision is over, however it ended: a call it reported is processed.
fn forget(state: &mut State, trigger: &Seed) {
    if let Seed::ToolFinished(seed) = trigger {
        state.calls.processed(&seed.call_id);
    }
}

/// How a turn that ended looks in `turn.ended`.
pub(crate) fn turn_ended(
    turn: &ActiveTurn,
    outcome: Result<Option<belljar_protocol::Json>, TurnError>,
) -> TurnEnded {
    let (status, data, error) = match outcome {
        Ok(data) => (TurnStatus::Completed, data, None),
        Err(error) => (TurnStatus::Failed, None, Some(error)),
    };
    TurnEnded {
        turn_id: turn.turn_id.clone(),
        status,
        data,
        error,
        usage: turn.spent.usage(),
        cost: turn.spent.cost(),
    }
}
