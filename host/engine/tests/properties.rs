//! Random stories: whatever happens in whatever order, the invariants hold after each step.
//!
//! A case is a row of dice; what happens next is read off them. `PROPTEST_CASES` runs more.
#![allow(clippy::unwrap_used, clippy::expect_used)] // clippy.toml allows them in tests only

#[path = "properties/model.rs"]
mod model;
#[allow(dead_code, reason = "not every helper is used by every test binary")]
#[path = "rules/session.rs"]
mod session;
#[path = "properties/wild.rs"]
mod wild;

use belljar_engine::{Command, Party, State, apply, plan, restore, snapshot};
use belljar_protocol::decision::{FailureClass, request_json};
use belljar_protocol::event::Commit;
use belljar_protocol::id::SessionId;
use proptest::prelude::*;
use serde_json::{Value, json};

use model::Model;
use session::{Session, config, message, tool_calls, user, view};

/// Decides everything; all zeros once used up, so that shorter rows tell shorter stories.
pub(crate) struct Dice {
    row: std::vec::IntoIter<u16>,
}

impl Dice {
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        usize::from(self.row.next().unwrap_or(0)) % sides.max(1)
    }

    pub(crate) fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let ix = self.roll(of.len());
        &of[ix]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.roll(100) < percent
    }

    fn is_used_up(&self) -> bool {
        self.row.len() == 0
    }
}

/// A story under way, and what an independent reading of its log says of it.
struct Story {
    s: Session,
    model: Model,
    dice: Dice,
    /// Decisions and call attempts there have been.
    decisions: Vec<String>,
    attempts: Vec<(String, u32)>,
    turns: u32,
}

impl Story {
    fn new(row: Vec<u16>) -> Self {
        let mut story = Self {
            s: Session::new(),
            model: Model::default(),
            dice: Dice {
                row: row.into_iter(),
            },
            decisions: Vec::new(),
            attempts: Vec::new(),
            turns: 0,
        };
        story.s.say("t0", "u0");
        story
    }

    fn step(&mut self) {
        self.happen();
        if let Some(composed) = self.s.state.composed() {
            self.decisions.push(composed.ask.decision_id.to_string());
        }
        for due in self.s.plan().model_calls {
            self.attempts.push((due.call_id.to_string(), due.attempt));
        }
        self.model.follow(&self.s);
        self.model.check(&self.s);
    }

    fn happen(&mut self) {
        let live = !self.s.live().is_empty();
        match self.dice.roll(100) {
            0..35 if live => self.decide(),
            0..20 => self.submit(),
            20..50 if !self.s.plan().model_calls.is_empty() => {
                let reply = self.reply();
                self.s.reply(reply);
            }
            35..60 => self.settle(),
            60..75 => self.submit(),
            75..85 => {
                let secs = *self
                    .dice
                    .one_of(&[0.0, 0.5, 1.0, 3.0, 30.0, 130.0, 200.0, 90_000.0]);
                self.s.advance(secs);
            }
            85..92 => self.s.crash(),
            92..97 => self.late(),
            97..99 => self.s.abort(),
            _ if self.dice.chance(10) => {
                self.s
                    .command(Command::Close {
                        by: Party::Operator,
                    })
                    .ok();
            }
            _ => {}
        }
    }

    fn decide(&mut self) {
        match self.dice.roll(20) {
            0..6 => self.s.accept(),
            // What was proposed is as good when it comes back as JSON [P0].
            6..9 => self.s.answer(self.s.proposal()),
            9..15 => {
                let answer = self.sensible();
                self.s.try_answer(answer);
            }
            15..18 => {
                let text = wild::answer(&mut self.dice, &self.s);
                self.s.answer_text(&text);
            }
            _ => {
                let class = *self.dice.one_of(&[
                    FailureClass::Retryable,
                    FailureClass::TimedOut,
                    FailureClass::Deterministic,
                    FailureClass::Terminal,
                ]);
                self.s.fail(class);
            }
        }
    }

