//! The integration tests: one binary, since each links wasmtime.

mod vectors;
