//! Clocks at their ends, counters at theirs, and logs that make no sense.

use belljar_engine::{Command, Now, Party, State, apply, handle, plan};
use belljar_protocol::Timestamp;
use belljar_protocol::decision::{FailureClass, Identity};
use belljar_protocol::event::{CallAttempted, Commit, DecisionFailed, Event, TurnError};
use serde_json::json;

use crate::session::{Session, message, read};

#[test]
fn a_clock_at_its_end_neither_panics_nor_turns_back() {
    for millis in [i64::MAX, i64::MIN, -1, 0] {
        let now = Now {
            at: Timestamp::from_millis(millis),
            seed: [7; 32],
        };
        let mut state = State::new("s".into());
        let mut take = |command| {
            state = handle(&state, command, &now).unwrap().state;
            plan(&state, now.at)
        };
        take(Command::Submit {
            input: read(&message("t1", "u1")),
            identity: Identity::default(),
            version: None,
        });
        // Deadlines that are never reached are not passed either.
        let due = take(Command::Tick);
        assert!(due.decision.is_some());
        take(Command::Recover);
        take(Command::Abort { by: Party::Client });
    }
    // The last year that RFC 3339 can name.
    for millis in [0, 253_402_000_000_000] {
        let mut s = Session::new();
        s.now = Timestamp::from_millis(millis);
        s.say("t1", "u1");
        s.answer(json!({"agent": {"model": "m"}}));
        s.fail(FailureClass::Retryable);
    }
}

#[test]
fn attempts_that_are_used_up_do_not_overflow() {
    let mut s = Session::prompted();
    let (call, _) = s.in_flight();
    let attempted = CallAttempted {
        call_id: call.as_str().into(),
        attempt: u32::MAX,
    };
    push(&mut s, Event::CallAttempted(attempted));
    s.command(Command::Recover).unwrap();
    assert_eq!(s.in_flight(), (call, u32::MAX));
    let mut s = Session::asked();
    let failed = DecisionFailed {
        decision_id: s.live_id().into(),
        attempt: u32::MAX,
        class: FailureClass::Retryable,
        error: TurnError {
            code: "x".into(),
            message: "x".into(),
            detail: None,
        },
        retry_at: Some(s.now),
        run: None,
    };
    push(&mut s, Event::DecisionFailed(failed));
    s.fail(FailureClass::Retryable);
    assert_eq!(s.turn_error(), "decision_failed");
}

/// Puts an event into the log that the engine would not write.
fn push(s: &mut Session, event: Event) {
    let commit = Commit {
        first_seq: s.state.seq() + 1,
        at: s.now,
        events: vec![event],
    };
    apply(&mut s.state, &commit);
    s.log.push(commit);
}
