//! A decision: beside bare wasmtime, in a session that has grown, and as the first of a process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use belljar_engine::{AnswerIn, Command, Now, State, handle, plan};
use belljar_protocol::Timestamp;
use belljar_protocol::decision::{Answer, Ask, Identity, Trigger};
use belljar_protocol::id::{SessionId, TenantId, VersionId};
use belljar_protocol::input::{ClientInput, MessageInput};
use belljar_protocol::message::{Message, Role};
use belljar_protocol::model::LlmResponse;
use belljar_protocol::ports::{Conclusion, Job, SessionView, Worker};
use belljar_protocol::scratch::Digest;
use belljar_sandbox::{FixedView, Sandbox};
use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::bare::Bare;
use crate::report::{Figure, Report, Times};
use crate::rig::{self, AGENT, OneBlob};

/// Samples of everything that takes microseconds.
const SAMPLES: usize = 3_000;
/// Decisions under way at once, how many each lane makes in a round, and rounds.
const AT_ONCE: usize = 64;
const EACH: u32 = 40;
const ROUNDS: usize = 15;
/// Restarts of the sandbox.
const RESTARTS: usize = 7;

const FEW: usize = 10;
const MANY: usize = 100_000;

pub(crate) fn run(runtime: &Runtime, report: &mut Report) -> Result<()> {
    beside_bare(runtime, report)?;
    many_beside_bare(runtime, report)?;
    in_a_long_session(runtime, report)?;
    after_a_restart(
        runtime,
        report,
        "ledger",
        "first decision after a restart, Rust",
    )?;
    after_a_restart(
        runtime,
        report,
        "ledger-py",
        "first decision after a restart, Python",
    )
}

/// How long a decision took.
struct Took {
    whole: Duration,
    /// On the guests' thread, without the way there and back.
    run: Duration,
}

/// The sandbox with one component, as the driver uses it.
pub(crate) struct Decider {
    sandbox: Sandbox,
    version: VersionId,
}

impl Decider {
    fn new(data: &std::path::Path, component: &Bytes) -> Result<Self> {
        Ok(Self {
            sandbox: rig::sandbox(data, Arc::new(OneBlob(component.clone())))?,
            version: VersionId::from(format!("sha256:{}", Digest::of(component))),
        })
    }

    /// One decision, and how long it took: for the asker, and on the guests' thread. What it wrote
    /// is thrown away.
    async fn decide(&self, ask: Ask, view: Arc<dyn SessionView>) -> Result<(Answer, Took)> {
        let (tenant, session) = (TenantId::built_in(), ask.session_id.clone());
        let job = Job {
            tenant: tenant.clone(),
            version: self.version.clone(),
            ask,
            view,
            scratch: Arc::default(),
            deltas: None,
        };
        let started = Instant::now();
        let decided = self.sandbox.decide(job).await;
        let time = started.elapsed();
        self.sandbox
            .conclude(&tenant, &session, Conclusion::Accepted { generation: 0 });
        let run = Duration::from_micros(decided.run.wall_us);
        match decided.outcome {
            Ok(answer) => Ok((answer, Took { whole: time, run })),
            Err(failure) => bail!("a decision failed: {failure:?}"),
        }
    }

    async fn accepts(&self, ask: Ask, view: Arc<dyn SessionView>) -> Result<Duration> {
        Ok(self.accepting(ask, view).await?.whole)
    }

    async fn accepting(&self, ask: Ask, view: Arc<dyn SessionView>) -> Result<Took> {
        match self.decide(ask, view).await? {
            (Answer::Accept, took) => Ok(took),
            (answer, _) => bail!("the ledger answered {answer:?}"),
        }
    }
}

/// A question that the ledgers answer by accepting.
fn ask() -> Ask {
    Ask {
        session_id: "s".into(),
        decision_id: "d".into(),
        agent_id: AGENT.into(),
        identity: Identity::default(),
        trigger: Trigger::ToolFinished {
            id: "c".into(),
            name: "balance".into(),
            outcome: Ok("balance 3.50".into()),
        },
        previous_version: Some(format!("sha256:{}", "0".repeat(64)).into()),
        pending_calls: 0,
        ancestry: Vec::new(),
        attempts: 1,
        deadline: None,
        turn_id: Some("t".into()),
        live_at: rig::now(),
    }
}

