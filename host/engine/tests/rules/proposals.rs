//! P0–P4, P6: what the engine would do by itself.

use belljar_engine::Party;
use belljar_protocol::decision::FailureClass;
use serde_json::{Value, json};

use crate::session::{Session, config, says, tool_calls, user};

#[test]
fn p0_a_correction_that_its_turn_did_not_wait_for_is_not_refused() {
    let mut s = Session::prompted();
    s.reply(json!({ "content": "hi" }));
    s.view("t1", &json!([user("u1"), user("u2")]));
    s.accept();
    assert_eq!(s.turn_ended()["status"], "completed");
    // It is live without a turn when the next one begins.
    assert_eq!(
        (s.live(), &s.ask()["turn_id"]),
        ("client.messages", &Value::Null)
    );
    s.say("t2", "u3");
    s.accept();
    assert_eq!(s.path(), ["u1", "u2"]);
}

#[test]
fn p0_names_that_a_model_made_up_are_not_refused() {
    for name in ["", "no such tool", "\u{0}", &"x".repeat(10_000)] {
        let mut s = Session::prompted();
        s.reply(tool_calls(&[["k1", name]]));
        s.accept();
        assert_eq!(s.live(), "tool.execute");
        s.accept();
        assert!(
            s.trigger()["error"]
                .as_str()
                .unwrap()
                .starts_with("unknown tool")
        );
    }
}

#[test]
fn p0_a_repeat_of_a_call_with_many_tools_and_sub_agents_is_not_refused() {
    let named = |n: usize| json!({"name": format!("t{n}"), "id": format!("a{n}")});
    let config = json!({
        "model": "m",
        "tools": (0..100).map(named).collect::<Vec<_>>(),
        "sub_agents": (0..28).map(named).collect::<Vec<_>>(),
    });
    let mut s = Session::asked_with(config);
    s.accept();
    s.reply(tool_calls(&[["k1", "t1"]]));
    s.accept();
    // The repeat must name the tools, as the config is another by now.
    s.answer(json!({"agent": {"model": "m2"}, "actions": [{"type": "tool.result", "result": 1}]}));
    assert_eq!(
        s.proposed()["actions"][0]["tools"]
            .as_array()
            .unwrap()
            .len(),
        128
    );
    s.accept();
    assert_eq!(s.request()["tools"].as_array().unwrap().len(), 128);
}

#[test]
fn p0_an_echo_is_as_good_as_acceptance() {
    let tell = |echo: bool| {
        let mut s = Session::new();
        s.say("t1", "u1");
        s.answer(json!({ "agent": config() }));
        let next = |s: &mut Session| match echo {
            true => s.answer(s.proposal()),
            false => s.accept(),
        };
        next(&mut s);
        s.reply(tool_calls(&[
            ["k1", "nope"],
            ["k2", "pick"],
            ["k3", "helper"],
        ]));
        while !s.live().is_empty() {
            next(&mut s);
        }
        s.settle(Party::Client, "k2", None, json!({"result": 1}));
        next(&mut s);
        s.reply(json!({ "content": "hi" }));
        next(&mut s);
        (s.said(), s.turn_ended())
    };
    assert_eq!(tell(true), tell(false));
    assert_eq!(tell(true).1["data"], "hi");
}

#[test]
fn p0_a_redelivered_decision_carries_the_same_proposal_ids_included() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    let proposed = s.proposed();
    s.fail(FailureClass::Retryable);
    s.advance(1.0);
    assert_eq!(s.proposed(), proposed);
    s.crash();
    assert_eq!(s.proposed(), proposed);
}

#[test]
fn p1_session_start_proposes_nothing() {
    let mut s = Session::new();
    s.say("t1", "u1");
    assert_eq!(s.proposed(), json!({}));
}

#[test]
fn p1_with_a_config_the_view_and_one_model_call() {
    let s = Session::asked();
    assert_eq!(
        s.proposed(),
        json!({"messages": [user("u1")], "actions": [{"type": "llm.call"}]})
    );
}

#[test]
fn p1_without_a_config_nothing() {
    let mut s = Session::new();
    s.say("t1", "u1");
    s.answer(json!({}));
    assert_eq!(s.proposed(), json!({}));
}

#[test]
fn p2_a_declared_tool_with_valid_input_proposes_nothing() {
    let s = Session::calling(&[["k1", "add"]]);
    assert_eq!(s.proposed(), json!({}));
}

#[test]
fn p2_a_tool_the_model_was_not_offered_is_an_error() {
    let s = Session::calling(&[["k1", "sub"]]);
    let error = s.proposed()["actions"][0]["error"].take();
    assert_eq!(
        error,
        "unknown tool `sub`; the tools are: add, now, pick, helper"
    );
    assert_eq!(s.proposed()["actions"][0]["type"], "tool.error");
}

