//! A decision costs what it changes, not how long the conversation is: bytes allocated by each
//! step of a turn on a long session, against those on a short one.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, not in what they share

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use belljar_engine::{AnswerIn, Command, Now, State, apply, handle, plan};
use belljar_protocol::Timestamp;
use belljar_protocol::decision::{Answer, DecisionResponse, Identity};
use belljar_protocol::id::SessionId;
use belljar_protocol::model::LlmResponse;
use belljar_protocol::scratch::ScratchChange;
use serde_json::{Value, json};

struct Counting;

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size() as u64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One session, driven without looking at it.
struct Bed {
    state: State,
    now: i64,
}

impl Bed {
    fn new() -> Self {
        let mut bed = Self {
            state: State::new(SessionId::from("s")),
            now: 1_800_000_000_000,
        };
        bed.step(say("first"));
        bed.answer(json!({"agent": {"model": "m", "system": "Be brief."}, "state": {"n": 0}}));
        bed
    }

    /// Handles a command, and folds its commit as a host that follows would; the bytes both take.
    fn step(&mut self, command: Command) -> u64 {
        self.now += 1;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.now.to_be_bytes());
        let at = Timestamp::from_millis(self.now);
        let mut follower = self.state.clone();
        let before = BYTES.get();
        let handled = handle(&self.state, command, &Now { at, seed }).unwrap();
        apply(&mut follower, &handled.commit.unwrap());
        let due = plan(&handled.state, at);
        let asked = handled.state.composed();
        let bytes = BYTES.get() - before;
        assert_eq!(due.decision.is_some(), asked.is_some());
        assert_eq!(follower.seq(), handled.state.seq());
        self.state = handled.state;
        bytes
    }

    fn decide(&mut self, answer: Answer) -> u64 {
        let command = Command::Answer(Box::new(AnswerIn {
            decision_id: self.state.composed().unwrap().ask.decision_id,
            outcome: Ok(answer),
            run: None,
            scratch: ScratchChange::default(),
            delivered: Vec::new(),
        }));
        self.step(command)
    }

    fn answer(&mut self, answer: Value) -> u64 {
        let answer: DecisionResponse = serde_json::from_str(&answer.to_string()).unwrap();
        self.decide(answer.into())
    }

    fn reply(&mut self, text: &str) -> u64 {
        self.reply_with(LlmResponse {
            content: Some(text.into()),
            ..LlmResponse::default()
        })
    }

    fn reply_with(&mut self, reply: LlmResponse) -> u64 {
        let due = plan(&self.state, Timestamp::from_millis(self.now))
            .model_calls
            .remove(0);
        self.step(Command::Reply {
            call_id: due.call_id,
            attempt: due.attempt,
            outcome: Ok(reply),
        })
    }

    /// A whole turn; the bytes of each of its steps.
    fn turn(&mut self) -> Vec<(&'static str, u64)> {
        vec![
            ("client.message", self.step(say("next"))),
            ("client.messages accepted", self.decide(Answer::Accept)),
            ("reply", self.reply("fine")),
            ("llm.finished accepted", self.decide(Answer::Accept)),
        ]
    }
}

fn say(text: &str) -> Command {
    let input = json!({
        "type": "client.message", "agent_id": "bot", "message": {"role": "user", "content": text}
    });
    Command::Submit {
        input: serde_json::from_str(&input.to_string()).unwrap(),
        identity: Identity::default(),
        version: None,
    }
}

/// Persistent trees copy the way to what changes; they are up to four levels deep here, where a
/// short session has one.
#[track_caller]
fn assert_flat(mut short: Bed, mut long: Bed) {
    for ((step, short), (_, long)) in short.turn().into_iter().zip(long.turn()) {
        assert!(
            long <= 3 * short,
            "{step}: {long} bytes on a long session, {short} on a short one"
        );
    }
}

#[test]
fn a_turn_costs_the_same_after_10_messages_and_after_100_000() {
    let holding = |messages: usize| {
        let mut bed = Bed::new();
        let message = |n| json!({"id": format!("m{n}"), "role": "user", "content": "some words"});
        let list: Vec<_> = (0..messages).map(message).collect();
        bed.answer(json!({"messages": list, "actions": [{"type": "done"}]}));
        assert_eq!(bed.state.tree().len(), messages);
        bed
    };
    assert_flat(holding(10), holding(100_000));
}

#[test]
fn a_turn_costs_the_same_after_5_turns_and_after_2_000() {
    let after = |turns: usize| {
        let mut bed = Bed::new();
        bed.answer(json!({"actions": [{"type": "done"}]}));
        for _ in 0..turns {
            bed.turn();
        }
        assert_eq!(bed.state.tree().len(), 2 * turns);
        bed
    };
    assert_flat(after(5), after(2_000));
}

#[test]
fn a_thousand_tool_calls_cost_ten_times_what_a_hundred_do() {
    let bytes = |calls: usize| {
        let mut bed = Bed::new();
        bed.decide(Answer::Accept);
        let call = |n| json!({"id": format!("k{n}"), "function": {"name": "f", "arguments": "{}"}});
        let calls_json: Vec<_> = (0..calls).map(call).collect();
        let reply = json!({ "tool_calls": calls_json });
        let mut sum = bed.reply_with(serde_json::from_str(&reply.to_string()).unwrap());
        sum += bed.decide(Answer::Accept);
        for _ in 0..calls {
            sum += bed.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
        }
        for _ in 0..calls {
            sum += bed.decide(Answer::Accept);
        }
        assert_eq!(
            plan(&bed.state, Timestamp::from_millis(bed.now))
                .model_calls
                .len(),
            1
        );
        sum
    };
    let (hundred, thousand) = (bytes(100), bytes(1_000));
    assert!(
        thousand <= 15 * hundred,
        "{thousand} bytes for 1000 calls, {hundred} for 100"
    );
}

#[test]
fn dropping_a_thousand_decisions_costs_ten_times_what_a_hundred_do() {
    let bytes = |actions: usize| {
        let mut bed = Bed::new();
        let input =
            |n: usize| json!({"type": "client.action", "agent_id": "bot", "name": format!("{n}")});
        for n in 0..actions {
            bed.step(Command::Submit {
                input: serde_json::from_str(&input(n).to_string()).unwrap(),
                identity: Identity::default(),
                version: None,
            });
        }
        bed.step(Command::Abort {
            by: belljar_engine::Party::Client,
        })
    };
    let (hundred, thousand) = (bytes(100), bytes(1_000));
    assert!(
        thousand <= 15 * hundred,
        "{thousand} bytes for 1000, {hundred} for 100"
    );
}
