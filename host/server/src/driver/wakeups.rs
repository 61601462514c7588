//! When a session that sleeps is looked at again.
//!
//! A session with work due is written down as such (`WORK_DUE`), so the first look, when the host
//! starts, finds everything that a crash cut off: recovery is no feature apart. Later looks
//! happen at the earliest timer of all, and see only what has become due since.

use std::sync::Arc;

use belljar_protocol::Timestamp;
use belljar_protocol::ports::StoreError;
use tokio::sync::Semaphore;

use super::host::Inner;
use super::roster::{Key, Mail};

/// Wakes sessions until the host drains or its store fails.
pub(super) async fn run(host: Arc<Inner>) {
    let mut looked = Timestamp::from_millis(i64::MIN);
    loop {
        let now = host.now();
        let next = match wake_due(&host, looked, now).await {
            Ok(()) => host.parts.store.next_wake(now).await,
            Err(error) => Err(error),
        };
        let next = match next {
            Ok(next) => next,
            Err(error) => {
                tracing::error!(%error, "sessions that are due cannot be found");
                return host.fatal(&error.to_string());
            }
        };
        looked = now;
        // A session may be written with an earlier timer meanwhile, and says so.
        tokio::select! {
            () = super::session::wake_at(&host, next) => {}
            () = host.wake_moved(next) => {}
        }
        if host.is_draining() {
            return;
        }
    }
}

async fn wake_due(host: &Arc<Inner>, after: Timestamp, now: Timestamp) -> Result<(), StoreError> {
    let due = host.parts.store.due(after, now, u32::MAX).await?;
    let places = Arc::new(Semaphore::new(host.config.recovering.max(1)));
    for (tenant, session) in due {
        let key = Key { tenant, session };
        // One in use looks after its own timers.
        if host.roster.has(&key) {
            continue;
        }
        let Ok(place) = places.clone().acquire_owned().await else {
            return Ok(());
        };
        let host = host.clone();
        tokio::spawn(async move { host.send(&key, Mail::Nudge(place)).await });
    }
    Ok(())
}
