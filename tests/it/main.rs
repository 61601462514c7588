//! The integration tests: one binary, since each links wasmtime.

mod arrows;
mod logs;
mod vectors;
