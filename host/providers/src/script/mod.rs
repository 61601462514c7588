//! Scripted stand-ins for a model: answers by rules, with no key and no network.
//!
//! No model is asked, and every reply says so in its `model`. A script makes a demo or a test
//! run on any machine, always with the same replies; it understands nothing.

mod rules;
mod template;

use std::sync::Arc;
use std::time::Duration;

use belljar_protocol::Json;
use belljar_protocol::id::CallId;
use belljar_protocol::message::{Content, Function, Message, Role, ToolCall};
use belljar_protocol::model::{LlmRequest, LlmResponse, ModelFailure, StreamDelta, ToolCallDelta};
use belljar_protocol::ports::{Boxed, DeltaSink, Model};
use serde::Serialize;

pub use rules::{CallTemplate, Pattern, ReplyTemplate, Rule, Script, When};

use rules::Said;

/// A script in the place of a model.
#[derive(Debug)]
pub struct Scripted {
    label: String,
    script: Script,
}

impl Scripted {
    /// The stand-in that is asked for as `script/<name>`.
    pub fn new(name: &str, script: Script) -> Self {
        Self {
            label: format!("script/{name} (scripted, no model was asked)"),
            script,
        }
    }

    /// The reply to a request. Looks at nothing before the last message of the user.
    fn reply(&self, request: &LlmRequest) -> LlmResponse {
        let tail = Tail::of(&request.messages);
        let tools = request.tools.iter().flat_map(|tools| tools.iter());
        let said = self.script.answer(&tail.user, &tail.results, |tool| {
            tools.clone().any(|offered| offered.name == tool)
        });
        let (content, calls) = match said {
            Said::Text(text) => (Some(text), Vec::new()),
            Said::Calls(calls) => (None, calls),
        };
        let tool_calls: Vec<ToolCall> = calls
            .into_iter()
            .enumerate()
            .map(|(n, (name, arguments))| ToolCall {
                // The same for the same request, and new in each turn of a session.
                id: CallId::new(format!("call_{}_{n}", request.messages.len())),
                kind: "function".into(),
                function: Function { name, arguments },
            })
            .collect();
        let said = content.iter().map(String::as_str);
        let called = tool_calls
            .iter()
            .map(|call| call.function.arguments.as_str());
        let completion_tokens = said.chain(called).map(words).sum();
        LlmResponse {
            model: self.label.clone(),
            finish_reason: Some(
                if tool_calls.is_empty() {
                    "stop"
                } else {
                    "tool_calls"
                }
                .into(),
            ),
            content,
            tool_calls,
            usage: Some(Json::of(&Usage {
                prompt_tokens: tail.words,
                completion_tokens,
                total_tokens: tail.words + completion_tokens,
            })),
            ..LlmResponse::default()
        }
    }
}

impl Model for Scripted {
    fn ask(
        &self,
        request: Arc<LlmRequest>,
        sink: Option<DeltaSink>,
    ) -> Boxed<'_, Result<LlmResponse, ModelFailure>> {
        Box::pin(async move {
            let reply = self.reply(&request);
            if let Some(sink) = sink {
                let delay = Duration::from_millis(self.script.delay_ms);
                for delta in deltas(&reply) {
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    sink(delta);
                }
            }
            Ok(reply)
        })
    }
}

/// Counts of words, which stand in for tokens. Of the prompt, only what the script looked at.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

/// What a script looks at: the last message of the user, and the tool results at the end.
struct Tail {
    user: String,
    results: Vec<String>,
    words: usize,
}

