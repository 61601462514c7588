//! What a slow disk, a crash and another writer cost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_protocol::decision::{DecisionFailure, FailureClass, Trigger};
use belljar_protocol::event::Event;
use belljar_protocol::id::SessionId;
use belljar_protocol::input::ClientInput;
use belljar_protocol::model::{ModelFailure, StreamDelta};
use belljar_protocol::scratch::{Digest, ScratchChange, ScratchEntry};
use belljar_server::HostConfig;
use belljar_server::driver::Item;
use belljar_store::{FaultPlan, FaultyStore, MemoryStore};
use bytes::Bytes;

use super::bed::{Bed, decided, overloaded, response};
use super::memory;

const LATER: i64 = 1_800_000_900_000;

fn slow(inner: Arc<MemoryStore>, by: Duration) -> Arc<FaultyStore> {
    Arc::new(FaultyStore::new(inner, FaultPlan::new().delay_every(by)))
}

fn session() -> SessionId {
    SessionId::from("s")
}

fn fails(class: FailureClass) -> DecisionFailure {
    DecisionFailure {
        class,
        code: "trap".into(),
        message: "told to fail".into(),
        detail: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_moment_loses_nothing_acknowledged_and_ends_the_turn_once() {
    for crash_at in 0..=160 {
        let inner = memory();
        let bed = Bed::new(slow(inner.clone(), Duration::from_millis(7))).await;
        *bed.agent.takes.lock().unwrap() = Duration::from_millis(3);
        *bed.model.takes.lock().unwrap() = Duration::from_millis(20);
        let acked = AtomicBool::new(false);
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_millis(crash_at)) => {}
            () = async {
                bed.say("s", "t", "go").await.unwrap();
                acked.store(true, Ordering::Relaxed);
                assert_eq!(bed.turn("s", "t").await, "three");
            } => {}
        }
        // Nothing of this host goes on.
        drop(bed);

        let bed = Bed::restart(inner, Arc::default(), LATER, HostConfig::default()).await;
        if !acked.load(Ordering::Relaxed) {
            bed.say("s", "t", "go").await.unwrap();
        }
        assert_eq!(bed.turn("s", "t").await, "three", "crash at {crash_at} ms");
        let state = bed.host.state(&bed.tenant, &session()).await.unwrap();
        assert_eq!(
            (state.messages.len(), state.calls.len(), state.status),
            (4, 0, "idle")
        );
        let log = bed.host.log(&bed.tenant, &session(), 0, 1_000).await;
        let mut settled: BTreeMap<String, u32> = BTreeMap::new();
        let mut ended = 0;
        for event in log.unwrap().events {
            match &*event.event {
                Event::CallSettled(event) => {
                    *settled
                        .entry(event.call_id.as_str().to_owned())
                        .or_default() += 1;
                }
                Event::TurnEnded(_) => ended += 1,
                _ => {}
            }
        }
        assert_eq!(ended, 1, "crash at {crash_at} ms");
        assert_eq!(settled.into_values().collect::<Vec<_>>(), [1, 1, 1]);
    }
}

#[tokio::test(start_paused = true)]
async fn d2_a_decision_cut_off_by_a_crash_is_delivered_again_as_its_next_attempt() {
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    bed.say("s", "t0", "hi").await.unwrap();
    bed.turn("s", "t0").await;
    *bed.agent.takes.lock().unwrap() = Duration::from_secs(3_600);
    bed.say("s", "t", "hi").await.unwrap();
    drop(bed);
    let bed = Bed::restart(store, Arc::default(), LATER, HostConfig::default()).await;
    assert_eq!(bed.turn("s", "t").await, "hello");
    assert_eq!(bed.asked()[0], ("client.messages".to_owned(), 2));
}

