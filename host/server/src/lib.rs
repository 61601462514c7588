//! The driver of sessions and the HTTP interface to them.
//!
//! `driver` is the one loop: command → events → commit → plan → work → command. `http` turns
//! requests into calls on [`Host`] and its answers into responses. Neither names a store, a
//! sandbox or a provider: those come in as ports.
#![forbid(unsafe_code)]

pub mod driver;
pub mod http;

pub use driver::{Host, HostConfig, Parts};
pub use http::HttpConfig;
