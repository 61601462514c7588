//! What every store promises. Each function runs on each store (the list is at the end).

use belljar_protocol::Json;
use belljar_protocol::id::{AgentId, SessionId, TenantId, VersionId};
use belljar_protocol::ports::{Append, StoreError};
use belljar_protocol::scratch::Digest;
use belljar_protocol::snapshot::Snapshot;
use belljar_protocol::version::{Swap, Version, World};
use bytes::Bytes;

use crate::support::{Bed, append, at, commit, noise, tenant};

async fn an_append_is_read_back_after_opening_again(bed: &impl Bed) {
    let store = bed.open();
    let made = Append {
        commits: vec![commit(1, 2, 5), commit(3, 1, 9)],
        next_wake: Some(at(70)),
        ..append("s", 0, 1)
    };
    store.append(made.clone()).await.unwrap();
    store.append(append("s", 3, 2)).await.unwrap();
    assert_eq!(store.counters().commits, 3);
    drop(store);

    let store = bed.open();
    let commits = store.read(&tenant(), &"s".into(), 0, 100).await.unwrap();
    assert_eq!(
        commits,
        [made.commits.clone(), append("s", 3, 2).commits].concat()
    );
    let row = store
        .session(&tenant(), &"s".into())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (row.head_seq, row.agent.as_str(), &*row.status),
        (5, "ledger", "running")
    );
    assert_eq!(
        (row.created_at, row.updated_at, row.next_wake),
        (at(5), at(3), None)
    );
    assert!(
        store
            .session(&tenant(), &"t".into())
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        store
            .read(&tenant(), &"t".into(), 0, 9)
            .await
            .unwrap()
            .is_empty()
    );
}

async fn an_append_on_another_seq_conflicts_and_stores_nothing(bed: &impl Bed) {
    let store = bed.open();
    store.append(append("s", 0, 2)).await.unwrap();
    for expected in [0, 1, 3] {
        let blob = noise(9, 10);
        let mut refused = append("s", expected, 1);
        refused.blobs = vec![(Digest::of(&blob), blob.clone())];
        let error = store.append(refused).await.unwrap_err();
        assert_eq!(
            error,
            StoreError::Conflict {
                session: "s".into(),
                expected,
                found: 2
            }
        );
        assert!(
            store
                .blob(&tenant(), &Digest::of(&blob))
                .await
                .unwrap()
                .is_none()
        );
    }
    let absent = store.append(append("t", 4, 1)).await.unwrap_err();
    assert_eq!(
        absent,
        StoreError::Conflict {
            session: "t".into(),
            expected: 4,
            found: 0
        }
    );
    assert!(
        store
            .session(&tenant(), &"t".into())
            .await
            .unwrap()
            .is_none()
    );
    store.append(append("s", 2, 1)).await.unwrap();
}

async fn a_refused_append_leaves_its_neighbours_alone(bed: &impl Bed) {
    let store = bed.open();
    store.append(append("s", 0, 1)).await.unwrap();
    let futures: Vec<_> = (0..30)
        .map(|n| match n % 3 {
            0 => append("s", 7, 1),
            1 => Append {
                commits: vec![],
                ..append(&format!("empty-{n}"), 0, 1)
            },
            _ => append(&format!("good-{n}"), 0, 1),
        })
        .map(|append| tokio::spawn(store.append(append)))
        .collect();
    for (n, future) in futures.into_iter().enumerate() {
        let result = future.await.unwrap();
        match n % 3 {
            0 => assert!(matches!(result, Err(StoreError::Conflict { found: 1, .. }))),
            1 => assert!(matches!(result, Err(StoreError::Failed(_)))),
            _ => assert_eq!(result, Ok(())),
        }
    }
    assert_eq!(
        store.sessions(&tenant(), None, 100).await.unwrap().len(),
        11
    );
}

