//! One story: entries, a balance, a report, a swap, an undo. It goes on over any number of
//! deaths of the server, and must end the same.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{Server, kill};

/// An agent, and what it is swapped for.
pub(crate) struct Agent {
    pub(crate) first: &'static str,
    pub(crate) next: &'static str,
}

pub(crate) const RUST: Agent = Agent {
    first: "ledger",
    next: "ledger-v2",
};
pub(crate) const PYTHON: Agent = Agent {
    first: "ledger-py",
    next: "ledger-v2",
};

/// What is said, turn by turn; the swap happens before the turn after `SWAP_BEFORE`.
const LINES: &[&str] = &[
    "coffee 3.50",
    "add lunch 12.25, tea 2",
    "balance",
    "report",
    "balance",
    "undo",
    "report",
];
const SWAP_BEFORE: usize = 4;
const SESSION: &str = "story";

/// Role, text, tools called with their arguments.
type Line = (String, String, Vec<(String, String)>);

/// What is left at the end: equal however often the server died.
#[derive(Debug, PartialEq)]
pub(crate) struct Ending {
    /// Role, text, tools called with their arguments.
    pub(crate) transcript: Vec<Line>,
    /// sha256 of each file of `/scratch`, the CSV among them.
    pub(crate) scratch: BTreeMap<String, String>,
    /// Contents of the deliveries, in order.
    pub(crate) delivered: Vec<(String, String)>,
    /// How each turn ended.
    pub(crate) turns: Vec<(String, Value)>,
}

/// The story under way.
pub(crate) struct Story {
    data: PathBuf,
    server: Option<Server>,
    /// Environment of the servers to come, first to last; after those, none.
    pub(crate) env: Vec<Vec<(&'static str, String)>>,
    /// Seqs as the subscriber saw them, over all its streams.
    seen: u64,
    /// Deaths the story lived through.
    pub(crate) deaths: u32,
}

impl Story {
    pub(crate) fn new(data: PathBuf) -> Self {
        Self {
            data,
            server: None,
            env: Vec::new(),
            seen: 0,
            deaths: 0,
        }
    }

    /// The server, started if it is not running.
    fn server(&mut self) -> &Server {
        if self.server.is_none() {
            let env = if self.env.is_empty() {
                Vec::new()
            } else {
                self.env.remove(0)
            };
            self.server = Some(Server::start(&self.data, &env));
        }
        self.server.as_ref().unwrap()
    }

    fn died(&mut self) {
        self.server = None;
        self.deaths += 1;
        assert!(self.deaths < 100, "the server dies again and again");
    }

    /// Asks until there is an answer, starting the server again when it is gone.
    async fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        loop {
            if let Some(answer) = self.server().ask(method, path, body).await {
                return answer;
            }
            self.died();
        }
    }

    pub(crate) async fn tell(&mut self) {
        for (n, line) in LINES.iter().enumerate() {
            if n == SWAP_BEFORE {
                self.swap().await;
            }
            self.turn(&format!("t{n}"), line).await;
        }
    }

    async fn swap(&mut self) {
        let (_, versions) = self.ask("GET", "/v1/agents/ledger/versions", None).await;
        let (_, agent) = self.ask("GET", "/v1/agents/ledger", None).await;
        let versions = versions["versions"].as_array().unwrap();
        let next = versions
            .iter()
            .map(|version| &version["version"])
            .find(|version| **version != agent["labels"]["live"]);
        // A death after the move and before its answer: `live` points at the next one already,
        // and the other version is the first.
        let body = json!({ "version": next.unwrap() });
        let (status, moved) = self
            .ask("PUT", "/v1/agents/ledger/labels/live", Some(&body))
            .await;
        assert_eq!(status, 200, "{moved}");
    }

    /// Says a line under a turn id until it is acknowledged, and watches until the turn ends,
    /// however many servers that takes.
    async fn turn(&mut self, turn: &str, line: &str) {
        loop {
            let said = self.server().say(SESSION, turn, line).await;
            match said {
                Some((202, accepted)) => {
                    assert_eq!(accepted["turn_id"], turn);
                    break;
                }
                Some((status, problem)) => panic!("{turn} `{line}`: {status} {problem}"),
                None => self.died(),
            }
        }
        // It is acknowledged: from here on it is never said again.
        loop {
            let after = self.seen;
            let (frames, ended) = self.server().watch(SESSION, after, turn).await;
            for frame in &frames {
                if let Some(id) = &frame.id {
                    let seq: u64 = id.parse().unwrap();
                    assert_eq!(
                        seq,
                        self.seen + 1,
                        "a stream that is resumed has no gap and no repeat"
                    );
                    self.seen = seq;
                }
            }
            if ended {
                let last: Value = serde_json::from_str(&frames.last().unwrap().data).unwrap();
                assert_eq!(
                    last["event"]["status"], "completed",
                    "{turn} `{line}`: {last}"
                );
                return;
            }
            self.died();
        }
    }

