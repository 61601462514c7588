//! C1–C7, C9, C11, C14, C15: calls.

use belljar_engine::{Party, Plan};
use belljar_protocol::decision::FailureClass;
use serde_json::{Value, json};

use crate::session::{Session, config, says, tool_calls, user};

/// A tool call `k1` of the agent's own, under a policy.
fn with_policy(name: &str, retry: Value) -> Session {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "tool.call", "id": "k1", "name": name, "retry": retry}]}));
    s
}

/// A model call `x` of the agent's own, under a policy.
fn model_call(retry: Value) -> Session {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "llm.call", "id": "x", "retry": retry}]}));
    s
}

fn policy(timeout: Value, retries: u32, base: f64, most: f64) -> Value {
    json!({"timeout_secs": timeout, "max_retries": retries, "backoff_base_secs": base, "backoff_max_secs": most})
}

fn busy() -> Value {
    json!({"error": "busy", "retryable": true, "code": "rate_limited"})
}

#[test]
fn c1_calls_lists_open_calls_only() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "pick"]]);
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    let calls = s.ask()["calls"].take();
    assert_eq!(calls.as_array().unwrap().len(), 1);
    assert_eq!(calls[0]["id"], "k2");
}

#[test]
fn c1_pending_calls_are_the_open_ones_and_settled_siblings_not_yet_processed() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "pick"], ["k3", "pick"]]);
    assert_eq!(s.state.pending_calls(), 3);
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    // The one being processed does not count, the open ones do.
    assert_eq!(
        (s.ask()["pending_calls"].take(), s.state.pending_calls()),
        (json!(2), 2)
    );
    s.settle(Party::Client, "k2", None, json!({"result": 1}));
    assert_eq!(s.state.pending_calls(), 2);
    s.accept();
    assert_eq!(s.ask()["pending_calls"], 1);
    s.accept();
    assert_eq!(s.state.pending_calls(), 1);
}

#[test]
fn c1_model_calls_never_count() {
    assert_eq!(Session::prompted().state.pending_calls(), 0);
}

#[test]
fn c2_asking_for_a_tool_call_again_writes_nothing() {
    let mut s = Session::calling(&[["k1", "add"]]);
    let again = json!({"type": "tool.call", "id": "k1", "name": "other"});
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}, again]}));
    assert_eq!(s.count("call.requested"), 2);
    s.answer(json!({"actions": [again, {"type": "llm.call"}]}));
    assert_eq!(s.count("call.requested"), 3);
    assert_eq!(s.state.open_calls().len(), 1);
}

#[test]
fn c2_a_model_call_may_be_asked_again_only_after_it_failed() {
    let again = json!({"type": "llm.call", "id": "x"});
    let mut s = model_call(Value::Null);
    s.act("a1", "x");
    s.answer(json!({ "actions": [again] }));
    assert_eq!(s.count("call.requested"), 1);
    s.reply(json!({"error": "no"}));
    s.answer(json!({ "actions": [again] }));
    assert_eq!(s.count("call.requested"), 2);
    s.reply(json!({ "content": "hi" }));
    s.answer(json!({ "actions": [again, {"type": "llm.call", "id": "y"}] }));
    assert_eq!(s.in_flight().0, "y");
    assert_eq!(s.count("call.requested"), 3);
}

#[test]
fn c2_a_late_reply_to_what_failed_is_none_of_what_was_asked_again() {
    let mut s = model_call(Value::Null);
    s.view("t1", &json!([user("u2")]));
    // The correction voids `x`, and asks for it again.
    s.answer(json!({"messages": [user("u2")], "actions": [{"type": "llm.call", "id": "x"}]}));
    assert_eq!(s.in_flight(), ("x".into(), 2));
    let before = s.state.seq();
    s.reply_to("x", 1, json!({ "content": "late" }));
    assert_eq!(s.state.seq(), before);
}

#[test]
fn c2_what_was_asked_again_is_not_reported_as_failed() {
    let mut s = model_call(Value::Null);
    s.act("a1", "x");
    s.reply(json!({"error": "no"}));
    s.answer(json!({"actions": [{"type": "llm.call", "id": "x"}]}));
    assert_eq!((s.live(), s.in_flight()), ("", ("x".into(), 2)));
}

