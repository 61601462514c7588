//! A host of real parts: the store on the disk that holds `target/`, the sandbox, the Rust
//! ledger. Only the model is made here, and answers at once.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use belljar_protocol::Timestamp;
use belljar_protocol::decision::Identity;
use belljar_protocol::event::Event;
use belljar_protocol::id::{AgentId, SessionId, TenantId};
use belljar_protocol::input::{ClientInput, MessageInput};
use belljar_protocol::message::{Function, Message, Role, ToolCall};
use belljar_protocol::model::{LlmRequest, LlmResponse, ModelFailure, StreamDelta};
use belljar_protocol::ports::{
    Blobs, Boxed, Clock, Conclusion, Decided, DeltaSink, Entropy, Job, Model, Models, Store,
    StoreError, Worker,
};
use belljar_protocol::problem::Problem;
use belljar_protocol::scratch::Digest;
use belljar_sandbox::{Limits, Sandbox, SandboxConfig};
use belljar_server::driver::{Item, Subscription};
use belljar_server::{Host, HostConfig, Parts};
use belljar_store::SqliteStore;
use bytes::Bytes;
use tempfile::TempDir;

/// The agent of all sessions here.
pub(crate) const AGENT: &str = "ledger";
/// What is said for the model to call a tool that reads a file.
pub(crate) const READ: &str = "what is the balance?";
/// What is said for the model to call a tool that writes a file, which is stored.
pub(crate) const WRITE: &str = "coffee 3.50";
/// What is said for the model to answer by itself.
pub(crate) const CHAT: &str = "hello";

/// The workspace's target folder.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")
}

/// A folder on the disk that holds `target/`.
pub(crate) fn folder() -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("bench-")
        .tempdir_in(target())
        .context("a folder in target/")
}

/// A component that `./just guests` has built.
pub(crate) fn guest(name: &str) -> Result<Bytes> {
    let folder =
        std::env::var_os("BELLJAR_GUESTS").map_or_else(|| target().join("guests"), PathBuf::from);
    let path = folder.join(format!("{name}.wasm"));
    let bytes =
        std::fs::read(&path).with_context(|| format!("{}: run ./just guests", path.display()))?;
    Ok(bytes.into())
}

/// One component, for a sandbox without a store.
pub(crate) struct OneBlob(pub(crate) Bytes);

impl Blobs for OneBlob {
    fn blob(&self, _: &TenantId, _: &Digest) -> Boxed<'_, Result<Option<Bytes>, StoreError>> {
        let bytes = self.0.clone();
        Box::pin(async move { Ok(Some(bytes)) })
    }
}

/// A sandbox as `serve` makes it.
pub(crate) fn sandbox(data: &Path, blobs: Arc<dyn Blobs>) -> Result<Sandbox> {
    Ok(Sandbox::new(SandboxConfig {
        data_dir: data.join("sandbox"),
        limits: Limits::default(),
        secret: [7; 32],
        threads: 0,
        blobs,
    })?)
}

struct WallClock;

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        now()
    }
    fn wait_until(&self, at: Timestamp) -> Boxed<'static, ()> {
        let wait = Duration::from_secs_f64(at.secs_since(now()).clamp(0.0, 30.0));
        Box::pin(tokio::time::sleep(wait))
    }
}

/// Never the same twice in a run, which is all that ids need.
#[derive(Default)]
struct Counting(AtomicU64);

impl Entropy for Counting {
    fn seed(&self) -> [u8; 32] {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.0.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        seed
    }
}

/// A model in this process, which calls the ledger's tools as it is told.
#[derive(Default)]
struct AtOnce(AtomicU64);

impl AtOnce {
    fn reply(&self, request: &LlmRequest) -> LlmResponse {
        let last = request.messages.last();
        let text = last
            .and_then(|last| last.content.as_ref())
            .map(|content| content.text())
            .unwrap_or_default();
        let asked = last.is_some_and(|last| last.role == Role::User);
        let (name, arguments) = match text.as_str() {
            READ if asked => ("balance", "{}"),
            WRITE if asked => ("add_entry", r#"{"description":"coffee","amount":3.5}"#),
            _ => {
                return LlmResponse {
                    model: request.model.clone(),
                    content: Some(format!("It says: {text}")),
                    ..LlmResponse::default()
                };
            }
        };
        let id = self.0.fetch_add(1, Ordering::Relaxed);
        LlmResponse {
            model: request.model.clone(),
            tool_calls: vec![ToolCall {
                id: format!("call-{id}").into(),
                kind: "function".into(),
                function: Function {
                    name: name.into(),
                    arguments: arguments.into(),
                },
            }],
            ..LlmResponse::default()
        }
    }
}

impl Model for AtOnce {
    fn ask(
        &self,
        request: Arc<LlmRequest>,
        sink: Option<DeltaSink>,
    ) -> Boxed<'_, Result<LlmResponse, ModelFailure>> {
        let reply = self.reply(&request);
        if let (Some(sink), Some(text)) = (sink, &reply.content) {
            sink(StreamDelta {
                text: Some(text.clone()),
                ..StreamDelta::default()
            });
        }
        Box::pin(std::future::ready(Ok(reply)))
    }
}

struct OneModel(Arc<AtOnce>);

impl Models for OneModel {
    fn resolve(&self, model: &str) -> Result<(Arc<dyn Model>, String), ModelFailure> {
        Ok((self.0.clone(), model.to_owned()))
    }
}

