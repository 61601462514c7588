//! One decision: a fresh store, one call, and what came of it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use belljar_protocol::Timestamp;
use belljar_protocol::decision::{Answer, Trigger, request_json};
use belljar_protocol::ports::{Blobs, Decided, Job};
use belljar_protocol::run::{LogLevel, RunRecord};
use belljar_protocol::scratch::ScratchChange;
use wasmtime::component::{ResourceTable, ResourceTableError};
use wasmtime::{CallHook, Engine, Store, Trap, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxBuilder};

use crate::chance::{Chance, Since, Still, seed};
use crate::compile::Compiled;
use crate::convert::{incoming, outgoing};
use crate::cpu::{CpuClock, Timed};
use crate::error::SandboxError;
use crate::host::{Deliveries, Deltas, Host, Meter};
use crate::journal::{Journal, cleaned};
use crate::limits::{Budget, Limits};
use crate::mac::Key;
use crate::scratch::{ScratchUse, Scratches};

/// What every run shares.
pub(crate) struct Setting {
    pub(crate) scratches: Arc<Scratches>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) secret: Key,
}

/// Runs one decision to its end.
pub(crate) async fn run(
    engine: &Engine,
    compiled: &Compiled,
    setting: &Setting,
    job: Job,
    limits: Arc<Limits>,
) -> Decided {
    let (started_at, started) = (now(), Instant::now());
    let wall = wall(&job, &limits);
    let version = job.version.clone();
    let question = match compiled {
        Compiled::Typed(_) => Question::Typed(Box::new(outgoing::request(&job.ask, &job.version))),
        Compiled::Json(_) => Question::Json(request_json(&job.ask, &*job.view, Some(&job.version))),
    };
    let cpu = Arc::new(CpuClock::default());
    let mut store = store(engine, setting, job, &limits, &cpu);

    let call = Timed::new(call(compiled, question, &mut store, &limits), cpu.clone());
    let called = tokio::time::timeout(wall, call).await;
    let outcome = match called {
        Err(_) => Err(SandboxError::WallTimeout { limit: wall }),
        Ok(Err(Failed::Said(error))) => Err(error),
        Ok(Err(Failed::Wasm(error))) => Err(classify(&error, store.data(), &cpu)),
        Ok(Ok(answer)) => Ok(answer),
    };
    // A store says 0 after all of it was used, and is never used again after a trap.
    let fuel = limits.fuel - store.get_fuel().unwrap_or(limits.fuel).min(limits.fuel);
    let host = store.into_data();
    let (log, log_dropped) = host.journal.finish();
    let (peak_memory, host_calls) = (host.budget.memory().held, host.meter.host_calls);
    let finished = outcome.and_then(|answer| {
        let (scratch, blobs) = host.scratch.finish(&limits)?;
        Ok((answer, scratch, blobs))
    });
    let (outcome, scratch, delivered, blobs) = match finished {
        Ok((answer, scratch, mut blobs)) => {
            let Deliveries {
                files, blobs: more, ..
            } = host.deliveries;
            for (digest, bytes) in more {
                if blobs.iter().all(|(known, _)| *known != digest) {
                    blobs.push((digest, bytes));
                }
            }
            (Ok(answer), scratch, files, blobs)
        }
        Err(error) => (
            Err(error.into()),
            ScratchChange::default(),
            Vec::new(),
            Vec::new(),
        ),
    };
    let run = RunRecord {
        version: Some(version),
        started_at: Some(started_at),
        wall_us: micros(started.elapsed()),
        cpu_us: micros(cpu.used()),
        fuel,
        peak_memory,
        host_calls,
        log,
        log_dropped,
    };
    Decided {
        outcome,
        run,
        scratch,
        delivered,
        blobs,
    }
}