#[test]
fn c2_an_id_of_another_kind_of_call_writes_nothing() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.act("a1", "x");
    s.answer(json!({"actions": [
        {"type": "llm.call", "id": "k1"},
        {"type": "sub_agent.spawn", "session_id": "c", "agent_id": "helper", "tool_call_id": "k1"}
    ]}));
    assert_eq!(s.call("k1")["name"], "pick");
    assert_eq!(s.count("call.requested"), 2);
}

#[test]
fn c3_the_handler_is_frozen_when_the_call_is_requested() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.act("a1", "x");
    let mut agent = config();
    agent["tools"][2]["handler"] = json!("worker");
    s.answer(json!({ "agent": agent }));
    assert_eq!(s.call("k1")["handler"], "client");
    assert_eq!(
        s.settle(Party::Worker, "k1", None, json!({"result": 1})),
        403
    );
    assert_eq!(
        s.settle(Party::Client, "k1", None, json!({"result": 1})),
        200
    );
}

#[test]
fn c3_each_handler_has_its_way() {
    let s = Session::calling(&[["k1", "pick"], ["k2", "add"]]);
    let clients: Vec<_> = s
        .plan()
        .client_calls
        .iter()
        .map(|due| due.call_id.to_string())
        .collect();
    assert_eq!(clients, ["k1"]);
    assert_eq!(
        (s.live(), s.plan().model_calls),
        ("tool.execute", Vec::new())
    );
    let mut s = Session::asked_with(json!({"model": "m", "handler": "worker"}));
    s.accept();
    assert_eq!(
        (s.live(), s.plan().model_calls),
        ("llm.execute", Vec::new())
    );
    assert_eq!(s.trigger()["request"]["model"], "m");
}

#[test]
fn c3_a_tool_call_that_names_no_handler_has_the_declared_one() {
    for (name, handler) in [("pick", "client"), ("add", "worker"), ("unknown", "worker")] {
        let mut s = Session::asked();
        s.answer(json!({"actions": [{"type": "tool.call", "id": "k1", "name": name}]}));
        assert_eq!(s.call("k1")["handler"], handler);
    }
}

#[test]
fn c4_settling_is_checked_in_order() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"], ["k3", "pick"]]);
    let x = json!({"result": 1});
    assert_eq!(s.settle(Party::Worker, "none", Some(9), x.clone()), 404);
    assert_eq!(s.settle(Party::Client, "k1", Some(9), x.clone()), 403);
    assert_eq!(s.settle(Party::Worker, "k3", None, x.clone()), 403);
    // `k2` waits for its decision to go live: it is queued.
    assert_eq!(s.call("k2")["status"], "queued");
    assert_eq!(s.settle(Party::Worker, "k2", None, x.clone()), 409);
    assert_eq!(s.settle(Party::Worker, "k1", Some(0), x.clone()), 409);
    assert_eq!(s.settle(Party::Worker, "k1", Some(2), x.clone()), 409);
    assert_eq!(s.settle(Party::Worker, "k1", Some(1), x.clone()), 200);
    assert_eq!(s.settle(Party::Worker, "k1", Some(1), x.clone()), 409);
    assert_eq!(s.settle(Party::Operator, "k3", None, x), 200);
}

#[test]
fn c4_nobody_settles_the_hosts_own_calls_from_outside() {
    let mut s = Session::prompted();
    let (call, _) = s.in_flight();
    for by in [Party::Client, Party::Worker, Party::Operator] {
        assert_eq!(s.settle(by, &call, None, json!({"result": 1})), 403);
    }
}

#[test]
fn c4_a_call_that_leaves_pending_drops_its_execute_decision() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    let first = s.live_id();
    s.settle(Party::Worker, "k1", None, json!({"result": "from outside"}));
    assert_eq!(s.trigger()["id"], "k2");
    let before = s.state.seq();
    assert!(!s.answer_to(
        &first,
        json!({"actions": [{"type": "tool.result", "result": "late"}]})
    ));
    assert_eq!(s.state.seq(), before);
    // One that waits, too.
    s.answer(json!({"actions": [{"type": "tool.result", "id": "k2", "result": 2}]}));
    assert_eq!(
        (s.live(), s.trigger()["id"].take()),
        ("tool.finished", json!("k1"))
    );
}

