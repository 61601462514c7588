//! D1–D9: delivery, failure, checking and applying answers.

use belljar_engine::{AnswerIn, Command, Party, Reply, snapshot};
use belljar_protocol::decision::{Answer, DecisionResponse, FailureClass};
use belljar_protocol::id::DecisionId;
use belljar_protocol::scratch::{DeliveredFile, Digest, ScratchChange, ScratchEntry};
use serde_json::{Value, json};

use crate::session::{Session, config, read, says, tool_calls, user};

#[test]
fn d1_one_decision_is_live_the_others_wait_in_the_order_they_came() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "pick"], ["k3", "pick"]]);
    for call in ["k2", "k3", "k1"] {
        s.settle(Party::Client, call, None, json!({"result": call}));
    }
    for call in ["k2", "k3", "k1"] {
        assert_eq!(s.trigger()["id"], call);
        s.accept();
    }
}

#[test]
fn d1_while_a_decision_is_live_the_tree_cannot_change() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "add"]]);
    let (path, asked) = (s.path(), s.ask());
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    s.act("a1", "x");
    s.view("t1", &json!([user("other")]));
    s.advance(1.0);
    assert_eq!((s.path(), s.ask()), (path, asked));
}

#[test]
fn d2_a_crash_delivers_the_same_decision_with_one_more_attempt() {
    let mut s = Session::asked();
    let first = s.ask();
    assert_eq!(first["attempts"], 1);
    s.crash();
    let mut again = s.ask();
    assert_eq!(again["attempts"].take(), 2);
    let mut first = first;
    first["attempts"].take();
    assert_eq!(again, first);
}

#[test]
fn d2_delivering_writes_nothing() {
    let s = Session::asked();
    let (asked, plan) = (s.ask(), s.plan());
    assert_eq!((s.ask(), s.plan()), (asked, plan));
    assert_eq!(s.folded().seq(), s.state.seq());
}

#[test]
fn d2_the_fifth_recovery_ends_a_decision_that_kills_the_host() {
    let mut s = Session::asked();
    for attempts in 2..=5 {
        s.crash();
        assert_eq!(s.ask()["attempts"], attempts);
    }
    s.crash();
    assert_eq!(s.turn_error(), "decision_failed");
    s.assert_at_rest();
}

#[test]
fn d2_recoveries_and_failures_count_together() {
    let mut s = Session::asked();
    s.fail(FailureClass::Retryable);
    s.advance(1.0);
    for _ in 0..3 {
        s.crash();
    }
    assert_eq!(s.ask()["attempts"], 5);
    s.fail(FailureClass::Retryable);
    assert_eq!(s.turn_error(), "decision_failed");
}

#[test]
fn d2_waiting_for_a_retry_is_no_attempt() {
    let mut s = Session::asked();
    s.fail(FailureClass::Retryable);
    for _ in 0..10 {
        s.crash();
    }
    s.advance(1.0);
    assert_eq!(s.plan().decision.unwrap().attempts, 2);
}

#[test]
fn d2_a_tool_that_kills_the_host_is_a_failed_call() {
    let mut s = Session::calling(&[["k1", "add"]]);
    for _ in 0..5 {
        s.crash();
    }
    assert_eq!(
        (s.live(), s.trigger()["ok"].take()),
        ("tool.finished", json!(false))
    );
}

#[test]
fn d2_the_time_the_host_was_down_is_not_the_tools() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.now = s.now.plus_secs(500.0);
    s.crash();
    let deadline = json!(s.now.plus_secs(120.0));
    assert_eq!(s.call("k1")["deadline"], deadline);
    assert_eq!(
        (s.ask()["deadline"].take(), s.trigger()["deadline"].take()),
        (deadline.clone(), deadline)
    );
}

#[test]
fn d2_an_answer_for_a_settled_decision_changes_nothing() {
    let done = json!({"actions": [{"type": "done"}]});
    let mut answered = Session::asked();
    let a = answered.live_id();
    answered.accept();
    let mut dropped = Session::asked();
    let b = dropped.live_id();
    dropped.abort();
    let mut failed = Session::asked();
    let c = failed.live_id();
    failed.fail(FailureClass::Terminal);
    for (mut s, id) in [
        (answered, a),
        (dropped, b),
        (failed, c),
        (Session::asked(), "none".into()),
    ] {
        let before = s.state.seq();
        assert!(!s.answer_to(&id, done.clone()));
        assert!(!s.answer_to(&id, json!({"actions": [{"type": "llm.call", "model": ""}]})));
        assert_eq!(s.state.seq(), before);
    }
}

