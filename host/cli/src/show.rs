//! A turn as a person sees it, frame by frame.

use std::collections::HashMap;
use std::io::{Result, Write};

use belljar_protocol::sse::Frame;
use serde_json::Value;

use crate::push::text;

/// What one turn brought.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// What the assistant said last.
    pub(crate) said: String,
    /// Paths and lengths of delivered files.
    pub(crate) delivered: Vec<(String, u64)>,
    /// Why it failed.
    pub(crate) error: Option<String>,
    /// Whether it is over.
    pub(crate) ended: bool,
}

/// Shows a turn's frames on a screen.
pub(crate) struct Show<W> {
    screen: W,
    turn_id: String,
    /// Tokens of this call and attempt are on the line.
    line: Option<(String, u64)>,
    /// What was shown of replies as they came, by call.
    shown: HashMap<String, String>,
    pub(crate) turn: Turn,
}

impl<W: Write> Show<W> {
    pub(crate) fn new(screen: W, turn_id: &str) -> Self {
        Self {
            screen,
            turn_id: turn_id.to_owned(),
            line: None,
            shown: HashMap::new(),
            turn: Turn::default(),
        }
    }

    /// Shows one frame.
    ///
    /// # Errors
    /// The screen is gone.
    pub(crate) fn frame(&mut self, frame: &Frame) -> Result<()> {
        let data: Value = serde_json::from_str(&frame.data).unwrap_or_default();
        let event = &data["event"];
        match frame.event.as_str() {
            "llm.token.delta" => self.token(&data),
            "call.requested" if event["call"]["work"]["type"] == "tool_call" => {
                let work = &event["call"]["work"];
                let (name, arguments) = (text(work, "name"), text(work, "arguments"));
                self.line(&format!("  → {name} {arguments}"))
            }
            "call.settled" => {
                let outcome = &event["outcome"];
                match text(outcome, "type") {
                    "result" => self.line(&format!("  ← {}", text(outcome, "text"))),
                    "error" => self.line(&format!("  ✗ {}", text(outcome, "message"))),
                    _ => Ok(()),
                }
            }
            "call.retry_scheduled" => {
                let error = text(&event["error"], "message");
                self.line(&format!("  … {error}; trying again"))
            }
            "file.delivered" => {
                let file = &event["file"];
                let (path, bytes) = (text(file, "path"), file["bytes"].as_u64().unwrap_or(0));
                self.turn.delivered.push((path.to_owned(), bytes));
                self.line(&format!("  delivered {path} ({bytes} bytes)"))
            }
            "messages.recorded" => {
                let messages = event["messages"].as_array();
                messages
                    .into_iter()
                    .flatten()
                    .try_for_each(|message| self.message(message))
            }
            "turn.ended" if text(event, "turn_id") == self.turn_id => self.end(event),
            _ => Ok(()),
        }
    }

    /// What came before is broken off: the stream is taken up again.
    pub(crate) fn broke(&mut self) -> Result<()> {
        self.end_line()
    }

    fn token(&mut self, data: &Value) -> Result<()> {
        let Some(piece) = data["text"].as_str() else {
            return Ok(());
        };
        let call = text(data, "call_id").to_owned();
        let attempt = (call.clone(), data["attempt"].as_u64().unwrap_or(0));
        if self.line.as_ref() != Some(&attempt) {
            // A further attempt replaces what the one before it said.
            self.end_line()?;
            self.shown.remove(&call);
            self.line = Some(attempt);
        }
        self.shown.entry(call).or_default().push_str(piece);
        write!(self.screen, "{}", printable(piece))?;
        self.screen.flush()
    }

    /// A recorded message. Tokens may have been missed, so it is compared with what was shown.
    fn message(&mut self, message: &Value) -> Result<()> {
        let (id, said) = (text(message, "id"), text(message, "content"));
        if message["role"] != "assistant" || said.is_empty() {
            return Ok(());
        }
        self.turn.said = said.to_owned();
        // A reply has the id of its call.
        let shown = self.shown.get(id).map_or("", String::as_str);
        let on_the_line = self.line.as_ref().is_some_and(|(call, _)| call == id);
        match said.strip_prefix(shown) {
            Some("") => Ok(()),
            Some(rest) if on_the_line => write!(self.screen, "{}", printable(rest)),
            _ => self.line(said),
        }
    }

