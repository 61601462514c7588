//! The driver under a seeded storm: clients that repeat themselves, an agent and a model that
//! fail, a store that fails, a host that dies and comes back, time that jumps.
//!
//! Whatever happens, nothing acknowledged is lost, no turn runs twice, no call settles twice,
//! subscribers see one log without gaps, and in the end every session is idle. A seed that
//! fails is printed; `BELLJAR_SEEDS=from..to` runs others.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests say what they expect"
)]

#[path = "../../host/server/tests/driver/bed.rs"]
#[allow(unreachable_pub, dead_code, reason = "it serves several test binaries")]
mod bed;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bed::{Bed, overloaded};
use belljar_engine::{Party, State, apply};
use belljar_protocol::decision::FailureClass;
use belljar_protocol::event::{Commit, Event};
use belljar_protocol::id::{CallId, SessionId, TenantId, TurnId};
use belljar_protocol::ports::Store;
use belljar_server::HostConfig;
use belljar_store::{FaultPlan, FaultyStore, MemoryStore};

/// Random numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

const SESSIONS: u64 = 3;

fn seeds() -> Range<u64> {
    let Ok(range) = std::env::var("BELLJAR_SEEDS") else {
        return 0..60;
    };
    let (from, to) = range.split_once("..").expect("BELLJAR_SEEDS is from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_runs_twice() {
    for seed in seeds() {
        let storm = std::panic::catch_unwind(|| storm(seed));
        assert!(
            storm.is_ok(),
            "seed {seed}: run it alone with BELLJAR_SEEDS={seed}..{}",
            seed + 1
        );
    }
}

/// Runs a life to its end, and kills it: with its runtime goes every task.
fn live<T>(life: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(life)
}

/// Several lives on one store, and the calm after them.
fn storm(seed: u64) {
    let mut dice = Dice(seed);
    let inner = Arc::new(MemoryStore::new());
    live(async { drop(Bed::new(inner.clone()).await) });
    let mut acknowledged: BTreeSet<(u64, String)> = BTreeSet::new();
    let mut clock = 1_800_000_000_000;
    for life in 0..4 {
        let store = Arc::new(FaultyStore::new(inner.clone(), faults(&mut dice)));
        clock += 10_000_000;
        live(async {
            let bed = Bed::restart(store, Arc::default(), clock, HostConfig::default()).await;
            for step in 0..12 {
                act(
                    &bed,
                    &mut dice,
                    &mut acknowledged,
                    &format!("{life}-{step}"),
                )
                .await;
            }
            // Some lives end well, most do not.
            if dice.one_in(3) {
                bed.host.drain(Duration::from_secs(5)).await;
            }
        });
    }
    live(async {
        let bed = Bed::restart(
            inner.clone(),
            Arc::default(),
            clock + 10_000_000,
            HostConfig::default(),
        )
        .await;
        for (session, turn) in &acknowledged {
            bed.turn(&name(*session), turn).await;
        }
        tokio::time::sleep(Duration::from_secs(86_400 * 2)).await;
        for session in 0..SESSIONS {
            check(&inner, &bed, session, &acknowledged).await;
        }
    });
}

fn name(session: u64) -> String {
    format!("s{session}")
}

fn faults(dice: &mut Dice) -> FaultPlan {
    let mut plan = FaultPlan::new();
    if dice.one_in(2) {
        plan = plan.fail_after(1 + dice.below(20));
    }
    if dice.one_in(3) {
        plan = plan.fail_before(1 + dice.below(30));
    }
    for _ in 0..dice.below(4) {
        plan = plan.delay(1 + dice.below(20), Duration::from_millis(dice.below(5_000)));
    }
    plan
}

/// One thing happens.
async fn act(bed: &Bed, dice: &mut Dice, acknowledged: &mut BTreeSet<(u64, String)>, turn: &str) {
    let session = dice.below(SESSIONS);
    match dice.below(10) {
        0..5 => {
            let text = if dice.one_in(3) { "hi" } else { "go" };
            if bed.say(&name(session), turn, text).await.is_ok() {
                acknowledged.insert((session, turn.to_owned()));
            }
        }
        // A client that heard nothing, or forgot, says it again.
        5 => {
            if let Some((session, turn)) = acknowledged.iter().nth(dice.below(20) as usize).cloned()
            {
                for text in ["hi", "go"] {
                    let again = bed.say(&name(session), &turn, text).await;
                    assert!(
                        again.is_err()
                            || again.unwrap().turn_id == Some(TurnId::from(turn.as_str()))
                    );
                }
            }
        }
        6 => {
            let abort = bed
                .host
                .abort(&bed.tenant, &SessionId::from(name(session)), Party::Client)
                .await;
            drop(abort);
        }
        7 => {
            let class = [
                FailureClass::Deterministic,
                FailureClass::Retryable,
                FailureClass::TimedOut,
                FailureClass::Terminal,
            ][dice.below(4) as usize];
            bed.agent
                .fails
                .lock()
                .unwrap()
                .extend(vec![class; 1 + dice.below(3) as usize]);
        }
        8 => bed
            .model
            .fails
            .lock()
            .unwrap()
            .extend(vec![overloaded(); 1 + dice.below(6) as usize]),
        _ => {
            *bed.model.takes.lock().unwrap() = Duration::from_millis(dice.below(400_000));
            *bed.agent.takes.lock().unwrap() = Duration::from_millis(dice.below(20));
        }
    }
    tokio::time::sleep(Duration::from_millis(dice.below(3_000))).await;
}

async fn check(
    store: &MemoryStore,
    bed: &Bed,
    session: u64,
    acknowledged: &BTreeSet<(u64, String)>,
) {
    let (tenant, id) = (TenantId::built_in(), SessionId::from(name(session)));
    let commits = store.read(&tenant, &id, 0, u32::MAX).await.unwrap();
    let mut ends: BTreeMap<TurnId, u32> = BTreeMap::new();
    let mut settled: BTreeSet<CallId> = BTreeSet::new();
    let mut state = State::new(id.clone());
    let mut next = 1;
    for commit in &commits {
        assert_eq!(commit.first_seq, next, "the log has no gaps");
        next = commit.last_seq() + 1;
        apply(&mut state, commit);
        for event in &commit.events {
            match event {
                Event::TurnEnded(event) => *ends.entry(event.turn_id.clone()).or_default() += 1,
                Event::CallSettled(event) => {
                    assert!(
                        settled.insert(event.call_id.clone()),
                        "call {} settles twice",
                        event.call_id
                    );
                }
                _ => {}
            }
        }
    }
    for (_, turn) in acknowledged.iter().filter(|(of, _)| *of == session) {
        assert_eq!(
            ends.get(&TurnId::from(turn.as_str())),
            Some(&1),
            "turn {turn} ends once"
        );
    }
    assert!(ends.values().all(|times| *times == 1), "{ends:?}");
    if commits.is_empty() {
        return;
    }
    assert_eq!(
        (state.status(), state.open_calls().len()),
        ("idle", 0),
        "nothing is left over"
    );
    let seen = bed.host.state(&tenant, &id).await.unwrap();
    assert_eq!(seen.seq, state.seq());
    followed(bed, &id, &commits).await;
}

/// A subscriber is shown exactly the log.
async fn followed(bed: &Bed, id: &SessionId, commits: &[Commit]) {
    let mut watch = bed.host.subscribe(&bed.tenant, id, 0).await.unwrap();
    for event in commits.iter().flat_map(|commit| &commit.events) {
        match watch.next().await.unwrap() {
            belljar_server::driver::Item::Event { event: shown, .. } => assert_eq!(*shown, *event),
            other => panic!("instead of {}: {other:?}", event.kind()),
        }
    }
}
