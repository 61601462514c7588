//! Wiring: a host of concrete parts, listening.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use belljar_protocol::Timestamp;
use belljar_protocol::ports::{Boxed, Clock, Entropy, Store};
use belljar_providers::Providers;
use belljar_sandbox::{Sandbox, SandboxConfig};
use belljar_server::{Host, HostConfig, HttpConfig, Parts};
use belljar_store::{FaultPlan, FaultyStore, Options, SqliteStore};
use tokio::net::TcpListener;

use crate::config::Config;

/// For kill tests: the process ends, as if killed, right after this many appends are on disk.
const CRASH_AFTER: &str = "BELLJAR_CRASH_AFTER_COMMIT";

/// A host that listens.
pub(crate) struct Running {
    pub(crate) host: Host,
    pub(crate) listener: TcpListener,
    pub(crate) http: HttpConfig,
    /// What the alias `default` stands for.
    pub(crate) default_model: String,
}

/// Opens everything in a data folder and listens.
pub(crate) async fn start(mut config: Config, data: &Path, listen: SocketAddr) -> Result<Running> {
    if !listen.ip().is_loopback() {
        bail!(
            "{listen} is not a loopback address; without keys the server is open to whoever reaches it, so it listens on loopback only"
        );
    }
    let limits = config.limits.limits()?;
    let providers =
        Providers::from_config(config.providers()).context("the configuration of models")?;
    let default_model = providers
        .full_name("default")
        .unwrap_or_else(|failure| failure.message);
    // Conversations are nobody else's business on this machine.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .with_context(|| format!("making the data folder {}", data.display()))?;
    let sqlite = SqliteStore::open_with(data, Options::default().on_fatal(end))?;
    let sqlite: Arc<dyn Store> = Arc::new(sqlite);
    let sandbox = Sandbox::new(SandboxConfig {
        data_dir: data.join("sandbox"),
        limits,
        secret: secret(&data.join("host.secret"))?,
        threads: 0,
        blobs: Arc::new(Blobs(sqlite.clone())),
    })?;
    let sandbox = Arc::new(sandbox);
    let parts = Parts {
        store: with_faults(sqlite)?,
        worker: sandbox.clone(),
        components: sandbox,
        models: Arc::new(providers),
        clock: Arc::new(WallClock),
        entropy: Arc::new(OsEntropy),
    };
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("listening on {listen}"))?;
    let host_config = HostConfig {
        on_fatal: Some(Arc::new(end)),
        ..HostConfig::default()
    };
    let host = Host::start(parts, host_config).await?;
    Ok(Running {
        host,
        listener,
        http: HttpConfig {
            hosts: config.hosts,
        },
        default_model,
    })
}

/// The store failed: nothing may be acknowledged any more, so nothing goes on.
fn end(reason: &str) {
    eprintln!("belljar: error: the store failed, so the host ends: {reason}");
    std::process::exit(1);
}

fn with_faults(store: Arc<dyn Store>) -> Result<Arc<dyn Store>> {
    let Some(nth) = std::env::var_os(CRASH_AFTER) else {
        return Ok(store);
    };
    let nth = nth.to_str().and_then(|nth| nth.parse().ok());
    let nth = nth.with_context(|| format!("{CRASH_AFTER} must be a whole number"))?;
    Ok(Arc::new(FaultyStore::new(
        store,
        FaultPlan::new().crash_after(nth, || std::process::abort()),
    )))
}

/// The store, as the sandbox needs it.
struct Blobs(Arc<dyn Store>);

impl belljar_protocol::ports::Blobs for Blobs {
    fn blob(
        &self,
        tenant: &belljar_protocol::id::TenantId,
        digest: &belljar_protocol::scratch::Digest,
    ) -> Boxed<'_, Result<Option<bytes::Bytes>, belljar_protocol::ports::StoreError>> {
        self.0.blob(tenant, digest)
    }
}

/// The host's secret: made once, readable by its user alone, kept for ever, since decisions are
/// run again with the randomness it seeds.
fn secret(path: &Path) -> Result<[u8; 32]> {
    let at = || format!("the host's secret, {}", path.display());
    if !path.exists() {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no randomness: {error}"))?;
        // Whole or not at all: a crash must not leave half a secret.
        let new = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .with_context(at)?;
        file.write_all(&bytes).with_context(at)?;
        file.sync_all().with_context(at)?;
        std::fs::rename(&new, path).with_context(at)?;
        if let Some(folder) = path.parent() {
            let folder = File::open(folder).with_context(at)?;
            folder.sync_all().with_context(at)?;
        }
    }
    let bytes = std::fs::read(path).with_context(at)?;
    <[u8; 32]>::try_from(bytes)
        .map_err(|bytes| anyhow::anyhow!("{}: {} bytes instead of 32", at(), bytes.len()))
}

struct WallClock;

/// Longest sleep at once: a clock that is set forward is noticed after it.
const NAP: Duration = Duration::from_secs(30);

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
    fn wait_until(&self, at: Timestamp) -> Boxed<'static, ()> {
        let wait = Duration::try_from_secs_f64(at.secs_since(self.now()).max(0.0)).unwrap_or(NAP);
        Box::pin(tokio::time::sleep(wait.min(NAP)))
    }
}

struct OsEntropy;

impl Entropy for OsEntropy {
    fn seed(&self) -> [u8; 32] {
        let mut seed = [0; 32];
        if let Err(error) = getrandom::fill(&mut seed) {
            // Ids made without it could repeat: better no host than that.
            end(&format!("the system gives no randomness: {error}"));
        }
        seed
    }
}