/// A decision that was not run.
pub(crate) fn not_run(
    version: Option<belljar_protocol::id::VersionId>,
    error: SandboxError,
) -> Decided {
    Decided {
        outcome: Err(error.into()),
        run: RunRecord {
            version,
            started_at: Some(now()),
            ..RunRecord::default()
        },
        scratch: ScratchChange::default(),
        delivered: Vec::new(),
        blobs: Vec::new(),
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The time a decision has. A model call's own deadline counts from when the decision went
/// live: both times are the engine's, whatever clock it has.
fn wall(job: &Job, limits: &Limits) -> Duration {
    match &job.ask.trigger {
        Trigger::LlmExecute {
            deadline: Some(at), ..
        } => {
            let secs = at.secs_since(job.ask.live_at).clamp(0.001, 86_400.0);
            Duration::from_secs_f64(secs)
        }
        Trigger::LlmExecute { deadline: None, .. } => limits.llm_wall,
        _ => limits.wall,
    }
}

enum Question {
    Typed(Box<crate::bindings::decisions::Request>),
    Json(String),
}

enum Failed {
    /// The guest, or the check of its answer, said what is wrong.
    Said(SandboxError),
    /// It did not come to an answer.
    Wasm(wasmtime::Error),
}

impl From<wasmtime::Error> for Failed {
    fn from(from: wasmtime::Error) -> Self {
        Self::Wasm(from)
    }
}

async fn call(
    compiled: &Compiled,
    question: Question,
    store: &mut Store<Host>,
    limits: &Limits,
) -> Result<Answer, Failed> {
    match (compiled, question) {
        (Compiled::Typed(pre), Question::Typed(request)) => {
            let agent = pre.instantiate_async(&mut *store).await?;
            match agent.call_decide(&mut *store, &request).await? {
                Ok(answer) => incoming::answer(answer, limits).map_err(Failed::Said),
                Err(failure) => Err(Failed::Said(incoming::failure(failure))),
            }
        }
        (Compiled::Json(pre), Question::Json(request)) => {
            let agent = pre.instantiate_async(&mut *store).await?;
            match agent.call_decide(&mut *store, &request).await? {
                Ok(answer) => incoming::json_answer(&answer, limits).map_err(Failed::Said),
                Err(failure) => Err(Failed::Said(incoming::json_failure(failure))),
            }
        }
        _ => Err(Failed::Said(SandboxError::host(
            "asking a component",
            "the question is of the other world",
        ))),
    }
}

fn store(
    engine: &Engine,
    setting: &Setting,
    job: Job,
    limits: &Arc<Limits>,
    cpu: &Arc<CpuClock>,
) -> Store<Host> {
    let journal = Journal::new(limits.log_bytes);
    let seed = seed(
        &setting.secret,
        job.tenant.as_str(),
        job.ask.session_id.as_str(),
        job.ask.decision_id.as_str(),
    );
    let mut table = ResourceTable::new();
    table.set_max_capacity(limits.handles);
    let (streams, format) = match &job.ask.trigger {
        Trigger::LlmExecute { stream, format, .. } => (*stream, *format),
        _ => (false, None),
    };
    let host = Host {
        limits: limits.clone(),
        budget: Budget::new(limits),
        meter: Meter::default(),
        wasi: wasi(&journal, job.ask.live_at, seed, limits),
        journal,
        table,
        view: job.view,
        scratch: ScratchUse::new(
            setting.scratches.clone(),
            setting.blobs.clone(),
            job.tenant,
            job.ask.session_id,
            job.scratch,
        ),
        deliveries: Deliveries::default(),
        deltas: Deltas {
            sink: job.deltas.filter(|_| streams),
            format,
            bytes: 0,
        },
    };
    let mut store = Store::new(engine, host);
    store.limiter(|host| &mut host.budget);
    store.set_hostcall_fuel(limits.host_call_bytes);
    store.set_max_component_handles(limits.handles);
    // Before instantiation: start functions are guest code.
    if let Err(error) = store.set_fuel(limits.fuel) {
        // Only when fuel is off in `config`, and then the guest cannot run at all.
        tracing::error!(%error, "fuel is not metered");
    }
    let (clock, most) = (cpu.clone(), limits.cpu);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |mut context| {
        // The tick came through the call hook as well; when it comes is chance, so it is not
        // counted.
        let calls = &mut context.data_mut().meter.host_calls;
        *calls = calls.saturating_sub(1);
        Ok(if clock.running() >= most {
            UpdateDeadline::Interrupt
        } else {
            UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now()))
        })
    });
    let most = limits.host_calls;
    store.call_hook(move |mut context, hook| {
        let calls = &mut context.data_mut().meter.host_calls;
        match hook {
            CallHook::CallingHost => *calls += 1,
            // Looked at afterwards, when a tick has been taken off again.
            CallHook::ReturningFromHost if *calls > most => {
                return Err(SandboxError::HostCallLimit {
                    limit: most,
                    at: String::new(),
                }
                .into());
            }
            _ => {}
        }
        Ok(())
    });
    store
}

