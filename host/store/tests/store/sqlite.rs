//! What only the store on disk can get wrong.

use std::time::{Duration, Instant};

use belljar_protocol::Json;
use belljar_protocol::ports::{Append, Store, StoreError};
use belljar_protocol::scratch::Digest;
use belljar_protocol::snapshot::Snapshot;
use belljar_store::{Options, SqliteStore};
use rusqlite::Connection;

use crate::support::{Bed, SqliteBed, append, noise, tenant};

#[tokio::test]
async fn a_second_opener_is_refused_by_name_and_let_in_after_the_first() {
    let bed = SqliteBed::new();
    let store = SqliteStore::open(bed.dir()).unwrap();
    let refused = SqliteStore::open(bed.dir()).unwrap_err().to_string();
    assert!(
        refused.contains(&bed.dir().display().to_string()),
        "{refused}"
    );
    assert!(
        refused.contains(&format!("pid {}", std::process::id())),
        "{refused}"
    );
    drop(store);
    SqliteStore::open(bed.dir()).unwrap();
}

#[tokio::test]
async fn closing_leaves_one_database_and_no_log() {
    let bed = SqliteBed::new();
    let store = bed.open();
    store.append(append("s", 0, 1)).await.unwrap();
    assert!(bed.dir().join("belljar.db-wal").exists());
    drop(store);
    assert!(!bed.dir().join("belljar.db-wal").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_that_wait_share_a_transaction() {
    let bed = SqliteBed::new();
    let store = bed.open();
    for round in 0..20 {
        let appends: Vec<_> = (0..50)
            .map(|n| tokio::spawn(store.append(append(&format!("s{n}"), round, 1))))
            .collect();
        for append in appends {
            append.await.unwrap().unwrap();
        }
    }
    let counters = store.counters();
    assert_eq!(counters.commits, 1000);
    assert!(counters.transactions < counters.commits, "{counters:?}");
}

#[tokio::test]
async fn one_append_is_one_transaction_and_a_refused_one_is_none() {
    let bed = SqliteBed::new();
    let store = bed.open();
    for seq in 0..10 {
        store.append(append("s", seq, 1)).await.unwrap();
        store.append(append("s", 99, 1)).await.unwrap_err();
    }
    assert_eq!(store.counters().transactions, 10);
}

#[tokio::test]
async fn a_large_blob_is_a_synced_file_and_a_small_one_is_not() {
    let bed = SqliteBed::new();
    let store = bed.open();
    let blobs = |len| {
        let body = noise(3, len);
        vec![(Digest::of(&body), body)]
    };
    store
        .append(Append {
            blobs: blobs(64 * 1024),
            ..append("s", 0, 1)
        })
        .await
        .unwrap();
    assert_eq!(store.counters().file_syncs, 0);
    store
        .append(Append {
            blobs: blobs(64 * 1024 + 1),
            ..append("s", 1, 1)
        })
        .await
        .unwrap();
    assert_eq!(store.counters().file_syncs, 2, "the file and its folder");
    let folder = bed
        .dir()
        .join("blobs")
        .join(Digest::of(b"default").as_str());
    let names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, [blobs(64 * 1024 + 1)[0].0.as_str()]);
}

#[tokio::test]
async fn damage_is_named() {
    let bed = SqliteBed::new();
    let store = bed.open();
    store.append(append("s", 0, 2)).await.unwrap();
    store.append(append("s", 2, 2)).await.unwrap();
    store.append(append("t", 0, 2)).await.unwrap();
    store.append(append("t", 2, 2)).await.unwrap();
    let snapshot = Snapshot {
        format: 1,
        seq: 2,
        body: Json::string("x"),
    };
    store
        .put_snapshot(&tenant(), &"s".into(), snapshot)
        .await
        .unwrap();
    let large = noise(5, 100_000);
    let small = noise(6, 100);
    let digests = [&large, &small].map(|body| Digest::of(body));
    let blobs = digests.iter().cloned().zip([large, small]).collect();
    store
        .append(Append {
            blobs,
            ..append("s", 4, 1)
        })
        .await
        .unwrap();
    drop(store);

    let db = Connection::open(bed.dir().join("belljar.db")).unwrap();
    db.execute_batch(
        "UPDATE commits SET events = '[{\"type\":\"no.such\"}]' WHERE id = 2;
         DELETE FROM commits WHERE id = 3;
         UPDATE snapshots SET body = '{';
         UPDATE blobs SET body = x'00' WHERE body IS NOT NULL;",
    )
    .unwrap();
    drop(db);
    let [large, small] = &digests;
    let folder = bed
        .dir()
        .join("blobs")
        .join(Digest::of(b"default").as_str());
    std::fs::write(folder.join(large.as_str()), "other").unwrap();

    let store = bed.open();
    let named = |error: StoreError, name: &str| match error {
        StoreError::Unreadable { what, .. } => assert!(what.contains(name), "{what}"),
        other => panic!("{other}"),
    };
    let error = store.read(&tenant(), &"s".into(), 2, 9).await.unwrap_err();
    named(error, "commit 3..4 of session s of tenant default");
    assert_eq!(
        store
            .read(&tenant(), &"s".into(), 0, 1)
            .await
            .unwrap()
            .len(),
        1,
        "the rest reads"
    );
    let error = store.read(&tenant(), &"t".into(), 0, 9).await.unwrap_err();
    named(error, "commit 3..4 of session t");
    named(
        store.snapshot(&tenant(), &"s".into()).await.unwrap_err(),
        "snapshot of session s",
    );
    for digest in [large, small] {
        named(
            store.blob(&tenant(), digest).await.unwrap_err(),
            digest.as_str(),
        );
    }
    std::fs::remove_file(folder.join(large.as_str())).unwrap();
    named(
        store.blob(&tenant(), large).await.unwrap_err(),
        large.as_str(),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_starts_over_under_load_that_never_pauses() {
    const LIMIT: u64 = 128 * 1024;
    let bed = SqliteBed::new();
    let options = Options::default().wal_bytes(LIMIT);
    let store = std::sync::Arc::new(SqliteStore::open_with(bed.dir(), options).unwrap());
    let until = Instant::now() + Duration::from_secs(2);
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let session = format!("s{n}");
                let mut seq = 0;
                while Instant::now() < until {
                    store.append(append(&session, seq, 8)).await.unwrap();
                    seq += 8;
                    // Readers hold on to the log, too.
                    store
                        .read(&tenant(), &session.as_str().into(), seq - 8, 9)
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
    let log = std::fs::metadata(bed.dir().join("belljar.db-wal"))
        .unwrap()
        .len();
    // Each transaction writes some pages, so without checkpoints the log would be this and more.
    let written = counters.transactions * 4096;
    assert!(
        written > 12 * LIMIT,
        "too slow a machine to tell: {counters:?}"
    );
    assert!(log < 8 * LIMIT, "{log} bytes of log, {counters:?}");
    assert!(counters.checkpoints > 0 && counters.checkpoints < counters.transactions);
}