async fn of_appends_that_race_for_a_seq_one_wins(bed: &impl Bed) {
    let store = bed.open();
    let racers: Vec<_> = (1..=20)
        .map(|n| tokio::spawn(store.append(append("s", 0, n))))
        .collect();
    let mut won = vec![];
    for (n, racer) in (1..=20).zip(racers) {
        match racer.await.unwrap() {
            Ok(()) => won.push(n),
            Err(error) => assert!(matches!(error, StoreError::Conflict { .. })),
        }
    }
    assert_eq!(won.len(), 1);
    let row = store
        .session(&tenant(), &"s".into())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(row.head_seq, won[0]);
}

async fn a_malformed_append_is_refused_and_the_store_goes_on(bed: &impl Bed) {
    let store = bed.open();
    let gap = Append {
        commits: vec![commit(1, 1, 0), commit(3, 1, 0)],
        ..append("s", 0, 1)
    };
    let late = Append {
        commits: vec![commit(2, 1, 0)],
        ..append("s", 0, 1)
    };
    let hollow = Append {
        commits: vec![commit(1, 0, 0)],
        ..append("s", 0, 1)
    };
    for malformed in [gap, late, hollow] {
        let error = store.append(malformed).await.unwrap_err().to_string();
        assert!(error.contains("malformed append to session s"), "{error}");
    }
    store.append(append("s", 0, 1)).await.unwrap();
}

async fn reading_begins_with_the_commit_that_holds_the_next_event(bed: &impl Bed) {
    let store = bed.open();
    let commits = vec![
        commit(1, 3, 0),
        commit(4, 1, 1),
        commit(5, 4, 2),
        commit(9, 1, 3),
    ];
    store
        .append(Append {
            commits,
            ..append("s", 0, 1)
        })
        .await
        .unwrap();
    let firsts = async |after, limit| -> Vec<u64> {
        let read = store
            .read(&tenant(), &"s".into(), after, limit)
            .await
            .unwrap();
        read.iter().map(|commit| commit.first_seq).collect()
    };
    assert_eq!(firsts(0, 100).await, [1, 4, 5, 9]);
    assert_eq!(
        firsts(2, 100).await,
        [1, 4, 5, 9],
        "2 lies inside the first"
    );
    assert_eq!(firsts(3, 100).await, [4, 5, 9]);
    assert_eq!(firsts(6, 1).await, [5]);
    assert_eq!(firsts(8, 100).await, [9]);
    assert!(firsts(9, 100).await.is_empty());
    assert!(firsts(u64::MAX, 100).await.is_empty());
    assert!(firsts(0, 0).await.is_empty());
}

async fn blobs_of_any_size_come_back_once_named(bed: &impl Bed) {
    let store = bed.open();
    let sizes = [0, 1, 64 * 1024, 64 * 1024 + 1, 300_000];
    let blobs: Vec<_> = sizes
        .iter()
        .map(|len| noise(*len as u64, *len))
        .map(|b| (Digest::of(&b), b))
        .collect();
    // Twice in one append, and again in a later one.
    let twice = [blobs.clone(), blobs.clone()].concat();
    store
        .append(Append {
            blobs: twice,
            ..append("s", 0, 1)
        })
        .await
        .unwrap();
    let synced = store.counters().file_syncs;
    store
        .append(Append {
            blobs: blobs.clone(),
            ..append("s", 1, 1)
        })
        .await
        .unwrap();
    assert_eq!(
        store.counters().file_syncs,
        synced,
        "what is there is not written again"
    );
    drop(store);
    let store = bed.open();
    for (digest, body) in &blobs {
        assert_eq!(
            store.blob(&tenant(), digest).await.unwrap().as_ref(),
            Some(body)
        );
    }
    assert_eq!(
        store.blob(&tenant(), &Digest::of(b"other")).await.unwrap(),
        None
    );
}

