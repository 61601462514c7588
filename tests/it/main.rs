//! The integration tests: one binary, since each links wasmtime.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests say what they expect"
)]

mod arrows;
mod e2e;
mod logs;
mod vectors;
