//! What the store's threads share: its counts, and whether it may still write.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_protocol::ports::{StoreCounters, StoreError};

/// Called once, with the reason, when the store stops writing for good.
pub(super) type OnFatal = Box<dyn Fn(&str) + Send + Sync>;

/// Counts and the one-way step from working to stopped.
#[derive(Default)]
pub(super) struct Fate {
    pub(super) commits: AtomicU64,
    pub(super) transactions: AtomicU64,
    pub(super) file_syncs: AtomicU64,
    pub(super) checkpoints: AtomicU64,
    stopped: OnceLock<String>,
    on_fatal: Option<OnFatal>,
}

impl Fate {
    pub(super) fn new(on_fatal: Option<OnFatal>) -> Self {
        Self {
            on_fatal,
            ..Self::default()
        }
    }

    /// Stops all writing: after a failed commit or sync nobody knows what is on disk, and a
    /// second sync that succeeds would prove nothing (the kernel drops pages it failed to write).
    pub(super) fn stop(&self, reason: &str) {
        if self.stopped.set(reason.to_owned()).is_err() {
            return;
        }
        tracing::error!(reason, "the store stops writing");
        if let Some(hook) = &self.on_fatal {
            hook(reason);
        }
    }

    /// Fails when writing has stopped.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.stopped.get() {
            None => Ok(()),
            Some(reason) => Err(StoreError::Failed(format!(
                "writing has stopped until the process is restarted, because {reason}"
            ))),
        }
    }

    pub(super) fn counters(&self) -> StoreCounters {
        StoreCounters {
            commits: self.commits.load(Ordering::Relaxed),
            transactions: self.transactions.load(Ordering::Relaxed),
            file_syncs: self.file_syncs.load(Ordering::Relaxed),
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
        }
    }
}