    /// An answer an agent might well give.
    fn sensible(&mut self) -> Value {
        let trigger = self.s.trigger();
        let mut answer = json!({ "actions": [] });
        if self.dice.chance(50) {
            answer["messages"] = match trigger["messages"].is_array() {
                true => trigger["messages"].clone(),
                false => json!([{"role": "assistant", "content": "note"}]),
            };
        }
        if self.dice.chance(10) {
            // Back to an earlier place of the path, and another way from there.
            let path = self.s.path();
            let kept = self.dice.roll(path.len() + 1);
            let mut list: Vec<_> = path[..kept].iter().map(|id| user(id)).collect();
            if self.dice.chance(50) {
                list.push(json!({"role": "user", "content": "instead"}));
            }
            answer["messages"] = json!(list);
        }
        if self.dice.chance(20) {
            answer["state"] = json!({"n": self.dice.roll(3)});
        }
        if trigger["type"] == "session.start" || self.dice.chance(10) {
            answer["agent"] = self
                .dice
                .one_of(&[config(), json!({"model": "m", "handler": "worker"})])
                .clone();
        }
        for _ in 0..self.dice.roll(4) {
            let retry = json!({
                "timeout_secs": self.dice.one_of(&[Some(0.0), Some(2.5), None]),
                "max_retries": self.dice.roll(3), "backoff_base_secs": 1.0, "backoff_max_secs": 2.0
            });
            let id = format!("c{}", self.dice.roll(8));
            let action = match self.dice.roll(8) {
                0 if self.s.state.turn().is_some() => json!({"type": "llm.call"}),
                1 => json!({"type": "llm.call", "id": id, "model": "m", "retry": retry}),
                2 => json!({"type": "tool.call", "name": "add", "id": id}),
                3 => json!({"type": "tool.call", "name": "pick", "id": id, "retry": retry}),
                4 => json!({"type": "tool.call", "name": "add", "id": id, "retry": retry}),
                5 => {
                    json!({"type": "sub_agent.spawn", "session_id": "child", "agent_id": "helper", "tool_call_id": id})
                }
                _ => continue,
            };
            answer["actions"].as_array_mut().unwrap().push(action);
        }
        let own = match trigger["type"].as_str() {
            Some("tool.execute") => Some(json!({"type": "tool.result", "result": {"x": 1}})),
            Some("llm.execute") => Some(json!({"type": "llm.result", "response": self.reply_ok()})),
            _ => None,
        };
        if let Some(own) = own.filter(|_| self.dice.chance(70)) {
            let retryable = self.dice.chance(50);
            let kind = own["type"].as_str().unwrap().replace("result", "error");
            answer["actions"]
                .as_array_mut()
                .unwrap()
                .push(match self.dice.chance(70) {
                    true => own,
                    false => json!({"type": kind, "error": "no", "retryable": retryable}),
                });
        }
        if self.dice.chance(15) {
            answer["actions"]
                .as_array_mut()
                .unwrap()
                .push(json!({"type": "done", "data": 1}));
        }
        answer
    }

    fn reply(&mut self) -> Value {
        match self.dice.roll(10) {
            0..2 => {
                json!({"error": "busy", "retryable": true, "retry_after_secs": self.dice.roll(5)})
            }
            2 => json!({"error": "no", "code": "refused"}),
            _ => self.reply_ok(),
        }
    }

    fn reply_ok(&mut self) -> Value {
        let mut reply = match self.dice.chance(60) {
            true => {
                let names = ["add", "pick", "now", "helper", "nope", ""];
                let ids = ["k1", "k2", "k3", "c1", "", "k4"];
                let calls: Vec<_> = (0..1 + self.dice.roll(4))
                    .map(|_| [*self.dice.one_of(&ids), *self.dice.one_of(&names)])
                    .collect();
                tool_calls(&calls)
            }
            false => json!({"content": "hi", "cost": "0.01", "usage": {"in": 1, "secs": 0.1}}),
        };
        if self.dice.chance(10) {
            reply["finish_reason"] = json!("length");
        }
        reply
    }

    fn settle(&mut self) {
        let mut ids: Vec<_> = self
            .s
            .state
            .open_calls()
            .iter()
            .map(|call| call.id.to_string())
            .collect();
        ids.extend(["k1".to_owned(), "c1".into(), "none".into()]);
        let id = self.dice.one_of(&ids).clone();
        let by = *self
            .dice
            .one_of(&[Party::Client, Party::Worker, Party::Operator]);
        let attempt = *self
            .dice
            .one_of(&[None, None, Some(1), Some(2), Some(u32::MAX)]);
        let result = match self.dice.roll(4) {
            0 => json!({"error": "no", "retryable": true}),
            1 => json!({"error": "no"}),
            _ => json!({"result": [1]}),
        };
        self.s.settle(by, &id, attempt, result);
    }

