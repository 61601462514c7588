//! The store that fails on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belljar_protocol::ports::{Store, StoreError};
use belljar_store::{FaultPlan, FaultyStore, MemoryStore};

use crate::support::{append, tenant};

fn faulty(plan: FaultPlan) -> (FaultyStore, MemoryStore) {
    let inner = MemoryStore::new();
    (FaultyStore::new(Arc::new(inner.clone()), plan), inner)
}

async fn head(store: &MemoryStore) -> u64 {
    let row = store.session(&tenant(), &"s".into()).await.unwrap();
    row.map_or(0, |row| row.head_seq)
}

#[tokio::test]
async fn the_nth_append_fails_before_or_after_it_is_stored() {
    let (store, inner) = faulty(FaultPlan::new().fail_before(2).fail_after(3).transient());
    store.append(append("s", 0, 1)).await.unwrap();
    assert!(matches!(
        store.append(append("s", 1, 1)).await,
        Err(StoreError::Failed(_))
    ));
    assert_eq!(head(&inner).await, 1);
    assert!(matches!(
        store.append(append("s", 1, 1)).await,
        Err(StoreError::Failed(_))
    ));
    assert_eq!(head(&inner).await, 2);
    store.append(append("s", 2, 1)).await.unwrap();
    assert_eq!(store.appends(), 4);
}

#[tokio::test]
async fn a_failure_stops_writing_until_a_restart() {
    let (store, inner) = faulty(FaultPlan::new().fail_before(1));
    for _ in 0..2 {
        assert!(matches!(
            store.append(append("s", 0, 1)).await,
            Err(StoreError::Failed(_))
        ));
    }
    let restarted = FaultyStore::new(Arc::new(inner.clone()), FaultPlan::new());
    restarted.append(append("s", 0, 1)).await.unwrap();
    assert_eq!(head(&inner).await, 1);
}

#[tokio::test]
async fn the_crash_comes_after_the_nth_durable_append() {
    let seen = Arc::new(AtomicU64::new(0));
    let (crashed, inner) = (seen.clone(), MemoryStore::new());
    let look = inner.clone();
    let plan = FaultPlan::new().crash_after(2, move || {
        crashed.store(look.counters().transactions, Ordering::Relaxed);
    });
    let store = FaultyStore::new(Arc::new(inner), plan);
    store.append(append("s", 0, 1)).await.unwrap();
    store.append(append("s", 7, 1)).await.unwrap_err();
    assert_eq!(seen.load(Ordering::Relaxed), 0);
    store.append(append("s", 1, 1)).await.unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_delayed_append_is_overtaken() {
    let (store, inner) = faulty(FaultPlan::new().delay(1, Duration::from_millis(30)));
    let slow = tokio::spawn(store.append(append("s", 0, 1)));
    store.append(append("s", 0, 2)).await.unwrap();
    assert!(matches!(
        slow.await.unwrap(),
        Err(StoreError::Conflict { found: 2, .. })
    ));
    assert_eq!(head(&inner).await, 2);
}
