//! Durable turns: message, model, tool, model, done. The model answers in this process, all else
//! is real.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use belljar_protocol::sse::Reader;
use belljar_server::{HttpConfig, http};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::bare::Bare;
use crate::report::{Figure, Report, Times};
use crate::rig::{self, AGENT, Disk, READ, Rig, Talk, WRITE};

/// Turns measured beside their floor, and turns of a session before the next one takes its
/// place: a model's prompt is linear in the conversation, so all have conversations of one length.
const TURNS: usize = 240;
const TURNS_EACH: usize = 12;

/// Decisions of a turn: about the message, about both replies of the model, and to run the tool
/// and to take its result in.
const DECISIONS: usize = 5;
/// Syncs of a turn: the message, the tool call with the next request, the end.
const SYNCS: usize = 3;

/// How long each level is measured.
const WINDOW: Duration = Duration::from_secs(5);

/// Turns at once; the sessions they go round, more than there are turns at once where a session
/// would get too long; what Restate 1.7 does of three durable steps on such a machine.
const LEVELS: [Level; 3] = [
    Level {
        at_once: 1,
        sessions: 60,
        name: "durable turns, 1 session",
        others: 155.0,
        note: "Restate 1.7: 155, DBOS on SQLite: 144",
    },
    Level {
        at_once: 16,
        sessions: 256,
        name: "durable turns, 16 sessions",
        others: 634.0,
        note: "Restate 1.7: 634",
    },
    Level {
        at_once: 256,
        sessions: 512,
        name: "durable turns, 256 sessions",
        others: 1_227.0,
        note: "Restate 1.7: 1227",
    },
];

struct Level {
    at_once: usize,
    sessions: usize,
    name: &'static str,
    others: f64,
    note: &'static str,
}

pub(crate) fn run(runtime: &Runtime, report: &mut Report) -> Result<()> {
    let rig = Arc::new(runtime.block_on(Rig::new(Duration::from_secs(60)))?);
    for (text, what) in [
        (READ, "durable turn over its floor"),
        (WRITE, "the same, its tool writes a file"),
    ] {
        beside_its_floor(runtime, report, &rig, text, what)?;
    }
    for level in &LEVELS {
        at_once(runtime, report, &rig, level)?;
    }
    over_http(runtime, report, &rig)
}

/// One turn at a time, each followed by its floor: three syncs, and as many decisions on bare
/// wasmtime as it has.
fn beside_its_floor(
    runtime: &Runtime,
    report: &mut Report,
    rig: &Arc<Rig>,
    text: &'static str,
    name: &'static str,
) -> Result<()> {
    let bare = Arc::new(Bare::new(&rig::guest("ledger")?)?);
    let mut disk = Disk::new(rig.data.path())?;
    let (mut turns, mut floors, mut syncs) = (Times::default(), Times::default(), Times::default());
    let mut deciding = Times::default();
    let (mut transactions, mut commits, mut decisions) = (0, 0, 0);
    let mut talk = None;
    for turn in 0..TURNS {
        if turn % TURNS_EACH == 0 {
            let session = format!("one {name} {turn}").replace([' ', ','], "-");
            talk = Some(runtime.block_on(rig.talk(session))?);
        }
        let mut now = talk.take().context("a session")?;
        rig.decisions.take();
        let before = rig.store.counters();
        let shared = rig.clone();
        // On a worker of the runtime, as a request of a client is.
        let (now, time) = runtime.block_on(async {
            tokio::spawn(async move {
                let time = now.turn(&shared, text).await?;
                anyhow::Ok((now, time))
            })
            .await?
        })?;
        talk = Some(now);
        let after = rig.store.counters();
        turns.push(time);
        let (count, seconds) = rig.decisions.take();
        decisions += count;
        deciding.push(Duration::from_secs_f64(seconds));
        transactions += after.transactions - before.transactions;
        commits += after.commits - before.commits;
        let bare = bare.clone();
        let mut floor = runtime.block_on(async {
            tokio::spawn(async move {
                let mut floor = Duration::ZERO;
                for _ in 0..DECISIONS {
                    floor += bare.decide().await?;
                }
                anyhow::Ok(floor)
            })
            .await?
        })?;
        for _ in 0..SYNCS {
            let sync = disk.sync()?;
            syncs.push(sync);
            floor += sync;
        }
        floors.push(floor);
    }
    report.add(
        Figure::new(name, turns.median(), "µs")
            .over(floors.median())
            .aim(2.0)
            .note(format!(
                "p99 {:.0} µs; its {:.1} decisions take {:.0} µs, a bare sync {:.0} µs",
                turns.quantile(0.99),
                decisions as f64 / TURNS as f64,
                deciding.median(),
                syncs.median()
            )),
    );
    if text == READ {
        report.add(
            Figure::new(
                "syncs per turn",
                transactions as f64 / TURNS as f64,
                "syncs",
            )
            .aim(SYNCS as f64)
            .note(format!("{:.1} commits", commits as f64 / TURNS as f64)),
        );
    }
    Ok(())
}

