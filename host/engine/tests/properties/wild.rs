//! Answers no sane agent gives, from a grammar that is near enough to the real one to get in.

use crate::Dice;
use crate::session::Session;

/// The text of an answer.
pub(crate) fn answer(dice: &mut Dice, s: &Session) -> String {
    let mut ids: Vec<String> = [
        "",
        "none",
        "k1",
        "c1",
        "x",
        "u1",
        "\\u0000",
        "\\ud83d\\ude00",
    ]
    .map(str::to_owned)
    .into();
    ids.extend(s.state.open_calls().iter().map(|call| call.id.to_string()));
    ids.extend(s.path());
    ids.extend(
        s.state
            .composed()
            .map(|composed| composed.ask.decision_id.to_string()),
    );
    ids.extend(s.state.turn().map(|turn| turn.turn_id.to_string()));
    Grammar { dice, ids }.answer()
}

struct Grammar<'a> {
    dice: &'a mut Dice,
    /// Ids of all kinds.
    ids: Vec<String>,
}

impl Grammar<'_> {
    fn answer(&mut self) -> String {
        let mut fields = Vec::new();
        if self.dice.roll(3) > 0 {
            fields.push(format!("\"messages\":{}", self.list(5, Self::message)));
        }
        if self.dice.roll(4) > 0 {
            fields.push(format!("\"actions\":{}", self.list(6, Self::action)));
        }
        if self.dice.roll(3) == 0 {
            fields.push(format!("\"state\":{}", self.value()));
        }
        if self.dice.roll(4) == 0 {
            fields.push(format!("\"agent\":{}", self.agent()));
        }
        format!("{{{}}}", fields.join(","))
    }

    fn list(&mut self, most: usize, item: impl Fn(&mut Self) -> String) -> String {
        let items: Vec<_> = (0..self.dice.roll(most)).map(|_| item(self)).collect();
        format!("[{}]", items.join(","))
    }

    fn id(&mut self) -> String {
        format!("\"{}\"", self.dice.one_of(&self.ids))
    }

    /// Any JSON, and some that is none.
    fn value(&mut self) -> String {
        match self.dice.roll(12) {
            0 => "null".into(),
            1 => "{}".into(),
            2 => self.id(),
            3 => "[1,[2,{\"a\":[]}]]".into(),
            4 => format!("{{\"a\":{},\"a\":{}}}", self.count(), self.count())
                .replace("1e309", "1e30"),
            5 => {
                let depth = *self.dice.one_of(&[2, 60, 110, 129, 3_000]);
                format!("{}{}", "[".repeat(depth), "]".repeat(depth))
            }
            6 => format!("\"{}\"", "long ".repeat(self.dice.roll(2_000))),
            7 => "true".into(),
            // Any JSON is kept as it came, but a reader of floats has no number for this one.
            _ => self.number().replace("1e309", "1e30"),
        }
    }

    fn number(&mut self) -> String {
        let numbers = [
            "0",
            "-0",
            "1",
            "-1",
            "0.5",
            "1e308",
            "-1e308",
            "1e309",
            "5e-324",
            "1e-999",
            "NaN",
            "Infinity",
            "4294967295",
            "4294967296",
            "18446744073709551616",
            "-9223372036854775809",
            "100",
            "101",
            "86400.0001",
        ];
        (*self.dice.one_of(&numbers)).to_owned()
    }

    /// A number that a field may well take, most of the time.
    fn count(&mut self) -> String {
        match self.dice.roll(3) {
            0 => self.number(),
            _ => self.dice.roll(3).to_string(),
        }
    }

    fn message(&mut self) -> String {
        let role = *self
            .dice
            .one_of(&["user", "assistant", "tool", "system", "robot"]);
        let mut fields = vec![format!("\"role\":\"{role}\"")];
        if self.dice.roll(2) == 0 {
            fields.push(format!("\"id\":{}", self.id()));
        }
        if self.dice.roll(3) > 0 {
            fields.push("\"content\":\"x\"".into());
        } else if self.dice.roll(3) == 0 {
            fields.push(format!("\"content\":{}", self.value()));
        }
        if role == "tool" && self.dice.roll(8) > 0 {
            fields.push(format!("\"tool_call_id\":{}", self.id()));
        }
        if self.dice.roll(4) == 0 {
            let calls = self.list(4, |g| {
                format!(
                    "{{\"id\":{},\"function\":{{\"name\":{},\"arguments\":\"{{\"}}}}",
                    g.id(),
                    g.id()
                )
            });
            fields.push(format!("\"tool_calls\":{calls}"));
        }
        if self.dice.roll(8) == 0 {
            fields.push(format!("\"extra\":{}", self.value()));
        }
        format!("{{{}}}", fields.join(","))
    }

    fn retry(&mut self) -> String {
        format!(
            "{{\"timeout_secs\":{},\"max_retries\":{},\"backoff_base_secs\":{},\"backoff_max_secs\":{}}}",
            self.count(),
            self.count(),
            self.count(),
            self.count()
        )
    }

    fn schema(&mut self) -> String {
        let schemas = [
            "true",
            "false",
            "{}",
            "7",
            "[]",
            "{\"type\":\"object\"}",
            "{\"$ref\":\"#\"}",
            "{\"properties\":{\"a\":{\"$ref\":\"#\"}}}",
            "{\"$ref\":\"file:///etc/passwd\"}",
            "{\"pattern\":\"(\"}",
            "{\"required\":[\"a\"]}",
            "{\"maxLength\":-1}",
            "{\"not\":{\"$ref\":\"#\"}}",
        ];
        (*self.dice.one_of(&schemas)).to_owned()
    }

    fn tool(&mut self) -> String {
        let mut fields = vec![format!("\"name\":{}", self.id())];
        if self.dice.roll(2) == 0 {
            fields.push(format!("\"input\":{}", self.schema()));
        }
        if self.dice.roll(4) == 0 {
            fields.push(format!("\"output\":{}", self.schema()));
        }
        if self.dice.roll(3) == 0 {
            fields.push(format!("\"handler\":{}", self.handler()));
        }
        format!("{{{}}}", fields.join(","))
    }

    fn handler(&mut self) -> String {
        (*self.dice.one_of(&[
            "\"worker\"",
            "\"client\"",
            "\"server\"",
            "null",
            "\"nobody\"",
        ]))
        .to_owned()
    }

    fn agent(&mut self) -> String {
        let mut fields = vec![format!("\"model\":{}", self.id())];
        if self.dice.roll(2) == 0 {
            fields.push(format!("\"tools\":{}", self.list(4, Self::tool)));
        }
        if self.dice.roll(3) == 0 {
            fields.push(format!(
                "\"sub_agents\":{}",
                self.list(3, |g| format!("{{\"id\":{}}}", g.id()))
            ));
        }
        if self.dice.roll(4) == 0 {
            fields.push(format!("\"retry\":{}", self.retry()));
        }
        if self.dice.roll(4) == 0 {
            fields.push(format!("\"handler\":{}", self.handler()));
        }
        if self.dice.roll(8) == 0 {
            fields.push("\"format\":\"openai\"".into());
        }
        format!("{{{}}}", fields.join(","))
    }

    fn action(&mut self) -> String {
        let kinds = [
            "llm.call",
            "tool.call",
            "tool.result",
            "tool.error",
            "llm.result",
            "llm.error",
            "sub_agent.spawn",
            "message.send",
            "interrupt",
            "done",
            "dance",
        ];
        let kind = *self.dice.one_of(&kinds);
        let mut fields = vec![format!("\"type\":\"{kind}\"")];
        let mut sometimes = |one_in: usize, field: &str, value: &dyn Fn(&mut Self) -> String| {
            if self.dice.roll(one_in) == 0 {
                fields.push(format!("\"{field}\":{}", value(self)));
            }
        };
        match kind {
            "llm.call" => {
                sometimes(3, "id", &Self::id);
                sometimes(4, "model", &Self::id);
                sometimes(4, "messages", &|g| g.list(4, Self::message));
                sometimes(4, "tools", &|g| g.list(4, Self::tool));
                sometimes(4, "temperature", &Self::number);
                sometimes(4, "max_completion_tokens", &Self::count);
                sometimes(4, "retry", &Self::retry);
                sometimes(4, "handler", &Self::handler);
            }
            "tool.call" => {
                sometimes(2, "id", &Self::id);
                sometimes(1, "name", &Self::id);
                sometimes(2, "arguments", &Self::value);
                sometimes(4, "retry", &Self::retry);
                sometimes(4, "handler", &Self::handler);
            }
            "tool.result" | "tool.error" | "llm.error" => {
                sometimes(2, "id", &Self::id);
                sometimes(3, "attempt", &Self::count);
                sometimes(2, "result", &Self::value);
                sometimes(1, "error", &Self::id);
                sometimes(3, "retryable", &|_| "true".into());
                sometimes(4, "detail", &Self::value);
            }
            "llm.result" => {
                sometimes(2, "id", &Self::id);
                sometimes(3, "attempt", &Self::count);
                sometimes(1, "response", &|g| match g.dice.roll(3) {
                    0 => g.value(),
                    _ => format!(
                        "{{\"content\":\"x\",\"cost\":{},\"usage\":{},\"extra\":{},\"finish_reason\":\"length\"}}",
                        [
                            "\"-1\"",
                            "\"1e9\"",
                            "\"\"",
                            "\"99999999999999999999999999999\""
                        ][g.dice.roll(4)],
                        g.value(),
                        g.value()
                    ),
                });
            }
            "sub_agent.spawn" => {
                sometimes(1, "session_id", &Self::id);
                sometimes(1, "agent_id", &Self::id);
                sometimes(1, "tool_call_id", &Self::id);
                sometimes(4, "retry", &Self::retry);
            }
            "message.send" => {
                sometimes(1, "session_id", &Self::id);
                sometimes(1, "message", &Self::message);
            }
            "interrupt" => sometimes(1, "reason", &Self::id),
            _ => sometimes(2, "data", &Self::value),
        }
        format!("{{{}}}", fields.join(","))
    }
}
