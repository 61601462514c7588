//! `belljar chat`: a conversation on a terminal, or a pipe.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar_protocol::problem::Problem;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::ChatArgs;
use crate::client::{Client, Frames, segment};
use crate::push::text;
use crate::show::{Show, Turn};

/// How often a stream that breaks is taken up again, and how long to wait before each time: a
/// server that restarts is back by then.
const RESUMES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: ChatArgs) -> Result<()> {
    let client = Client::new(&args.server.server)?;
    client
        .get(&format!("/v1/agents/{}", segment(&args.agent)))
        .await?;
    let session = args
        .session
        .unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let mut talk = Talk::open(client, &args.agent, &session).await?;
    eprintln!("session {session}; end with Ctrl-D");
    talk.say_lines().await
}

/// One side of a conversation: says lines, shows what comes back.
pub(crate) struct Talk {
    client: Client,
    agent: String,
    /// The session's path.
    path: String,
    /// The last seq that was shown; none while there is no session.
    seen: Option<u64>,
}

impl Talk {
    /// A conversation in a session, new or not; what was said before is not shown again.
    pub(crate) async fn open(client: Client, agent: &str, session: &str) -> Result<Self> {
        let path = format!("/v1/sessions/{}", segment(session));
        let seen = match client.get(&format!("{path}/state")).await {
            Ok(state) => state["seq"].as_u64(),
            // A session nobody has spoken to begins with the first line.
            Err(error) if is(&error, "session_unknown") => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            client,
            agent: agent.to_owned(),
            path,
            seen,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Says lines of standard input until it ends. A turn that fails is shown and not the end,
    /// unless nobody is there to react.
    pub(crate) async fn say_lines(&mut self) -> Result<()> {
        let person = std::io::stdin().is_terminal();
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        loop {
            if person {
                let mut screen = std::io::stdout();
                screen.write_all(b"> ")?;
                screen.flush()?;
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
        let turn_id = uuid::Uuid::now_v7().to_string();
        // Before anything is said, so that no token is missed; a session that is not there yet
        // cannot be watched.
        let mut frames = match self.seen {
            Some(_) => Some(self.watch(&turn_id).await?),
            None => None,
        };
        let input = json!({
            "type": "client.message",
            "agent_id": self.agent,
            "turn_id": turn_id,
            "message": { "role": "user", "content": line },
        });
        let accepted = self
            .client
            .post(&format!("{}/input", self.path), &input)
            .await?;
        let mut show = Show::new(std::io::stdout(), text(&accepted, "turn_id"));
        for resumed in 0..RESUMES {
            if resumed > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let mut frames = match frames.take() {
                Some(frames) => frames,
                None => match self.watch(&turn_id).await {
                    Ok(frames) => frames,
                    Err(error) if error.is::<Problem>() => return Err(error),
                    // The server is gone; it may come back.
                    Err(_) if resumed > 0 => continue,
                    Err(error) => return Err(error),
                },
            };
            while let Ok(Some(frame)) = frames.next().await {
                if let Some(seq) = frame.id.as_deref().and_then(|id| id.parse().ok()) {
                    self.seen = Some(seq);
                }
                show.frame(&frame)?;
                if show.turn.ended {
                    return Ok(show.turn);
                }
            }
            show.broke()?;
        }
        bail!("the stream of {} broke off again and again", self.path)
    }

    /// The log after what was shown, until a turn's end.
    async fn watch(&self, turn_id: &str) -> Result<Frames> {
        let after = self.seen.unwrap_or(0);
        let path = format!("{}/log?after={after}&turn_id={turn_id}", self.path);
        self.client.stream(&path).await
    }
}

/// Whether the server refused with this code.
fn is(error: &anyhow::Error, code: &str) -> bool {
    error
        .downcast_ref::<Problem>()
        .is_some_and(|problem| problem.code == code)
}
