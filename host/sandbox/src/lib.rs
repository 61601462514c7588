//! The sandbox: one decision in, one answer out, under limits.
//!
//! A [`Sandbox`] implements the ports [`Worker`] and [`Components`] with wasmtime. For each
//! decision it makes a fresh store from a compiled, linked and type-checked component, calls
//! `decide` once, and throws the store away. What a guest may use is in [`Limits`]; what happens
//! when it uses more, or goes wrong in any other way, is a [`SandboxError`], which reaches the
//! engine as a failure of the decision and never harms the host.
//!
//! Guests run on a runtime of the sandbox's own, so that one that blocks its thread on a file
//! never blocks the host's; [`Worker::decide`]'s future may be awaited on any runtime.
#![deny(unsafe_code)]

mod admit;
mod bindings;
mod cache;
mod chance;
mod compile;
mod config;
mod convert;
mod cpu;
mod error;
mod gate;
mod host;
mod journal;
mod limits;
mod mac;
mod run;
mod scratch;
mod view;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll};

use belljar_protocol::id::{SessionId, TenantId};
use belljar_protocol::ports::{
    Admitted, Blobs, Boxed, Components, Conclusion, Decided, Job, Refused, Worker,
};
use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

pub use error::SandboxError;
pub use limits::Limits;
pub use view::FixedView;

use crate::compile::Compiler;
use crate::gate::Gate;
use crate::run::Setting;

/// The engine that decisions under these limits run on, with nothing around it: what a benchmark
/// compares a [`Sandbox`] with.
///
/// # Errors
/// When wasmtime does not run here with these limits.
#[doc(hidden)]
pub fn engine(limits: &Limits) -> Result<wasmtime::Engine, OpenError> {
    config::engine(limits).map_err(|error| OpenError::Engine(format!("{error:#}")))
}

/// What a sandbox is made of.
pub struct SandboxConfig {
    /// The folder for `cache/` (compiled images), `cache.key` and `scratch/`; made when absent.
    /// One process at a time may use it.
    pub data_dir: PathBuf,
    /// The limits of every decision.
    pub limits: Limits,
    /// Seeds the guests' randomness. Must stay the same for decisions to be run again, and must
    /// not be known to whoever uploads components.
    pub secret: [u8; 32],
    /// Threads that run guests; 0: as many as there are processors.
    pub threads: usize,
    /// Where components and the contents of scratch files are read from.
    pub blobs: Arc<dyn Blobs>,
}

/// Why a sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A folder or file of the data directory cannot be used.
    #[error("the sandbox's data directory {}: {error}", path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// What the file system said.
        error: std::io::Error,
    },
    /// Wasmtime refuses this machine or these limits.
    #[error("wasmtime: {0}")]
    Engine(String),
    /// The guests' threads could not be started.
    #[error("the guests' threads: {0}")]
    Threads(std::io::Error),
}

/// Runs components. Dropping it ends its threads; decisions still running fail as host failures.
pub struct Sandbox {
    inner: Arc<Inner>,
    /// None only while it is being dropped.
    runtime: Option<Runtime>,
    ticker: Option<(mpsc::Sender<()>, std::thread::JoinHandle<()>)>,
}

pub(crate) struct Inner {
    limits: Arc<Limits>,
    compiler: Arc<Compiler>,
    setting: Setting,
    gate: Gate,
}