#[test]
fn d2_a_late_answer_is_taken_while_the_next_delivery_waits() {
    let mut s = Session::asked();
    s.fail(FailureClass::Retryable);
    s.accept();
    assert_eq!(s.in_flight().1, 1);
}

#[test]
fn d3_the_parts_of_an_answer_take_effect_in_order() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    let before = s.events().count();
    s.act("a1", "rewind");
    s.answer(json!({
        "messages": [user("u1"), user("u2")],
        "state": {"n": 1},
        "agent": {"model": "m2"},
        "actions": [{"type": "llm.call"}, {"type": "done", "data": 1}]
    }));
    let kinds: Vec<_> = s
        .events()
        .skip(before + 2)
        .map(|event| event.kind())
        .collect();
    assert_eq!(
        kinds,
        [
            "decision.answered",
            "messages.recorded",
            "calls.voided",
            "state.set",
            "agent.set",
            "call.requested",
            "turn.ended"
        ]
    );
    // Each sees the effects of those before it.
    assert_eq!(s.request()["model"], "m2");
    assert_eq!(s.prompt(), ["user", "user"]);
}

#[test]
fn d3_an_action_sees_those_before_it() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [
        {"type": "tool.call", "id": "k1", "name": "add", "handler": "worker"},
        {"type": "tool.result", "id": "k1", "result": "cached"}
    ]}));
    // It was settled before it was dispatched: nothing is executed.
    assert_eq!(
        (s.live(), s.trigger()["result"].take()),
        ("tool.finished", json!("cached"))
    );
}

#[test]
fn d3_what_a_run_wrote_is_committed_with_its_answer_or_not_at_all() {
    let entry = ScratchEntry::File {
        sha256: Digest::of(b"x"),
        size: 1,
    };
    let file = DeliveredFile {
        path: "out.txt".into(),
        bytes: 1,
        sha256: Digest::of(b"x"),
        description: None,
    };
    let write = |s: &mut Session, answer: Value| {
        let answer: DecisionResponse = read(&answer);
        let taken = s.command(Command::Answer(Box::new(AnswerIn {
            decision_id: DecisionId::from(s.live_id()),
            outcome: Ok(Answer::from(answer)),
            run: None,
            scratch: ScratchChange {
                put: [("a".to_owned(), entry.clone())].into(),
                removed: vec![],
            },
            delivered: vec![file.clone()],
        })));
        taken.unwrap() == Reply::Answered { accepted: true }
    };
    let mut s = Session::asked();
    assert!(!write(
        &mut s,
        json!({"actions": [{"type": "llm.call", "model": ""}, {"type": "tool.result"}]})
    ));
    assert_eq!(
        (s.state.scratch().generation, s.state.files().len()),
        (0, 0)
    );
    let mut s = Session::asked();
    assert!(write(&mut s, json!({"actions": [{"type": "done"}]})));
    assert_eq!(
        (s.state.scratch().generation, s.state.files().len()),
        (1, 1)
    );
    assert_eq!(s.folded().scratch(), s.state.scratch());
}