    /// Reads the ending off the server.
    pub(crate) async fn ending(&mut self) -> Ending {
        let (_, state) = self
            .ask("GET", &format!("/v1/sessions/{SESSION}/state"), None)
            .await;
        assert_eq!(
            (&state["status"], &state["calls"]),
            (&json!("idle"), &json!([])),
            "{state}"
        );
        assert_eq!(state["seq"], self.seen, "the subscriber saw every event");
        let transcript = state["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(transcribed)
            .collect();
        let (mut scratch, mut turns, mut after) = (BTreeMap::new(), Vec::new(), 0);
        loop {
            let path = format!("/v1/sessions/{SESSION}/log?after={after}&limit=1000");
            let (_, page) = self.ask("GET", &path, None).await;
            let events = page["events"].as_array().unwrap();
            let Some(last) = events.last() else { break };
            after = last["seq"].as_u64().unwrap();
            for event in events.iter().map(|event| &event["event"]) {
                if event["type"] == "scratch.committed" {
                    for (path, entry) in event["change"]["put"].as_object().into_iter().flatten() {
                        let sha256 = entry["file"]["sha256"].as_str().unwrap_or("directory");
                        scratch.insert(path.clone(), sha256.to_owned());
                    }
                }
                if event["type"] == "turn.ended" {
                    turns.push((
                        event["turn_id"].as_str().unwrap().to_owned(),
                        event["data"].clone(),
                    ));
                }
            }
        }
        let (_, files) = self
            .ask("GET", &format!("/v1/sessions/{SESSION}/files"), None)
            .await;
        let mut delivered = Vec::new();
        for file in files["files"].as_array().unwrap() {
            let path = file["path"].as_str().unwrap();
            delivered.push((path.to_owned(), file["sha256"].as_str().unwrap().to_owned()));
        }
        let newest = self
            .server()
            .bytes(&format!("/v1/sessions/{SESSION}/files/report.md"))
            .await
            .unwrap();
        delivered.push((
            "newest report.md".into(),
            String::from_utf8(newest).unwrap(),
        ));
        Ending {
            transcript,
            scratch,
            delivered,
            turns,
        }
    }

    /// Tells the story while the server is killed: in each turn, that long after it began.
    pub(crate) async fn tell_with_kills(&mut self, moments: &[Duration]) {
        for (n, line) in LINES.iter().enumerate() {
            if n == SWAP_BEFORE {
                self.swap().await;
            }
            let process = self.server().process();
            let killer = moments.get(n).map(|wait| {
                let wait = *wait;
                tokio::spawn(async move {
                    tokio::time::sleep(wait).await;
                    kill(&process);
                })
            });
            self.turn(&format!("t{n}"), line).await;
            if let Some(killer) = killer {
                killer.await.unwrap();
            }
        }
    }
}

fn transcribed(message: &Value) -> Line {
    let calls = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| {
            let function = &call["function"];
            (
                function["name"].as_str().unwrap().to_owned(),
                function["arguments"].as_str().unwrap().to_owned(),
            )
        });
    let text = message["content"].as_str().unwrap_or("").to_owned();
    (
        message["role"].as_str().unwrap().to_owned(),
        text,
        calls.collect(),
    )
}

/// What the story must have come to.
pub(crate) fn check(ending: &Ending) {
    let said = |n: usize| ending.turns[n].1.as_str().unwrap();
    assert_eq!(
        ending.turns.len(),
        LINES.len(),
        "each turn ends once: {:?}",
        ending.turns
    );
    assert!(said(0).contains("balance 3.50"));
    assert_eq!(
        said(1).lines().count(),
        2,
        "two tools, one prompt: {}",
        said(1)
    );
    assert_eq!(said(2), "balance 17.75");
    assert_eq!(
        said(4),
        "balance USD 17.75",
        "the next version answers in the same session"
    );
    assert!(said(5).contains("\"tea\" USD 2.00"), "{}", said(5));
    let names: Vec<_> = ending
        .delivered
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["report.md", "report.md", "newest report.md"]);
    assert_ne!(
        ending.delivered[0], ending.delivered[1],
        "a delivered file never changes; a new one is beside it"
    );
    assert!(
        ending.delivered[2].1.contains("USD 15.75"),
        "{}",
        ending.delivered[2].1
    );
    let csv = "description,amount\ncoffee,3.50\nlunch,12.25\n";
    assert_eq!(
        ending.scratch["ledger.csv"],
        belljar_protocol::scratch::Digest::of(csv.as_bytes()).to_string()
    );
}
