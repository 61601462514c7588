//! Who may use the log: the writer, or a checkpoint that needs it to itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock that two threads take in turns.
///
/// The writer lets go of the log for microseconds between transactions of milliseconds. A plain
/// mutex gives it back to whoever runs already, so a sleeping checkpoint could miss every gap.
/// Here whoever waits stands in the turnstile, and the other cannot pass it.
#[derive(Default)]
pub(super) struct Gate {
    turnstile: Mutex<()>,
    inside: Mutex<()>,
}

impl Gate {
    /// Waits for the other to come out, at most once.
    pub(super) fn enter(&self) -> MutexGuard<'_, ()> {
        let _passing = self
            .turnstile
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
