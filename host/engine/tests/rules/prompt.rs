//! T7: a request that the engine builds is one that no provider refuses.

use belljar_engine::Party;
use serde_json::{Value, json};

use crate::session::{Session, says, shape, tool_calls, user};

/// The texts of the tool messages in the prompt.
fn results(s: &Session) -> Vec<(String, String)> {
    let messages = s.request()["messages"].take();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    messages
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| (text(&message["tool_call_id"]), text(&message["content"])))
        .collect()
}

#[test]
fn t7_a_call_that_was_cut_off_has_a_placeholder() {
    let mut s = Session::calling(&[["k1", "add"], ["k2", "add"]]);
    s.abort();
    s.say("t2", "u2");
    s.accept();
    assert_eq!(
        s.prompt(),
        ["system", "user", "assistant", "tool k1", "tool k2", "user"]
    );
    assert!(
        results(&s)
            .iter()
            .all(|(_, text)| text.starts_with("interrupted"))
    );
    // It is in the request alone.
    assert_eq!(s.said(), ["u1", "", "u2"]);
}

#[test]
fn t7_a_call_that_is_open_says_that_it_still_runs() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.act("a1", "x");
    s.answer(json!({"actions": [{"type": "llm.call"}]}));
    assert!(results(&s)[0].1.starts_with("still running"));
}

#[test]
fn t7_results_follow_the_message_that_asked_in_its_order() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "pick"]]);
    s.settle(Party::Client, "k2", None, json!({"result": "two"}));
    s.accept();
    s.act("a1", "x");
    s.answer(json!({"messages": [says("patience")]}));
    s.settle(Party::Client, "k1", None, json!({"result": "one"}));
    s.accept();
    assert_eq!(
        s.prompt(),
        [
            "system",
            "user",
            "assistant",
            "tool k1",
            "tool k2",
            "assistant"
        ]
    );
    assert_eq!(
        results(&s),
        [("k1".into(), "one".into()), ("k2".into(), "two".into())]
    );
}

#[test]
fn t7_an_orphan_is_left_out() {
    let mut s = Session::asked();
    s.answer(json!({
        "messages": [user("u1"), {"id": "o", "role": "tool", "tool_call_id": "ghost", "content": "boo"}],
        "actions": [{"type": "llm.call"}]
    }));
    assert_eq!(s.prompt(), ["system", "user"]);
    assert_eq!(s.path(), ["u1", "o"]);
}

#[test]
fn t7_a_correction_leaves_a_prompt_without_gaps() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    let asks = s.path()[1].clone();
    s.view("t1", &json!([user("u1"), says(&asks), user("never mind")]));
    s.accept();
    assert_eq!(
        s.prompt(),
        ["system", "user", "assistant", "tool k1", "user"]
    );
    assert!(results(&s)[0].1.starts_with("still running"));
}

#[test]
fn t7_an_early_done_leaves_a_prompt_without_gaps_and_the_late_result_closes_it() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.act("a1", "x");
    s.answer(json!({"actions": [{"type": "done"}]}));
    s.say("t2", "u2");
    s.accept();
    assert!(results(&s)[0].1.starts_with("still running"));
    s.reply(json!({ "content": "ok" }));
    s.accept();
    s.settle(Party::Client, "k1", None, json!({"result": "late"}));
    s.accept();
    s.say("t3", "u3");
    s.accept();
    assert_eq!(results(&s), [("k1".into(), "late".into())]);
    assert_eq!(
        s.prompt(),
        [
            "system",
            "user",
            "assistant",
            "tool k1",
            "user",
            "assistant",
            "user"
        ]
    );
}

#[test]
fn t7_histories_that_use_an_id_twice_keep_their_results_apart() {
    let mut s = Session::new();
    let asks = |id: &str| {
        let mut message = tool_calls(&[["call_0", "add"]]);
        message["role"] = json!("assistant");
        message["id"] = json!(id);
        message
    };
    let gave =
        |text: &str| json!({"id": text, "role": "tool", "tool_call_id": "call_0", "content": text});
    s.view(
        "t1",
        &json!([
            user("u1"),
            asks("a1"),
            gave("one"),
            asks("a2"),
            gave("two"),
            user("u2")
        ]),
    );
    s.answer(json!({"agent": {"model": "m"}}));
    s.accept();
    let texts: Vec<_> = results(&s).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["one", "two"]);
}

#[test]
fn t7_a_workers_request_is_repaired_too() {
    let mut s = Session::asked_with(json!({"model": "m", "handler": "worker"}));
    s.answer(json!({"messages": [user("u1"), {"role": "assistant", "tool_calls": tool_calls(&[["k1", "x"]])["tool_calls"]}],
        "actions": [{"type": "llm.call"}]}));
    assert_eq!(
        shape(&s.trigger()["request"]["messages"]),
        ["user", "assistant", "tool k1"]
    );
}

#[test]
fn t7_no_tools_means_no_list_of_tools() {
    for call in [
        json!({"type": "llm.call"}),
        json!({"type": "llm.call", "tools": []}),
    ] {
        let mut s = Session::asked_with(json!({"model": "m"}));
        s.answer(json!({ "actions": [call] }));
        assert_eq!(s.request().get("tools"), None);
    }
}