fn at_once(runtime: &Runtime, report: &mut Report, rig: &Arc<Rig>, level: &Level) -> Result<()> {
    let each = level.sessions.div_ceil(level.at_once);
    let (times, elapsed, used, syncs, commits) = runtime.block_on(async {
        let mut warming = JoinSet::new();
        for lane in 0..level.at_once {
            let rig = rig.clone();
            let at_once = level.at_once;
            warming.spawn(async move {
                let mut talks = Vec::new();
                for ix in 0..each {
                    talks.push(rig.talk(format!("at-{at_once}-{lane}-{ix}")).await?);
                }
                anyhow::Ok(talks)
            });
        }
        let mut ready = Vec::new();
        while let Some(talks) = warming.join_next().await {
            ready.push(talks??);
        }
        let (before, used) = (rig.store.counters(), rig::processor()?);
        let started = Instant::now();
        let mut lanes = JoinSet::new();
        for talks in ready {
            lanes.spawn(lane(rig.clone(), talks, started));
        }
        let mut times = Times::default();
        while let Some(lane) = lanes.join_next().await {
            times.extend(lane??);
        }
        let elapsed = started.elapsed();
        let after = rig.store.counters();
        anyhow::Ok((
            times,
            elapsed,
            rig::processor()? - used,
            after.transactions - before.transactions,
            after.commits - before.commits,
        ))
    })?;
    let turns = times.len() as f64;
    report.add(
        Figure::new(level.name, turns / elapsed.as_secs_f64(), "turns/s")
            .aim(2.0 * level.others)
            .note(format!(
                "p50 {:.1} ms, p99 {:.1} ms; {:.2} syncs, {:.1} commits, {:.0} µs of processor a turn ({})",
                times.quantile(0.5) / 1e3,
                times.quantile(0.99) / 1e3,
                syncs as f64 / turns,
                commits as f64 / turns,
                used * 1e6 / turns,
                level.note,
            )),
    );
    Ok(())
}

/// Turns one after the other until the time is up, each in the next session.
async fn lane(rig: Arc<Rig>, mut talks: Vec<Talk>, started: Instant) -> Result<Times> {
    let mut times = Times::default();
    let mut next = 0;
    while started.elapsed() < WINDOW {
        times.push(talks[next].turn(&rig, READ).await?);
        next = (next + 1) % talks.len();
    }
    Ok(times)
}

/// The same through the server: an input over loopback HTTP, its end on an event stream.
fn over_http(runtime: &Runtime, report: &mut Report, rig: &Arc<Rig>) -> Result<()> {
    const AT_ONCE: usize = 16;
    const SESSIONS: usize = 8;
    // Set once for the process; an error means that it is set.
    drop(rustls::crypto::ring::default_provider().install_default());
    let (times, elapsed) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("http://{}/v1/sessions", listener.local_addr()?);
        let served = http::serve(
            listener,
            rig.host.clone(),
            HttpConfig::default(),
            std::future::pending(),
        );
        let server = tokio::spawn(served);
        let client = reqwest::Client::builder().no_proxy().build()?;
        let mut warming = JoinSet::new();
        for lane in 0..AT_ONCE {
            let (rig, base, client) = (rig.clone(), base.clone(), client.clone());
            warming.spawn(async move {
                let mut streams = Vec::new();
                for ix in 0..SESSIONS {
                    let name = format!("http-{lane}-{ix}");
                    drop(rig.talk(name.clone()).await?);
                    streams.push(Stream::open(&client, format!("{base}/{name}")).await?);
                }
                anyhow::Ok(streams)
            });
        }
        let mut ready = Vec::new();
        while let Some(streams) = warming.join_next().await {
            ready.push(streams??);
        }
        let started = Instant::now();
        let mut lanes = JoinSet::new();
        for mut streams in ready {
            lanes.spawn(async move {
                let mut times = Times::default();
                let mut next = 0;
                while started.elapsed() < WINDOW {
                    times.push(streams[next].turn().await?);
                    next = (next + 1) % streams.len();
                }
                anyhow::Ok(times)
            });
        }
        let mut times = Times::default();
        while let Some(lane) = lanes.join_next().await {
            times.extend(lane??);
        }
        let elapsed = started.elapsed();
        server.abort();
        anyhow::Ok((times, elapsed))
    })?;
    report.add(
        Figure::new(
            "the same over HTTP, 16 sessions",
            times.len() as f64 / elapsed.as_secs_f64(),
            "turns/s",
        )
        .note(format!(
            "p50 {:.1} ms, p99 {:.1} ms; the clients run in this process",
            times.quantile(0.5) / 1e3,
            times.quantile(0.99) / 1e3,
        )),
    );
    Ok(())
}

/// A session over HTTP, with its event stream.
struct Stream {
    client: reqwest::Client,
    url: String,
    events: reqwest::Response,
    reader: Reader,
}

impl Stream {
    /// Follows a session whose first turn is over.
    async fn open(client: &reqwest::Client, url: String) -> Result<Self> {
        let events = client
            .get(format!("{url}/log"))
            .header("accept", "text/event-stream")
            .send()
            .await?
            .error_for_status()?;
        let mut stream = Self {
            client: client.clone(),
            url,
            events,
            reader: Reader::default(),
        };
        stream.ends().await?;
        Ok(stream)
    }

    async fn turn(&mut self) -> Result<Duration> {
        let started = Instant::now();
        let input = serde_json::json!({
            "type": "client.message",
            "agent_id": AGENT,
            "message": {"role": "user", "content": READ},
        });
        let posted = self
            .client
            .post(format!("{}/input", self.url))
            .header("content-type", "application/json")
            .body(input.to_string());
        // The answer comes once the input is on disk; its end may be seen first.
        let (answer, ended) = tokio::join!(posted.send(), self.ends());
        answer?.error_for_status()?;
        ended?;
        Ok(started.elapsed())
    }

    async fn ends(&mut self) -> Result<()> {
        while let Some(chunk) = self.events.chunk().await? {
            let frames = self.reader.push(&chunk);
            if frames.iter().any(|frame| frame.event == "turn.ended") {
                return Ok(());
            }
        }
        bail!("the event stream ended")
    }
}
