//! The contract of `wit/`, as Rust types. One module per world this host serves; both share the
//! interfaces they have in common.
#![allow(missing_docs, unreachable_pub)]

pub mod typed {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "agent",
        imports: { "belljar:agent/files.deliver": async },
        exports: { default: async },
    });
}

pub mod json {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "agent-json",
        exports: { default: async },
        with: {
            "belljar:agent/files": super::typed::belljar::agent::files,
            "belljar:agent/log": super::typed::belljar::agent::log,
            "belljar:agent/deltas": super::typed::belljar::agent::deltas,
            "belljar:agent/types": super::typed::belljar::agent::types,
        },
    });
}

pub(crate) use typed::belljar::agent::{decisions, deltas, files, log, session, types};
