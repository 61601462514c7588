//! T1–T6: the message tree.

use belljar_engine::Party;
use serde_json::{Value, json};

use crate::session::{Session, says, tool_calls, user};

/// `u1 → a1 → u2 → a2`, ids as they are said.
fn two_rounds() -> Session {
    let mut s = Session::asked();
    s.answer(json!({"messages": [user("u1"), says("a1")], "actions": [{"type": "done"}]}));
    s.say("t2", "u2");
    s.answer(json!({"messages": [user("u1"), says("a1"), user("u2"), says("a2")], "actions": [{"type": "done"}]}));
    assert_eq!(s.path(), ["u1", "a1", "u2", "a2"]);
    s
}

#[test]
fn t1_only_an_accepted_answer_changes_the_tree() {
    let mut s = Session::asked();
    assert_eq!(s.state.tree().len(), 0);
    s.view("t1", &json!([user("u1"), says("a1")]));
    s.refused(json!({"messages": [user("u1")], "actions": [{"type": "tool.result"}]}));
    assert_eq!(s.state.tree().len(), 0);
    let mut s = Session::calling(&[["k1", "pick"]]);
    let size = s.state.tree().len();
    s.settle(Party::Client, "k1", None, json!({"result": 1}));
    assert_eq!(s.state.tree().len(), size);
}

#[test]
fn t2_a_list_that_begins_as_the_view_does_is_a_whole_view() {
    let mut s = two_rounds();
    s.view("t3", &json!([user("u1"), says("a1"), user("u3")]));
    s.answer(json!({"messages": [user("u1"), says("a1"), user("u3"), says("a3")], "actions": [{"type": "done"}]}));
    assert_eq!(s.path(), ["u1", "a1", "u3", "a3"]);
    assert_eq!(s.state.tree().len(), 6);
}

#[test]
fn t2_a_list_that_begins_with_a_recorded_message_hangs_from_its_parent() {
    let mut s = two_rounds();
    s.act("a", "x");
    s.answer(json!({"messages": [user("u2"), says("b2")]}));
    assert_eq!(s.path(), ["u1", "a1", "u2", "b2"]);
    assert_eq!(s.state.tree().len(), 5);
}

#[test]
fn t2_anything_else_hangs_from_the_head() {
    let mut s = two_rounds();
    s.act("a", "x");
    s.answer(json!({"messages": [says("new"), {"role": "assistant", "content": "without an id"}]}));
    assert_eq!(s.path()[..5], ["u1", "a1", "u2", "a2", "new"]);
    assert_eq!(s.path().len(), 6);
}

#[test]
fn t2_matching_is_by_id_never_by_content() {
    let mut s = two_rounds();
    s.act("a", "x");
    let mut other = says("a1");
    other["content"] = json!("rewritten");
    s.answer(json!({"messages": [user("u1"), other, user("u9")]}));
    assert_eq!(s.path(), ["u1", "a1", "u9"]);
    assert_eq!(s.said()[1], "a1");
    s.act("b", "x");
    s.answer(json!({"messages": [{"id": "v1", "role": "user", "content": "u1"}]}));
    assert_eq!(s.path(), ["u1", "a1", "u9", "v1"]);
}

#[test]
fn t2_known_ids_in_a_new_place_are_recorded_as_fresh_nodes() {
    let mut s = two_rounds();
    s.act("a", "x");
    // From the first that does not match, everything is one new chain.
    s.answer(json!({"messages": [user("u1"), user("new"), says("a1"), user("u2")]}));
    let path = s.path();
    assert_eq!(path[..2], ["u1", "new"]);
    assert_eq!(s.said()[2..], ["a1", "u2"]);
    assert!(!["a1", "u2"].contains(&&*path[2]) && !["a1", "u2"].contains(&&*path[3]));
    assert_eq!(s.state.tree().len(), 7);
}