#[test]
fn c4_late_or_wrong_replies_are_dropped_silently() {
    let mut s = Session::calling(&[["k1", "add"]]);
    let old = s.last("call.settled")["call_id"]
        .as_str()
        .unwrap()
        .to_owned();
    s.answer(
        json!({"actions": [{"type": "llm.call", "id": "x"}, {"type": "tool.result", "result": 1}]}),
    );
    let before = s.state.seq();
    for (call, attempt) in [
        ("none", 1),
        ("", 1),
        ("x", 0),
        ("x", 2),
        ("x", u32::MAX),
        ("k1", 1),
        (&*old, 1),
    ] {
        s.reply_to(call, attempt, json!({ "content": "late" }));
        s.reply_to(call, attempt, busy());
    }
    assert_eq!(s.state.seq(), before);
}

#[test]
fn c4_a_reply_is_none_of_a_workers_model_call() {
    let mut s = Session::asked_with(json!({"model": "m", "handler": "worker"}));
    s.accept();
    let call = s.trigger()["id"].as_str().unwrap().to_owned();
    let before = s.state.seq();
    s.reply_to(&call, 1, json!({ "content": "x" }));
    assert_eq!(s.state.seq(), before);
}

/// Fails every attempt of the model call `x` at once; the waits between them.
fn waits(mut s: Session) -> Vec<f64> {
    let mut waits = Vec::new();
    loop {
        let (_, attempt) = s.in_flight();
        assert_eq!(attempt as usize, waits.len() + 1);
        s.reply(busy());
        if s.live() == "llm.finished" {
            assert_eq!(s.trigger()["error"], "busy");
            assert_eq!(s.trigger()["code"], "rate_limited");
            return waits;
        }
        assert_eq!(s.call("x")["status"], "retry_scheduled");
        let wait = s.plan().wake.unwrap().secs_since(s.now);
        s.advance(wait);
        waits.push(wait);
    }
}

#[test]
fn c5_a_model_call_has_four_retries_one_to_eight_seconds_apart() {
    assert_eq!(waits(model_call(Value::Null)), [1.0, 2.0, 4.0, 8.0]);
}

#[test]
fn c5_backoff_doubles_from_its_base_up_to_its_most() {
    assert_eq!(
        waits(model_call(policy(Value::Null, 6, 0.5, 5.0))),
        [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    );
    assert_eq!(
        waits(model_call(policy(Value::Null, 2, 9.0, 5.0))),
        [5.0, 5.0]
    );
    assert_eq!(
        waits(model_call(policy(Value::Null, 0, 1.0, 5.0))),
        [0.0; 0]
    );
    let hundred = waits(model_call(policy(Value::Null, 100, 1.0, 86_400.0)));
    assert_eq!(
        (hundred.len(), hundred[16], hundred[17], hundred[99]),
        (100, 65_536.0, 86_400.0, 86_400.0)
    );
}

#[test]
fn c5_the_agents_policy_is_for_model_calls() {
    let mut agent = config();
    agent["retry"] = policy(json!(9.0), 1, 3.0, 3.0);
    let mut s = Session::asked_with(agent);
    s.answer(json!({"actions": [{"type": "llm.call", "id": "x"}, {"type": "tool.call", "id": "k1", "name": "pick"}]}));
    assert_eq!(s.call("x")["deadline"], json!(s.now.plus_secs(9.0)));
    assert_eq!(s.call("k1")["deadline"], Value::Null);
    assert_eq!(waits(s), [3.0]);
}

#[test]
fn c5_what_may_not_be_retried_is_not() {
    let mut s = model_call(Value::Null);
    s.reply(json!({"error": "no", "code": "refused"}));
    assert_eq!(
        (s.live(), s.trigger()["code"].take()),
        ("llm.finished", json!("refused"))
    );
}

#[test]
fn c5_a_passed_deadline_is_retried_too() {
    let mut s = model_call(policy(json!(10.0), 1, 2.0, 2.0));
    s.advance(10.0);
    assert_eq!(s.call("x")["status"], "retry_scheduled");
    s.advance(2.0);
    assert_eq!(s.in_flight(), ("x".into(), 2));
    s.advance(9.999);
    assert_eq!(s.call("x")["status"], "pending");
    s.advance(0.001);
    assert_eq!(
        (s.live(), s.trigger()["code"].take()),
        ("llm.finished", json!("deadline_exceeded"))
    );
}

#[test]
fn c5_model_calls_time_out_after_180_seconds_and_tools_after_120() {
    let s = model_call(Value::Null);
    assert_eq!(s.call("x")["deadline"], json!(s.now.plus_secs(180.0)));
    let mut s = Session::calling(&[["k1", "add"]]);
    assert_eq!(s.call("k1")["deadline"], json!(s.now.plus_secs(120.0)));
    s.advance(120.0);
    assert_eq!(
        (s.live(), s.trigger()["ok"].take()),
        ("tool.finished", json!(false))
    );
}

#[test]
fn c5_client_tools_have_no_timeout_and_no_retry() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.advance(1e8);
    assert_eq!(s.call("k1")["status"], "pending");
    s.settle(
        Party::Client,
        "k1",
        None,
        json!({"error": "x", "retryable": true}),
    );
    assert_eq!(s.trigger()["ok"], false);
}

