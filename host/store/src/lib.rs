//! The durable store: event log, snapshots, timers, agents, blobs.
//!
//! * [`SqliteStore`] keeps everything in one directory: a SQLite database and a folder of large
//!   blobs. It is what a host runs on.
//! * [`MemoryStore`] keeps the same promises until the process ends, for tests.
//! * [`FaultyStore`] wraps any store and fails, delays or crashes where a plan says so.
//!
//! All pass one suite (`tests/store/suite.rs`), so a test that runs on one says something about
//! the others.
#![forbid(unsafe_code)]

mod append;
mod faulty;
mod memory;
mod sqlite;

pub use faulty::{FaultPlan, FaultyStore};
pub use memory::MemoryStore;
pub use sqlite::{Options, SqliteStore};

/// The most bytes a blob may have to live in the database; a larger one becomes a file.
pub const INLINE_BLOB_BYTES: usize = 64 * 1024;
