//! The numbered rules of the decision protocol, each with a test that is named after it.
#![allow(clippy::unwrap_used, clippy::expect_used)] // clippy.toml allows them in tests only

mod calls;
mod decisions;
mod extremes;
mod inputs;
mod prompt;
mod proposals;
mod session;
mod tree;
mod turns;