/// What is wrong with an action, and where the refusal says it is.
fn wrong_actions() -> Vec<(Value, &'static str)> {
    let retry = |field: &str, value: Value| {
        let mut retry = json!({
            "timeout_secs": 1.0, "max_retries": 1, "backoff_base_secs": 1.0, "backoff_max_secs": 1.0
        });
        retry[field] = value;
        retry
    };
    let llm = |field: &str, value: Value| json!({"type": "llm.call", "retry": retry(field, value)});
    let tools = |tools: Value| json!({"type": "llm.call", "tools": tools});
    vec![
        (
            json!({"type": "tool.result", "id": "none", "result": 1}),
            "id: there is no call `none`",
        ),
        (
            json!({"type": "tool.result", "id": "", "result": 1}),
            "id: there is no call ``",
        ),
        (
            json!({"type": "tool.result", "result": 1}),
            "id: no `tool.execute` is being answered",
        ),
        (
            json!({"type": "tool.error", "error": "x"}),
            "id: no `tool.execute` is being answered",
        ),
        (
            json!({"type": "llm.error", "error": "x"}),
            "id: no `llm.execute` is being answered",
        ),
        (
            json!({"type": "tool.result", "id": "pick1", "result": 1}),
            "id: call `pick1` is not one",
        ),
        (
            json!({"type": "llm.error", "id": "pick1", "error": "x"}),
            "id: call `pick1` is not one",
        ),
        (
            json!({"type": "tool.result", "id": "llm1", "result": 1}),
            "id: call `llm1` is not one",
        ),
        (
            json!({"type": "llm.error", "id": "llm1", "error": "x"}),
            "id: call `llm1` is not one",
        ),
        (
            json!({"type": "tool.result", "id": "add1", "attempt": 2, "result": 1}),
            "attempt: call `add1` is at",
        ),
        (
            json!({"type": "llm.result", "id": "llm1", "response": 1}),
            "response: not an `LlmResponse`",
        ),
        (json!({"type": "llm.call", "model": ""}), "model:"),
        (
            json!({"type": "llm.call", "id": "u1"}),
            "id: `u1` is the id of a recorded message",
        ),
        (json!({"type": "llm.call", "handler": "client"}), "handler:"),
        (
            json!({"type": "llm.call", "messages": [user("a"), {"role": "tool"}]}),
            "messages[1].tool_call_id:",
        ),
        (
            json!({"type": "tool.call", "name": "add", "handler": "server"}),
            "handler:",
        ),
        (llm("max_retries", json!(101)), "retry.max_retries:"),
        (llm("max_retries", json!(u32::MAX)), "retry.max_retries:"),
        (llm("timeout_secs", json!(-1.0)), "retry.timeout_secs:"),
        (
            llm("timeout_secs", json!(86_400.001)),
            "retry.timeout_secs:",
        ),
        (
            llm("backoff_base_secs", json!(-0.1)),
            "retry.backoff_base_secs:",
        ),
        (
            llm("backoff_base_secs", json!(1e308)),
            "retry.backoff_base_secs:",
        ),
        (
            llm("backoff_max_secs", json!(1e6)),
            "retry.backoff_max_secs:",
        ),
        (
            json!({"type": "tool.call", "name": "add", "retry": retry("max_retries", json!(101))}),
            "retry.max",
        ),
        (tools(json!([{"name": ""}])), "tools[0].name:"),
        (
            tools(json!([{"name": "a"}, {"name": "a"}])),
            "tools[1].name:",
        ),
        (
            tools(json!([{"name": "a", "input": {"type": "nonsense"}}])),
            "tools[0].input:",
        ),
        (tools(json!([{"name": "a", "input": 7}])), "tools[0].input:"),
        (
            tools(json!(
                (0..129)
                    .map(|n| json!({"name": format!("{n}")}))
                    .collect::<Vec<_>>()
            )),
            "tools: 129",
        ),
        (
            json!({"type": "sub_agent.spawn", "session_id": "c", "agent_id": "a", "tool_call_id": ""}),
            "tool_call_id:",
        ),
        (
            json!({"type": "sub_agent.spawn", "session_id": "c", "agent_id": "a", "tool_call_id": "z",
                   "retry": retry("max_retries", json!(101))}),
            "retry.max_retries:",
        ),
        (
            json!({"type": "message.send", "session_id": "c", "message": says("a")}),
            "message.role:",
        ),
        (json!({"type": "done"}), ""),
    ]
}

#[test]
fn d4_a_wrong_answer_is_refused_whole_and_the_refusal_says_where() {
    // An action is live; calls of each kind are open.
    let begun = || {
        let mut s = Session::asked();
        s.answer(json!({"messages": [user("u1")], "actions": [
            {"type": "llm.call", "id": "llm1"},
            {"type": "tool.call", "id": "pick1", "name": "pick"},
            {"type": "tool.call", "id": "add1", "name": "add"}
        ]}));
        s.answer(json!({}));
        s.act("a1", "x");
        s
    };
    for (action, wrong) in wrong_actions() {
        let mut s = begun();
        let (path, calls) = (s.path(), s.state.open_calls());
        let refusal = s.refused(json!({
            "messages": [says("never")],
            "state": {"never": true},
            "agent": {"model": "never"},
            "actions": [{"type": "tool.call", "name": "never"}, action, {"type": "done"}]
        }));
        let dot = if wrong.is_empty() { ": " } else { "." };
        assert!(
            refusal.starts_with(&format!("actions[1]{dot}{wrong}")),
            "{action}\n{refusal}"
        );
        assert_eq!((s.path(), s.state.open_calls()), (path, calls), "{action}");
        assert_eq!(s.state.agent_state(), None);
        assert_eq!(s.state.config().unwrap().model, "m");
    }
}

