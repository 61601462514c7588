//! The durable store: event log, snapshots, timers, agents, blobs.
#![forbid(unsafe_code)]