#[test]
fn t2_ids_repeated_within_a_list_are_replaced() {
    for id in ["x", ""] {
        let mut s = Session::asked();
        s.answer(json!({"messages": [says(id), says(id), says(id)]}));
        let mut path = s.path();
        assert!(path.iter().all(|id| !id.is_empty()));
        path.sort();
        path.dedup();
        assert_eq!(path.len(), 3);
    }
}

#[test]
fn t2_an_empty_id_matches_nothing() {
    let mut s = Session::new();
    let draft = |text: &str| json!({"id": "", "role": "user", "content": text});
    s.view("t1", &json!([draft("one")]));
    s.answer(json!({"agent": {"model": "m"}}));
    s.answer(json!({"messages": s.trigger()["messages"], "actions": [{"type": "done"}]}));
    s.view("t2", &json!([draft("two")]));
    s.accept();
    assert_eq!(s.said(), ["two"]);
}

#[test]
fn t3_same_view_writes_nothing() {
    let mut s = two_rounds();
    let view = json!([user("u1"), says("a1"), user("u2"), says("a2")]);
    s.view("t3", &view);
    s.answer(json!({"messages": view, "actions": [{"type": "done"}]}));
    assert_eq!(s.state.tree().len(), 4);
    assert_eq!(
        (s.count("head.moved"), s.count("messages.recorded")),
        (0, 2)
    );
}

#[test]
fn t3_a_view_that_stops_earlier_moves_the_head_there() {
    let mut s = two_rounds();
    s.view("t3", &json!([user("u1"), says("a1")]));
    s.accept();
    assert_eq!(s.path(), ["u1", "a1"]);
    assert_eq!(s.state.tree().len(), 4);
    assert_eq!(s.prompt(), ["system", "user", "assistant"]);
}

#[test]
fn t3_a_view_that_continues_another_branch_moves_the_head_back() {
    let mut s = two_rounds();
    s.view("t3", &json!([user("v1")]));
    s.answer(json!({"messages": [user("v1")], "actions": [{"type": "done"}]}));
    let view = json!([user("u1"), says("a1"), user("u2"), says("a2")]);
    s.view("t4", &view);
    s.accept();
    assert_eq!(s.path(), ["u1", "a1", "u2", "a2"]);
    assert_eq!(s.state.tree().len(), 5);
}

#[test]
fn t3_a_view_none_of_whose_ids_is_known_forks_at_the_root() {
    let mut s = two_rounds();
    s.view("t3", &json!([user("v1"), says("b1"), user("v2")]));
    s.accept();
    assert_eq!(s.path(), ["v1", "b1", "v2"]);
    assert_eq!(s.state.tree().len(), 7);
    let nodes = s.last("messages.recorded");
    assert_eq!(nodes["parent"], Value::Null);
}

#[test]
fn t4_regenerate_makes_the_new_reply_a_sibling() {
    let mut s = two_rounds();
    s.view("t3", &json!([user("u1"), says("a1"), user("u2")]));
    s.accept();
    s.reply(json!({ "content": "again" }));
    s.accept();
    assert_eq!(s.said(), ["u1", "a1", "u2", "again"]);
    s.say("t4", "u3");
    let tree = s.ask()["message_tree"].take();
    let siblings = tree["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["parent_id"] == "u2");
    assert_eq!(siblings.count(), 2);
}

#[test]
fn t4_edit_forks_at_the_edited_message_whether_it_has_a_new_id_or_none() {
    for id in [json!("u2b"), Value::Null] {
        let mut s = two_rounds();
        s.view(
            "t3",
            &json!([user("u1"), says("a1"), {"id": id, "role": "user", "content": "edited"}]),
        );
        s.accept();
        assert_eq!(s.said(), ["u1", "a1", "edited"]);
        assert_eq!(s.state.tree().len(), 5);
        assert_eq!(s.last("messages.recorded")["parent"], "a1");
    }
}

#[test]
fn t5_the_anchor_is_the_head_when_the_call_was_requested() {
    let mut s = Session::asked();
    s.answer(json!({"messages": [user("u1"), says("a1")], "actions": [{"type": "tool.call", "id": "k1", "name": "pick"}]}));
    assert_eq!(s.call("k1")["anchor"], "a1");
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "tool.call", "id": "k1", "name": "pick"}]}));
    assert_eq!(s.call("k1")["anchor"], Value::Null);
}