#[test]
fn d4_a_refused_answer_ends_the_turn_with_its_code() {
    let mut s = Session::asked();
    s.refused(json!({"actions": [{"type": "done"}, {"type": "done"}]}));
    assert_eq!(s.turn_error(), "answer_refused");
    s.assert_at_rest();
}

#[test]
fn d4_an_agent_config_that_is_wrong_is_refused_and_the_field_named() {
    let tools = |tools: Value| json!({"model": "m", "tools": tools});
    let mut deep = json!({});
    for _ in 0..40 {
        deep = json!({ "not": deep });
    }
    for (agent, wrong) in [
        (json!({"model": ""}), "agent.model:"),
        (json!({"model": "m", "handler": "client"}), "agent.handler:"),
        (
            json!({"model": "m", "format": "openai"}),
            "agent.format: needs `handler`",
        ),
        (
            json!({"model": "m", "format": "openai", "handler": "server"}),
            "agent.format: needs `handler`",
        ),
        (
            json!({"model": "m", "retry": {"max_retries": 0, "backoff_base_secs": -1.0, "backoff_max_secs": 0.0}}),
            "agent.retry.backoff_base_secs:",
        ),
        (
            tools(json!([{"name": "a", "handler": "server"}])),
            "agent.tools[0].handler:",
        ),
        (
            tools(json!([{"name": "a"}, {"name": ""}])),
            "agent.tools[1].name:",
        ),
        (
            tools(json!([{"name": "a"}, {"name": "a"}])),
            "agent.tools[1].name:",
        ),
        (
            tools(json!([{"name": "a", "input": {"$ref": "https://example.com"}}])),
            "agent.tools[0].input:",
        ),
        (
            tools(json!([{"name": "a", "output": {"pattern": "(?=x)"}}])),
            "agent.tools[0].output:",
        ),
        (
            tools(json!([{"name": "a", "input": deep}])),
            "agent.tools[0].input:",
        ),
        (
            json!({"model": "m", "sub_agents": [{"id": ""}]}),
            "agent.sub_agents[0].id:",
        ),
        (
            json!({"model": "m", "sub_agents": [{"id": "a"}, {"id": "a"}]}),
            "agent.sub_agents[1].id:",
        ),
        (
            json!({"model": "m", "tools": [{"name": "a"}], "sub_agents": [{"id": "a"}]}),
            "agent.sub_agents[0].id:",
        ),
        (
            json!({"model": "m", "sub_agents": (0..129).map(|n| json!({"id": format!("{n}")})).collect::<Vec<_>>()}),
            "agent.sub_agents: 129",
        ),
    ] {
        let mut s = Session::asked();
        let refusal = s.refused(json!({ "agent": agent }));
        assert!(refusal.starts_with(wrong), "{refusal}");
    }
}

#[test]
fn d4_no_model_anywhere_is_wrong() {
    let mut s = Session::new();
    s.say("t1", "u1");
    s.answer(json!({}));
    let refusal = s.refused(json!({"actions": [{"type": "llm.call"}]}));
    assert!(refusal.starts_with("actions[0].model:"), "{refusal}");
}

#[test]
fn d4_a_tool_message_names_its_call_and_the_refusal_its_place() {
    let mut s = Session::chatted();
    let hi = s.path()[1].clone();
    s.view("t2", &json!([user("u1"), says(&hi), user("u2")]));
    let refusal = s.refused(
        json!({"messages": [user("u1"), says(&hi), user("u2"), {"role": "tool", "content": "3"}]}),
    );
    assert!(
        refusal.starts_with("messages[3].tool_call_id:"),
        "{refusal}"
    );
}

