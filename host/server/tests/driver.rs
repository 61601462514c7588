//! The driver on a store in memory: what leaves, when, and what a crash costs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests say what they expect"
)]

#[path = "driver/bed.rs"]
#[allow(unreachable_pub, dead_code, reason = "it serves several test binaries")]
mod bed;
#[path = "driver/bounds.rs"]
mod bounds;
#[path = "driver/disk.rs"]
mod disk;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bed::{Bed, overloaded};
use belljar_protocol::decision::FailureClass;
use belljar_protocol::event::Event;
use belljar_protocol::id::SessionId;
use belljar_protocol::ports::{Blobs, Conclusion, Store};
use belljar_protocol::version::Swap;
use belljar_server::HostConfig;
use belljar_server::driver::Item;
use belljar_store::{FaultPlan, FaultyStore, MemoryStore};
use bytes::Bytes;

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new())
}

#[tokio::test(start_paused = true)]
async fn a_turn_with_a_tool_runs_to_its_end() {
    let bed = Bed::new(memory()).await;
    let submitted = bed.say("s", "t", "go").await.unwrap();
    assert_eq!(submitted.turn_id.unwrap().as_str(), "t");
    assert_eq!(bed.turn("s", "t").await, "three");
    let asked: Vec<_> = bed.asked().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(
        asked,
        [
            "session.start",
            "client.messages",
            "llm.finished",
            "tool.execute",
            "tool.finished",
            "llm.finished"
        ]
    );
    assert!(
        bed.agent
            .concluded
            .lock()
            .unwrap()
            .iter()
            .all(|c| matches!(c, Conclusion::Accepted { .. }))
    );
    let state = bed
        .host
        .state(&bed.tenant, &SessionId::from("s"))
        .await
        .unwrap();
    assert_eq!(
        (state.status, state.messages.len(), state.calls.len()),
        ("idle", 4, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_turn_of_message_model_tool_model_done_costs_three_syncs() {
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    bed.say("s", "t0", "hi").await.unwrap();
    bed.turn("s", "t0").await;
    let before = store.counters().transactions;
    bed.say("s", "t", "go").await.unwrap();
    bed.turn("s", "t").await;
    assert_eq!(store.counters().transactions - before, 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_leaves_before_it_is_on_disk() {
    let slow = FaultyStore::new(
        memory(),
        FaultPlan::new().delay_every(Duration::from_secs(5)),
    );
    let bed = Bed::new(Arc::new(slow)).await;
    let start = tokio::time::Instant::now();
    let (ack, ()) = tokio::join!(bed.say("s", "t", "hi"), async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(
            bed.model.asked.lock().unwrap().is_empty(),
            "the model was asked before the sync"
        );
    });
    ack.unwrap();
    assert!(
        start.elapsed() >= Duration::from_secs(5),
        "acknowledged before the sync"
    );
    assert_eq!(bed.turn("s", "t").await, "hello");
}

#[tokio::test(start_paused = true)]
async fn a_repeat_is_acknowledged_only_with_what_it_repeats() {
    let slow = FaultyStore::new(
        memory(),
        FaultPlan::new().delay_every(Duration::from_secs(5)),
    );
    let bed = Bed::new(Arc::new(slow)).await;
    let start = tokio::time::Instant::now();
    let (first, repeat) = tokio::join!(bed.say("s", "t", "hi"), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bed.say("s", "t", "hi").await
    });
    assert_eq!(first.unwrap(), repeat.unwrap());
    assert!(start.elapsed() >= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn two_clients_at_once_get_one_turn() {
    let bed = Bed::new(memory()).await;
    let (a, b) = tokio::join!(bed.say("s", "a", "hi"), bed.say("s", "b", "hi"));
    let (won, lost) = if a.is_ok() { (a, b) } else { (b, a) };
    let won = won.unwrap().turn_id.unwrap();
    let lost = lost.unwrap_err();
    assert_eq!((lost.status, lost.code.as_str()), (409, "turn_active"));
    assert_eq!(lost.more["turn_id"], won.as_str());
    assert_eq!(bed.turn("s", won.as_str()).await, "hello");
}

#[tokio::test(start_paused = true)]
async fn two_hundred_sessions_at_once() {
    let bed = Arc::new(Bed::new(memory()).await);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..200 {
        let bed = bed.clone();
        tasks.spawn(async move {
            let session = format!("s{n}");
            bed.say(&session, "t", "go").await.unwrap();
            bed.turn(&session, "t").await
        });
    }
    assert!(tasks.join_all().await.iter().all(|data| data == "three"));
}

#[tokio::test(start_paused = true)]
async fn c15_d2_a_turn_goes_on_after_the_host_is_gone() {
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    *bed.model.takes.lock().unwrap() = Duration::from_secs(3_600);
    bed.say("s", "t", "go").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        bed.model.asked.lock().unwrap().len(),
        1,
        "a model call is in flight"
    );
    bed.host.drain(Duration::from_secs(1)).await;
    drop(bed);

    let bed = Bed::restart(
        store,
        Arc::default(),
        1_800_000_100_000,
        HostConfig::default(),
    )
    .await;
    assert_eq!(bed.turn("s", "t").await, "three");
    let log = bed
        .host
        .log(&bed.tenant, &SessionId::from("s"), 0, 1_000)
        .await
        .unwrap();
    let attempts: Vec<_> = log
        .events
        .iter()
        .filter_map(|event| match &*event.event {
            Event::CallAttempted(event) => Some(event.attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [2], "the call left again, as its next attempt");
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_commit_loses_nothing_acknowledged() {
    for nth in 1..=8 {
        let inner = memory();
        let plan = FaultPlan::new().fail_after(nth);
        let bed = Bed::new(Arc::new(FaultyStore::new(inner.clone(), plan))).await;
        let acked = bed.say("s", "t", "go").await.is_ok();
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(bed);
        let bed = Bed::restart(
            inner,
            Arc::default(),
            1_800_000_900_000,
            HostConfig::default(),
        )
        .await;
        if acked {
            assert_eq!(bed.turn("s", "t").await, "three", "append {nth}");
        } else {
            bed.say("s", "t", "go").await.unwrap();
            assert_eq!(
                bed.turn("s", "t").await,
                "three",
                "append {nth}, said again"
            );
        }
        let state = bed
            .host
            .state(&bed.tenant, &SessionId::from("s"))
            .await
            .unwrap();
        assert_eq!(state.messages.len(), 4, "append {nth}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_told_once_and_nobody_is_acknowledged() {
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hook = told.clone();
    let config = HostConfig {
        on_fatal: Some(Arc::new(move |reason: &str| {
            hook.lock().unwrap().push(reason.to_owned());
        })),
        ..HostConfig::default()
    };
    let inner = memory();
    drop(Bed::new(inner.clone()).await);
    let store = Arc::new(FaultyStore::new(inner, FaultPlan::new().fail_before(1)));
    let bed = Bed::restart(store, Arc::default(), 1_800_000_000_000, config).await;
    let refused = bed.say("s", "t", "hi").await.unwrap_err();
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (503, "store_failed")
    );
    assert_eq!(bed.say("s", "t", "hi").await.unwrap_err().status, 503);
    assert_eq!(told.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_moved_on_is_loaded_anew_and_the_command_handled_on_it() {
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    bed.say("s", "t", "hi").await.unwrap();
    bed.turn("s", "t").await;
    // Another host writes to the session behind this one's back.
    let other = Bed::restart(
        store,
        bed.model.clone(),
        1_800_000_500_000,
        HostConfig::default(),
    )
    .await;
    other.say("s", "t2", "hi").await.unwrap();
    other.turn("s", "t2").await;
    bed.say("s", "t3", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t3").await, "hello");
    let state = bed
        .host
        .state(&bed.tenant, &SessionId::from("s"))
        .await
        .unwrap();
    assert_eq!(state.messages.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn c5_a_failed_model_call_is_asked_again_after_its_backoff() {
    let bed = Bed::new(memory()).await;
    bed.model
        .fails
        .lock()
        .unwrap()
        .extend([overloaded(), overloaded()]);
    let start = tokio::time::Instant::now();
    bed.say("s", "t", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t").await, "hello");
    assert!(
        start.elapsed() >= Duration::from_secs(3),
        "one second, then two"
    );
    assert_eq!(bed.model.asked.lock().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn d7_a_trap_is_tried_once_more_and_its_writes_are_discarded() {
    let bed = Bed::new(memory()).await;
    bed.say("s", "t0", "hi").await.unwrap();
    bed.turn("s", "t0").await;
    bed.agent
        .fails
        .lock()
        .unwrap()
        .extend([FailureClass::Deterministic; 2]);
    bed.say("s", "t", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t").await, "trap");
    let concluded = bed.agent.concluded.lock().unwrap().clone();
    assert_eq!(concluded[concluded.len() - 2..], [Conclusion::Discarded; 2]);
    let decisions = bed
        .host
        .decisions(&bed.tenant, &SessionId::from("s"), 0, 100)
        .await
        .unwrap();
    let failed = decisions.last().unwrap();
    assert_eq!((failed.status, failed.deliveries.len()), ("failed", 2));
    assert_eq!(failed.deliveries[0].run.as_ref().unwrap().fuel, 7);
}

#[tokio::test(start_paused = true)]
async fn s8_an_abort_ends_a_turn_whose_decision_is_running() {
    let bed = Bed::new(memory()).await;
    *bed.agent.takes.lock().unwrap() = Duration::from_secs(3_600);
    bed.say("s", "t", "hi").await.unwrap();
    bed.host
        .abort(
            &bed.tenant,
            &SessionId::from("s"),
            belljar_engine::Party::Client,
        )
        .await
        .unwrap();
    assert_eq!(bed.turn("s", "t").await, "aborted");
    *bed.agent.takes.lock().unwrap() = Duration::ZERO;
    bed.say("s", "t2", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t2").await, "hello");
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_leaves_memory_and_comes_back_with_its_log() {
    let bed = Bed::new(memory()).await;
    bed.say("s", "t", "hi").await.unwrap();
    bed.turn("s", "t").await;
    assert_eq!(bed.host.counters().sessions_loaded, 1);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(bed.host.counters().sessions_loaded, 0);
    bed.say("s", "t2", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t2").await, "hello");
    assert_eq!(
        bed.say("s", "t", "hi")
            .await
            .unwrap()
            .turn_id
            .unwrap()
            .as_str(),
        "t",
        "a repeat, for ever"
    );
}

#[tokio::test(start_paused = true)]
async fn a_timer_wakes_a_session_that_sleeps() {
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    let far = belljar_protocol::model::ModelFailure {
        retry_after_secs: Some(1_800.0),
        ..overloaded()
    };
    bed.model.fails.lock().unwrap().push_back(far);
    bed.say("s", "t", "hi").await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        bed.host.counters().sessions_loaded,
        0,
        "it sleeps until its timer"
    );
    let start = tokio::time::Instant::now();
    assert_eq!(bed.turn("s", "t").await, "hello");
    assert!(start.elapsed() >= Duration::from_secs(1_700));
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_does_not_read_misses_no_event() {
    let store = memory();
    let config = HostConfig {
        subscriber_buffer: 4,
        ..HostConfig::default()
    };
    drop(Bed::new(store.clone()).await);
    let bed = Bed::restart(store, Arc::default(), 1_800_000_000_000, config).await;
    bed.say("s", "t0", "go").await.unwrap();
    let mut watch = bed
        .host
        .subscribe(&bed.tenant, &SessionId::from("s"), 0)
        .await
        .unwrap();
    bed.turn("s", "t0").await;
    for n in 1..20 {
        let turn = format!("t{n}");
        bed.say("s", &turn, "go").await.unwrap();
        bed.turn("s", &turn).await;
    }
    let head = bed
        .host
        .state(&bed.tenant, &SessionId::from("s"))
        .await
        .unwrap()
        .seq;
    let (mut seen, mut caught_up) = (0, 0);
    while seen < head || caught_up == 0 {
        match watch.next().await.unwrap() {
            Item::Event { seq, .. } => {
                assert_eq!(seq, seen + 1, "in order, without a gap, none twice");
                seen = seq;
            }
            Item::CaughtUp { .. } => caught_up += 1,
            Item::Delta { .. } => {}
            Item::Closed { reason, .. } => panic!("closed: {reason}"),
        }
    }
    assert_eq!(caught_up, 1);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_shown_live_and_stored_nowhere() {
    let bed = Bed::new(memory()).await;
    bed.say("s", "t0", "hi").await.unwrap();
    bed.turn("s", "t0").await;
    let mut watch = bed
        .host
        .subscribe(&bed.tenant, &SessionId::from("s"), 0)
        .await
        .unwrap();
    while !matches!(watch.next().await.unwrap(), Item::CaughtUp { .. }) {}
    bed.say("s", "t", "hi").await.unwrap();
    let mut kinds = BTreeSet::new();
    loop {
        match watch.next().await.unwrap() {
            Item::Delta { attempt, delta, .. } => {
                assert_eq!((attempt, delta.text.as_deref()), (1, Some("he")));
                kinds.insert("delta");
            }
            Item::Event { event, .. } if matches!(*event, Event::TurnEnded(_)) => break,
            _ => {}
        }
    }
    assert!(kinds.contains("delta"));
}

#[tokio::test(start_paused = true)]
async fn live_moves_reach_the_next_turn_and_with_swap_decision_the_next_decision() {
    for (swap, after) in [(Swap::Turn, "old"), (Swap::Decision, "new")] {
        let bed = Bed::new(memory()).await;
        let session = SessionId::from("s");
        *bed.model.takes.lock().unwrap() = Duration::from_secs(10);
        bed.say("s", "t", "go").await.unwrap();
        let new = bed
            .host
            .upload(
                &bed.tenant,
                &bed.name,
                Bytes::from_static(b"two"),
                false,
                "test",
            )
            .await
            .unwrap();
        let new = new.version.version;
        bed.host
            .move_label(
                &bed.tenant,
                &bed.name,
                "live",
                Some(new.clone()),
                swap,
                "test",
            )
            .await
            .unwrap();
        assert_eq!(bed.turn("s", "t").await, "three");
        let last = bed.agent.asked.lock().unwrap().last().unwrap().2.clone();
        assert_eq!(last == new, after == "new", "{swap:?}");
        bed.say("s", "t2", "hi").await.unwrap();
        bed.turn("s", "t2").await;
        assert_eq!(
            bed.host.state(&bed.tenant, &session).await.unwrap().version,
            Some(new)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn rollback_points_live_back() {
    let bed = Bed::new(memory()).await;
    let refused = bed
        .host
        .rollback_live(&bed.tenant, &bed.name, "test")
        .await
        .unwrap_err();
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (409, "nothing_to_roll_back")
    );
    let one = bed.host.agent(&bed.tenant, &bed.name).await.unwrap().labels["live"].clone();
    bed.host
        .upload(
            &bed.tenant,
            &bed.name,
            Bytes::from_static(b"two"),
            true,
            "test",
        )
        .await
        .unwrap();
    assert_ne!(
        bed.host.agent(&bed.tenant, &bed.name).await.unwrap().labels["live"],
        one
    );
    bed.host
        .rollback_live(&bed.tenant, &bed.name, "test")
        .await
        .unwrap();
    assert_eq!(
        bed.host.agent(&bed.tenant, &bed.name).await.unwrap().labels["live"],
        one
    );
    assert_eq!(
        bed.host
            .label_history(&bed.tenant, &bed.name)
            .await
            .unwrap()
            .len(),
        3
    );
    let again = bed
        .host
        .upload(
            &bed.tenant,
            &bed.name,
            Bytes::from_static(b"two"),
            false,
            "test",
        )
        .await
        .unwrap();
    assert!(!again.created, "the same bytes are the same version");
}

#[tokio::test(start_paused = true)]
async fn unknown_things_are_named() {
    let bed = Bed::new(memory()).await;
    let input = serde_json::from_str(
        r#"{"type":"client.message","agent_id":"nobody","message":{"role":"user","content":"x"}}"#,
    )
    .unwrap();
    let refused = bed
        .host
        .submit(&bed.tenant, None, input, Default::default())
        .await
        .unwrap_err();
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (404, "agent_unknown")
    );
    let refused = bed
        .host
        .state(&bed.tenant, &SessionId::from("none"))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (404, "session_unknown")
    );
    let refused = bed
        .host
        .upload(&bed.tenant, &bed.name, Bytes::new(), true, "test")
        .await
        .unwrap_err();
    assert_eq!(
        (refused.status, refused.more["step"].as_str()),
        (422, Some("component"))
    );
    assert_eq!(
        bed.host.counters().sessions_loaded,
        0,
        "strangers load nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn long_sessions_are_loaded_from_a_snapshot_and_its_tail() {
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    for n in 0..40 {
        let turn = format!("t{n}");
        bed.say("s", &turn, "go").await.unwrap();
        bed.turn("s", &turn).await;
    }
    let session = SessionId::from("s");
    let before = bed.host.state(&bed.tenant, &session).await.unwrap();
    let taken = store
        .snapshot(&bed.tenant, &session)
        .await
        .unwrap()
        .expect("a snapshot was written");
    assert!(taken.seq >= 256 && taken.seq <= before.seq);
    drop(bed);
    let bed = Bed::restart(
        store,
        Arc::default(),
        1_800_000_900_000,
        HostConfig::default(),
    )
    .await;
    let after = bed.host.state(&bed.tenant, &session).await.unwrap();
    assert_eq!(
        serde_json::to_string(&after).unwrap(),
        serde_json::to_string(&before).unwrap()
    );
    bed.say("s", "next", "go").await.unwrap();
    assert_eq!(bed.turn("s", "next").await, "three");
}

#[tokio::test(start_paused = true)]
async fn what_is_delivered_can_be_read_by_its_digest() {
    // The store keeps what an append brings; files are listed from the log (see the e2e story).
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    bed.say("s", "t", "hi").await.unwrap();
    assert!(
        bed.host
            .files(&bed.tenant, &SessionId::from("s"))
            .await
            .unwrap()
            .is_empty()
    );
    let missing = bed
        .host
        .file(&bed.tenant, &SessionId::from("s"), "report.md")
        .await
        .unwrap_err();
    assert_eq!(
        (missing.status, missing.code.as_str()),
        (404, "file_unknown")
    );
    let digest = belljar_protocol::scratch::Digest::of(b"one");
    assert_eq!(
        store.blob(&bed.tenant, &digest).await.unwrap().unwrap(),
        Bytes::from_static(b"one")
    );
}