    fn end(&mut self, event: &Value) -> Result<()> {
        self.turn.ended = true;
        if event["status"] == "failed" {
            let error = &event["error"];
            let error = format!("{}: {}", text(error, "code"), text(error, "message"));
            self.line(&format!("  ✗ the turn failed: {error}"))?;
            self.turn.error = Some(error);
        }
        self.end_line()
    }

    fn line(&mut self, line: &str) -> Result<()> {
        self.end_line()?;
        writeln!(self.screen, "{}", printable(line))
    }

    fn end_line(&mut self) -> Result<()> {
        match self.line.take() {
            Some(_) => writeln!(self.screen),
            None => Ok(()),
        }
    }
}

/// Text of others on a terminal: control bytes would be commands to it.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(frames: &[(&str, Value)]) -> (String, Turn) {
        let mut screen = Vec::new();
        let mut show = Show::new(&mut screen, "t");
        for (event, data) in frames {
            let frame = Frame {
                event: (*event).into(),
                data: data.to_string(),
                id: None,
            };
            show.frame(&frame).unwrap();
        }
        let turn = show.turn;
        (String::from_utf8(screen).unwrap(), turn)
    }

    fn token(text: &str, attempt: u32) -> (&'static str, Value) {
        let data = json!({ "call_id": "k", "attempt": attempt, "text": text });
        ("llm.token.delta", data)
    }

    fn reply(text: &str) -> (&'static str, Value) {
        let message = json!({ "id": "k", "role": "assistant", "content": text });
        let event = json!({ "type": "messages.recorded", "messages": [message] });
        ("messages.recorded", json!({ "seq": 1, "event": event }))
    }

    fn end(turn: &str) -> (&'static str, Value) {
        (
            "turn.ended",
            json!({ "event": { "turn_id": turn, "status": "completed" } }),
        )
    }

    #[test]
    fn a_reply_is_shown_once_and_whole_whichever_tokens_came() {
        for (tokens, screen) in [
            (vec![], "hello\n"),
            (vec![token("he", 1), token("llo", 1)], "hello\n"),
            (vec![token("he", 1)], "hello\n"),
            // The beginning was missed: the end alone would be another sentence.
            (vec![token("llo", 1)], "llo\nhello\n"),
            (vec![token("hi", 1), token("hello", 2)], "hi\nhello\n"),
        ] {
            let frames = [tokens, vec![reply("hello"), end("t")]].concat();
            let (shown, turn) = shown(&frames);
            assert_eq!(shown, screen, "{frames:?}");
            assert_eq!((turn.said.as_str(), turn.ended), ("hello", true));
        }
    }

    #[test]
    fn tools_files_and_failures_have_lines_of_their_own() {
        let work = json!({ "type": "tool_call", "name": "add", "arguments": "{}" });
        let error = json!({ "code": "stalled", "message": "nothing is open" });
        let (shown, turn) = shown(&[
            token("let me see", 1),
            (
                "call.requested",
                json!({ "event": { "call": { "work": work } } }),
            ),
            (
                "file.delivered",
                json!({ "event": { "file": { "path": "a.md", "bytes": 3 } } }),
            ),
            (
                "call.settled",
                json!({ "event": { "outcome": { "type": "result", "text": "3" } } }),
            ),
            end("another"),
            (
                "turn.ended",
                json!({ "event": { "turn_id": "t", "status": "failed", "error": error } }),
            ),
        ]);
        let lines = [
            "let me see",
            "  → add {}",
            "  delivered a.md (3 bytes)",
            "  ← 3",
            "  ✗ the turn failed: stalled: nothing is open",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), lines);
        assert_eq!(turn.delivered, [("a.md".to_owned(), 3)]);
        assert_eq!(turn.error.as_deref(), Some("stalled: nothing is open"));
    }

    #[test]
    fn what_others_say_does_not_command_the_terminal() {
        let (shown, _) = shown(&[token("\u{1b}[2Jred\u{7}", 1), end("t")]);
        assert_eq!(shown, "[2Jred\n");
    }
}
