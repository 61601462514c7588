//! A component on bare wasmtime: the sandbox's engine, a fresh store for each call, fuel and
//! epochs as in the sandbox, and imports that give constants. The floor of a decision.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use belljar_sandbox::Limits;
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, Store, UpdateDeadline};

#[allow(missing_docs, unreachable_pub, reason = "generated")]
mod contract {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "agent",
        imports: { "belljar:agent/files.deliver": async },
        exports: { default: async },
    });
}

use contract::AgentPre;
use contract::belljar::agent::decisions::{Answer, Identity, Request, ToolFinished, Trigger};
use contract::belljar::agent::{decisions, files, log, types};

/// Imports that give constants. Those of WASI are not called by a ledger that accepts, and trap.
struct Constants;

impl types::Host for Constants {}
impl decisions::Host for Constants {}
impl log::Host for Constants {
    fn write(&mut self, _: log::Level, _: String) {}
}
impl files::Host for Constants {
    async fn deliver(
        &mut self,
        path: String,
        _: Option<String>,
    ) -> Result<files::Delivered, files::DeliverError> {
        Err(files::DeliverError::BadPath(path))
    }
}

/// The component and what it is asked, always the same.
pub(crate) struct Bare {
    engine: Engine,
    agent: AgentPre<Constants>,
    request: Request,
    fuel: u64,
}

impl Bare {
    pub(crate) fn new(component: &[u8]) -> Result<Self> {
        let limits = Limits::default();
        let engine = belljar_sandbox::engine(&limits)?;
        let component = wasm(Component::from_binary(&engine, component))?;
        let mut linker = Linker::new(&engine);
        wasm(types::add_to_linker::<_, HasSelf<_>>(&mut linker, |it| it))?;
        wasm(decisions::add_to_linker::<_, HasSelf<_>>(
            &mut linker,
            |it| it,
        ))?;
        wasm(files::add_to_linker::<_, HasSelf<_>>(&mut linker, |it| it))?;
        wasm(log::add_to_linker::<_, HasSelf<_>>(&mut linker, |it| it))?;
        wasm(linker.define_unknown_imports_as_traps(&component))?;
        let agent = wasm(AgentPre::new(wasm(linker.instantiate_pre(&component))?))?;
        Ok(Self {
            engine,
            agent,
            request: request(),
            fuel: limits.fuel,
        })
    }

    /// One decision, accepted.
    pub(crate) async fn decide(&self) -> Result<Duration> {
        let started = Instant::now();
        let mut store = Store::new(&self.engine, Constants);
        wasm(store.set_fuel(self.fuel))?;
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| {
            let again = Box::pin(tokio::task::yield_now());
            Ok(UpdateDeadline::YieldCustom(1, again))
        });
        let agent = wasm(self.agent.instantiate_async(&mut store).await)?;
        let answer = wasm(agent.call_decide(&mut store, &self.request).await)?;
        drop(store);
        let time = started.elapsed();
        match answer {
            Ok(Answer::Accept) => Ok(time),
            other => bail!("the ledger answered {other:?}"),
        }
    }
}

fn wasm<T>(result: wasmtime::Result<T>) -> Result<T> {
    result.map_err(|error| anyhow!("{error:#}"))
}

/// The question that [`crate::decide::ask`] puts to the sandbox.
fn request() -> Request {
    Request {
        session_id: "s".into(),
        decision_id: "d".into(),
        agent_id: crate::rig::AGENT.into(),
        identity: Identity {
            id: None,
            metadata: Vec::new(),
        },
        trigger: Trigger::ToolFinished(ToolFinished {
            id: "c".into(),
            name: "balance".into(),
            outcome: Ok("balance 3.50".into()),
        }),
        version: format!("sha256:{}", "0".repeat(64)),
        previous_version: Some(format!("sha256:{}", "0".repeat(64))),
        pending_calls: 0,
        ancestry: Vec::new(),
        attempts: 1,
        deadline: None,
        turn_id: Some("t".into()),
    }
}
