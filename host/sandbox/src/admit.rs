//! The checks a component passes before it is stored.

use std::sync::Arc;
use std::time::Instant;

use belljar_protocol::Timestamp;
use belljar_protocol::decision::{Ask, Identity, Trigger};
use belljar_protocol::id::{SessionId, TenantId, VersionId};
use belljar_protocol::ports::{Admitted, Job, Refused};
use belljar_protocol::scratch::Digest;
use bytes::Bytes;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::Inner;
use crate::compile::{Compiled, blocking};
use crate::host::OFFERED;
use crate::limits::Limits;
use crate::view::FixedView;

fn refused(step: &'static str, reason: impl Into<String>, fix: impl Into<String>) -> Refused {
    Refused {
        step,
        reason: reason.into(),
        fix: fix.into(),
    }
}

const LESS: &str = "build it with less, or ask the operator for more";

/// Takes a component through every step.
pub(crate) async fn admit(inner: Arc<Inner>, bytes: Bytes) -> Result<Admitted, Refused> {
    check_size(&bytes, &inner.limits)?;
    let digest = Digest::of(&bytes);
    let version = VersionId::from(format!("sha256:{digest}"));

    let started = Instant::now();
    let compiling = inner.clone();
    let component = blocking(move || check_and_compile(&compiling, &bytes))
        .await
        .map_err(|error| refused("compile", error.to_string(), "upload it again"))??;
    let compile_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);

    let imports = check_imports(&inner.compiler.engine, &component)?;
    let pre = inner
        .compiler
        .linker
        .instantiate_pre(&component)
        .map_err(|error| {
            let fix = "build it against the WIT of this host and the WASI 0.2 its toolchain ships";
            refused(
                "imports",
                format!("an import does not fit what the host offers: {error:#}"),
                fix,
            )
        })?;
    let compiled = Compiled::of(pre).map_err(|error| {
        let fix = "export `decide` of the world belljar:agent/agent or belljar:agent/agent-json, version 0.1.0";
        refused("exports", format!("{error:#}"), fix)
    })?;
    check_resources(&component, &inner.limits)?;
    let (world, compiled) = (compiled.world(), Arc::new(compiled));
    smoke(&inner, &compiled, &version).await?;
    inner.compiler.keep(&version, compiled);
    // Only what passed takes room on the disk; a disk that is full makes no component bad.
    let keeping = inner.clone();
    let kept = blocking(move || keeping.compiler.cache_image(&digest, &component)).await;
    kept.map_err(|error| refused("compile", error.to_string(), "upload it again"))?;
    Ok(Admitted {
        world,
        imports,
        compile_ms,
    })
}

fn check_size(bytes: &[u8], limits: &Limits) -> Result<(), Refused> {
    if bytes.len() > limits.component_bytes {
        let reason = format!(
            "the component has {} bytes, {} are allowed",
            bytes.len(),
            limits.component_bytes
        );
        return Err(refused(
            "size",
            reason,
            "strip debug information (wasm-tools strip), or leave out what is not used",
        ));
    }
    Ok(())
}

fn check_and_compile(inner: &Inner, bytes: &[u8]) -> Result<Component, Refused> {
    const FIX: &str =
        "upload a WebAssembly component, such as cargo builds for the target wasm32-wasip2";
    if Engine::detect_precompiled(bytes).is_some() {
        return Err(refused(
            "component",
            "the bytes are a precompiled image; what others compiled is never run",
            FIX,
        ));
    }
    // Both kinds begin with `\0asm`; a module goes on with version 1, a component with 13 and layer 1.
    match bytes.get(..8) {
        Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => {
            let fix =
                "make a component of it: build for wasm32-wasip2, or run wasm-tools component new";
            return Err(refused(
                "component",
                "the bytes are a core module, not a component",
                fix,
            ));
        }
        Some([0, b'a', b's', b'm', _, _, 1, 0]) => {}
        _ => return Err(refused("component", "the bytes are not WebAssembly", FIX)),
    }
    inner.compiler.compile(bytes).map_err(|error| {
        let reason = format!("{error:#}");
        // A pool says before compiling what `check_resources` says where there is none.
        if reason.contains("pooling allocator") || reason.contains("per-component limit") {
            return refused("resources", reason, LESS);
        }
        let fix = "leave out proposals this host does not run: threads, memory64, garbage collection, exceptions, relaxed SIMD";
        refused("compile", reason, fix)
    })
}

