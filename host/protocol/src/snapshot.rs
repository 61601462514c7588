//! A folded session on disk, so that loading costs its tail and not its history.
//!
//! Snapshots may be thrown away at any time: the log alone is the truth. The body is the
//! engine's own document under a format number; one that is not [`FORMAT`] is ignored.

use serde::{Deserialize, Serialize};

use crate::Json;

/// The format this build writes and reads.
pub const FORMAT: u32 = 1;

/// One folded session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Which shape `body` has.
    pub format: u32,
    /// The last event folded in.
    pub seq: u64,
    /// The engine's document.
    pub body: Json,
}