#[test]
fn t5_a_correction_voids_the_turns_open_model_calls() {
    let mut s = Session::prompted();
    let (first, attempt) = s.in_flight();
    s.view("t1", &json!([user("u1"), user("u2")]));
    // Accepting it does, receiving it does not.
    assert_eq!(s.in_flight().0, first);
    s.accept();
    assert_ne!(s.in_flight().0, first);
    let before = s.state.seq();
    s.reply_to(&first, attempt, json!({ "content": "late" }));
    assert_eq!(s.state.seq(), before);
    assert_eq!(s.state.turn().unwrap().turn_id.as_str(), "t1");
}

#[test]
fn t5_a_reply_that_came_while_the_correction_waited_is_not_appended_to_it() {
    let mut s = Session::prompted();
    s.act("a1", "x");
    s.view("t1", &json!([user("u1"), user("u2")]));
    s.reply(json!({ "content": "stale" }));
    s.answer(json!({}));
    assert_eq!(s.live(), "client.messages");
    s.accept();
    s.reply(json!({ "content": "fresh" }));
    s.accept();
    assert_eq!(s.said(), ["u1", "u2", "fresh"]);
    assert_eq!(s.turn_ended()["data"], "fresh");
}

#[test]
fn t5_model_calls_of_other_turns_stay() {
    let mut s = Session::asked();
    s.answer(json!({"messages": [user("u1")], "actions": [{"type": "llm.call", "id": "old"}, {"type": "done"}]}));
    s.say("t2", "u2");
    s.accept();
    assert_eq!(s.call("old")["status"], "pending");
}

#[test]
fn t5_after_a_fork_open_calls_off_the_path_are_voided_and_their_late_results_get_409() {
    let mut s = Session::calling(&[["k1", "pick"], ["k2", "add"], ["k3", "add"]]);
    s.act("a1", "x");
    s.answer(json!({}));
    assert_eq!(
        (s.live(), s.trigger()["id"].take()),
        ("tool.execute", json!("k3"))
    );
    s.view("t1", &json!([user("v1")]));
    s.answer(json!({"actions": [{"type": "tool.result", "result": 1}]}));
    s.answer(json!({}));
    // `k2` is deferred, `k3`'s result waits behind the fork.
    assert_eq!(s.live(), "client.messages");
    s.accept();
    assert_eq!(s.path(), ["v1"]);
    assert_eq!(
        s.settle(Party::Client, "k1", None, json!({"result": 1})),
        409
    );
    assert_eq!(
        s.settle(Party::Worker, "k2", None, json!({"result": 1})),
        409
    );
    // What was decided about them is dropped.
    assert_eq!((s.live(), s.state.pending_calls()), ("", 0));
    assert_eq!(s.state.open_calls().len(), 1);
}

#[test]
fn t5_calls_anchored_on_the_path_stay() {
    let mut s = Session::asked();
    s.answer(json!({"messages": [user("u1")], "actions": [{"type": "tool.call", "id": "k1", "name": "pick"}]}));
    s.view("t1", &json!([user("u1"), user("u2")]));
    s.accept();
    assert_eq!(s.call("k1")["status"], "pending");
}

#[test]
fn t5_calls_from_before_the_first_message_are_on_every_branch() {
    let mut s = Session::asked();
    s.answer(json!({"actions": [{"type": "tool.call", "id": "k1", "name": "pick"}]}));
    s.view("t1", &json!([user("v1")]));
    s.accept();
    assert_eq!(s.call("k1")["status"], "pending");
}

