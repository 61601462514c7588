//! The sandbox: one decision in, one answer out, under limits.
#![deny(unsafe_code)]