/// The sandbox, with the time that decisions take in it as their askers see it.
struct Watched {
    sandbox: Arc<Sandbox>,
    decided: Arc<Decisions>,
}

/// How many decisions there were, and their nanoseconds, summed.
#[derive(Default)]
pub(crate) struct Decisions {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Decisions {
    /// Their count and seconds since the last call.
    pub(crate) fn take(&self) -> (u64, f64) {
        let nanos = self.nanos.swap(0, Ordering::Relaxed);
        (self.count.swap(0, Ordering::Relaxed), nanos as f64 / 1e9)
    }
}

impl Worker for Watched {
    fn decide(&self, job: Job) -> Boxed<'static, Decided> {
        let (decide, decided) = (self.sandbox.decide(job), self.decided.clone());
        let started = Instant::now();
        Box::pin(async move {
            let outcome = decide.await;
            let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            decided.count.fetch_add(1, Ordering::Relaxed);
            decided.nanos.fetch_add(nanos, Ordering::Relaxed);
            outcome
        })
    }
    fn conclude(&self, tenant: &TenantId, session: &SessionId, scratch: Conclusion) {
        self.sandbox.conclude(tenant, session, scratch);
    }
}

pub(crate) fn problem(problem: Problem) -> anyhow::Error {
    anyhow!("{problem:?}")
}

/// A host on a folder of its own.
pub(crate) struct Rig {
    pub(crate) host: Host,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tenant: TenantId,
    pub(crate) decisions: Arc<Decisions>,
    pub(crate) data: TempDir,
}

impl Rig {
    /// A host whose agent is the Rust ledger. Sessions stay loaded this long.
    pub(crate) async fn new(idle_unload: Duration) -> Result<Self> {
        let data = folder()?;
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(data.path())?);
        let sandbox = Arc::new(sandbox(data.path(), store.clone())?);
        let decisions: Arc<Decisions> = Arc::default();
        let parts = Parts {
            store: store.clone(),
            worker: Arc::new(Watched {
                sandbox: sandbox.clone(),
                decided: decisions.clone(),
            }),
            components: sandbox,
            models: Arc::new(OneModel(Arc::default())),
            clock: Arc::new(WallClock),
            entropy: Arc::new(Counting::default()),
        };
        let config = HostConfig {
            idle_unload,
            ..HostConfig::default()
        };
        let host = Host::start(parts, config).await?;
        let tenant = TenantId::built_in();
        host.upload(&tenant, &AGENT.into(), guest("ledger")?, true, "bench")
            .await
            .map_err(problem)?;
        Ok(Self {
            host,
            store,
            tenant,
            decisions,
            data,
        })
    }

    /// Says something to a session; returns once it is on disk.
    pub(crate) async fn say(&self, session: &SessionId, text: &str) -> Result<()> {
        let input = ClientInput::Message(MessageInput {
            agent_id: AgentId::from(AGENT),
            turn_id: None,
            message: Arc::new(Message::text(Role::User, text)),
            stream: None,
            queue: None,
        });
        self.host
            .submit(
                &self.tenant,
                Some(session.clone()),
                input,
                Identity::default(),
            )
            .await
            .map(drop)
            .map_err(problem)
    }

    /// A session whose first turn is over: the agent is configured, the ledger has an entry.
    pub(crate) async fn talk(&self, name: String) -> Result<Talk> {
        let session = SessionId::from(name);
        self.say(&session, WRITE).await?;
        let watch = self
            .host
            .subscribe(&self.tenant, &session, 0)
            .await
            .map_err(problem)?;
        let mut talk = Talk { session, watch };
        talk.ends().await?;
        Ok(talk)
    }
}

/// A session and its only subscriber.
pub(crate) struct Talk {
    session: SessionId,
    watch: Subscription,
}

impl Talk {
    /// One durable turn: from the submit to its end at the subscriber.
    pub(crate) async fn turn(&mut self, rig: &Rig, text: &str) -> Result<Duration> {
        let started = Instant::now();
        rig.say(&self.session, text).await?;
        self.ends().await?;
        Ok(started.elapsed())
    }

    async fn ends(&mut self) -> Result<()> {
        loop {
            match self.watch.next().await {
                Some(Item::Event { event, .. }) => {
                    if let Event::TurnEnded(ended) = &*event {
                        match &ended.error {
                            Some(error) => bail!("a turn failed: {error:?}"),
                            None => return Ok(()),
                        }
                    }
                }
                Some(Item::Delta { .. } | Item::CaughtUp { .. }) => {}
                Some(Item::Closed { reason, .. }) => bail!("the stream ended: {reason}"),
                None => bail!("the stream ended"),
            }
        }
    }
}

/// Seconds on processors that this process has used, which no neighbour adds to.
pub(crate) fn processor() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // After the name, which may hold spaces: user and system time are fields 14 and 15 of all,
    // in ticks of 10 ms.
    let fields = stat.rsplit(')').next().context("a name")?;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<Result<_, _>>()?;
    Ok(ticks as f64 / 100.0)
}

/// The floor of a durable write: an append of 4 KiB and its sync, on the same disk.
pub(crate) struct Disk(File);

impl Disk {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        Ok(Self(File::create(folder.join("floor"))?))
    }

    pub(crate) fn sync(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.0.write_all(&[0x5a; 4096])?;
        self.0.sync_data()?;
        Ok(started.elapsed())
    }
}