#[test]
fn d4_done_must_be_last() {
    let mut s = Session::asked();
    let refusal = s.refused(json!({"actions": [{"type": "done"}, {"type": "llm.call"}]}));
    assert_eq!(refusal, "actions[0]: `done` must be the last action");
}

#[test]
fn d4_what_this_host_does_not_do_is_refused() {
    for action in [
        json!({"type": "interrupt", "reason": "ask"}),
        json!({"type": "message.send", "session_id": "other", "message": user("u9")}),
    ] {
        let mut s = Session::asked();
        let refusal = s.refused(json!({ "actions": [action] }));
        assert!(refusal.contains("not supported by this host"), "{refusal}");
    }
}

#[test]
fn d4_a_result_that_raced_is_ignored_and_named_in_the_log() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    s.answer(json!({}));
    s.settle(Party::Worker, "k1", None, json!({"result": "first"}));
    s.answer(json!({"actions": [
        {"type": "tool.result", "id": "k1", "result": "late"},
        {"type": "tool.error", "id": "k1", "attempt": 1, "error": "late"},
        {"type": "tool.result", "result": "mine"}
    ]}));
    assert_eq!(s.last("decision.answered")["raced"], json!(["k1", "k1"]));
    assert_eq!(s.trigger()["result"], "first");
    s.accept();
    assert_eq!(s.trigger()["result"], "mine");
    assert_eq!(s.count("call.settled"), 3);
}

#[test]
fn d4_a_second_result_for_the_same_call_is_ignored() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({"actions": [
        {"type": "tool.result", "result": "first"},
        {"type": "tool.result", "result": "second"},
        {"type": "tool.error", "error": "third", "retryable": true}
    ]}));
    assert_eq!(s.trigger()["result"], "first");
}

#[test]
fn d4_a_result_for_an_attempt_that_is_over_is_ignored() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "tool.call", "id": "k1", "name": "add", "retry": {
        "timeout_secs": null, "max_retries": 1, "backoff_base_secs": 0.0, "backoff_max_secs": 0.0
    }}]}));
    s.answer(json!({"actions": [{"type": "tool.error", "error": "busy", "retryable": true}]}));
    s.advance(0.0);
    assert_eq!(s.trigger()["attempt"], 2);
    s.act("a1", "x");
    s.answer(json!({"actions": [{"type": "tool.result", "attempt": 1, "result": "late"}]}));
    assert_eq!(s.last("decision.answered")["raced"], json!(["k1"]));
    assert_eq!(s.call("k1")["status"], "pending");
}

#[test]
fn d5_ids_are_filled_in() {
    for action in [
        json!({"type": "tool.call", "name": "add"}),
        json!({"type": "llm.call"}),
    ] {
        for id in [Value::Null, json!("")] {
            let mut s = Session::asked();
            let mut action = action.clone();
            action["id"] = id;
            s.answer(json!({ "actions": [action] }));
            assert_eq!(s.state.open_calls()[0].id.as_str().len(), 36);
        }
    }
}

#[test]
fn d5_the_call_is_that_of_the_execute_trigger_being_answered() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    s.answer(json!({"actions": [{"type": "tool.error", "error": "no"}]}));
    assert_eq!(s.trigger()["id"], "k1");
    s.accept();
    assert_eq!(
        (s.trigger()["id"].take(), s.trigger()["error"].take()),
        (json!("k2"), json!("no"))
    );
}

#[test]
fn d5_another_call_may_be_named_while_a_trigger_is_answered() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    s.answer(json!({"actions": [
        {"type": "tool.result", "result": 1},
        {"type": "tool.result", "id": "k2", "result": 2}
    ]}));
    assert_eq!(s.state.open_calls(), []);
    assert_eq!(
        (s.live(), s.trigger()["id"].take()),
        ("tool.finished", json!("k1"))
    );
}

