//! S1–S8: sessions and turns.

use belljar_engine::{Command, Party};
use belljar_protocol::decision::{FailureClass, Identity};
use serde_json::{Value, json};

use crate::session::{Session, config, message, read, says, tool_calls, user, view};

fn spawned(identity: &str) -> Command {
    Command::Submit {
        input: read(&message("t1", "u1")),
        identity: Identity {
            id: Some(identity.to_owned()),
            ..Identity::default()
        },
        version: None,
    }
}

#[test]
fn s1_the_first_submit_creates_the_session_and_fixes_agent_and_owner() {
    let mut s = Session::new();
    assert!(!s.state.exists());
    s.command(spawned("ann")).unwrap();
    s.accept();
    s.command(spawned("bob")).unwrap();
    assert_eq!(s.state.agent_id().unwrap().as_str(), "bot");
    assert_eq!(s.ask()["identity"]["id"], "ann");
    assert_eq!(s.count("session.created"), 1);
}

#[test]
fn s1_another_agent_is_refused() {
    let mut s = Session::chatted();
    let mut input = message("t2", "u2");
    input["agent_id"] = json!("other");
    let refused = s.submit(input).unwrap_err();
    assert_eq!((refused.status, refused.code), (409, "agent_mismatch"));
}

#[test]
fn s1_a_refused_first_submit_creates_nothing() {
    let mut s = Session::new();
    let mut input = message("t1", "u1");
    input["message"]["role"] = json!("assistant");
    assert_eq!(s.submit(input).unwrap_err().status, 422);
    assert!(!s.state.exists());
}

#[test]
fn s2_session_start_goes_first_and_carries_the_waiting_turn() {
    let mut s = Session::new();
    s.say("t1", "u1");
    assert_eq!(
        (s.live(), &s.ask()["turn_id"]),
        ("session.start", &json!("t1"))
    );
    s.accept();
    assert_eq!(s.live(), "client.messages");
}

#[test]
fn s2_a_start_that_fails_ends_the_turn_and_the_next_submit_starts_again_ahead_of_itself() {
    let mut s = Session::new();
    s.say("t1", "u1");
    s.fail(FailureClass::Terminal);
    assert_eq!((s.turn_error(), s.live()), (json!("decision_failed"), ""));
    s.say("t2", "u2");
    assert_eq!(
        (s.live(), &s.ask()["turn_id"]),
        ("session.start", &json!("t2"))
    );
    s.answer(json!({ "agent": config() }));
    assert_eq!(s.live(), "client.messages");
}

#[test]
fn s2_a_start_that_is_dropped_is_asked_again() {
    let mut s = Session::new();
    s.say("t1", "u1");
    s.abort();
    s.say("t2", "u2");
    assert_eq!(s.live(), "session.start");
}

#[test]
fn s2_a_start_that_was_answered_is_not_asked_again() {
    let mut s = Session::asked();
    s.abort();
    s.say("t2", "u2");
    assert_eq!(s.live(), "client.messages");
}

#[test]
fn s3_ids_are_minted_when_absent_and_returned() {
    let mut s = Session::new();
    let mut input = message("t", "u1");
    input.as_object_mut().unwrap().remove("turn_id");
    let turn = s.submit(input).unwrap();
    assert_eq!(uuid(&turn), 7);
    assert_eq!(s.ask()["turn_id"], json!(turn));
}

/// The version of a uuid.
fn uuid(text: &str) -> u32 {
    assert_eq!((text.len(), text.matches('-').count()), (36, 4), "{text}");
    text[14..15].parse().unwrap()
}

#[test]
fn s4_repeat_of_the_running_turn_runs_nothing() {
    let mut s = Session::asked();
    let before = s.state.seq();
    assert_eq!(s.submit(message("t1", "u1")).unwrap(), "t1");
    assert_eq!(s.state.seq(), before);
}

#[test]
fn s4_repeat_of_a_finished_turn_runs_nothing_however_long_ago_and_while_another_runs() {
    let mut s = Session::chatted();
    s.advance(1e9);
    s.say("t2", "u2");
    let before = s.state.seq();
    assert_eq!(s.submit(message("t1", "u1")).unwrap(), "t1");
    assert_eq!(s.state.seq(), before);
}