    fn submit(&mut self) {
        self.turns += u32::from(self.dice.chance(60));
        let mut turn = format!("t{}", self.turns);
        if let Some(running) = self.s.state.turn().filter(|_| self.dice.chance(50)) {
            turn = running.turn_id.to_string();
        }
        let input = match self.dice.roll(8) {
            0..3 => message(&turn, &format!("u{}", self.dice.roll(50))),
            3..6 => {
                let path = self.s.path();
                let kept = self.dice.roll(path.len() + 1);
                let mut list: Vec<_> = path[..kept].iter().map(|id| user(id)).collect();
                for _ in 0..self.dice.roll(3) {
                    let ids = [json!("u1"), json!("x"), json!(""), Value::Null, json!("u7")];
                    let role = *self.dice.one_of(&["user", "system", "assistant"]);
                    list.push(json!({"id": self.dice.one_of(&ids), "role": role, "content": "."}));
                }
                view(&turn, &json!(list))
            }
            6 => {
                json!({"type": "client.action", "agent_id": "bot", "turn_id": turn, "name": "x", "args": self.dice.roll(2)})
            }
            _ => json!({"type": "interrupt.resume", "interrupt_id": "none"}),
        };
        let before = self.s.state.seq();
        if self.s.submit(input.clone()).is_ok() && self.s.state.seq() > before {
            // The same again is a repeat, and runs nothing [S4].
            let after = self.s.state.seq();
            self.s.submit(input).unwrap();
            assert_eq!(self.s.state.seq(), after);
        }
    }

    /// Something that is over answers once more: nothing changes.
    fn late(&mut self) {
        let before = self.s.state.seq();
        if !self.decisions.is_empty() {
            let id = self.dice.one_of(&self.decisions).clone();
            if self
                .s
                .state
                .composed()
                .is_none_or(|live| live.ask.decision_id.as_str() != id)
            {
                assert!(
                    !self
                        .s
                        .answer_to(&id, json!({"actions": [{"type": "done"}]}))
                );
            }
        }
        if !self.attempts.is_empty() {
            let (call, attempt) = self.dice.one_of(&self.attempts).clone();
            let current = self.s.plan().model_calls;
            if !current
                .iter()
                .any(|due| due.call_id.as_str() == call && due.attempt == attempt)
            {
                self.s
                    .reply_to(&call, attempt, json!({ "content": "late" }));
            }
        }
        assert_eq!(self.s.state.seq(), before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_each_step(row in proptest::collection::vec(any::<u16>(), 20..400)) {
        let mut story = Story::new(row);
        while !story.dice.is_used_up() {
            story.step();
        }
        session::assert_same(&story.s.folded(), &story.s.state);
        // Whatever is going on, an abort ends it.
        if story.s.state.status() != "closed" {
            story.s.abort();
            story.s.assert_at_rest();
        }
    }

    #[test]
    fn folding_is_total(row in proptest::collection::vec(any::<u16>(), 20..100)) {
        let mut story = Story::new(row);
        while !story.dice.is_used_up() {
            story.happen();
        }
        // A log with holes in it: each event may name what is not there.
        for hole in 2..6 {
            let mut state = State::new(SessionId::from("s"));
            let events = story.s.log.iter().flat_map(|commit| &commit.events);
            for (ix, event) in events.enumerate().filter(|(ix, _)| ix % hole != hole / 2) {
                let commit = Commit {
                    first_seq: ix as u64 + 1,
                    at: story.s.now,
                    events: vec![event.clone()],
                };
                apply(&mut state, &commit);
            }
            plan(&state, story.s.now);
            for call in state.open_calls() {
                state.llm_request(&call.id);
            }
            if let Some(composed) = state.composed() {
                request_json(&composed.ask, composed.view.as_ref(), None);
            }
            if let Some(taken) = snapshot(&state) {
                restore(SessionId::from("s"), &taken).unwrap();
            }
        }
    }

    #[test]
    fn no_answer_makes_the_core_panic(row in proptest::collection::vec(any::<u16>(), 0..200)) {
        let mut dice = Dice { row: row.into_iter() };
        let mut s = match dice.roll(4) {
            0 => Session::asked(),
            1 => Session::calling(&[["k1", "add"], ["k2", "pick"], ["k3", "helper"]]),
            2 => Session::asked_with(json!({"model": "m", "handler": "worker"})),
            _ => Session::new(),
        };
        if s.live().is_empty() {
            s.act("a", "x");
        }
        while !s.live().is_empty() && !dice.is_used_up() {
            s.answer_text(&wild::answer(&mut dice, &s));
            s.advance(1.0);
        }
        s.folded();
    }
}