#[test]
fn c5_the_clock_runs_from_dispatch() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    assert_eq!(s.call("k2")["deadline"], Value::Null);
    s.advance(100.0);
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    assert_eq!(s.call("k2")["deadline"], json!(s.now.plus_secs(120.0)));
}

#[test]
fn c5_null_means_no_timeout() {
    let mut s = model_call(policy(Value::Null, 0, 1.0, 1.0));
    assert_eq!(
        (s.call("x")["deadline"].take(), s.plan().wake),
        (Value::Null, None)
    );
    s.advance(1e9);
    assert_eq!(s.in_flight().1, 1);
}

#[test]
fn c5_a_policy_of_nothing_but_zeros_comes_to_rest() {
    let mut s = model_call(policy(json!(0.0), 100, 0.0, 0.0));
    s.advance(0.0);
    assert_eq!(
        (s.live(), s.trigger()["ok"].take()),
        ("llm.finished", json!(false))
    );
    assert_eq!(s.count("call.attempted"), 100);
}

#[test]
fn c5_a_providers_wish_to_wait_wins_when_it_is_longer_for_an_hour_at_most() {
    for (wish, wait) in [
        (0.5, 1.0),
        (30.5, 30.5),
        (3_600.0, 3_600.0),
        (1e12, 3_600.0),
        (-5.0, 1.0),
        (0.0, 1.0),
    ] {
        let mut s = model_call(Value::Null);
        let mut reply = busy();
        reply["retry_after_secs"] = json!(wish);
        s.reply(reply);
        assert_eq!(s.plan().wake.unwrap().secs_since(s.now), wait, "{wish}");
    }
}

#[test]
fn c5_a_wish_that_is_no_number_is_none() {
    use belljar_engine::Command;
    use belljar_protocol::call::ErrorCode;
    use belljar_protocol::model::ModelFailure;
    for (wish, wait) in [
        (f64::NAN, 1.0),
        (f64::INFINITY, 3_600.0),
        (f64::NEG_INFINITY, 1.0),
    ] {
        let mut s = model_call(Value::Null);
        s.command(Command::Reply {
            call_id: "x".into(),
            attempt: 1,
            outcome: Err(ModelFailure {
                message: "busy".into(),
                retryable: true,
                code: ErrorCode::RateLimited,
                retry_after_secs: Some(wish),
                detail: None,
            }),
        })
        .unwrap();
        assert_eq!(s.plan().wake.unwrap().secs_since(s.now), wait, "{wish}");
    }
}