#[test]
fn d5_explicit_beats_the_answers_agent_beats_the_config_beats_defaults() {
    let asked = |agent: Value, call: Value| {
        let mut s = Session::asked_with(json!({"model": "config", "stream": true}));
        let mut answer = json!({ "actions": [call] });
        if !agent.is_null() {
            answer["agent"] = agent;
        }
        s.answer(answer);
        let (call, _) = s.in_flight();
        (s.request()["model"].take(), s.call(&call)["stream"].take())
    };
    let call = json!({"type": "llm.call"});
    let explicit = json!({"type": "llm.call", "model": "explicit", "stream": false});
    assert_eq!(
        asked(Value::Null, call.clone()),
        (json!("config"), json!(true))
    );
    assert_eq!(
        asked(json!({"model": "answer"}), call),
        (json!("answer"), json!(false))
    );
    assert_eq!(
        asked(json!({"model": "answer"}), explicit),
        (json!("explicit"), json!(false))
    );
}

#[test]
fn d5_omitted_messages_are_the_system_prompt_and_the_path_after_reconciling() {
    let mut s = Session::asked();
    s.answer(json!({"messages": [user("u1"), says("a1"), user("u2")], "actions": [{"type": "llm.call"}]}));
    assert_eq!(s.request()["messages"][0]["content"], "Be brief.");
    assert_eq!(s.prompt(), ["system", "user", "assistant", "user"]);
}

#[test]
fn d5_explicit_messages_suppress_the_system_prompt() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "llm.call", "messages": [user("only")]}]}));
    assert_eq!(s.request()["messages"], json!([user("only")]));
}

#[test]
fn d5_arguments_that_are_no_string_become_their_json_text() {
    for (arguments, text) in [
        (json!("{\"a\": 1}"), "{\"a\": 1}"),
        (json!({"a": 1}), "{\"a\":1}"),
        (json!([1]), "[1]"),
        (json!(1.5), "1.5"),
        (Value::Null, ""),
    ] {
        let mut s = Session::asked();
        s.answer(
            json!({"actions": [{"type": "tool.call", "name": "add", "arguments": arguments}]}),
        );
        assert_eq!(s.trigger()["arguments"], text);
    }
}

#[test]
fn d5_results_that_are_no_string_become_their_json_text_and_null_the_empty_string() {
    for (result, text) in [
        (json!("x"), "x"),
        (json!({"a": 1}), "{\"a\":1}"),
        (json!(false), "false"),
        (Value::Null, ""),
    ] {
        let mut s = Session::calling(&[["k1", "add"]]);
        s.answer(json!({"actions": [{"type": "tool.result", "result": result}]}));
        assert_eq!(s.trigger()["result"], text);
    }
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.result"}]}));
    assert_eq!(s.trigger()["result"], "");
}

#[test]
fn d6_omitted_or_null_keeps_and_an_empty_object_clears() {
    let mut s = Session::asked();
    let next = |s: &mut Session, answer: Value| {
        s.act(&answer.to_string(), "x");
        s.answer(answer);
        s.state.agent_state().map(|state| state.as_str().to_owned())
    };
    s.answer(json!({"state": {"a": 1}, "actions": [{"type": "llm.call"}]}));
    let kept = Some("{\"a\":1}".to_owned());
    assert_eq!(next(&mut s, json!({})), kept);
    assert_eq!(next(&mut s, json!({"state": null, "agent": null})), kept);
    assert_eq!(s.state.config().unwrap().model, "m");
    assert_eq!(next(&mut s, json!({"state": [1]})), Some("[1]".into()));
    assert_eq!(next(&mut s, json!({"state": {}})), None);
}

#[test]
fn d6_an_equal_value_writes_nothing() {
    let mut s = Session::asked();
    s.answer(json!({"state": {"a": 1, "b": 2}, "actions": [{"type": "llm.call"}]}));
    let (states, agents) = (s.count("state.set"), s.count("agent.set"));
    s.act("a1", "x");
    s.answer(json!({"state": {"b": 2.0, "a": 1}, "agent": config()}));
    assert_eq!(
        (s.count("state.set"), s.count("agent.set")),
        (states, agents)
    );
    s.act("a2", "x");
    s.answer(json!({"state": {}}));
    s.act("a3", "x");
    s.answer(json!({"state": {}}));
    assert_eq!(s.count("state.set"), states + 1);
}