impl Tail {
    fn of(messages: &[Arc<Message>]) -> Self {
        let text = |message: &Arc<Message>| {
            message
                .content
                .as_ref()
                .map(Content::text)
                .unwrap_or_default()
        };
        let results = messages
            .iter()
            .rev()
            .take_while(|message| message.role == Role::Tool);
        let mut results: Vec<String> = results.map(text).collect();
        results.reverse();
        let user = messages
            .iter()
            .rev()
            .find(|message| message.role == Role::User);
        let user = user.map(text).unwrap_or_default();
        let words = words(&user) + results.iter().map(|result| words(result)).sum::<usize>();
        Self {
            user,
            results,
            words,
        }
    }
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// A reply as a stream: word by word, and each call in two parts.
fn deltas(reply: &LlmResponse) -> impl Iterator<Item = StreamDelta> {
    let text = reply.content.as_deref().unwrap_or_default();
    let words = text
        .split_inclusive(char::is_whitespace)
        .map(|word| StreamDelta {
            text: Some(word.to_owned()),
            ..StreamDelta::default()
        });
    let calls = reply.tool_calls.iter().flat_map(|call| {
        let id = call.id.to_string();
        let name = ToolCallDelta {
            id: id.clone(),
            name: Some(call.function.name.clone()),
            arguments: None,
        };
        let arguments = ToolCallDelta {
            id,
            name: None,
            arguments: Some(call.function.arguments.clone()),
        };
        [name, arguments].map(|part| StreamDelta {
            tool_calls: vec![part],
            ..StreamDelta::default()
        })
    });
    let end = StreamDelta {
        finish_reason: reply.finish_reason.clone(),
        ..StreamDelta::default()
    };
    words.chain(calls).chain([end])
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn request(messages: &str, tools: &[&str]) -> Arc<LlmRequest> {
        let tools: Vec<_> = tools
            .iter()
            .map(|name| serde_json::json!({ "name": name }))
            .collect();
        let messages: serde_json::Value = serde_json::from_str(messages).unwrap();
        let request =
            serde_json::json!({ "model": "ledger", "messages": messages, "tools": tools });
        Arc::new(serde_json::from_value(request).unwrap())
    }

    const TOOLS: &[&str] = &["add_entry", "balance", "report"];
    const NEWER: &[&str] = &["add_entry", "balance", "report", "undo"];

    fn ledger() -> Scripted {
        Scripted::new("ledger", Script::ledger())
    }

    /// What the ledger script answers when the user says this: the text, or the calls.
    #[track_caller]
    fn check(user: &str, tools: &[&str], expected: &str) {
        let messages = serde_json::json!([{ "role": "user", "content": user }]).to_string();
        let reply = ledger().reply(&request(&messages, tools));
        let calls: Vec<_> = reply
            .tool_calls
            .iter()
            .map(|call| format!("{}({})", call.function.name, call.function.arguments))
            .collect();
        assert_eq!(
            reply.content.unwrap_or_else(|| calls.join(" ")),
            expected,
            "{user}"
        );
    }

    #[test]
    fn entries() {
        let coffee = r#"add_entry({"description":"coffee","amount":-3.50})"#;
        check("add coffee -3.50", TOOLS, coffee);
        check("coffee -3.50", TOOLS, coffee);
        check("  Add  coffee   -3.50 ", TOOLS, coffee);
        check("Add coffee -$3.50.", TOOLS, coffee);
        check(
            "salt and pepper 3",
            TOOLS,
            r#"add_entry({"description":"salt and pepper","amount":3})"#,
        );
        check(
            "say \"hi\" 1",
            TOOLS,
            r#"add_entry({"description":"say \"hi\"","amount":1})"#,
        );
        check(
            "007 007",
            TOOLS,
            r#"add_entry({"description":"007","amount":7})"#,
        );
        check(
            "rent 123456789012345678901.25",
            TOOLS,
            r#"add_entry({"description":"rent","amount":123456789012345678901.25})"#,
        );
    }

    #[test]
    fn several_in_one_reply() {
        let two = r#"add_entry({"description":"coffee","amount":3}) add_entry({"description":"cake","amount":4.5})"#;
        check("add coffee 3, cake 4.5", TOOLS, two);
        check("add coffee 3 and cake 4.5", TOOLS, two);
        check("add coffee 3, and add cake 4.5", TOOLS, two);
        check(
            "add tea 1 and balance",
            TOOLS,
            r#"add_entry({"description":"tea","amount":1}) balance({})"#,
        );
    }

    #[test]
    fn commands() {
        check("balance", TOOLS, "balance({})");
        check("What is the balance?", TOOLS, "balance({})");
        check("Report!", TOOLS, "report({})");
        check("undo", NEWER, "undo({})");
        check("undo the last entry", NEWER, "undo({})");
        check(
            "undo",
            TOOLS,
            "I cannot undo: the agent offers no tool for it.",
        );
        check(
            "undo, add tea 1",
            TOOLS,
            "I cannot undo: the agent offers no tool for it.",
        );
    }

    #[test]
    fn anything_else_gets_help() {
        for text in ["hello", "", "add", "3.50", "add coffee"] {
            let messages = serde_json::json!([{ "role": "user", "content": text }]).to_string();
            let reply = ledger().reply(&request(&messages, TOOLS));
            let help = reply.content.unwrap();
            assert!(
                help.contains("no model was asked") && reply.tool_calls.is_empty(),
                "{text}: {help}"
            );
        }
        check(
            "add 5",
            TOOLS,
            "What was it for? Say it like `coffee -3.50`.",
        );
        // Nothing is called that is not offered.
        check("balance", &[], &ledger().script.default);
    }

    #[test]
    fn tool_results_at_the_end_are_passed_on() {
        let reply = ledger().reply(&request(
            r#"[{"role":"user","content":"balance"},
                {"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"balance"}},{"id":"c2","function":{"name":"balance"}}]},
                {"role":"tool","tool_call_id":"c1","content":"balance 1.00"},
                {"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"balance 2.00"}]}]"#,
            TOOLS,
        ));
        assert_eq!(reply.content.as_deref(), Some("balance 1.00\nbalance 2.00"));
        assert_eq!(reply.finish_reason.as_deref(), Some("stop"));
        assert_eq!(reply.model, "script/ledger (scripted, no model was asked)");
        let usage = r#"{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9}"#;
        assert_eq!((reply.usage.unwrap().as_str(), reply.cost), (usage, None));
    }

    #[test]
    fn a_new_message_after_tool_results_is_answered_itself() {
        let reply = ledger().reply(&request(
            r#"[{"role":"user","content":"balance"},
                {"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"balance"}}]},
                {"role":"tool","tool_call_id":"c1","content":"balance 1.00"},
                {"role":"assistant","content":"balance 1.00"},
                {"role":"user","content":[{"type":"text","text":"report"}]}]"#,
            TOOLS,
        ));
        assert_eq!(reply.tool_calls[0].function.name, "report");
        assert_eq!(reply.tool_calls[0].id.as_str(), "call_5_0");
    }

    #[tokio::test]
    async fn a_stream_adds_up_to_the_reply() {
        for (user, tools) in [("hello", TOOLS), ("add tea 1, cake 2", TOOLS)] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let sink: DeltaSink = {
                let seen = Arc::clone(&seen);
                Arc::new(move |delta| seen.lock().unwrap().push(delta))
            };
            let messages = serde_json::json!([{ "role": "user", "content": user }]).to_string();
            let reply = ledger()
                .ask(request(&messages, tools), Some(sink))
                .await
                .unwrap();
            let seen = seen.lock().unwrap();
            let text: String = seen.iter().filter_map(|delta| delta.text.clone()).collect();
            assert_eq!(text, reply.content.unwrap_or_default());
            let arguments: String = seen
                .iter()
                .flat_map(|delta| &delta.tool_calls)
                .filter_map(|call| call.arguments.clone())
                .collect();
            let called: String = reply
                .tool_calls
                .iter()
                .map(|call| call.function.arguments.as_str())
                .collect();
            assert_eq!(arguments, called);
            assert_eq!(seen.last().unwrap().finish_reason, reply.finish_reason);
            assert!(seen.len() > 4);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_is_kept_for_each_piece() {
        let script: Script = toml::from_str("delay_ms = 1000\ndefault = 'one two three'").unwrap();
        let begun = tokio::time::Instant::now();
        let sink: DeltaSink = Arc::new(|_| {});
        Scripted::new("slow", script)
            .ask(request("[]", &[]), Some(sink))
            .await
            .unwrap();
        assert_eq!(begun.elapsed(), Duration::from_secs(4));
    }

    #[test]
    fn a_long_history_is_not_read() {
        let long = Arc::new(Message::text(Role::User, "x ".repeat(1 << 20)));
        let mut messages = vec![long; 200_000];
        messages.push(Arc::new(Message::text(Role::User, "balance")));
        let mut request = Arc::unwrap_or_clone(request("[]", TOOLS));
        request.messages = messages;
        let begun = std::time::Instant::now();
        assert_eq!(ledger().reply(&request).tool_calls.len(), 1);
        assert!(begun.elapsed() < Duration::from_secs(1));
    }
}