/// Checks every import's name; gives them all.
fn check_imports(engine: &Engine, component: &Component) -> Result<Vec<String>, Refused> {
    let ty = component.component_type();
    let imports: Vec<String> = ty
        .imports(engine)
        .map(|(name, _)| name.to_owned())
        .collect();
    for import in &imports {
        let (name, version) = import.split_once('@').unwrap_or((import, ""));
        let offered = OFFERED.iter().find(|(offered, _)| *offered == name);
        let reason = match offered {
            Some((_, series))
                if version
                    .strip_prefix(series)
                    .is_some_and(|rest| rest.starts_with('.')) =>
            {
                continue;
            }
            Some((_, series)) => {
                format!("it imports `{import}`, of which the host offers version {series}")
            }
            None => format!("it imports `{import}`, which the host does not offer"),
        };
        let all: Vec<_> = OFFERED
            .iter()
            .map(|(name, series)| format!("{name}@{series}"))
            .collect();
        return Err(refused(
            "imports",
            reason,
            format!("import no more than the host offers: {}", all.join(", ")),
        ));
    }
    Ok(imports)
}

fn check_resources(component: &Component, limits: &Limits) -> Result<(), Refused> {
    let over = |what: &str, needs: u64, most: u64| {
        (needs > most).then(|| {
            refused(
                "resources",
                format!("it needs {needs} {what}, {most} are allowed"),
                LESS,
            )
        })
    };
    let Some(needs) = component.resources_required() else {
        let reason = "it instantiates modules it imports, so what it needs cannot be told";
        return Err(refused(
            "resources",
            reason,
            "link those modules into the component",
        ));
    };
    let found = over(
        "memories",
        needs.num_memories.into(),
        limits.memories.into(),
    )
    .or_else(|| {
        over(
            "bytes of memory at its start",
            needs.max_initial_memory_size.unwrap_or(0),
            limits.memory,
        )
    })
    .or_else(|| over("tables", needs.num_tables.into(), limits.tables.into()))
    .or_else(|| {
        over(
            "table elements at its start",
            needs.max_initial_table_size.unwrap_or(0),
            limits.table_elements,
        )
    });
    found.map_or(Ok(()), Err)
}

/// A decision as every session's first, under a small budget, in an empty session of nobody.
async fn smoke(
    inner: &Arc<Inner>,
    compiled: &Compiled,
    version: &VersionId,
) -> Result<(), Refused> {
    let tenant = TenantId::from("");
    let session = SessionId::from(format!("smoke {version} {:?}", Instant::now()));
    let job = Job {
        tenant: tenant.clone(),
        version: version.clone(),
        ask: Ask {
            session_id: session.clone(),
            decision_id: "00000000-0000-0000-0000-000000000000".into(),
            agent_id: "smoke".into(),
            identity: Identity::default(),
            trigger: Trigger::SessionStart,
            previous_version: None,
            pending_calls: 0,
            ancestry: Vec::new(),
            attempts: 1,
            deadline: None,
            turn_id: None,
            live_at: Timestamp::from_millis(1_767_225_600_000),
        },
        view: Arc::new(FixedView::default()),
        scratch: Arc::default(),
        deltas: None,
    };
    let permit = inner.gate.enter(&tenant).await;
    let decided = crate::run::run(
        &inner.compiler.engine,
        compiled,
        &inner.setting,
        job,
        Arc::new(inner.limits.smoke()),
    )
    .await;
    drop(permit);
    inner.setting.scratches.forget(&tenant, &session);
    decided.outcome.map(drop).map_err(|failure| {
        let said = decided
            .run
            .log
            .iter()
            .rev()
            .take(3)
            .rev()
            .map(|line| line.line.as_str())
            .collect::<Vec<_>>();
        let said = if said.is_empty() {
            String::new()
        } else {
            format!("; it said: {}", said.join(" | "))
        };
        let reason = format!(
            "it did not answer session.start in a new session: {} ({}){said}",
            failure.message, failure.code
        );
        refused(
            "smoke",
            reason,
            "answer session.start without needing anything beyond the request",
        )
    })
}
