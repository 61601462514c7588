//! The world `agent` as Rust types, for every agent of this workspace.
//!
//! An agent implements [`Guest`] and calls `belljar_agent::export!(Type with_types_in belljar_agent::bindings)`.

// A module of its own: the export macro is defined at the root and again, as an item, where it is generated.
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "agent",
        pub_export_macro: true,
        default_bindings_module: "belljar_agent::bindings",
    });
}

pub use bindings::belljar::agent::{decisions, deltas, files, log, session, types};
pub use bindings::{Guest, export};