#[test]
fn s4_the_same_body_is_the_same_value_not_the_same_text() {
    let mut s = Session::new();
    let act = |args: &str| {
        let text = format!(
            r#"{{"type":"client.action","agent_id":"bot","turn_id":"t1","name":"x","args":{args}}}"#
        );
        serde_json::from_str::<belljar_protocol::input::ClientInput>(&text).unwrap()
    };
    let mut submit = |args| {
        let input = act(args);
        s.command(Command::Submit {
            input,
            identity: Identity::default(),
            version: None,
        })
        .unwrap();
        s.state.seq()
    };
    let first = submit(r#"{"a":1,"b":[2]}"#);
    assert_eq!(submit(r#"{ "b" : [2.0], "a" : 10e-1 }"#), first);
    assert!(submit(r#"{"a":1,"b":[3]}"#) > first);
}

#[test]
fn s4_a_finished_turn_id_with_another_body_is_refused() {
    let mut s = Session::chatted();
    for input in [
        message("t1", "other"),
        view("t1", &json!([user("other")])),
        json!({"type": "client.action", "agent_id": "bot", "turn_id": "t1", "name": "x"}),
    ] {
        let refused = s.submit(input).unwrap_err();
        assert_eq!((refused.status, refused.code), (409, "turn_id_reused"));
        assert_eq!(refused.more["turn_id"], "t1");
    }
}

#[test]
fn s4_any_other_message_while_a_turn_runs_is_refused_and_the_turn_named() {
    let mut s = Session::asked();
    let mut queued = message("t2", "u2");
    queued["queue"] = json!(true);
    for input in [
        message("t2", "u2"),
        queued,
        message("t1", "u2"),
        view("t2", &json!([user("u2")])),
    ] {
        let refused = s.submit(input).unwrap_err();
        assert_eq!((refused.status, refused.code), (409, "turn_active"));
        assert_eq!(refused.more["turn_id"], "t1");
    }
}

#[test]
fn s4_queue_on_an_idle_session_is_an_ordinary_message() {
    let mut s = Session::chatted();
    let mut input = message("t2", "u2");
    input["queue"] = json!(true);
    assert_eq!(s.submit(input).unwrap(), "t2");
    assert_eq!(s.live(), "client.messages");
}

#[test]
fn s4_a_view_that_names_the_running_turn_belongs_to_it() {
    let mut s = Session::prompted();
    s.view("t1", &json!([user("u1"), user("u2")]));
    assert_eq!(s.ask()["turn_id"], "t1");
    assert_eq!(s.trigger()["new_from"], 1);
}

#[test]
fn s4_every_body_accepted_under_an_id_is_a_repeat() {
    let mut s = Session::prompted();
    let correction = view("t1", &json!([user("u2")]));
    s.submit(correction.clone()).unwrap();
    let before = s.state.seq();
    for input in [message("t1", "u1"), correction] {
        assert_eq!(s.submit(input).unwrap(), "t1");
    }
    assert_eq!(s.state.seq(), before);
}

#[test]
fn s4_an_id_accepted_into_a_running_turn_is_its_alias_for_ever() {
    let mut s = Session::prompted();
    assert_eq!(s.act("a1", "x"), "t1");
    s.accept();
    s.reply(json!({ "content": "hi" }));
    s.accept();
    assert_eq!(s.turn_ended()["status"], "completed");
    assert_eq!(s.act("a1", "x"), "t1");
    assert_eq!(
        s.submit(message("a1", "u2")).unwrap_err().code,
        "turn_id_reused"
    );
}

#[test]
fn s4_a_view_under_an_alias_belongs_to_the_running_turn() {
    let mut s = Session::prompted();
    s.act("a1", "x");
    s.accept();
    assert_eq!(s.submit(view("a1", &json!([user("u2")]))).unwrap(), "t1");
    assert_eq!(s.ask()["turn_id"], "t1");
}

#[test]
fn s4_checks_closed_then_the_agent_then_the_turn_id() {
    let mut s = Session::chatted();
    let mut other = message("t1", "u1");
    other["agent_id"] = json!("other");
    assert_eq!(s.submit(other.clone()).unwrap_err().code, "agent_mismatch");
    s.command(Command::Close { by: Party::Client }).unwrap();
    assert_eq!(s.submit(other).unwrap_err().code, "session_closed");
    assert_eq!(
        s.submit(message("t1", "u1")).unwrap_err().code,
        "session_closed"
    );
}

#[test]
fn s4_stream_of_an_input_overrides_the_configs_for_that_turn() {
    let mut s = Session::chatted();
    let mut input = message("t2", "u2");
    input["stream"] = json!(true);
    s.submit(input).unwrap();
    s.accept();
    assert_eq!(s.call(&s.in_flight().0)["stream"], true);
    s.reply(json!({ "content": "hi" }));
    s.accept();
    s.say("t3", "u3");
    s.accept();
    assert_eq!(s.call(&s.in_flight().0)["stream"], false);
}

#[test]
fn s5_done_ends_the_turn_with_its_data() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "done", "data": {"x": 1}}]}));
    let ended = s.turn_ended();
    assert_eq!(
        (&ended["turn_id"], &ended["status"]),
        (&json!("t1"), &json!("completed"))
    );
    assert_eq!(ended["data"], json!({"x": 1}));
    s.assert_at_rest();
}