async fn tenants_see_nothing_of_one_another(bed: &impl Bed) {
    let store = bed.open();
    let other = TenantId::from("../other tenant");
    let (small, large) = (noise(1, 100), noise(2, 100_000));
    let blobs: Vec<_> = [&small, &large].map(|b| (Digest::of(b), b.clone())).into();
    store
        .append(Append {
            blobs: blobs.clone(),
            ..append("s", 0, 1)
        })
        .await
        .unwrap();
    let (version, component) = version("ledger", b"code", 1);
    store
        .put_version(&tenant(), version.clone(), component.clone())
        .await
        .unwrap();
    move_label(&*store, "live", Some(&version.version), 1).await;
    let snapshot = Snapshot {
        format: 1,
        seq: 1,
        body: Json::string("x"),
    };
    store
        .put_snapshot(&tenant(), &"s".into(), snapshot.clone())
        .await
        .unwrap();

    for (digest, _) in &blobs {
        assert_eq!(store.blob(&other, digest).await.unwrap(), None);
    }
    assert!(store.session(&other, &"s".into()).await.unwrap().is_none());
    assert!(store.sessions(&other, None, 9).await.unwrap().is_empty());
    assert!(
        store
            .read(&other, &"s".into(), 0, 9)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(store.snapshot(&other, &"s".into()).await.unwrap().is_none());
    assert!(store.agents(&other).await.unwrap().is_empty());
    assert!(
        store
            .versions(&other, &"ledger".into())
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        store
            .label_moves(&other, &"ledger".into())
            .await
            .unwrap()
            .is_empty()
    );

    // The same names are free there.
    let theirs = Append {
        tenant: other.clone(),
        blobs: blobs.clone(),
        ..append("s", 0, 2)
    };
    store.append(theirs).await.unwrap();
    store
        .put_snapshot(&other, &"s".into(), Snapshot { seq: 2, ..snapshot })
        .await
        .unwrap();
    assert!(store.put_version(&other, version, component).await.unwrap());
    assert_eq!(
        store.read(&other, &"s".into(), 0, 9).await.unwrap()[0]
            .events
            .len(),
        2
    );
    assert_eq!(
        store.read(&tenant(), &"s".into(), 0, 9).await.unwrap()[0]
            .events
            .len(),
        1
    );
    assert_eq!(
        store
            .snapshot(&tenant(), &"s".into())
            .await
            .unwrap()
            .unwrap()
            .seq,
        1
    );
    assert_eq!(
        store.blob(&other, &Digest::of(&large)).await.unwrap(),
        Some(large)
    );
}

async fn sessions_are_listed_newest_first_in_pages(bed: &impl Bed) {
    let store = bed.open();
    // Pairs share a time, so that pages have to tell them apart by id.
    for n in 0..10_i64 {
        let commits = vec![commit(1, 1, n / 2)];
        store
            .append(Append {
                commits,
                ..append(&format!("s{n}"), 0, 1)
            })
            .await
            .unwrap();
    }
    // A change moves a session to the front.
    let commits = vec![commit(2, 1, 50)];
    store
        .append(Append {
            commits,
            ..append("s3", 1, 1)
        })
        .await
        .unwrap();
    let mut seen: Vec<String> = vec![];
    let mut before = None;
    loop {
        let page = store.sessions(&tenant(), before, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        before = Some((last.updated_at, last.session.clone()));
        seen.extend(page.iter().map(|row| row.session.to_string()));
    }
    assert_eq!(
        seen,
        ["s3", "s9", "s8", "s7", "s6", "s5", "s4", "s2", "s1", "s0"]
    );
}

async fn due_sessions_come_earliest_first(bed: &impl Bed) {
    let store = bed.open();
    for (session, wake) in [
        ("a", Some(30)),
        ("b", Some(10)),
        ("c", None),
        ("d", Some(20)),
    ] {
        let next_wake = wake.map(at);
        store
            .append(Append {
                next_wake,
                ..append(session, 0, 1)
            })
            .await
            .unwrap();
    }
    let due = async |millis, limit| -> Vec<String> {
        let due = store.due(at(0), at(millis), limit).await.unwrap();
        due.into_iter()
            .map(|(_, session)| session.to_string())
            .collect()
    };
    assert!(due(9, 10).await.is_empty());
    assert_eq!(due(10, 10).await, ["b"]);
    assert_eq!(due(99, 10).await, ["b", "d", "a"]);
    assert_eq!(due(99, 2).await, ["b", "d"]);
    let later = store.due(at(10), at(99), 10).await.unwrap();
    assert_eq!(later.len(), 2, "`after` is exclusive");
    assert_eq!(store.next_wake(at(0)).await.unwrap(), Some(at(10)));
    assert_eq!(store.next_wake(at(10)).await.unwrap(), Some(at(20)));
    assert_eq!(store.next_wake(at(30)).await.unwrap(), None);
    // The next append says anew.
    store.append(append("b", 1, 1)).await.unwrap();
    assert_eq!(due(99, 10).await, ["d", "a"]);
}

async fn a_snapshot_replaces_the_last_one(bed: &impl Bed) {
    let store = bed.open();
    store.append(append("s", 0, 3)).await.unwrap();
    assert!(
        store
            .snapshot(&tenant(), &"s".into())
            .await
            .unwrap()
            .is_none()
    );
    let snapshot = |seq, text| Snapshot {
        format: 1,
        seq,
        body: Json::string(text),
    };
    for made in [snapshot(2, "old"), snapshot(3, "new")] {
        store
            .put_snapshot(&tenant(), &"s".into(), made.clone())
            .await
            .unwrap();
        assert_eq!(
            store.snapshot(&tenant(), &"s".into()).await.unwrap(),
            Some(made)
        );
    }
    // One of no session is nobody's.
    store
        .put_snapshot(&tenant(), &"t".into(), snapshot(1, "t"))
        .await
        .unwrap();
    drop(store);
    let store = bed.open();
    assert_eq!(
        store.snapshot(&tenant(), &"s".into()).await.unwrap(),
        Some(snapshot(3, "new"))
    );
    assert!(
        store
            .snapshot(&tenant(), &"t".into())
            .await
            .unwrap()
            .is_none()
    );
}

async fn a_version_is_stored_once_with_its_bytes(bed: &impl Bed) {
    let store = bed.open();
    let large = noise(4, 200_000);
    let (first, first_bytes) = version("ledger", b"one", 1);
    let (second, second_bytes) = version("ledger", &large, 2);
    let (shared, shared_bytes) = version("archive", &large, 3);
    assert!(
        store
            .put_version(&tenant(), first.clone(), first_bytes.clone())
            .await
            .unwrap()
    );
    assert!(
        store
            .put_version(&tenant(), second.clone(), second_bytes)
            .await
            .unwrap()
    );
    assert!(
        store
            .put_version(&tenant(), shared.clone(), shared_bytes)
            .await
            .unwrap()
    );
    let again = Version {
        uploaded_at: at(99),
        ..first.clone()
    };
    assert!(
        !store
            .put_version(&tenant(), again, first_bytes.clone())
            .await
            .unwrap()
    );
    let lie = store
        .put_version(&tenant(), second.clone(), first_bytes)
        .await
        .unwrap_err();
    assert!(
        lie.to_string().contains("does not name its component"),
        "{lie}"
    );
    drop(store);

    let store = bed.open();
    let listed = store.versions(&tenant(), &"ledger".into()).await.unwrap();
    assert_eq!(listed, [second, first], "newest first");
    assert_eq!(
        store.versions(&tenant(), &"archive".into()).await.unwrap(),
        [shared]
    );
    assert!(
        store
            .versions(&tenant(), &"none".into())
            .await
            .unwrap()
            .is_empty()
    );
    let agents = store.agents(&tenant()).await.unwrap();
    assert_eq!(agents, [AgentId::from("archive"), AgentId::from("ledger")]);
    assert_eq!(
        store
            .blob(&tenant(), &Digest::of(b"one"))
            .await
            .unwrap()
            .unwrap(),
        "one"
    );
    assert_eq!(
        store
            .blob(&tenant(), &Digest::of(&large))
            .await
            .unwrap()
            .unwrap(),
        large
    );
}

async fn moves_of_labels_are_kept_for_ever(bed: &impl Bed) {
    let store = bed.open();
    let (one, two) = (VersionId::from("sha256:1"), VersionId::from("sha256:2"));
    let made = [
        move_label(&*store, "live", Some(&one), 1).await,
        move_label(&*store, "canary", Some(&two), 2).await,
        move_label(&*store, "live", Some(&two), 3).await,
        move_label(&*store, "live", None, 4).await,
        move_label(&*store, "live", Some(&one), 5).await,
    ];
    let previous: Vec<_> = made.iter().map(|made| made.previous.clone()).collect();
    assert_eq!(previous, [None, None, Some(one.clone()), Some(two), None]);
    assert_eq!(made.each_ref().map(|made| made.id), [1, 2, 3, 4, 5]);
    let tenant = tenant();
    // Another agent counts for itself.
    let swap = Swap::Decision;
    let other = store
        .move_label(&tenant, &"b".into(), "live", Some(one), swap, "me", at(6))
        .await;
    assert_eq!(other.as_ref().unwrap().id, 1);
    assert_eq!(other.as_ref().unwrap().previous, None);
    drop(store);
    let store = bed.open();
    assert_eq!(
        store.label_moves(&tenant, &"ledger".into()).await.unwrap(),
        made
    );
    assert_eq!(
        store.label_moves(&tenant, &"b".into()).await.unwrap(),
        [other.unwrap()]
    );
    assert!(
        store
            .label_moves(&tenant, &"c".into())
            .await
            .unwrap()
            .is_empty()
    );
}

async fn fifty_tasks_append_to_fifty_sessions(bed: &impl Bed) {
    const EACH: u64 = 20;
    let store = bed.open();
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                for seq in 0..EACH {
                    store
                        .append(append(&format!("s{n}"), seq, 1))
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let counters = store.counters();
    assert_eq!(counters.commits, 50 * EACH);
    assert!(counters.transactions <= counters.commits);
    drop(store);
    let store = bed.open();
    for n in 0..50 {
        let session = SessionId::from(format!("s{n}"));
        let read = store.read(&tenant(), &session, 0, 100).await.unwrap();
        assert_eq!(read.last().unwrap().last_seq(), EACH);
    }
}

fn version(agent: &str, bytes: &[u8], millis: i64) -> (Version, Bytes) {
    let version = Version {
        version: VersionId::from(format!("sha256:{}", Digest::of(bytes))),
        agent: agent.into(),
        size: bytes.len() as u64,
        world: World::Agent,
        imports: vec!["wasi:clocks/monotonic-clock@0.2.0".into()],
        compile_ms: 12,
        uploaded_at: at(millis),
    };
    (version, Bytes::copy_from_slice(bytes))
}

async fn move_label(
    store: &dyn belljar_protocol::ports::Store,
    label: &str,
    to: Option<&VersionId>,
    millis: i64,
) -> belljar_protocol::version::LabelMove {
    let (tenant, to) = (tenant(), to.cloned());
    store
        .move_label(
            &tenant,
            &"ledger".into(),
            label,
            to,
            Swap::Turn,
            "me",
            at(millis),
        )
        .await
        .unwrap()
}

macro_rules! on_every_store {
    ($($promise:ident,)+) => {
        mod sqlite { $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $promise() {
                super::$promise(&crate::support::SqliteBed::new()).await;
            }
        )+ }
        mod memory { $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $promise() {
                super::$promise(&crate::support::MemoryBed::default()).await;
            }
        )+ }
    };
}

on_every_store! {
    an_append_is_read_back_after_opening_again,
    an_append_on_another_seq_conflicts_and_stores_nothing,
    a_refused_append_leaves_its_neighbours_alone,
    of_appends_that_race_for_a_seq_one_wins,
    a_malformed_append_is_refused_and_the_store_goes_on,
    reading_begins_with_the_commit_that_holds_the_next_event,
    blobs_of_any_size_come_back_once_named,
    tenants_see_nothing_of_one_another,
    sessions_are_listed_newest_first_in_pages,
    due_sessions_come_earliest_first,
    a_snapshot_replaces_the_last_one,
    a_version_is_stored_once_with_its_bytes,
    moves_of_labels_are_kept_for_ever,
    fifty_tasks_append_to_fifty_sessions,
}