#[test]
fn t5_moving_the_head_back_strands_too() {
    let mut s = Session::calling(&[["k1", "pick"]]);
    s.view("t1", &json!([user("u1")]));
    s.accept();
    assert_eq!(s.call("k1"), Value::Null);
}

#[test]
fn t6_on_an_old_branch_the_old_values_hold() {
    let mut s = Session::asked();
    s.answer(json!({"messages": [user("u1"), says("a1")], "state": {"n": 1}, "actions": [{"type": "done"}]}));
    s.say("t2", "u2");
    s.answer(json!({
        "messages": [user("u1"), says("a1"), user("u2")], "state": {"n": 2}, "agent": {"model": "m2"},
        "actions": [{"type": "done"}]
    }));
    let holds = |s: &Session| {
        (
            s.state.agent_state().unwrap().as_str().to_owned(),
            s.state.config().unwrap().model.clone(),
        )
    };
    assert_eq!(holds(&s), ("{\"n\":2}".into(), "m2".into()));
    s.view("t3", &json!([user("u1"), says("a1"), user("u3")]));
    s.answer(json!({"messages": [user("u1"), says("a1"), user("u3")], "actions": [{"type": "llm.call"}]}));
    assert_eq!(holds(&s), ("{\"n\":1}".into(), "m".into()));
    assert_eq!(s.request()["model"], "m");
    s.crash();
    assert_eq!(holds(&s), ("{\"n\":1}".into(), "m".into()));
    s.abort();
    s.view("t4", &json!([user("u1"), says("a1"), user("u2")]));
    s.accept();
    assert_eq!(holds(&s), ("{\"n\":2}".into(), "m2".into()));
}

#[test]
fn t6_what_session_start_set_holds_on_every_branch() {
    let mut s = Session::new();
    s.say("t1", "u1");
    s.answer(json!({"messages": [says("welcome")], "state": {"n": 0}, "agent": {"model": "m"}}));
    // Also below what its own answer recorded.
    assert_eq!(
        (s.ask()["state"].take(), s.ask()["agent"]["model"].take()),
        (json!({"n": 0}), json!("m"))
    );
    s.answer(json!({"messages": [user("u1")], "state": {"n": 1}, "actions": [{"type": "done"}]}));
    s.view("t2", &json!([user("other")]));
    assert_eq!(
        (s.ask()["state"].take(), s.ask()["agent"]["model"].take()),
        (json!({"n": 0}), json!("m"))
    );
    s.accept();
    assert_eq!(s.state.agent_state().unwrap().as_str(), "{\"n\":0}");
}

#[test]
fn t6_a_value_is_kept_byte_for_byte_on_each_branch() {
    let mut s = Session::asked();
    s.answer(json!({"messages": [user("u1")], "state": {"n": 1}, "actions": [{"type": "done"}]}));
    s.view("t2", &json!([user("v1")]));
    s.answer(json!({"messages": [user("v1")], "state": {"n": 1.0}, "actions": [{"type": "done"}]}));
    s.state = s.folded();
    assert_eq!(s.state.agent_state().unwrap().as_str(), "{\"n\":1.0}");
    s.view("t3", &json!([user("u1")]));
    s.accept();
    assert_eq!(s.state.agent_state().unwrap().as_str(), "{\"n\":1}");
}

#[test]
fn t6_the_tools_of_a_branch_are_those_of_its_config() {
    let mut s = Session::asked();
    s.answer(json!({"messages": [user("u1")], "agent": {"model": "m", "tools": [{"name": "old"}]}, "actions": [{"type": "done"}]}));
    s.say("t2", "u2");
    s.answer(json!({"messages": [user("u1"), user("u2")], "agent": {"model": "m"}, "actions": [{"type": "done"}]}));
    s.view("t3", &json!([user("u1"), user("u3")]));
    s.accept();
    s.reply(tool_calls(&[["k1", "old"]]));
    s.accept();
    assert_eq!((s.live(), s.proposed()), ("tool.execute", json!({})));
}
