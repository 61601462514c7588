//! The sandbox from outside: real components through the ports.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests are outside of them.

mod attacks;
mod determinism;
mod ledger;
mod rig;
mod upload;