/// Fails every delivery at once; the waits between them.
fn waits(class: FailureClass) -> Vec<f64> {
    let mut s = Session::asked();
    let mut waits = Vec::new();
    loop {
        s.fail(class);
        let plan = s.plan();
        assert_eq!(plan.decision, None);
        let Some(wake) = plan.wake else {
            assert_eq!(s.turn_error(), "decision_failed");
            s.assert_at_rest();
            return waits;
        };
        waits.push(wake.secs_since(s.now));
        s.advance(wake.secs_since(s.now));
        assert_eq!(
            s.plan().decision.unwrap().attempts as usize,
            waits.len() + 1
        );
        assert_eq!(s.ask()["attempts"], waits.len() + 1);
    }
}

#[test]
fn d7_a_retryable_failure_is_tried_five_times_one_to_eight_seconds_apart() {
    assert_eq!(waits(FailureClass::Retryable), [1.0, 2.0, 4.0, 8.0]);
}

#[test]
fn d7_a_deterministic_failure_has_one_more_try() {
    assert_eq!(waits(FailureClass::Deterministic), [1.0]);
}

#[test]
fn d7_a_timeout_has_two_tries() {
    assert_eq!(waits(FailureClass::TimedOut), [1.0]);
}

#[test]
fn d7_a_terminal_failure_has_none() {
    assert_eq!(waits(FailureClass::Terminal), [0.0; 0]);
}

#[test]
fn d7_a_decision_is_tried_for_300_seconds_in_total() {
    for (took, again) in [(299.0, true), (299.001, false), (1e9, false)] {
        let mut s = Session::asked();
        s.now = s.now.plus_secs(took);
        s.fail(FailureClass::Retryable);
        assert_eq!(s.plan().wake.is_some(), again, "{took}");
    }
}

#[test]
fn d7_the_clock_begins_when_the_decision_goes_live() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "add"]]);
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    s.now = s.now.plus_secs(100.0);
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    s.now = s.now.plus_secs(299.0);
    s.fail(FailureClass::Retryable);
    assert!(s.plan().wake.is_some());
}

#[test]
fn d8_a_terminal_failure_ends_the_turn_voids_its_calls_and_drops_its_decisions() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "pick"], ["k3", "pick"]]);
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    s.settle(Party::Client, "k2", None, json!({"result": 1}));
    s.fail(FailureClass::Terminal);
    let ended = s.turn_ended();
    assert_eq!(
        (&ended["status"], &ended["error"]["message"]),
        (&json!("failed"), &json!("it broke"))
    );
    assert_eq!(
        s.settle(Party::Client, "k3", None, json!({"result": 1})),
        409
    );
    s.assert_at_rest();
}

#[test]
fn d8_calls_and_decisions_of_other_turns_stay() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "pick"]]);
    s.act("a1", "stop");
    s.answer(json!({"actions": [{"type": "done"}]}));
    s.say("t2", "u2");
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    s.fail(FailureClass::Terminal);
    assert_eq!(s.trigger()["id"], "k1");
    assert_eq!(s.call("k2")["status"], "pending");
}

#[test]
fn d8_a_failed_action_ends_only_a_turn_that_it_opened_itself() {
    let mut joined = Session::prompted();
    joined.act("a1", "x");
    joined.fail(FailureClass::Terminal);
    assert_eq!(joined.state.turn().unwrap().turn_id.as_str(), "t1");
    let mut opened = Session::chatted();
    opened.act("a1", "x");
    opened.fail(FailureClass::Terminal);
    assert_eq!(
        (opened.turn_ended()["turn_id"].take(), opened.turn_error()),
        (json!("a1"), json!("decision_failed"))
    );
}

#[test]
fn d8_a_failed_action_does_not_end_a_turn_that_another_action_opened() {
    let mut s = Session::chatted();
    s.act("a1", "x");
    s.act("a2", "y");
    s.answer(json!({"actions": [{"type": "llm.call"}]}));
    s.fail(FailureClass::Terminal);
    assert_eq!(s.state.turn().unwrap().turn_id.as_str(), "a1");
    // Nor one that it was opened by before the host came up anew.
    s.crash();
    s.act("a3", "z");
    s.fail(FailureClass::Terminal);
    assert_eq!(s.state.turn().unwrap().turn_id.as_str(), "a1");
}

