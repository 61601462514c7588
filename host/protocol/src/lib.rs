//! Wire and persisted types of Belljar, and the ports its adapters implement.
//!
//! This crate holds shapes and their text forms, never behaviour: the rules live in
//! `belljar-engine`, the adapters in `sandbox`, `store`, `providers`, and the loop that joins
//! them in `server`. Everything here is what crosses a boundary: HTTP, a component, a model,
//! or the disk.
#![forbid(unsafe_code)]

#[macro_use]
mod tagged;

pub mod agent;
pub mod call;
pub mod decision;
pub mod event;
pub mod id;
pub mod input;
pub mod json;
pub mod message;
pub mod model;
pub mod ports;
pub mod problem;
pub mod run;
pub mod scratch;
pub mod snapshot;
pub mod sse;
pub mod time;
pub mod version;

pub use json::Json;
pub use time::Timestamp;