#[test]
fn s5_cost_and_usage_of_the_turn_are_summed_and_those_of_others_are_not() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    s.accept();
    s.reply(json!({"content": "2", "cost": "0.020", "usage": {"in": 3}}));
    s.answer(json!({"messages": [], "actions": [{"type": "llm.call"}]}));
    s.reply(json!({"content": "2", "cost": "0.010", "usage": {"in": 4, "out": 1}}));
    s.accept();
    assert_eq!(s.turn_ended()["cost"], "0.03");
    assert_eq!(s.turn_ended()["usage"], json!({"in": 7, "out": 1}));
    s.say("t2", "u2");
    s.accept();
    s.reply(json!({"content": "hi", "cost": "1", "usage": {"in": 1}}));
    s.accept();
    assert_eq!(s.turn_ended()["cost"], "1");
    assert_eq!(s.state.total_cost().unwrap(), "1.03");
}

#[test]
fn s5_sums_are_the_same_after_a_crash() {
    let mut s = Session::asked();
    let usage = |n: f64| json!({"content": "x", "cost": "0.1", "usage": {"secs": n}});
    for n in [0.1, 0.2, 1e-7, 3.3] {
        s.answer(json!({"actions": [{"type": "llm.call"}]}));
        s.reply(usage(n));
    }
    s.crash();
    s.accept();
    let sum = 0.1 + 0.2 + 1e-7 + 3.3;
    assert_eq!(s.turn_ended()["usage"]["secs"], json!(sum));
    assert_eq!(s.turn_ended()["cost"], "0.4");
}

/// `t1` has ended while its tool call `k1` was open.
fn ended_with_an_open_call() -> Session {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({}));
    s.act("t1b", "stop");
    s.answer(json!({"actions": [{"type": "done"}]}));
    assert_eq!(s.turn_ended()["status"], "completed");
    assert_eq!(s.call("k1")["status"], "pending");
    s
}

#[test]
fn s5_decisions_about_a_call_of_an_ended_turn_have_no_turn_even_while_another_runs() {
    let mut s = ended_with_an_open_call();
    s.say("t2", "u2");
    s.settle(Party::Worker, "k1", None, json!({"result": 1}));
    s.accept();
    assert_eq!(
        (s.live(), &s.ask()["turn_id"]),
        ("tool.finished", &Value::Null)
    );
    s.answer(json!({"actions": [{"type": "done"}]}));
    assert_eq!(s.state.turn().unwrap().turn_id.as_str(), "t2");
}

#[test]
fn s5_failure_of_such_a_decision_ends_nothing() {
    let mut s = ended_with_an_open_call();
    s.say("t2", "u2");
    s.accept();
    s.settle(Party::Worker, "k1", None, json!({"result": 1}));
    s.fail(FailureClass::Terminal);
    assert_eq!(s.state.turn().unwrap().turn_id.as_str(), "t2");
    assert_eq!(s.in_flight().1, 1);
}

#[test]
fn s5_such_a_decision_may_not_ask_for_a_model_call_while_another_turn_runs() {
    let mut s = ended_with_an_open_call();
    s.say("t2", "u2");
    s.accept();
    s.settle(Party::Worker, "k1", None, json!({"result": 1}));
    let refusal = s.refused(json!({"actions": [{"type": "llm.call"}]}));
    assert!(
        refusal.starts_with("actions[0]: a decision about a call"),
        "{refusal}"
    );
    assert_eq!(s.state.turn().unwrap().turn_id.as_str(), "t2");
}

