//! The integration tests: one binary, since each links wasmtime.

mod arrows;
mod e2e;
mod logs;
mod vectors;