#[test]
fn c5_a_tool_is_retried_under_its_own_policy_only() {
    let failed = json!({"actions": [{"type": "tool.error", "error": "busy", "retryable": true}]});
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(failed.clone());
    assert_eq!(s.live(), "tool.finished");
    let mut s = with_policy("add", policy(json!(5.0), 1, 3.0, 9.0));
    s.answer(failed.clone());
    s.advance(3.0);
    assert_eq!(
        (s.live(), s.trigger()["attempt"].take()),
        ("tool.execute", json!(2))
    );
    assert_eq!(s.trigger()["deadline"], json!(s.now.plus_secs(5.0)));
    s.answer(failed);
    assert_eq!(
        (s.live(), s.trigger()["ok"].take()),
        ("tool.finished", json!(false))
    );
}

#[test]
fn c5_a_clients_call_is_retried_under_its_own_policy_too() {
    let mut s = with_policy("pick", policy(Value::Null, 1, 3.0, 9.0));
    s.settle(
        Party::Client,
        "k1",
        Some(1),
        json!({"error": "x", "retryable": true}),
    );
    assert_eq!(
        s.settle(Party::Client, "k1", None, json!({"result": 1})),
        409
    );
    s.advance(3.0);
    assert_eq!(s.plan().client_calls[0].attempt, 2);
    assert_eq!(
        s.settle(Party::Client, "k1", Some(1), json!({"result": 1})),
        409
    );
    assert_eq!(
        s.settle(Party::Client, "k1", Some(2), json!({"result": 1})),
        200
    );
}

#[test]
fn c5_timers_fire_in_the_order_they_are_due() {
    let mut s = Session::asked();
    let call = |id: &str, secs: f64| json!({"type": "tool.call", "id": id, "name": "pick", "retry": policy(json!(secs), 0, 1.0, 1.0)});
    s.answer(json!({"actions": [call("k1", 3.0), call("k2", 1.0), call("k3", 2.0)]}));
    s.now = s.now.plus_secs(10.0);
    s.command(belljar_engine::Command::Tick).unwrap();
    for call in ["k2", "k3", "k1"] {
        assert_eq!(s.trigger()["id"], call);
        s.answer(json!({}));
    }
}

#[test]
fn c6_of_a_failed_tool_the_error_text_is_what_the_model_reads() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.error", "error": "overflow", "code": "provider_error", "detail": {"x": 1}}]}));
    let trigger = s.trigger();
    assert_eq!(
        (&trigger["ok"], &trigger["error"], &trigger["name"]),
        (&json!(false), &json!("overflow"), &json!("add"))
    );
    s.accept();
    assert_eq!(s.request()["messages"][3]["content"], "overflow");
}

#[test]
fn c6_a_model_call_that_fails_for_good_ends_the_turn_with_its_error_and_code() {
    let mut s = Session::prompted();
    s.reply(json!({"error": "no such model", "code": "provider_error"}));
    assert_eq!(s.trigger()["ok"], false);
    s.accept();
    assert_eq!(s.turn_error(), "provider_error");
    assert_eq!(s.turn_ended()["error"]["message"], "no such model");
    s.assert_at_rest();
}

/// The check of these arguments for the tool `add` of [`config`].
fn input(arguments: &str) -> Value {
    let mut s = Session::prompted();
    let mut reply = tool_calls(&[["k1", "add"]]);
    reply["tool_calls"][0]["function"]["arguments"] = json!(arguments);
    s.reply(reply);
    s.accept();
    assert_eq!(s.trigger()["arguments"], arguments);
    s.trigger()["input"].take()
}

#[test]
fn c7_arguments_are_checked_and_delivered_all_the_same() {
    assert_eq!(
        input("{\"a\":1}"),
        json!({"status": "valid", "value": {"a": 1}})
    );
    for malformed in ["{", "nope", "[1]", "7", "null", "\"{}\"", "{\"a\":1}x"] {
        assert_eq!(input(malformed)["status"], "malformed", "{malformed}");
    }
    for invalid in [
        "",
        "  \n",
        "{}",
        "{\"b\":1}",
        "{\"a\":\"1\"}",
        "{\"a\":null}",
    ] {
        assert_eq!(input(invalid)["status"], "invalid", "{invalid}");
    }
    assert_eq!(input("")["value"], json!({}));
}