#[test]
fn s5_such_a_decision_may_ask_for_a_model_call_while_none_runs() {
    let mut s = ended_with_an_open_call();
    s.settle(Party::Worker, "k1", None, json!({"result": 1}));
    s.answer(json!({"actions": [{"type": "llm.call"}]}));
    s.reply(json!({ "content": "hi" }));
    assert_eq!(
        (s.live(), &s.ask()["turn_id"]),
        ("llm.finished", &Value::Null)
    );
    s.accept();
    assert_eq!(s.said().last().unwrap(), "hi");
    s.assert_at_rest();
}

#[test]
fn s6_a_call_that_settles_after_done_proposes_only_to_record_its_result() {
    let mut s = ended_with_an_open_call();
    s.settle(Party::Worker, "k1", None, json!({"result": "late"}));
    assert_eq!(s.ask()["turn_id"], Value::Null);
    assert_eq!(s.proposed()["actions"], Value::Null);
    s.accept();
    assert_eq!(s.said().last().unwrap(), "late");
    s.assert_at_rest();
}

#[test]
fn s6_a_model_call_that_settles_after_done_proposes_only_to_record_its_reply() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "llm.call"}, {"type": "done"}]}));
    s.reply(tool_calls(&[["k1", "add"]]));
    assert_eq!(s.ask()["turn_id"], Value::Null);
    assert_eq!(s.proposed()["actions"], Value::Null);
    s.accept();
    s.assert_at_rest();
}

#[test]
fn s6_decisions_that_were_queued_stay() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}, {"type": "done"}]}));
    assert_eq!(
        (s.live(), &s.trigger()["id"]),
        ("tool.execute", &json!("k2"))
    );
    assert_eq!(s.ask()["turn_id"], Value::Null);
    s.answer(json!({"actions": [{"type": "tool.result", "result": 2}]}));
    s.accept();
    s.accept();
    s.assert_at_rest();
}

#[test]
fn s7_an_answer_that_leaves_nothing_to_wait_for_stalls_the_turn() {
    for answer in [
        json!({}),
        json!({"messages": [says("a1")]}),
        json!({"state": {"x": 1}}),
    ] {
        let mut s = Session::asked();
        s.answer(answer);
        assert_eq!(
            (s.turn_ended()["status"].take(), s.turn_error()),
            (json!("failed"), json!("stalled"))
        );
        s.assert_at_rest();
    }
}

#[test]
fn s7_a_start_answered_with_nothing_does_not_stall_as_the_message_waits() {
    let mut s = Session::new();
    s.say("t1", "u1");
    s.answer(json!({}));
    assert!(s.state.turn().is_some());
}

#[test]
fn s7_an_asynchronous_tool_is_not_stalled() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({}));
    assert_eq!((s.state.status(), s.live()), ("running", ""));
}

#[test]
fn s7_open_calls_of_other_turns_do_not_keep_a_turn_from_stalling() {
    let mut s = ended_with_an_open_call();
    s.say("t2", "u2");
    s.answer(json!({}));
    assert_eq!(s.turn_error(), "stalled");
    assert_eq!(s.call("k1")["status"], "pending");
}

#[test]
fn s7_a_turn_whose_calls_a_fork_voids_is_stalled() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.act("a1", "rewind");
    // Records a sibling of the message the call hangs from.
    s.answer(json!({"messages": [user("u1"), says("a1")]}));
    assert_eq!(s.call("k1"), Value::Null);
    assert_eq!(s.turn_error(), "stalled");
}

/// The session in each phase of a turn, and what the phase is called.
fn phases() -> Vec<(&'static str, Session)> {
    let mut all = Vec::new();
    let mut s = Session::new();
    s.say("t1", "u1");
    all.push(("session.start is live, the message waits", s));
    all.push(("client.messages is live", Session::asked()));
    let mut s = Session::asked();
    s.fail(FailureClass::Retryable);
    all.push(("a delivery waits for its retry", s));
    all.push(("a model call is in flight", Session::prompted()));
    let mut s = Session::prompted();
    s.reply(json!({"error": "busy", "retryable": true}));
    all.push(("a model call waits for its retry", s));
    let mut s = Session::prompted();
    s.reply(json!({ "content": "hi" }));
    all.push(("llm.finished is live", s));
    all.push((
        "tools are executed",
        Session::calling(&[["k1", "add"], ["k2", "pick"], ["k3", "now"]]),
    ));
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    all.push(("results wait to be processed", s));
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({}));
    all.push(("a deferred call is open", s));
    all.push((
        "a client's call is open",
        Session::calling(&[["k1", "pick"]]),
    ));
    let mut s = Session::prompted();
    s.act("a1", "x");
    all.push(("an action is live beside a model call", s));
    all.push((
        "nothing runs, a call of an ended turn is open",
        ended_with_an_open_call(),
    ));
    all
}

