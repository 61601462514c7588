//! What strangers, crowds and broken workers may cost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belljar_engine::Party;
use belljar_protocol::id::SessionId;
use belljar_protocol::version::Swap;
use belljar_server::HostConfig;
use bytes::Bytes;

use super::bed::Bed;
use super::memory;

async fn with(config: HostConfig) -> Bed {
    let store = memory();
    drop(Bed::new(store.clone()).await);
    Bed::restart(store, Arc::default(), 1_800_000_100_000, config).await
}

#[tokio::test(start_paused = true)]
async fn sessions_that_do_not_exist_are_not_kept() {
    let bed = Bed::new(memory()).await;
    for n in 0..50 {
        let refused = bed
            .host
            .abort(
                &bed.tenant,
                &SessionId::from(format!("no{n}")),
                Party::Client,
            )
            .await
            .unwrap_err();
        assert_eq!(
            (refused.status, refused.code.as_str()),
            (404, "session_unknown")
        );
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(bed.host.counters().sessions_loaded, 0);
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_make_room_for_others_at_once() {
    let bed = with(HostConfig {
        loaded_sessions: 5,
        ..HostConfig::default()
    })
    .await;
    for n in 0..40 {
        let session = format!("s{n}");
        bed.say(&session, "t", "hi").await.unwrap();
        assert_eq!(bed.turn(&session, "t").await, "hello");
        tokio::time::sleep(Duration::from_millis(1)).await;
        let loaded = bed.host.counters().sessions_loaded;
        assert!(loaded <= 5, "{loaded} sessions after {n}");
    }
    *bed.model.takes.lock().unwrap() = Duration::from_secs(100);
    bed.say("busy", "t", "hi").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(bed.host.counters().sessions_loaded <= 5);
    assert_eq!(bed.turn("busy", "t").await, "hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sessions_that_come_and_go_all_the_time_lose_no_mail() {
    let bed = Arc::new(
        with(HostConfig {
            idle_unload: Duration::ZERO,
            ..HostConfig::default()
        })
        .await,
    );
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let bed = bed.clone();
        tasks.spawn(async move {
            let session = format!("s{n}");
            let id = SessionId::from(session.as_str());
            for turn in 0..20 {
                let turn = format!("t{turn}");
                bed.say(&session, &turn, "go").await.unwrap();
                // Many at once, at the moment the session leaves.
                let looks = (0..8).map(|_| bed.host.state(&bed.tenant, &id));
                for state in futures::future::join_all(looks).await {
                    state.unwrap();
                }
                assert_eq!(bed.turn(&session, &turn).await, "three");
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_sessions_are_all_at_work_says_so() {
    let bed = with(HostConfig {
        loaded_sessions: 2,
        ..HostConfig::default()
    })
    .await;
    *bed.model.takes.lock().unwrap() = Duration::from_secs(100);
    bed.say("a", "t", "hi").await.unwrap();
    bed.say("b", "t", "hi").await.unwrap();
    let refused = bed.say("c", "t", "hi").await.unwrap_err();
    assert_eq!((refused.status, refused.code.as_str()), (503, "host_full"));
    assert_eq!(refused.more["retry_after"], 1);
    // Those at work are talked to all the same.
    bed.host
        .abort(&bed.tenant, &SessionId::from("a"), Party::Client)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    bed.say("c", "t", "hi").await.unwrap();
    assert_eq!(bed.turn("c", "t").await, "hello");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_fails_its_decision_and_nothing_else() {
    let bed = Bed::new(memory()).await;
    bed.say("s", "t0", "hi").await.unwrap();
    bed.turn("s", "t0").await;
    *bed.agent.script.lock().unwrap() = Some(Box::new(|_| {
        // Not `panic!`: the lock of the script must not be poisoned for what comes after.
        std::panic::resume_unwind(Box::new("told to"))
    }));
    bed.say("s", "t", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t").await, "host_failure");
    bed.agent.script.clear_poison();
    *bed.agent.script.lock().unwrap() = None;
    bed.say("s", "t2", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t2").await, "hello");
    assert_eq!(bed.host.counters().sessions_loaded, 1);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_panics_fails_its_call_and_nothing_else() {
    let bed = Bed::new(memory()).await;
    bed.model.panics.store(true, Ordering::Relaxed);
    bed.say("s", "t", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t").await, "provider_error");
    bed.say("s", "t2", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t2").await, "hello");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_not_live_opens_no_turn_and_repeats_are_still_answered() {
    let bed = Bed::new(memory()).await;
    bed.say("s", "t", "hi").await.unwrap();
    bed.turn("s", "t").await;
    bed.host
        .move_label(&bed.tenant, &bed.name, "live", None, Swap::Turn, "test")
        .await
        .unwrap();
    let refused = bed.say("s", "t2", "hi").await.unwrap_err();
    assert_eq!(
        (refused.status, refused.code.as_str()),
        (409, "agent_not_live")
    );
    assert_eq!(
        bed.say("new", "t", "hi").await.unwrap_err().code,
        "agent_not_live"
    );
    bed.say("s", "t", "hi").await.unwrap();
    let state = bed.host.state(&bed.tenant, &SessionId::from("s")).await;
    assert_eq!(state.unwrap().messages.len(), 2);
    bed.host
        .rollback_live(&bed.tenant, &bed.name, "test")
        .await
        .unwrap();
    bed.say("s", "t2", "hi").await.unwrap();
    assert_eq!(bed.turn("s", "t2").await, "hello");
}

#[tokio::test(start_paused = true)]
async fn a_move_to_where_live_points_is_not_what_a_rollback_undoes() {
    let bed = Bed::new(memory()).await;
    let upload = async |bytes: &'static [u8]| {
        let component = Bytes::from_static(bytes);
        let uploaded = bed
            .host
            .upload(&bed.tenant, &bed.name, component, true, "test");
        uploaded.await.unwrap().version.version
    };
    let one = upload(b"one").await;
    let two = upload(b"two").await;
    assert_eq!(upload(b"two").await, two);
    let moved = async || {
        let history = bed.host.label_history(&bed.tenant, &bed.name).await;
        history.unwrap().len()
    };
    assert_eq!(moved().await, 2, "an upload again moves nothing");
    bed.host
        .move_label(
            &bed.tenant,
            &bed.name,
            "live",
            Some(two),
            Swap::Decision,
            "test",
        )
        .await
        .unwrap();
    assert_eq!(moved().await, 3);
    let back = bed.host.rollback_live(&bed.tenant, &bed.name, "test").await;
    assert_eq!(back.unwrap().version, Some(one));
}

#[tokio::test(start_paused = true)]
async fn decisions_are_listed_in_pages_and_found_by_id() {
    let bed = Bed::new(memory()).await;
    let session = SessionId::from("s");
    for n in 0..3 {
        let turn = format!("t{n}");
        bed.say("s", &turn, "go").await.unwrap();
        bed.turn("s", &turn).await;
    }
    let all = bed
        .host
        .decisions(&bed.tenant, &session, 0, 1_000)
        .await
        .unwrap();
    assert_eq!(all.len(), 16);
    let (mut after, mut paged) = (0, Vec::new());
    loop {
        let page = bed.host.decisions(&bed.tenant, &session, after, 3).await;
        let page = page.unwrap();
        assert!(page.len() <= 3 && page.iter().all(|one| one.status == "answered"));
        let Some(last) = page.last() else { break };
        after = last.seq;
        paged.extend(page);
    }
    let ids = |list: &[belljar_server::driver::DecisionRecord]| -> Vec<_> {
        list.iter().map(|one| one.decision_id.clone()).collect()
    };
    assert_eq!(ids(&paged), ids(&all));
    let one = bed
        .host
        .decision(&bed.tenant, &session, &all[7].decision_id);
    assert_eq!(one.await.unwrap().seq, all[7].seq);
    let none = bed
        .host
        .decision(&bed.tenant, &session, &"none".into())
        .await;
    assert_eq!(none.unwrap_err().code, "decision_unknown");
}