#[test]
fn c7_nothing_is_coerced_and_no_default_is_filled_in() {
    let tool = json!({"name": "add", "input": {"properties": {"a": {"type": "integer"}, "b": {"default": 2}}}});
    let mut s = Session::asked_with(json!({"model": "m", "tools": [tool]}));
    s.accept();
    let mut reply = tool_calls(&[["k1", "add"], ["k2", "add"]]);
    reply["tool_calls"][1]["function"]["arguments"] = json!("{\"a\": \"1\"}");
    s.reply(reply);
    s.accept();
    assert_eq!(
        s.trigger()["input"],
        json!({"status": "valid", "value": {"a": 1}})
    );
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    assert_eq!(s.trigger()["input"]["value"], json!({"a": "1"}));
    assert_eq!(s.trigger()["input"]["status"], "invalid");
}

#[test]
fn c7_the_first_three_violations_are_named_each_in_short() {
    let tool =
        json!({"name": "add", "input": {"required": ["a", "b", "c", "d"], "type": "object"}});
    let mut s = Session::asked_with(json!({"model": "m", "tools": [tool]}));
    s.accept();
    s.reply(tool_calls(&[["k1", "add"]]));
    s.accept();
    let error = s.trigger()["input"]["error"].take();
    assert_eq!(
        error.as_str().unwrap().matches("required").count(),
        3,
        "{error}"
    );
    let error = input(&format!("{{\"a\":\"{}\"}}", "é".repeat(100_000)))["error"].take();
    assert!(error.as_str().unwrap().len() < 600);
}

#[test]
fn c7_the_schema_is_the_one_the_model_was_offered() {
    let mut s = Session::prompted();
    s.reply(tool_calls(&[["k1", "add"]]));
    // By the time the tool runs, the agent has another one of that name.
    s.answer(json!({
        "agent": {"model": "m", "tools": [{"name": "add", "input": {"required": ["z"]}}]},
        "actions": [{"type": "tool.call", "id": "k1", "name": "add", "arguments": {"a": 1}}]
    }));
    assert_eq!(s.trigger()["input"]["status"], "valid");
}

#[test]
fn c7_a_list_of_the_calls_own_beats_the_config() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "llm.call", "tools": [{"name": "add", "input": {"required": ["z"]}}]}]}));
    s.reply(tool_calls(&[["k1", "add"]]));
    s.accept();
    assert_eq!(s.trigger()["input"]["status"], "invalid");
}

#[test]
fn c7_without_a_model_call_that_asked_there_is_no_check() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "tool.call", "name": "add", "arguments": {}}]}));
    assert_eq!(
        s.trigger()["input"],
        json!({"status": "valid", "value": {}})
    );
}

#[test]
fn c7_a_tool_without_a_schema_takes_whatever_comes_as_valid() {
    let s = Session::calling(&[["k1", "now"]]);
    assert_eq!(
        s.trigger()["input"],
        json!({"status": "valid", "value": {"a": 1}})
    );
}

#[test]
fn c7_arguments_nested_too_deep_are_malformed() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(input(&deep)["status"], "malformed");
}

#[test]
fn c9_a_tool_answered_with_neither_result_nor_error_is_deferred_for_a_day() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.advance(5.0);
    s.answer(json!({}));
    assert_eq!(s.call("k1")["deadline"], json!(s.now.plus_secs(86_400.0)));
    s.advance(86_399.0);
    assert_eq!(s.call("k1")["status"], "pending");
    s.advance(1.0);
    assert_eq!(
        (s.live(), s.trigger()["ok"].take()),
        ("tool.finished", json!(false))
    );
}