impl Sandbox {
    /// Makes a sandbox: an engine, its compiled images, its threads.
    ///
    /// # Errors
    /// When the data directory cannot be used, wasmtime does not run here, or no thread starts.
    pub fn new(config: SandboxConfig) -> Result<Self, OpenError> {
        let SandboxConfig {
            data_dir,
            limits,
            secret,
            threads,
            blobs,
        } = config;
        let dir_error = |error| OpenError::DataDir {
            path: data_dir.clone(),
            error,
        };
        let engine_error = |error: wasmtime::Error| OpenError::Engine(format!("{error:#}"));
        let engine = config::engine(&limits).map_err(engine_error)?;
        std::fs::create_dir_all(&data_dir).map_err(dir_error)?;
        let cache = cache::Cache::open(&data_dir, &engine).map_err(dir_error)?;
        let scratches = Arc::new(scratch::Scratches::open(&data_dir).map_err(dir_error)?);
        let linker = host::linker(&engine).map_err(engine_error)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(if threads == 0 { cores() } else { threads })
            .thread_name("guest")
            .enable_time()
            // A guest's poll may take a whole tick: newcomers and timers are looked after often.
            .global_queue_interval(3)
            .event_interval(5)
            .build()
            .map_err(OpenError::Threads)?;
        let ticker = ticker(&engine).map_err(OpenError::Threads)?;
        let inner = Inner {
            compiler: Arc::new(Compiler::new(engine, linker, cache, limits.compiled)),
            setting: Setting {
                scratches,
                blobs,
                secret: mac::Key::new(&secret),
            },
            gate: Gate::new(limits.resident, limits.resident_per_tenant),
            limits: Arc::new(limits),
        };
        Ok(Self {
            inner: Arc::new(inner),
            runtime: Some(runtime),
            ticker: Some(ticker),
        })
    }

    /// The limits every decision is held to.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Runs `work` on the guests' threads. `none` is what comes when they are gone, or the work
    /// ended in a panic; dropping the future ends the work.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        none: impl FnOnce(SandboxError) -> T + Send + 'static,
    ) -> Boxed<'static, T> {
        let Some(runtime) = &self.runtime else {
            let error = SandboxError::host("running a guest", "the sandbox is closed");
            return Box::pin(std::future::ready(none(error)));
        };
        let task = Task(runtime.spawn(work));
        Box::pin(async move {
            match task.await {
                Ok(done) => done,
                Err(error) => none(SandboxError::host("running a guest", error)),
            }
        })
    }
}

/// A task that ends when nobody waits for it any more.
struct Task<T>(JoinHandle<T>);

impl<T> Future for Task<T> {
    type Output = Result<T, tokio::task::JoinError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Worker for Sandbox {
    fn decide(&self, job: Job) -> Boxed<'static, Decided> {
        let (inner, version) = (self.inner.clone(), job.version.clone());
        let work = async move {
            let Some(_place) = inner.gate.enter(&job.tenant).await else {
                return run::not_run(
                    Some(job.version),
                    SandboxError::host("running a guest", "the sandbox is closed"),
                );
            };
            match inner
                .compiler
                .get(&job.tenant, &job.version, &inner.setting.blobs)
                .await
            {
                Ok(compiled) => {
                    run::run(
                        &inner.compiler.engine,
                        &compiled,
                        &inner.setting,
                        job,
                        inner.limits.clone(),
                    )
                    .await
                }
                Err(error) => run::not_run(Some(job.version), error),
            }
        };
        self.spawn(work, move |error| run::not_run(Some(version), error))
    }

    fn conclude(&self, tenant: &TenantId, session: &SessionId, scratch: Conclusion) {
        match scratch {
            Conclusion::Accepted { generation } => self
                .inner
                .setting
                .scratches
                .accept(tenant, session, generation),
            Conclusion::Discarded => self.inner.setting.scratches.discard(tenant, session),
        }
    }
}

impl Components for Sandbox {
    fn admit(&self, component: Bytes) -> Boxed<'static, Result<Admitted, Refused>> {
        self.spawn(admit::admit(self.inner.clone(), component), |error| {
            Err(Refused {
                step: "compile",
                reason: error.to_string(),
                fix: "upload it again".into(),
            })
        })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not a plain drop: that would wait, which async code may not.
            runtime.shutdown_background();
        }
        if let Some((stop, thread)) = self.ticker.take() {
            drop(stop);
            // It ends within a tick; a ticker that panicked has nothing to tell.
            let _ = thread.join();
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Advances the epoch from a thread of its own, which no guest can hold up.
fn ticker(
    engine: &wasmtime::Engine,
) -> std::io::Result<(mpsc::Sender<()>, std::thread::JoinHandle<()>)> {
    let (stop, stopped) = mpsc::channel::<()>();
    let engine = engine.clone();
    let thread = std::thread::Builder::new()
        .name("guest epochs".into())
        .spawn(move || {
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(config::TICK) {
                engine.increment_epoch();
            }
        })?;
    Ok((stop, thread))
}