fn beside_bare(runtime: &Runtime, report: &mut Report) -> Result<()> {
    let data = rig::folder()?;
    let component = rig::guest("ledger")?;
    let decider = Decider::new(data.path(), &component)?;
    let bare = Bare::new(&component)?;
    // On a worker of the runtime, as the driver is.
    let (decided, ran, floor) = runtime.block_on(async {
        tokio::spawn(async move {
            let (mut decided, mut ran) = (Times::default(), Times::default());
            let mut floor = Times::default();
            let view: Arc<dyn SessionView> = Arc::new(FixedView::default());
            for sample in 0..SAMPLES + SAMPLES / 10 {
                let (ours, theirs) = (
                    decider.accepting(ask(), view.clone()).await?,
                    bare.decide().await?,
                );
                if sample >= SAMPLES / 10 {
                    decided.push(ours.whole);
                    ran.push(ours.run);
                    floor.push(theirs);
                }
            }
            anyhow::Ok((decided, ran, floor))
        })
        .await?
    })?;
    report.add(
        Figure::new("decide over bare wasmtime", decided.median(), "µs")
            .over(floor.median())
            .aim(1.5)
            .note(format!(
                "p99 {:.0} µs; {:.0} µs of it on the guests' thread",
                decided.quantile(0.99),
                ran.median()
            )),
    );
    Ok(())
}

/// The same with many decisions under way, where going to the guests' threads and back costs no
/// waiting: time that passes for each of them, on all processors.
fn many_beside_bare(runtime: &Runtime, report: &mut Report) -> Result<()> {
    let data = rig::folder()?;
    let component = rig::guest("ledger")?;
    let decider = Arc::new(Decider::new(data.path(), &component)?);
    let bare = Arc::new(Bare::new(&component)?);
    let (mut decided, mut floor) = (Times::default(), Times::default());
    for _ in 0..ROUNDS {
        let view: Arc<dyn SessionView> = Arc::new(FixedView::default());
        let decider = decider.clone();
        let ours = round(runtime, move |lane| {
            let (decider, view) = (decider.clone(), view.clone());
            let session = SessionId::from(format!("s{lane}"));
            async move {
                for _ in 0..EACH {
                    let session_id = session.clone();
                    let ask = Ask {
                        session_id,
                        ..ask()
                    };
                    decider.accepts(ask, view.clone()).await?;
                }
                Ok(())
            }
        })?;
        let bare = bare.clone();
        let theirs = round(runtime, move |_| {
            let bare = bare.clone();
            async move {
                for _ in 0..EACH {
                    bare.decide().await?;
                    tokio::task::yield_now().await;
                }
                Ok(())
            }
        })?;
        decided.push(ours);
        floor.push(theirs);
    }
    report.add(
        Figure::new("the same, 64 decisions at once", decided.median(), "µs")
            .over(floor.median())
            .aim(1.5),
    );
    Ok(())
}

/// Runs a lane of decisions on each of many tasks; gives the time per decision.
fn round<F: Future<Output = Result<()>> + Send + 'static>(
    runtime: &Runtime,
    lane: impl Fn(usize) -> F,
) -> Result<Duration> {
    let started = Instant::now();
    runtime.block_on(async {
        let mut lanes = JoinSet::new();
        for ix in 0..AT_ONCE {
            lanes.spawn(lane(ix));
        }
        while let Some(done) = lanes.join_next().await {
            done??;
        }
        anyhow::Ok(())
    })?;
    Ok(started.elapsed() / (AT_ONCE as u32 * EACH))
}

/// A session as the driver keeps it, without the driver.
struct Session {
    state: State,
    seeds: u64,
}

impl Session {
    fn now(&mut self) -> Now {
        self.seeds += 1;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seeds.to_be_bytes());
        Now {
            at: Timestamp::from_millis(1_764_547_200_000 + self.seeds as i64),
            seed,
        }
    }

    fn take(&mut self, command: Command) -> Result<()> {
        let now = self.now();
        self.state = handle(&self.state, command, &now)?.state;
        Ok(())
    }

    /// A session that has been spoken to until it has so many messages.
    fn grown(messages: usize, start: &Answer) -> Result<Self> {
        let mut session = Self {
            state: State::new(SessionId::from("s")),
            seeds: 0,
        };
        while session.state.tree().path_len() < messages {
            session.take(said())?;
            loop {
                let now = session.now().at;
                let due = plan(&session.state, now);
                if let Some(decision) = due.decision {
                    let first = session.state.config().is_none();
                    let answer = if first { start.clone() } else { Answer::Accept };
                    session.take(answered(decision.decision_id, answer))?;
                } else if let Some(call) = due.model_calls.first() {
                    session.take(Command::Reply {
                        call_id: call.call_id.clone(),
                        attempt: call.attempt,
                        outcome: Ok(LlmResponse {
                            model: "m".into(),
                            content: Some("And hello to you.".into()),
                            ..LlmResponse::default()
                        }),
                    })?;
                } else {
                    break;
                }
            }
        }
        Ok(session)
    }

    /// What the engine does around a decision: a message comes in, the decision is composed, its
    /// answer is accepted. The session itself stays as it is.
    fn around(&mut self) -> Result<(belljar_engine::Composed, Duration)> {
        let (said_at, answered_at, command) = (self.now(), self.now(), said());
        let started = Instant::now();
        let said = handle(&self.state, command, &said_at)?;
        let due = plan(&said.state, answered_at.at).decision;
        let composed = said.state.composed();
        let (due, composed) = due.zip(composed).context("a decision is due")?;
        let handled = handle(
            &said.state,
            answered(due.decision_id, Answer::Accept),
            &answered_at,
        )?;
        std::hint::black_box(plan(&handled.state, answered_at.at));
        Ok((composed, started.elapsed()))
    }
}