#[test]
fn c9_a_policy_of_its_own_keeps_its_deadline() {
    let mut s = with_policy("add", policy(json!(50.0), 1, 1.0, 1.0));
    let deadline = json!(s.now.plus_secs(50.0));
    s.advance(5.0);
    s.answer(json!({}));
    assert_eq!(s.call("k1")["deadline"], deadline);
    // Passed, it is tried again under that policy.
    s.advance(46.0);
    assert_eq!(
        (s.live(), s.trigger()["attempt"].take()),
        ("tool.execute", json!(2))
    );
    let mut s = with_policy("add", policy(Value::Null, 0, 1.0, 1.0));
    s.answer(json!({}));
    assert_eq!(
        (s.call("k1")["deadline"].take(), s.plan()),
        (Value::Null, Plan::default())
    );
}

#[test]
fn c9_anyone_allowed_settles_it_later() {
    for (by, status) in [
        (Party::Worker, 200),
        (Party::Operator, 200),
        (Party::Client, 403),
    ] {
        let mut s = Session::calling(&[["k1", "add"]]);
        s.answer(json!({}));
        assert_eq!(s.settle(by, "k1", None, json!({"result": "later"})), status);
    }
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({}));
    s.act("a1", "x");
    s.answer(json!({"actions": [{"type": "tool.result", "id": "k1", "result": "later"}]}));
    assert_eq!(s.trigger()["result"], "later");
}

#[test]
fn c9_an_answer_that_only_asks_for_more_defers_too() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.call", "id": "k2", "name": "now"}]}));
    assert_eq!(s.count("call.deferred"), 1);
    assert_eq!(s.trigger()["id"], "k2");
}

#[test]
fn c9_a_deferred_call_that_is_settled_goes_on_as_any_other() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({}));
    s.settle(Party::Worker, "k1", None, json!({"result": "later"}));
    s.accept();
    assert_eq!(s.prompt(), ["system", "user", "assistant", "tool k1"]);
}

#[test]
fn c11_the_assistant_message_has_the_calls_id() {
    let mut s = model_call(Value::Null);
    s.reply(json!({"content": "hi", "extra": {"id": "other", "thinking": {"s": 1}}}));
    assert_eq!(s.trigger()["message"]["id"], "x");
    assert_eq!(s.trigger()["message"]["thinking"], json!({"s": 1}));
    s.accept();
    assert_eq!(s.path().last().unwrap(), "x");
}

#[test]
fn c14_repeated_tool_call_ids_are_replaced() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    s.accept();
    let (call, _) = s.in_flight();
    s.reply(tool_calls(&[
        ["k1", "pick"],
        ["k2", "pick"],
        ["k2", "pick"],
        ["", "pick"],
        [&call, "pick"],
    ]));
    let ids: Vec<_> = s.trigger()["message"]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids[1], "k2");
    let mut all = ids.clone();
    all.extend(["k1".to_owned(), String::new(), call]);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 8, "{ids:?}");
    s.accept();
    assert_eq!(s.state.open_calls().len(), 5);
}

#[test]
fn c14_ids_of_a_reply_whose_calls_were_never_made_are_taken_too() {
    let mut s = Session::prompted();
    s.reply(tool_calls(&[["k1", "pick"]]));
    s.answer(json!({"actions": [{"type": "llm.call"}]}));
    s.reply(tool_calls(&[["k1", "pick"]]));
    assert_ne!(s.trigger()["message"]["tool_calls"][0]["id"], "k1");
}

#[test]
fn c14_replies_of_workers_are_treated_alike() {
    let mut s = Session::asked_with(json!({"model": "m", "handler": "worker"}));
    s.accept();
    let response = tool_calls(&[["k1", "x"], ["k1", "x"]]);
    s.answer(json!({"actions": [{"type": "llm.result", "response": response}]}));
    let calls = s.trigger()["message"]["tool_calls"].take();
    assert_eq!(calls[0]["id"], "k1");
    assert_ne!(calls[1]["id"], "k1");
}

#[test]
fn c15_a_model_call_that_was_in_flight_leaves_again_as_its_next_attempt() {
    let mut s = Session::prompted();
    let (call, _) = s.in_flight();
    s.advance(100.0);
    s.crash();
    assert_eq!(s.in_flight(), (call.clone(), 2));
    assert_eq!(s.call(&call)["deadline"], json!(s.now.plus_secs(180.0)));
    let before = s.state.seq();
    s.reply_to(&call, 1, json!({ "content": "late" }));
    assert_eq!(s.state.seq(), before);
    s.reply(json!({ "content": "hi" }));
    s.accept();
    assert_eq!(s.turn_ended()["data"], "hi");
}