#[test]
fn p2_when_no_tools_were_offered_nothing_is_unknown() {
    for action in [
        json!({"type": "llm.call", "tools": []}),
        json!({"type": "llm.call"}),
    ] {
        let mut s = Session::asked_with(match action.get("tools") {
            Some(_) => config(),
            None => json!({"model": "m"}),
        });
        s.answer(json!({"messages": [user("u1")], "actions": [action]}));
        s.reply(tool_calls(&[["k1", "sub"]]));
        s.accept();
        assert_eq!(s.proposed(), json!({}));
    }
}

#[test]
fn p2_what_counts_is_the_request_that_produced_the_call() {
    let mut s = Session::asked();
    s.answer(json!({
        "messages": [user("u1")],
        "actions": [{"type": "llm.call", "tools": [{"name": "sub"}]}]
    }));
    s.reply(tool_calls(&[["k1", "sub"], ["k2", "add"]]));
    s.accept();
    assert_eq!(s.proposed(), json!({}));
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    assert_eq!(
        s.proposed()["actions"][0]["error"],
        "unknown tool `add`; the tools are: sub"
    );
}

#[test]
fn p2_arguments_that_are_malformed_or_invalid_are_an_error() {
    for (arguments, error) in [
        ("{", "invalid arguments: EOF"),
        ("{}", "invalid arguments: \"a\" is a required"),
    ] {
        let mut s = Session::prompted();
        let mut reply = tool_calls(&[["k1", "add"]]);
        reply["tool_calls"][0]["function"]["arguments"] = json!(arguments);
        s.reply(reply);
        s.accept();
        let proposed = s.proposed()["actions"][0]["error"].take();
        assert!(proposed.as_str().unwrap().starts_with(error), "{proposed}");
    }
}

#[test]
fn p3_a_reply_without_tool_calls_is_recorded_and_done() {
    let mut s = Session::prompted();
    let (call, _) = s.in_flight();
    s.reply(json!({ "content": "hi" }));
    let message = json!({"id": call, "role": "assistant", "content": "hi"});
    assert_eq!(
        s.proposed(),
        json!({"messages": [message], "actions": [{"type": "done", "data": "hi"}]})
    );
}

#[test]
fn p3_a_reply_without_anything_is_done_with_an_empty_text() {
    let mut s = Session::prompted();
    s.reply(json!({}));
    assert_eq!(s.proposed()["actions"][0]["data"], "");
}

#[test]
fn p4_a_reply_with_tool_calls_is_recorded_and_each_is_called_in_order() {
    let mut s = Session::prompted();
    s.reply(tool_calls(&[
        ["k1", "pick"],
        ["k2", "helper"],
        ["k3", "unknown"],
        ["k4", "add"],
    ]));
    let proposed = s.proposed();
    assert_eq!(
        proposed["messages"][0]["tool_calls"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    let actions: Vec<_> = proposed["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|action| {
            format!(
                "{} {} {}",
                action["type"], action["name"], action["handler"]
            )
            .replace('"', "")
        })
        .collect();
    assert_eq!(
        actions,
        [
            "tool.call pick client",
            "sub_agent.spawn null null",
            "message.send null null",
            "tool.call unknown worker",
            "tool.call add worker"
        ]
    );
    assert_eq!(proposed["actions"][0]["arguments"], "{\"a\":1}");
}

#[test]
fn p4_a_delegation_spawns_a_child_whose_id_is_that_of_decision_and_call() {
    let delegate = |arguments: &str| {
        let mut s = Session::prompted();
        let mut reply = tool_calls(&[["k1", "helper"]]);
        reply["tool_calls"][0]["function"]["arguments"] = json!(arguments);
        s.reply(reply);
        let actions = s.proposed()["actions"].take();
        assert_eq!(actions[0]["tool_call_id"], "k1");
        assert_eq!(actions[0]["agent_id"], "helper");
        assert_eq!(actions[0]["session_id"], actions[1]["session_id"]);
        (
            actions[0]["session_id"].clone(),
            actions[1]["message"]["content"].clone(),
        )
    };
    let (id, text) = delegate("{\"message\":\"go\"}");
    assert_eq!((&id.as_str().unwrap()[14..15], text), ("5", json!("go")));
    // The raw arguments when there is no message in them.
    for raw in ["{\"task\":1}", "{\"message\":1}", "go", ""] {
        assert_eq!(delegate(raw), (id.clone(), json!(raw)));
    }
}

#[test]
fn p5_until_pauses_exist_a_failed_or_truncated_reply_proposes_nothing() {
    for reply in [
        json!({"error": "no", "code": "provider_error"}),
        json!({"content": "half", "finish_reason": "length"}),
    ] {
        let mut s = Session::prompted();
        s.reply(reply);
        assert_eq!(s.proposed(), json!({}));
        s.accept();
        assert_eq!(s.turn_ended()["status"], "failed");
    }
}

fn result(s: &mut Session, result: &str) {
    s.answer(json!({"actions": [{"type": "tool.result", "result": result}]}));
}

#[test]
fn p6_a_result_is_recorded_and_the_model_asked_again() {
    let mut s = Session::calling(&[["k1", "add"]]);
    result(&mut s, "2");
    let proposed = s.proposed();
    assert_eq!(proposed["messages"][0]["tool_call_id"], "k1");
    assert_eq!(proposed["messages"][0]["content"], "2");
    assert_eq!(
        proposed["actions"],
        json!([{"type": "llm.call", "model": "m", "stream": false}])
    );
}

#[test]
fn p6_of_a_failed_call_the_error_text_is_recorded() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({"actions": [{"type": "tool.error", "error": "overflow"}]}));
    assert_eq!(s.proposed()["messages"][0]["content"], "overflow");
}