#[test]
fn s8_abort_ends_the_turn_in_every_phase_and_what_comes_late_changes_nothing() {
    for (phase, mut s) in phases() {
        let runs = s.state.turn().is_some();
        let live = s.state.composed().map(|composed| composed.ask.decision_id);
        let calls: Vec<_> = s.state.open_calls();
        s.abort();
        if runs {
            assert_eq!(s.turn_error(), "aborted", "{phase}");
        }
        let before = s.state.seq();
        if let Some(id) = live {
            assert!(
                !s.answer_to(id.as_str(), json!({"actions": [{"type": "done"}]})),
                "{phase}"
            );
        }
        for call in &calls {
            s.reply_to(call.id.as_str(), call.attempt, json!({ "content": "late" }));
            s.reply_to(
                call.id.as_str(),
                call.attempt,
                json!({"error": "late", "retryable": true}),
            );
            for by in [Party::Client, Party::Worker, Party::Operator] {
                let status = s.settle(by, call.id.as_str(), None, json!({"result": "late"}));
                assert!(status == 409 || status == 403, "{phase}: {status}");
            }
        }
        s.advance(1e6);
        s.crash();
        assert_eq!(s.state.seq(), before, "{phase}");
        s.assert_at_rest();
    }
}

#[test]
fn s8_abort_of_an_idle_session_changes_nothing() {
    let mut s = Session::chatted();
    let before = s.state.seq();
    s.abort();
    assert_eq!(s.state.seq(), before);
}

#[test]
fn s8_closing_does_the_same_in_every_phase_and_is_final() {
    for (phase, mut s) in phases() {
        s.command(Command::Close {
            by: Party::Operator,
        })
        .unwrap();
        assert_eq!(s.state.status(), "closed", "{phase}");
        assert_eq!(
            (s.state.open_calls(), s.live()),
            (Vec::new(), ""),
            "{phase}"
        );
        let before = s.state.seq();
        for input in [
            message("t9", "u9"),
            view("t9", &json!([])),
            json!({"type": "client.action", "agent_id": "bot", "name": "x"}),
            json!({"type": "tool.result", "id": "k1"}),
            json!({"type": "interrupt.resume", "interrupt_id": "i"}),
        ] {
            assert_eq!(
                s.submit(input).unwrap_err().code,
                "session_closed",
                "{phase}"
            );
        }
        s.command(Command::Close { by: Party::Client }).unwrap();
        s.abort();
        s.crash();
        assert_eq!(s.state.seq(), before, "{phase}");
    }
}

#[test]
fn s8_a_session_nobody_has_spoken_to_is_unknown() {
    let mut s = Session::new();
    for command in [
        Command::Abort { by: Party::Client },
        Command::Close { by: Party::Client },
        Command::Tick,
        Command::Recover,
    ] {
        let refused = s.command(command).unwrap_err();
        assert_eq!((refused.status, refused.code), (404, "session_unknown"));
    }
}

#[test]
fn s5_what_a_call_of_an_ended_turn_costs_is_none_of_the_running_turns() {
    let mut s = Session::asked();
    s.answer(
        json!({"messages": [user("u1")], "actions": [{"type": "llm.call"}, {"type": "done"}]}),
    );
    s.say("t2", "u2");
    s.reply(json!({"content": "late", "cost": "5"}));
    s.answer(json!({"actions": [{"type": "done"}]}));
    assert_eq!(
        (
            s.turn_ended()["turn_id"].take(),
            s.turn_ended()["cost"].take()
        ),
        (json!("t2"), Value::Null)
    );
    assert_eq!(s.state.total_cost().unwrap(), "5");
}

#[test]
fn s4_stream_of_an_input_is_none_of_what_another_turn_asks_for() {
    let mut s = Session::prompted();
    s.reply(json!({ "content": "hi" }));
    s.view("t1", &json!([user("u1"), user("u2")]));
    s.accept();
    // The correction of `t1` is answered while `t2` streams.
    let mut input = message("t2", "u3");
    input["stream"] = json!(true);
    s.submit(input).unwrap();
    s.answer(json!({"actions": [{"type": "llm.call", "id": "x"}]}));
    assert_eq!(s.call("x")["stream"], false);
}