#[test]
fn c15_crashes_use_up_no_retries() {
    let mut s = model_call(policy(Value::Null, 1, 1.0, 1.0));
    for _ in 0..10 {
        s.crash();
    }
    assert_eq!(s.in_flight().1, 11);
    s.reply(busy());
    s.advance(1.0);
    assert_eq!(s.in_flight().1, 12);
    s.reply(busy());
    assert_eq!(s.trigger()["ok"], false);
}

#[test]
fn c15_a_live_decision_is_delivered_again() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    let id = s.live_id();
    s.crash();
    assert_eq!((s.live_id(), s.ask()["attempts"].take()), (id, json!(2)));
    // The call's own attempt is the same: it is the delivery that is repeated.
    assert_eq!(s.trigger()["attempt"], 1);
}

#[test]
fn c15_client_and_deferred_calls_and_timers_stay() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "add"]]);
    s.answer(json!({}));
    let (calls, plan, seq) = (s.state.open_calls(), s.plan(), s.state.seq());
    s.crash();
    assert_eq!(
        (s.state.open_calls(), s.plan(), s.state.seq()),
        (calls, plan, seq)
    );
    let mut s = model_call(Value::Null);
    s.reply(busy());
    let (plan, seq) = (s.plan(), s.state.seq());
    s.crash();
    assert_eq!((s.plan(), s.state.seq()), (plan, seq));
}

#[test]
fn c15_a_turn_goes_on_wherever_the_host_went_down() {
    // Every step is followed by a crash; the turn ends as it does without.
    let mut s = Session::new();
    s.say("t1", "u1");
    s.crash();
    s.answer(json!({ "agent": config() }));
    s.crash();
    s.accept();
    s.crash();
    s.reply(tool_calls(&[["k1", "add"], ["k2", "pick"]]));
    s.crash();
    s.accept();
    s.crash();
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    s.crash();
    s.accept();
    s.crash();
    s.settle(Party::Client, "k2", None, json!({"result": 2}));
    s.crash();
    s.accept();
    s.crash();
    s.reply(json!({ "content": "hi" }));
    s.crash();
    s.accept();
    s.crash();
    assert_eq!(s.said(), ["u1", "", "1", "2", "hi"]);
    assert_eq!(s.turn_ended()["data"], "hi");
    s.assert_at_rest();
}

#[test]
fn c15_numbers_of_a_policy_survive_the_log_to_the_last_bit() {
    // Without exact parsing, these come back as their neighbours.
    for secs in [1.005, 0.1 + 0.2, 1.0 / 3.0, 5e-324, 86_399.999_999_999_99] {
        let mut s = model_call(policy(json!(secs), 1, 1.0, 1.0));
        let deadline = s.call("x")["deadline"].clone();
        s.state = s.folded();
        assert_eq!(s.call("x")["deadline"], deadline);
    }
}

#[test]
fn c7_a_message_between_calls_changes_nothing_for_them() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    s.answer(
        json!({"messages": [says("note")], "actions": [{"type": "tool.result", "result": 1}]}),
    );
    assert_eq!(
        (
            s.trigger()["id"].take(),
            s.trigger()["input"]["status"].take()
        ),
        (json!("k2"), json!("valid"))
    );
    s.fail(FailureClass::Terminal);
    assert_eq!(s.call("k2"), Value::Null);
}

#[test]
fn c4_a_reply_that_comes_after_its_deadline_is_dropped() {
    let mut s = model_call(policy(json!(10.0), 1, 5.0, 5.0));
    s.advance(10.0);
    let before = s.state.seq();
    s.reply_to("x", 1, json!({ "content": "late" }));
    assert_eq!(
        (s.state.seq(), s.call("x")["status"].take()),
        (before, json!("retry_scheduled"))
    );
}
