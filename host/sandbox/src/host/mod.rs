//! What a guest may call, one file per interface, and the data behind it: one [`Host`] per
//! decision, never reused.

mod deltas;
mod files;
mod filesystem;
mod log;
mod session;

use std::sync::Arc;

use belljar_protocol::agent::WireFormat;
use belljar_protocol::ports::{DeltaSink, SessionView};
use belljar_protocol::scratch::{DeliveredFile, Digest};
use bytes::Bytes;
use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::bindings;
use crate::journal::Journal;
use crate::limits::{Budget, Limits};
use crate::scratch::ScratchUse;

/// The data of one store.
pub(crate) struct Host {
    pub(crate) limits: Arc<Limits>,
    pub(crate) budget: Budget,
    pub(crate) meter: Meter,
    pub(crate) journal: Journal,
    pub(crate) wasi: WasiCtx,
    pub(crate) table: ResourceTable,
    pub(crate) view: Arc<dyn SessionView>,
    pub(crate) scratch: ScratchUse,
    pub(crate) deliveries: Deliveries,
    pub(crate) deltas: Deltas,
}

/// What a decision has used of things that are counted.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) host_calls: u64,
}

/// What a decision has delivered.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    pub(crate) files: Vec<DeliveredFile>,
    pub(crate) blobs: Vec<(Digest, Bytes)>,
    pub(crate) bytes: u64,
}

/// Where deltas go, and how many bytes went.
pub(crate) struct Deltas {
    /// None outside an `llm.execute` that streams.
    pub(crate) sink: Option<DeltaSink>,
    /// The provider's format the trigger names; none: deltas have the host's own shape.
    pub(crate) format: Option<WireFormat>,
    pub(crate) bytes: usize,
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

/// Interfaces a component may import, without their versions, for the upload's check.
pub(crate) const OFFERED: &[(&str, &str)] = &[
    ("belljar:agent/types", "0.1"),
    ("belljar:agent/decisions", "0.1"),
    ("belljar:agent/session", "0.1"),
    ("belljar:agent/files", "0.1"),
    ("belljar:agent/log", "0.1"),
    ("belljar:agent/deltas", "0.1"),
    ("wasi:io/error", "0.2"),
    ("wasi:io/poll", "0.2"),
    ("wasi:io/streams", "0.2"),
    ("wasi:clocks/wall-clock", "0.2"),
    ("wasi:clocks/monotonic-clock", "0.2"),
    ("wasi:random/random", "0.2"),
    ("wasi:random/insecure", "0.2"),
    ("wasi:random/insecure-seed", "0.2"),
    ("wasi:cli/environment", "0.2"),
    ("wasi:cli/exit", "0.2"),
    ("wasi:cli/stdin", "0.2"),
    ("wasi:cli/stdout", "0.2"),
    ("wasi:cli/stderr", "0.2"),
    ("wasi:cli/terminal-input", "0.2"),
    ("wasi:cli/terminal-output", "0.2"),
    ("wasi:cli/terminal-stdin", "0.2"),
    ("wasi:cli/terminal-stdout", "0.2"),
    ("wasi:cli/terminal-stderr", "0.2"),
    ("wasi:filesystem/types", "0.2"),
    ("wasi:filesystem/preopens", "0.2"),
    // Linked so that common toolchains' components instantiate; every use is refused.
    ("wasi:sockets/network", "0.2"),
    ("wasi:sockets/instance-network", "0.2"),
    ("wasi:sockets/ip-name-lookup", "0.2"),
    ("wasi:sockets/tcp", "0.2"),
    ("wasi:sockets/tcp-create-socket", "0.2"),
    ("wasi:sockets/udp", "0.2"),
    ("wasi:sockets/udp-create-socket", "0.2"),
];

/// Links everything that either world may import.
pub(crate) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<Host>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    filesystem::add_to_linker(&mut linker)?;
    bindings::typed::Agent::add_to_linker::<Host, HasSelf<Host>>(&mut linker, |host| host)?;
    Ok(linker)
}

// Interfaces that hold types and no functions.
impl bindings::types::Host for Host {}
impl bindings::decisions::Host for Host {}
