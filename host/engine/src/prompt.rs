//! Requests to a model [T7]: the path to a call's anchor, repaired so that no provider refuses it.

use std::collections::BTreeMap;
use std::sync::Arc;

use belljar_protocol::call::Work;
use belljar_protocol::id::CallId;
use belljar_protocol::message::{Message, Role, ToolCall};
use belljar_protocol::model::LlmRequest;

use crate::calls::{Calls, Entry, offered};
use crate::tree::Tree;

/// What stands for a tool result that is not there because its call was cut off.
const INTERRUPTED: &str = "interrupted: this call was stopped before it gave a result";
/// What stands for a tool result that is not there yet.
const RUNNING: &str = "still running: this call has given no result yet";

/// The complete request of a model call; none for a call that is no model call.
pub(crate) fn request(tree: &Tree, calls: &Calls, entry: &Entry) -> Option<LlmRequest> {
    let Work::Llm(work) = &entry.request.work else {
        return None;
    };
    let messages = match &work.messages {
        Some(messages) => messages.clone(),
        None => {
            let system = entry
                .config
                .as_ref()
                .and_then(|config| config.wire.system.clone());
            let system = system.map(|text| Arc::new(Message::text(Role::System, text)));
            let anchor = entry.request.anchor.as_ref().and_then(|id| tree.find(id));
            let path = tree.path_to(anchor);
            let path = path
                .iter()
                .filter_map(|ix| tree.node(*ix))
                .map(|node| node.message.clone());
            system.into_iter().chain(path).collect()
        }
    };
    Some(LlmRequest {
        model: work.model.clone(),
        messages: repaired(messages, |id| {
            calls.get(id).is_some_and(|entry| entry.is_open())
        }),
        tools: offered(entry),
        temperature: work.temperature,
        max_completion_tokens: work.max_completion_tokens,
        reasoning: work.reasoning.clone(),
    })
}

/// Each assistant tool call is followed directly by its result; a missing one becomes a
/// placeholder, an orphan tool message is left out. Nothing is recorded.
///
/// A result belongs to the last call of its id before it: histories that clients bring along may
/// use an id more than once.
fn repaired(messages: Vec<Arc<Message>>, is_open: impl Fn(&CallId) -> bool) -> Vec<Arc<Message>> {
    // Place of a call (message, tool call) → its result.
    let mut results: BTreeMap<(usize, usize), Arc<Message>> = BTreeMap::new();
    let mut last: BTreeMap<&CallId, (usize, usize)> = BTreeMap::new();
    for (ix, message) in messages.iter().enumerate() {
        for (nth, call) in asked(message).iter().enumerate() {
            last.insert(&call.id, (ix, nth));
        }
        let answers = message.tool_call_id.as_ref();
        if let Some(place) = answers
            .filter(|_| message.role == Role::Tool)
            .and_then(|id| last.get(id))
        {
            results.entry(*place).or_insert_with(|| message.clone());
        }
    }
    let mut out = Vec::with_capacity(messages.len());
    for (ix, message) in messages.iter().enumerate() {
        if message.role == Role::Tool {
            continue;
        }
        out.push(message.clone());
        for (nth, call) in asked(message).iter().enumerate() {
            let result = results.remove(&(ix, nth)).unwrap_or_else(|| {
                let text = if is_open(&call.id) {
                    RUNNING
                } else {
                    INTERRUPTED
                };
                Arc::new(Message::tool_result(call.id.clone(), text))
            });
            out.push(result);
        }
    }
    out
}

/// The tool calls of a message; only an assistant's count.
fn asked(message: &Message) -> &[ToolCall] {
    match message.role {
        Role::Assistant => &message.tool_calls,
        Role::System | Role::User | Role::Tool => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_protocol::message::Function;

    fn asks(ids: &[&str]) -> Arc<Message> {
        let mut message = Message::text(Role::Assistant, "");
        message.tool_calls = ids
            .iter()
            .map(|id| ToolCall {
                id: CallId::from(*id),
                kind: "function".into(),
                function: Function {
                    name: "f".into(),
                    arguments: "{}".into(),
                },
            })
            .collect();
        Arc::new(message)
    }

    fn user(text: &str) -> Arc<Message> {
        Arc::new(Message::text(Role::User, text))
    }

    fn result(id: &str) -> Arc<Message> {
        Arc::new(Message::tool_result(CallId::from(id), id.to_uppercase()))
    }

    fn shape(messages: &[Arc<Message>]) -> Vec<String> {
        messages
            .iter()
            .map(|message| match &message.tool_call_id {
                Some(id) => format!("{id}={}", message.content.as_ref().unwrap().text()),
                None => format!("{:?}", message.role),
            })
            .collect()
    }

    #[test]
    fn t7_every_tool_call_is_followed_by_its_result_and_orphans_are_left_out() {
        let messages = vec![
            user("a"),
            asks(&["k1", "k2", "k3"]),
            result("k2"),
            user("b"),
            result("k1"),
            result("ghost"),
        ];
        let out = repaired(messages, |id| id.as_str() == "k3");
        let k3 = format!("k3={RUNNING}");
        assert_eq!(
            shape(&out),
            ["User", "Assistant", "k1=K1", "k2=K2", &k3, "User"]
        );
        let out = repaired(vec![result("k1"), asks(&["k1"])], |_| false);
        let k1 = format!("k1={INTERRUPTED}");
        assert_eq!(shape(&out), ["Assistant", &k1]);
        let out = repaired(vec![asks(&["k9"])], |_| false);
        assert_eq!(shape(&out)[1], format!("k9={INTERRUPTED}"));
    }

    #[test]
    fn t7_an_id_used_twice_gets_each_its_own_result() {
        let said = |text: &str| Arc::new(Message::tool_result(CallId::from("k"), text));
        let messages = vec![asks(&["k"]), said("first"), asks(&["k"]), said("second")];
        let out = repaired(messages, |_| false);
        assert_eq!(
            shape(&out),
            ["Assistant", "k=first", "Assistant", "k=second"]
        );
        let messages = vec![asks(&["k"]), said("first"), said("again")];
        assert_eq!(
            shape(&repaired(messages, |_| false)),
            ["Assistant", "k=first"]
        );
        let messages = vec![asks(&["k"]), said("first"), asks(&["k"])];
        let k = format!("k={INTERRUPTED}");
        let out = repaired(messages, |_| false);
        assert_eq!(shape(&out), ["Assistant", "k=first", "Assistant", &k]);
    }
}
