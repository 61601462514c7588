//! Tests of the stores from outside.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in tests, not in what they share

mod crash;
mod faults;
mod sqlite;
mod suite;
mod support;
