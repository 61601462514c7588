//! What a session is, read off its log by the plainest means: nothing here is shared with the
//! engine, so that the two can be held against each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use belljar_engine::State;
use belljar_protocol::call::{CallStatus, Work};
use belljar_protocol::event::{DecisionQueued, Event, Seed};
use belljar_protocol::id::{CallId, DecisionId, MessageId, TurnId};
use belljar_protocol::message::{Message, Role};
use belljar_protocol::model::LlmRequest;

use crate::session::Session;

struct Call {
    is_llm: bool,
    is_open: bool,
    turn: Option<TurnId>,
}

#[derive(Default)]
pub(crate) struct Model {
    /// Commits read so far.
    read: usize,
    seq: u64,
    calls: BTreeMap<CallId, Call>,
    /// Open calls in the order they were asked for.
    open: Vec<CallId>,
    queue: VecDeque<DecisionQueued>,
    live: Option<DecisionQueued>,
    over: BTreeSet<DecisionId>,
    turn: Option<TurnId>,
    turns_over: BTreeSet<TurnId>,
    parents: BTreeMap<MessageId, Option<MessageId>>,
    head: Option<MessageId>,
}

impl Model {
    /// Reads what is new in the log.
    pub(crate) fn follow(&mut self, s: &Session) {
        for commit in &s.log[self.read..] {
            assert_eq!(commit.first_seq, self.seq + 1, "seqs are consecutive");
            assert!(!commit.events.is_empty());
            for event in &commit.events {
                self.seq += 1;
                self.event(event);
            }
            if self.live.is_none() {
                self.live = self.queue.pop_front();
            }
        }
        self.read = s.log.len();
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::TurnStarted(event) => {
                assert_eq!(self.turn, None, "one turn at a time");
                assert!(
                    !self.turns_over.contains(&event.turn_id),
                    "a turn runs once"
                );
                self.turn = Some(event.turn_id.clone());
            }
            Event::TurnEnded(event) => {
                assert_eq!(self.turn.take().as_ref(), Some(&event.turn_id));
                self.turns_over.insert(event.turn_id.clone());
            }
            Event::DecisionQueued(event) => match event.front {
                true => self.queue.push_front(event.clone()),
                false => self.queue.push_back(event.clone()),
            },
            Event::DecisionRedelivered(event) => self.is_live(&event.decision_id),
            Event::DecisionAnswered(event) => self.end_live(&event.decision_id),
            Event::DecisionFailed(event) => match event.retry_at {
                Some(_) => self.is_live(&event.decision_id),
                None => self.end_live(&event.decision_id),
            },
            Event::DecisionsDropped(event) => {
                for id in &event.decision_ids {
                    if self.live.take_if(|live| live.decision_id == *id).is_none() {
                        let waited = self.queue.len();
                        self.queue.retain(|queued| queued.decision_id != *id);
                        assert_eq!(self.queue.len() + 1, waited, "dropped what was not there");
                    }
                    assert!(self.over.insert(id.clone()));
                }
            }
            Event::MessagesRecorded(event) => {
                let mut at = event.parent.clone();
                assert!(
                    at.iter().all(|id| self.parents.contains_key(id)),
                    "parents come first"
                );
                assert!(!event.messages.is_empty());
                for message in &event.messages {
                    let id = message.id.clone().expect("a recorded message has an id");
                    assert!(!id.as_str().is_empty());
                    assert!(
                        self.parents.insert(id.clone(), at).is_none(),
                        "ids are unique: {id}"
                    );
                    at = Some(id);
                }
                self.head = at;
            }
            Event::HeadMoved(event) => {
                assert!(event.head.iter().all(|id| self.parents.contains_key(id)));
                assert_ne!(self.head, event.head, "a move that moves nothing");
                self.head = event.head.clone();
            }
            Event::CallRequested(event) => {
                let call = Call {
                    is_llm: matches!(event.call.work, Work::Llm(_)),
                    is_open: true,
                    turn: event.call.turn_id.clone(),
                };
                assert!(!event.call.id.as_str().is_empty());
                assert_eq!(event.call.anchor, self.head, "the anchor is the head");
                if let Some(known) = self.calls.insert(event.call.id.clone(), call) {
                    assert!(
                        known.is_llm && !known.is_open,
                        "only a failed model call is asked again"
                    );
                }
                self.open.push(event.call.id.clone());
            }
            Event::CallAttempted(event) => self.is_open(&event.call_id),
            Event::CallRetryScheduled(event) => self.is_open(&event.call_id),
            Event::CallDeferred(event) => self.is_open(&event.call_id),
            Event::CallSettled(event) => self.close(&event.call_id),
            Event::CallsVoided(event) => event.call_ids.iter().for_each(|id| self.close(id)),
            Event::SessionCreated(_)
            | Event::SessionClosed(_)
            | Event::InputAccepted(_)
            | Event::StateSet(_)
            | Event::AgentSet(_)
            | Event::ScratchCommitted(_)
            | Event::FileDelivered(_) => {}
        }
    }

    fn is_live(&self, id: &DecisionId) {
        assert_eq!(
            self.live.as_ref().map(|live| &live.decision_id),
            Some(id),
            "one live decision"
        );
    }

    fn end_live(&mut self, id: &DecisionId) {
        self.is_live(id);
        self.live = None;
        assert!(self.over.insert(id.clone()), "a decision ends once");
    }

    fn is_open(&self, id: &CallId) {
        assert!(self.calls[id].is_open, "call {id} is over");
    }

    fn close(&mut self, id: &CallId) {
        let call = self
            .calls
            .get_mut(id)
            .expect("a call that settles was asked for");
        assert!(
            std::mem::replace(&mut call.is_open, false),
            "call {id} settles twice"
        );
        self.open.retain(|open| open != id);
    }

    fn waiting(&self) -> impl Iterator<Item = &DecisionQueued> {
        self.queue.iter().chain(&self.live)
    }

    fn path(&self) -> Vec<String> {
        let mut path = Vec::new();
        let mut at = self.head.as_ref();
        while let Some(id) = at {
            path.push(id.to_string());
            assert!(path.len() <= self.parents.len(), "the tree has a circle");
            at = self.parents[id].as_ref();
        }
        path.reverse();
        path
    }

    /// C1, by its words.
    fn pending(&self) -> usize {
        let open = self.open.iter().filter(|id| !self.calls[*id].is_llm);
        let settled = self
            .queue
            .iter()
            .filter(|queued| matches!(queued.trigger, Seed::ToolFinished(_)));
        open.count() + settled.count()
    }

    pub(crate) fn check(&self, s: &Session) {
        let state = &s.state;
        let live = state.composed().map(|composed| composed.ask.decision_id);
        assert_eq!(
            live.as_ref(),
            self.live.as_ref().map(|live| &live.decision_id)
        );
        assert_eq!(state.seq(), self.seq);
        assert_eq!(state.turn().map(|turn| &turn.turn_id), self.turn.as_ref());
        assert_eq!(s.path(), self.path());
        assert_eq!(state.tree().len(), self.parents.len());
        assert_eq!(state.pending_calls() as usize, self.pending());
        let open: Vec<_> = state.open_calls().into_iter().map(|call| call.id).collect();
        assert_eq!(open, self.open);
        self.check_moves(s);
        for due in s.plan().model_calls {
            check_request(state, &due.call_id);
        }
    }

    /// Somebody named is being waited for, or there is nothing to do.
    fn check_moves(&self, s: &Session) {
        let plan = s.plan();
        if self.live.is_some() {
            assert!(
                plan.decision.is_some() || plan.wake.is_some(),
                "a live decision is due, or will be"
            );
        }
        assert!(
            self.queue.is_empty() || self.live.is_some(),
            "decisions wait for nothing"
        );
        // Calls an agent holds: deferred, or model calls it has not answered.
        let held = |id: &CallId| {
            let call = s.state.open_calls().into_iter().find(|call| call.id == *id);
            call.is_some_and(|call| call.status == CallStatus::Pending)
        };
        for id in &self.open {
            let waits = self
                .waiting()
                .any(|queued| queued.trigger.call_id() == Some(id));
            assert!(
                waits || held(id) || plan.wake.is_some(),
                "nobody works on call {id}"
            );
        }
        if let Some(turn) = &self.turn {
            let decides = self
                .waiting()
                .any(|queued| queued.turn_id.as_ref() == Some(turn));
            let calls = self
                .open
                .iter()
                .any(|id| self.calls[id].turn.as_ref() == Some(turn));
            assert!(decides || calls, "turn {turn} can never move again");
        }
    }
}

/// T7: each tool call is followed directly by one result, and there are no others; of the active
/// path, nothing is missing.
fn check_request(state: &State, call: &CallId) {
    let request: LlmRequest = state.llm_request(call).expect("a due call has a request");
    assert!(request.tools.is_none_or(|tools| !tools.is_empty()));
    let mut messages = request.messages.iter().peekable();
    while let Some(message) = messages.next() {
        assert_ne!(message.role, Role::Tool, "an orphan");
        for id in asked(message) {
            let result = messages.next().expect("a result");
            assert_eq!(
                (result.role, result.tool_call_id.as_ref()),
                (Role::Tool, Some(id))
            );
        }
    }
}

fn asked(message: &Message) -> Vec<&CallId> {
    match message.role {
        Role::Assistant => message.tool_calls.iter().map(|call| &call.id).collect(),
        Role::User | Role::System | Role::Tool => Vec::new(),
    }
}