#[test]
fn p6_while_a_sibling_is_open_the_message_only() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "add"]]);
    result(&mut s, "2");
    assert_eq!(s.proposed()["actions"], Value::Null);
    s.accept();
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    assert_eq!(s.proposed()["actions"][0]["type"], "llm.call");
}

#[test]
fn p6_two_results_that_arrive_together_prompt_the_model_once() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "pick"]]);
    s.settle(Party::Client, "k2", None, json!({"result": 2}));
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    assert_eq!(
        (s.trigger()["id"].take(), s.proposed()["actions"].take()),
        (json!("k2"), Value::Null)
    );
    s.accept();
    s.accept();
    assert_eq!(s.plan().model_calls.len(), 1);
    assert_eq!(
        s.prompt(),
        ["system", "user", "assistant", "tool k1", "tool k2"]
    );
}

#[test]
fn p6_a_forgotten_asynchronous_tool_of_an_old_turn_holds_nothing_up() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({}));
    s.act("a1", "stop");
    s.answer(json!({"actions": [{"type": "done"}]}));
    s.say("t2", "u2");
    s.accept();
    s.reply(tool_calls(&[["k2", "add"]]));
    s.accept();
    result(&mut s, "2");
    assert_eq!(s.ask()["pending_calls"], 1);
    assert_eq!(s.proposed()["actions"][0]["type"], "llm.call");
}

#[test]
fn p6_repeats_the_parent_calls_model_tools_and_parameters() {
    let mut s = Session::asked();
    let mut call = json!({
        "type": "llm.call", "model": "big", "temperature": 0.5, "max_completion_tokens": 9, "stream": true,
        "tools": [{"name": "sub", "description": ""}], "reasoning": {"effort": "low"},
        "retry": {"timeout_secs": 5.0, "max_retries": 1, "backoff_base_secs": 1.0, "backoff_max_secs": 2.0}
    });
    s.answer(json!({"messages": [user("u1")], "actions": [call]}));
    s.reply(tool_calls(&[["k1", "sub"]]));
    s.accept();
    result(&mut s, "1");
    call["type"] = json!("llm.call");
    assert_eq!(s.proposed()["actions"][0], call);
}

#[test]
fn p6_repeats_what_the_config_was_when_the_agent_has_changed_it() {
    let mut s = Session::calling(&[["k1", "add"]]);
    s.answer(json!({
        "agent": {"model": "m2", "handler": "worker", "tools": [{"name": "other"}]},
        "actions": [{"type": "tool.result", "result": 1}]
    }));
    s.accept();
    let request = s.request();
    assert_eq!(request["model"], "m");
    let names: Vec<_> = request["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["name"])
        .collect();
    assert_eq!(names, ["add", "now", "pick", "helper"]);
    assert_eq!(s.call(&s.in_flight().0)["handler"], "server");
}

#[test]
fn p6_a_call_that_no_model_reply_asked_for_proposes_nothing() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "tool.call", "id": "k1", "name": "add"}]}));
    result(&mut s, "1");
    assert_eq!((s.live(), s.proposed()), ("tool.finished", json!({})));
}

#[test]
fn p6_a_spawn_is_settled_with_an_error_the_model_reads() {
    let mut s = Session::calling(&[["k1", "helper"]]);
    assert_eq!(
        (s.live(), s.trigger()["ok"].take()),
        ("tool.finished", json!(false))
    );
    s.accept();
    let last = s.request()["messages"]
        .as_array()
        .unwrap()
        .last()
        .cloned()
        .unwrap();
    assert!(
        last["content"]
            .as_str()
            .unwrap()
            .contains("does not run sub-agents")
    );
}

#[test]
fn p6_the_message_a_proposal_records_goes_below_the_head() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.act("a1", "note");
    s.answer(json!({"messages": [says("note")]}));
    s.settle(Party::Client, "k1", None, json!({"result": "1"}));
    s.accept();
    assert_eq!(s.said(), ["u1", "", "note", "1"]);
    // The prompt puts the result where the provider wants it [T7].
    assert_eq!(
        s.prompt(),
        ["system", "user", "assistant", "tool k1", "assistant"]
    );
}

#[test]
fn p6_a_sibling_that_has_settled_and_waits_to_be_processed_holds_the_prompt_up() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "pick"]]);
    s.act("a1", "x");
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    s.settle(Party::Client, "k2", None, json!({"result": 2}));
    s.answer(json!({}));
    assert_eq!(
        (s.trigger()["id"].take(), s.proposed()["actions"].take()),
        (json!("k1"), Value::Null)
    );
    s.accept();
    assert_eq!(s.proposed()["actions"][0]["type"], "llm.call");
}
