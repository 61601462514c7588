//! The store alone: what a commit costs, and what sharing a sync saves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use belljar_protocol::event::{Commit, Event};
use belljar_protocol::id::{SessionId, TenantId};
use belljar_protocol::ports::{Append, Store};
use belljar_store::SqliteStore;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::report::{Figure, Report};
use crate::rig::{self, Disk};

/// How long each level is measured.
const WINDOW: Duration = Duration::from_secs(2);

/// Writers at once, each with a session of its own.
const LEVELS: [(usize, &str); 3] = [
    (1, "store appends, 1 session"),
    (16, "store appends, 16 sessions"),
    (256, "store appends, 256 sessions"),
];

pub(crate) fn run(runtime: &Runtime, report: &mut Report) -> Result<()> {
    let data = rig::folder()?;
    let mut disk = Disk::new(data.path())?;
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(data.path())?);
    for (writers, name) in LEVELS {
        let mut syncs = crate::report::Times::default();
        for _ in 0..50 {
            syncs.push(disk.sync()?);
        }
        let before = store.counters();
        let started = Instant::now();
        let appends = runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for writer in 0..writers {
                tasks.spawn(write(store.clone(), format!("{writers}-{writer}"), started));
            }
            let mut appends = 0;
            while let Some(done) = tasks.join_next().await {
                appends += done??;
            }
            anyhow::Ok(appends)
        })?;
        let rate = appends as f64 / started.elapsed().as_secs_f64();
        let after = store.counters();
        let shared = appends as f64 / (after.transactions - before.transactions) as f64;
        report.add(Figure::new(name, rate, "appends/s").note(format!(
            "{shared:.1} appends per sync; a bare sync takes {:.0} µs",
            syncs.median()
        )));
    }
    Ok(())
}

/// Appends a commit like those of a turn, one after the other.
async fn write(store: Arc<dyn Store>, session: String, started: Instant) -> Result<u64> {
    let event: Event = serde_json::from_value(serde_json::json!({
        "type": "turn.ended",
        "turn_id": "t",
        "status": "completed",
        "data": "x".repeat(1_500),
    }))?;
    let mut seq = 0;
    while started.elapsed() < WINDOW {
        let append = Append {
            tenant: TenantId::built_in(),
            session: SessionId::from(session.as_str()),
            agent: rig::AGENT.into(),
            expected_seq: seq,
            commits: vec![Commit {
                first_seq: seq + 1,
                at: rig::now(),
                events: vec![event.clone()],
            }],
            blobs: Vec::new(),
            status: "idle".into(),
            next_wake: None,
        };
        store.append(append).await?;
        seq += 1;
    }
    Ok(seq)
}