#[test]
fn d9_a_run_that_fails_while_a_tool_executes_is_a_failure_of_the_call() {
    for class in [FailureClass::Terminal, FailureClass::Deterministic] {
        let mut s = Session::calling(&[["k1", "add"]]);
        while s.live() == "tool.execute" {
            s.fail(class);
            s.advance(1.0);
        }
        assert_eq!(
            (s.trigger()["ok"].take(), s.trigger()["error"].take()),
            (json!(false), json!("it broke"))
        );
        s.accept();
        assert_eq!(s.request()["messages"][3]["content"], "it broke");
    }
}

#[test]
fn d9_a_refused_answer_to_a_tool_is_a_failure_of_the_call() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.refused(json!({"actions": [{"type": "done"}, {"type": "done"}]}));
    assert_eq!(
        s.trigger()["error"],
        "actions[0]: `done` must be the last action"
    );
    assert!(s.state.turn().is_some());
}

#[test]
fn d9_the_calls_own_policy_decides_on_another_attempt() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "tool.call", "id": "k1", "name": "add", "retry": {
        "timeout_secs": null, "max_retries": 1, "backoff_base_secs": 7.0, "backoff_max_secs": 60.0
    }}]}));
    for _ in 0..2 {
        s.fail(FailureClass::TimedOut);
        s.advance(1.0);
    }
    assert_eq!(s.call("k1")["status"], "retry_scheduled");
    s.advance(7.0);
    assert_eq!(
        (s.live(), s.trigger()["attempt"].take()),
        ("tool.execute", json!(2))
    );
    for _ in 0..2 {
        s.fail(FailureClass::TimedOut);
        s.advance(1.0);
    }
    assert_eq!(
        (s.live(), s.trigger()["ok"].take()),
        ("tool.finished", json!(false))
    );
}

#[test]
fn d9_a_run_that_fails_while_a_model_call_executes_is_a_failure_of_the_call() {
    let mut s = Session::asked_with(json!({"model": "m", "handler": "worker"}));
    s.accept();
    assert_eq!(s.live(), "llm.execute");
    s.fail(FailureClass::Terminal);
    assert_eq!(
        (s.live(), s.trigger()["error"].take()),
        ("llm.finished", json!("it broke"))
    );
    s.accept();
    assert_eq!(s.turn_error(), "llm_failed");
}

#[test]
fn d9_the_error_of_a_model_call_is_that_of_its_own_turn() {
    let mut s = Session::asked();
    s.answer(
        json!({"messages": [user("u1")], "actions": [{"type": "llm.call"}, {"type": "done"}]}),
    );
    s.say("t2", "u2");
    s.answer(json!({"messages": [user("u1"), user("u2")], "actions": [{"type": "tool.call", "name": "pick"}]}));
    s.reply(json!({"error": "no", "code": "refused"}));
    // Its answer strands what `t2` waits for.
    s.answer(json!({"messages": [user("u1"), says("a1")]}));
    assert_eq!(
        (s.turn_ended()["turn_id"].take(), s.turn_error()),
        (json!("t2"), json!("stalled"))
    );
}

#[test]
fn d9_truncated_replies_can_be_carried_on_by_the_agent() {
    let mut s = Session::prompted();
    let mut reply = tool_calls(&[["k1", "add"]]);
    reply["finish_reason"] = json!("length");
    s.reply(reply);
    assert_eq!(s.trigger()["truncated"], true);
    s.answer(json!({"actions": [{"type": "llm.call"}]}));
    assert_eq!(s.in_flight().1, 1);
}

#[test]
fn d8_a_failed_action_that_leaves_nothing_to_wait_for_stalls_the_turn_it_joined() {
    let mut s = Session::asked();
    s.act("a1", "x");
    s.answer(json!({}));
    assert_eq!(s.live(), "client.action");
    s.fail(FailureClass::Terminal);
    assert_eq!(s.turn_error(), "stalled");
}

#[test]
fn d6_a_state_nested_as_deep_as_a_document_may_be_survives_a_crash() {
    let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
    let mut s = Session::asked();
    s.answer_text(&format!(
        "{{\"state\":{deep},\"actions\":[{{\"type\":\"done\"}}]}}"
    ));
    s.crash();
    assert_eq!(s.state.agent_state().unwrap().as_str(), deep);
    assert_eq!(snapshot(&s.state), None);
    s.say("t2", "u2");
    s.answer(json!({"state": {}, "actions": [{"type": "done"}]}));
    assert!(snapshot(&s.state).is_some());
}