fn said() -> Command {
    Command::Submit {
        input: ClientInput::Message(MessageInput {
            agent_id: AGENT.into(),
            turn_id: None,
            message: Arc::new(Message::text(Role::User, "hello")),
            stream: None,
            queue: None,
        }),
        identity: Identity::default(),
        version: None,
    }
}

fn answered(decision_id: belljar_protocol::id::DecisionId, answer: Answer) -> Command {
    Command::Answer(Box::new(AnswerIn {
        decision_id,
        outcome: Ok(answer),
        run: None,
        scratch: Default::default(),
        delivered: Vec::new(),
    }))
}

fn in_a_long_session(runtime: &Runtime, report: &mut Report) -> Result<()> {
    let data = rig::folder()?;
    let decider = Decider::new(data.path(), &rig::guest("ledger")?)?;
    let times = runtime.block_on(async {
        tokio::spawn(async move {
            let start = Ask {
                trigger: Trigger::SessionStart,
                ..ask()
            };
            let (start, _) = decider
                .decide(start, Arc::new(FixedView::default()))
                .await?;
            let mut sessions = [Session::grown(FEW, &start)?, Session::grown(MANY, &start)?];
            let mut decided = [Times::default(), Times::default()];
            let mut engine = [Times::default(), Times::default()];
            for _ in 0..SAMPLES {
                for (ix, session) in sessions.iter_mut().enumerate() {
                    let (composed, around) = session.around()?;
                    engine[ix].push(around);
                    decided[ix].push(decider.accepts(composed.ask, composed.view).await?);
                }
            }
            anyhow::Ok([decided, engine])
        })
        .await?
    })?;
    let [[few, many], [engine_few, engine_many]] = times;
    report.add(
        Figure::new("decide at 100 000 messages over 10", many.median(), "µs")
            .over(few.median())
            .aim(1.2),
    );
    report.add(
        Figure::new(
            "the engine around it at 100 000 over 10",
            engine_many.median(),
            "µs",
        )
        .over(engine_few.median())
        .note("handle, plan, compose, handle the answer, plan: trees are deeper, and colder"),
    );
    Ok(())
}

/// As after a restart of the process: the compiled image is on disk, nothing is in memory but
/// what the kernel keeps of files.
fn after_a_restart(
    runtime: &Runtime,
    report: &mut Report,
    guest: &str,
    name: &'static str,
) -> Result<()> {
    let data = rig::folder()?;
    let component = rig::guest(guest)?;
    let view: Arc<dyn SessionView> = Arc::new(FixedView::default());
    let started = Instant::now();
    let compile = Decider::new(data.path(), &component)?;
    runtime.block_on(compile.accepts(ask(), view.clone()))?;
    let compiled = started.elapsed();
    drop(compile);
    let (mut opened, mut first, mut second) =
        (Times::default(), Times::default(), Times::default());
    for _ in 0..RESTARTS {
        let started = Instant::now();
        let decider = Decider::new(data.path(), &component)?;
        opened.push(started.elapsed());
        first.push(runtime.block_on(decider.accepts(ask(), view.clone()))?);
        second.push(runtime.block_on(decider.accepts(ask(), view.clone()))?);
    }
    report.add(Figure::new(name, first.median() / 1e3, "ms").note(format!(
        "opening the sandbox {:.1} ms, the second decision {:.2} ms; compiling it took {:.1} s",
        opened.median() / 1e3,
        second.median() / 1e3,
        compiled.as_secs_f64(),
    )));
    Ok(())
}
