//! `belljar chat`: a conversation on a terminal, or a pipe.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::ChatArgs;
use crate::client::Client;
use crate::push::text;

pub(crate) async fn run(args: ChatArgs) -> Result<()> {
    let client = Client::new(&args.server.server)?;
    client.get(&format!("/v1/agents/{}", args.agent)).await?;
    let session = args
        .session
        .unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    eprintln!("session {session}; end with Ctrl-D");
    let mut talk = Talk::open(client, &args.agent, &session).await?;
    talk.from_stdin().await
}

/// One side of a conversation: says lines, shows what comes back.
pub(crate) struct Talk {
    client: Client,
    agent: String,
    session: String,
    /// The last seq that was shown.
    seen: u64,
}

/// What one turn brought.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// What the assistant said.
    pub(crate) said: String,
    /// Paths of delivered files.
    pub(crate) delivered: Vec<String>,
    /// Why it failed.
    pub(crate) error: Option<String>,
}

impl Talk {
    /// A conversation in a session, new or not; what was said before is not shown again.
    pub(crate) async fn open(client: Client, agent: &str, session: &str) -> Result<Self> {
        let seen = match client.get(&format!("/v1/sessions/{session}/state")).await {
            Ok(state) => state["seq"].as_u64().unwrap_or(0),
            // A session nobody has spoken to begins with the first line.
            Err(error) if error.to_string().starts_with("session_unknown") => 0,
            Err(error) => return Err(error),
        };
        Ok(Self {
            client,
            agent: agent.to_owned(),
            session: session.to_owned(),
            seen,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Says lines of standard input until it ends. A turn that fails is shown and not the end,
    /// unless nobody is there to react.
    pub(crate) async fn from_stdin(&mut self) -> Result<()> {
        let person = std::io::stdin().is_terminal();
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        loop {
            if person {
                print!("> ");
                std::io::stdout().flush()?;
            }
            let Some(line) = lines.next_line().await.context("reading standard input")? else {
                return Ok(());
            };
            if line.trim().is_empty() {
                continue;
            }
            match self.say(&line).await {
                Ok(turn) => {
                    if let (Some(error), false) = (turn.error, person) {
                        bail!("the turn failed: {error}");
                    }
                }
                Err(error) if person => eprintln!("{error:#}"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Says one line and shows the turn as it happens.
    pub(crate) async fn say(&mut self, line: &str) -> Result<Turn> {
        let input = json!({
            "type": "client.message",
            "agent_id": self.agent,
            "message": { "role": "user", "content": line },
        });
        let accepted = self
            .client
            .post(&format!("/v1/sessions/{}/input", self.session), &input)
            .await?;
        let turn_id = text(&accepted, "turn_id").to_owned();
        let mut turn = Turn::default();
        let mut shown = Shown::default();
        // A stream that breaks is taken up again where it was.
        for _ in 0..100 {
            let path = format!(
                "/v1/sessions/{}/log?after={}&turn_id={turn_id}",
                self.session, self.seen
            );
            let mut frames = self.client.stream(&path).await?;
            while let Ok(Some(frame)) = frames.next().await {
                let data: Value = serde_json::from_str(&frame.data).unwrap_or_default();
                if let Some(seq) = frame.id.as_deref().and_then(|id| id.parse().ok()) {
                    self.seen = seq;
                }
                if shown.show(&frame.event, &data, &mut turn)
                    && text(&data["event"], "turn_id") == turn_id
                {
                    return Ok(turn);
                }
            }
        }
        bail!(
            "the stream of session {} broke off again and again",
            self.session
        )
    }
}

/// What is on the screen.
#[derive(Default)]
struct Shown {
    /// Tokens of this call and attempt are on the line.
    streaming: Option<(String, u64)>,
    /// Replies whose tokens were shown as they came.
    streamed: Vec<String>,
}

impl Shown {
    /// Shows one frame. True: a turn ended.
    fn show(&mut self, kind: &str, data: &Value, turn: &mut Turn) -> bool {
        let event = &data["event"];
        match kind {
            "llm.token.delta" => {
                let Some(piece) = data["text"].as_str() else {
                    return false;
                };
                let call = (
                    text(data, "call_id").to_owned(),
                    data["attempt"].as_u64().unwrap_or(0),
                );
                if self.streaming.as_ref() != Some(&call) {
                    // A further attempt replaces what the one before it said.
                    self.end_line();
                    self.streamed.push(call.0.clone());
                    self.streaming = Some(call);
                }
                print!("{}", printable(piece));
                flush();
            }
            "call.requested" => {
                let work = &event["call"]["work"];
                if work["type"] == "tool_call" {
                    self.line(&format!(
                        "  → {} {}",
                        text(work, "name"),
                        text(work, "arguments")
                    ));
                }
            }
            "call.settled" => {
                let outcome = &event["outcome"];
                match text(outcome, "type") {
                    "result" => self.line(&format!("  ← {}", text(outcome, "text"))),
                    "error" => self.line(&format!("  ✗ {}", text(outcome, "message"))),
                    _ => {}
                }
            }
            "call.retry_scheduled" => {
                self.line(&format!(
                    "  … {}; trying again",
                    text(&event["error"], "message")
                ));
            }
            "file.delivered" => {
                let file = &event["file"];
                self.line(&format!(
                    "  delivered {} ({} bytes)",
                    text(file, "path"),
                    file["bytes"]
                ));
                turn.delivered.push(text(file, "path").to_owned());
            }
            "messages.recorded" => {
                for message in event["messages"].as_array().into_iter().flatten() {
                    let said = text(message, "content");
                    if message["role"] != "assistant" || said.is_empty() {
                        continue;
                    }
                    turn.said = said.to_owned();
                    if !self.streamed.iter().any(|call| call == text(message, "id")) {
                        self.line(said);
                    }
                }
            }
            "turn.ended" => {
                self.end_line();
                if event["status"] == "failed" {
                    let error = format!(
                        "{}: {}",
                        text(&event["error"], "code"),
                        text(&event["error"], "message")
                    );
                    self.line(&format!("  ✗ the turn failed: {error}"));
                    turn.error = Some(error);
                }
                return true;
            }
            _ => {}
        }
        false
    }

    fn line(&mut self, line: &str) {
        self.end_line();
        println!("{}", printable(line));
    }

    fn end_line(&mut self) {
        if self.streaming.take().is_some() {
            println!();
        }
    }
}

/// Text of others on a terminal: control bytes would be commands to it.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

fn flush() {
    // A terminal that is gone is noticed by the next line.
    drop(std::io::stdout().flush());
}
