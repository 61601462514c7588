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
const UNLOAD: Duration = Duration::from_secs(6);

pub(crate) fn run(runtime: &Runtime, report: &mut Report) -> Result<()> {
    runtime.block_on(async {
        let rig = Arc::new(Rig::new(UNLOAD).await?);
        make(&rig, "warm", WARM).await?;
        let (before, warm) = (resident()?, rig.host.counters().sessions_loaded);
        make(&rig, "first", SESSIONS).await?;
        let loaded = rig.host.counters().sessions_loaded;
        let after = resident()?;
        // The allocator keeps what they leave. So what an unloaded session costs is what is
        // missing when as many have come and gone once more.
        unload(&rig).await?;
        let emptied = resident()?;
        make(&rig, "second", SESSIONS).await?;
        unload(&rig).await?;
        let emptied_again = resident()?;
        let each = |from: u64, to: u64, sessions: u64| (to as f64 - from as f64) / sessions as f64;
        let more = loaded.saturating_sub(warm).max(1);
        report.add(
            Figure::new(
                "memory per idle session, loaded",
                each(before, after, more),
                "bytes",
            )
            .note(format!("two turns each, {loaded} loaded")),
        );
        let left = each(emptied, emptied_again, SESSIONS as u64);
        report.add(
            Figure::new("memory per idle session, unloaded", left, "bytes").note(format!(
                "the process has {} MiB with them and {} MiB without",
                after >> 20,
                emptied >> 20
            )),
        );
        Ok(())
    })
}

async fn unload(rig: &Rig) -> Result<()> {
    let started = Instant::now();
    while rig.host.counters().sessions_loaded > 0 {
        if started.elapsed() > 3 * UNLOAD {
            bail!("sessions do not leave memory");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
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
