//! Time on a processor: what the thread's own clock says while a decision is being polled, so
//! that neighbours on a busy machine are not counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds this thread has spent on a processor.
fn thread_nanos() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The processor time of one decision. Relaxed everywhere: one thread at a time polls it, and
/// the runtime orders one poll after the other.
#[derive(Debug, Default)]
pub(crate) struct CpuClock {
    before: AtomicU64,
    since: AtomicU64,
}

impl CpuClock {
    /// Time used up to now; called while the decision is being polled, by whoever polls it.
    pub(crate) fn running(&self) -> Duration {
        let now = thread_nanos().saturating_sub(self.since.load(Ordering::Relaxed));
        Duration::from_nanos(self.before.load(Ordering::Relaxed) + now)
    }

    /// Time used by the polls that are over.
    pub(crate) fn used(&self) -> Duration {
        Duration::from_nanos(self.before.load(Ordering::Relaxed))
    }
}

/// A future whose polls are timed.
pub(crate) struct Timed<F> {
    inner: Pin<Box<F>>,
    clock: Arc<CpuClock>,
}

impl<F: Future> Timed<F> {
    pub(crate) fn new(inner: F, clock: Arc<CpuClock>) -> Self {
        Self {
            inner: Box::pin(inner),
            clock,
        }
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let start = thread_nanos();
        self.clock.since.store(start, Ordering::Relaxed);
        let polled = self.inner.as_mut().poll(cx);
        self.clock
            .before
            .fetch_add(thread_nanos().saturating_sub(start), Ordering::Relaxed);
        polled
    }
}