fn wasi(journal: &Journal, live_at: Timestamp, seed: [u8; 32], limits: &Limits) -> WasiCtx {
    let mut insecure_seed = [0; 16];
    insecure_seed
        .iter_mut()
        .zip(seed.iter().rev())
        .for_each(|(to, from)| *to = from ^ 0x5a);
    let mut wasi = WasiCtxBuilder::new();
    wasi.stdout(journal.sink(LogLevel::Info))
        .stderr(journal.sink(LogLevel::Warn))
        .wall_clock(Still(live_at))
        .monotonic_clock(Since(Instant::now()))
        .secure_random(Chance::new(seed, 0))
        .insecure_random(Chance::new(seed, 1))
        .insecure_random_seed(u128::from_le_bytes(insecure_seed))
        .max_random_size(limits.random_bytes)
        .allow_blocking_current_thread(true)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false);
    wasi.build()
}

/// What an error of wasmtime means here.
fn classify(error: &wasmtime::Error, host: &Host, cpu: &CpuClock) -> SandboxError {
    let limits = &host.limits;
    let at = place(error);
    if let Some(ours) = error.downcast_ref::<SandboxError>() {
        return match ours {
            SandboxError::HostCallLimit { limit, .. } => {
                SandboxError::HostCallLimit { limit: *limit, at }
            }
            ours => ours.clone(),
        };
    }
    if let Some(I32Exit(status)) = error.downcast_ref::<I32Exit>() {
        return SandboxError::GuestExit { status: *status };
    }
    let memory = host.budget.memory();
    let tables = host.budget.tables();
    let refused = || {
        // A guest that is refused memory ends in `unreachable`, or never starts.
        if let Some(wanted) = memory.refused {
            return Some(SandboxError::MemoryExhausted {
                wanted,
                limit: memory.limit,
                at: at.clone(),
            });
        }
        tables.refused.map(|_| SandboxError::TableExhausted {
            what: "table elements",
            limit: tables.limit,
            at: at.clone(),
        })
    };
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return match trap {
            Trap::OutOfFuel => SandboxError::FuelExhausted {
                limit: limits.fuel,
                at,
            },
            Trap::Interrupt => SandboxError::CpuTimeout {
                used: cpu.used(),
                limit: limits.cpu,
                at,
            },
            Trap::StackOverflow => SandboxError::StackOverflow {
                limit: limits.stack,
                at,
            },
            Trap::UnreachableCodeReached => refused().unwrap_or_else(|| trapped(trap, at)),
            trap => trapped(trap, at),
        };
    }
    let handles = |at| SandboxError::TableExhausted {
        what: "handles",
        limit: limits.handles as u64,
        at,
    };
    if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
        return handles(at);
    }
    let reason = error.root_cause().to_string();
    // These two have no type of their own in this version; a test holds each of them.
    if reason.contains("store handle limit exceeded") {
        return handles(at);
    }
    if reason.contains("fuel allocated for hostcalls has been exhausted") {
        let limit = limits.host_call_bytes;
        // Outside of wasm it is the answer that is being read.
        return if error.downcast_ref::<WasmBacktrace>().is_some() {
            SandboxError::HostCallBytes { limit, at }
        } else {
            SandboxError::AnswerTooLarge {
                what: "bytes",
                used: limit as u64 + 1,
                limit: limits.answer_bytes,
            }
        };
    }
    if error
        .downcast_ref::<wasmtime::PoolConcurrencyLimitError>()
        .is_some()
    {
        return SandboxError::host("making room for a decision", reason);
    }
    refused().unwrap_or(SandboxError::Trap { reason, at })
}

fn trapped(trap: &Trap, at: String) -> SandboxError {
    let reason = trap.to_string();
    SandboxError::Trap {
        reason: reason
            .strip_prefix("wasm trap: ")
            .unwrap_or(&reason)
            .to_owned(),
        at,
    }
}

/// The innermost functions: by name where the guest kept names, by number otherwise.
fn place(error: &wasmtime::Error) -> String {
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else {
        return String::new();
    };
    let names = trace
        .frames()
        .iter()
        .take(3)
        .map(|frame| match frame.func_name() {
            Some(name) => cleaned(name).chars().take(80).collect::<String>(),
            None => format!("function {}", frame.func_index()),
        });
    names.collect::<Vec<_>>().join(" < ")
}
