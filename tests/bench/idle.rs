//! The memory of sessions nobody speaks to: loaded, and unloaded after a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::report::{Figure, Report};
use crate::rig::{CHAT, READ, Rig};

/// Sessions that are measured, and those before them that warm everything else up.
const SESSIONS: usize = 2_000;
const WARM: usize = 300;
/// Sessions that are made at once.
const AT_ONCE: usize = 32;
/// Longer than it takes to make them all.
const UNLOAD: Duration = Duration::from_secs(8);

pub(crate) fn run(runtime: &Runtime, report: &mut Report) -> Result<()> {
    runtime.block_on(async {
        let rig = Arc::new(Rig::new(UNLOAD).await?);
        make(&rig, "warm", WARM).await?;
        let before = resident()?;
        make(&rig, "idle", SESSIONS).await?;
        let loaded = rig.host.counters().sessions_loaded;
        let after = resident()?;
        let started = Instant::now();
        while rig.host.counters().sessions_loaded > 0 {
            if started.elapsed() > 3 * UNLOAD {
                bail!("sessions do not leave memory");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let unloaded = resident()?;
        let each = |bytes: u64| bytes.saturating_sub(before) as f64 / SESSIONS as f64;
        report.add(
            Figure::new("memory per idle session, loaded", each(after), "bytes").note(format!(
                "two turns each, {loaded} loaded, {} MiB in all",
                after >> 20
            )),
        );
        report.add(
            Figure::new("memory per idle session, unloaded", each(unloaded), "bytes")
                .note("what the allocator keeps of it; a later session uses it again"),
        );
        Ok(())
    })
}

/// Makes sessions with a short conversation.
async fn make(rig: &Arc<Rig>, name: &'static str, sessions: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    for lane in 0..AT_ONCE {
        let rig = rig.clone();
        tasks.spawn(async move {
            for ix in (lane..sessions).step_by(AT_ONCE) {
                let mut talk = rig.talk(format!("{name}-{ix}")).await?;
                let text = if ix % 2 == 0 { READ } else { CHAT };
                talk.turn(&rig, text).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Bytes of this process in memory.
fn resident() -> Result<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages = pages
        .split(' ')
        .nth(1)
        .context("statm has a second field")?;
    Ok(pages.parse::<u64>()? * 4096)
}
