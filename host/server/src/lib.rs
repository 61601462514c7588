//! The driver of sessions and the HTTP interface.
#![forbid(unsafe_code)]