#[tokio::test(start_paused = true)]
async fn many_sessions_cut_off_at_once_all_go_on() {
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    *bed.model.takes.lock().unwrap() = Duration::from_secs(3_600);
    for n in 0..200 {
        bed.say(&format!("s{n}"), "t", "go").await.unwrap();
    }
    drop(bed);
    let config = HostConfig {
        recovering: 2,
        loaded_sessions: 10,
        ..HostConfig::default()
    };
    let bed = Bed::restart(store, Arc::default(), LATER, config).await;
    for n in 0..200 {
        assert_eq!(bed.turn(&format!("s{n}"), "t").await, "three");
    }
    let asked = bed.asked();
    assert_eq!(
        asked.iter().filter(|(_, attempts)| *attempts > 1).count(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_a_host_that_is_gone_ends_and_says_where() {
    let bed = Bed::new(memory()).await;
    bed.say("s", "t", "hi").await.unwrap();
    bed.turn("s", "t").await;
    let mut watch = bed
        .host
        .subscribe(&bed.tenant, &session(), 0)
        .await
        .unwrap();
    let mut last = 0;
    drop(bed);
    loop {
        match watch.next().await.unwrap() {
            Item::Event { seq, .. } => last = seq,
            Item::Closed { read_from, .. } => {
                assert_eq!(read_from, last);
                break;
            }
            Item::CaughtUp { .. } | Item::Delta { .. } => {}
        }
    }
    assert!(last > 0 && watch.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_a_slow_disk_writes_late_wakes_its_session_all_the_same() {
    let bed = Bed::new(slow(memory(), Duration::from_secs(5))).await;
    let far = ModelFailure {
        retry_after_secs: Some(1_800.0),
        ..overloaded()
    };
    bed.model.fails.lock().unwrap().push_back(far);
    bed.say("s", "t", "hi").await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.host.counters().sessions_loaded, 0, "it sleeps");
    let start = tokio::time::Instant::now();
    assert_eq!(bed.turn("s", "t").await, "hello");
    assert!(start.elapsed() < Duration::from_secs(1_900));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_rested_on_what_was_dropped_is_made_anew() {
    let store = memory();
    let bed = Bed::new(store.clone()).await;
    bed.say("s", "t", "hi").await.unwrap();
    bed.turn("s", "t").await;
    // Another host opens a turn behind this one's back, and is not done with it.
    let other = Bed::restart(store, Arc::default(), LATER, HostConfig::default()).await;
    *other.model.takes.lock().unwrap() = Duration::from_secs(3_600);
    other.say("s", "theirs", "hi").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (a, b) = tokio::join!(bed.say("s", "a", "hi"), bed.say("s", "b", "hi"));
    for refused in [a.unwrap_err(), b.unwrap_err()] {
        assert_eq!(
            (refused.code.as_str(), refused.more["turn_id"].as_str()),
            ("turn_active", Some("theirs"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_folder_is_rebuilt_only_from_contents_that_are_on_disk() {
    let bed = Bed::new(slow(memory(), Duration::from_secs(5))).await;
    let mut failed = false;
    *bed.agent.script.lock().unwrap() = Some(Box::new(move |job| match &job.ask.trigger {
        Trigger::ClientMessages { .. } => {
            let content = Bytes::from_static(b"rows");
            let digest = Digest::of(&content);
            let entry = ScratchEntry::File {
                sha256: digest.clone(),
                size: 4,
            };
            let mut answer = decided(job, Ok(belljar_protocol::decision::Answer::Accept));
            answer.scratch = ScratchChange {
                put: BTreeMap::from([("rows.csv".into(), entry)]),
                removed: Vec::new(),
            };
            answer.blobs = vec![(digest, content)];
            Some(answer)
        }
        Trigger::ClientAction { .. } if !std::mem::replace(&mut failed, true) => {
            Some(decided(job, Err(fails(FailureClass::Deterministic))))
        }
        _ => None,
    }));
    let act = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let input: ClientInput =
            serde_json::from_str(r#"{"type":"client.action","agent_id":"bot","name":"poke"}"#)
                .unwrap();
        bed.host
            .submit(&bed.tenant, Some(session()), input, Default::default())
            .await
            .unwrap();
    };
    let count = || {
        let asked = bed.asked();
        asked
            .iter()
            .filter(|(kind, _)| kind == "client.action")
            .count()
    };
    let look = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(
            count(),
            1,
            "its retry was due at 2 s; the blob is on disk at 5 s"
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(count(), 2);
    };
    let (said, (), ()) = tokio::join!(bed.say("s", "t", "hi"), act, look);
    said.unwrap();
    assert_eq!(bed.turn("s", "t").await, "hello");
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_component_wait_for_the_call_they_belong_to() {
    let bed = Bed::new(slow(memory(), Duration::from_secs(5))).await;
    bed.say("s", "t0", "hi").await.unwrap();
    bed.turn("s", "t0").await;
    *bed.agent.script.lock().unwrap() = Some(Box::new(|job| match &job.ask.trigger {
        Trigger::ClientMessages { .. } => Some(decided(
            job,
            Ok(response(
                r#"{"actions":[{"type":"llm.call","model":"own","handler":"worker","stream":true}]}"#,
            )),
        )),
        Trigger::LlmExecute { .. } => {
            job.deltas.as_ref().unwrap()(StreamDelta {
                text: Some("he".into()),
                ..StreamDelta::default()
            });
            Some(decided(
                job,
                Ok(response(
                    r#"{"actions":[{"type":"llm.result","response":{"model":"own","content":"hello"}}]}"#,
                )),
            ))
        }
        _ => None,
    }));
    let mut watch = bed
        .host
        .subscribe(&bed.tenant, &session(), 0)
        .await
        .unwrap();
    while !matches!(watch.next().await.unwrap(), Item::CaughtUp { .. }) {}
    bed.say("s", "t", "hi").await.unwrap();
    let mut requested = None;
    loop {
        match watch.next().await.unwrap() {
            Item::Event { event, .. } => {
                if let Event::CallRequested(event) = &*event {
                    requested = Some(event.call.id.clone());
                }
            }
            Item::Delta { call_id, .. } => {
                assert_eq!(Some(call_id), requested, "shown before its call");
                break;
            }
            Item::CaughtUp { .. } => {}
            Item::Closed { reason, .. } => panic!("closed: {reason}"),
        }
    }
    assert_eq!(bed.turn("s", "t").await, "hello");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_stalls_costs_time_and_not_memory() {
    let bed = Bed::new(slow(memory(), Duration::from_secs(60))).await;
    // An agent that never comes to an end: each result asks for the next call.
    *bed.agent.script.lock().unwrap() = Some(Box::new(|job| match &job.ask.trigger {
        Trigger::ClientMessages { .. } | Trigger::ToolFinished { .. } => Some(decided(
            job,
            Ok(response(
                r#"{"actions":[{"type":"tool.call","name":"add","arguments":{}}]}"#,
            )),
        )),
        _ => None,
    }));
    tokio::select! {
        said = bed.say("s", "t", "hi") => { said.unwrap(); }
        () = tokio::time::sleep(Duration::from_secs(55)) => {}
    }
    let asked = bed.asked().len();
    assert!((64..512).contains(&asked), "{asked} decisions ran ahead");
    bed.host
        .abort(&bed.tenant, &session(), belljar_engine::Party::Client)
        .await
        .unwrap();
    assert_eq!(bed.turn("s", "t").await, "aborted");
}
