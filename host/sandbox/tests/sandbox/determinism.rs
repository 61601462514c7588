//! A decision that runs again sees the same time and the same chance, and fails the same way.

use belljar_protocol::Timestamp;

use crate::rig::{LOW, report};

#[tokio::test]
async fn time_and_chance_are_the_decisions_own() {
    let mut session = LOW.hostile();
    session.live_at = Timestamp::from_millis(1_764_547_200_123);
    let first = session.reports("clock", "{}").await;
    assert_eq!(first["wall_nanos"], 1_764_547_200_123_000_000_u64);
    assert!(first["monotonic_nanos"].as_u64().unwrap() < 5_000_000_000);
    let again = session.reports("clock", "{}").await;
    assert_eq!(
        (&again["random"], &again["wall_nanos"]),
        (&first["random"], &first["wall_nanos"])
    );

    session.decision = "d2".into();
    assert_ne!(
        session.reports("clock", "{}").await["random"],
        first["random"]
    );
    session.decision = "d1".into();
    session.session = "another".into();
    assert_ne!(
        session.reports("clock", "{}").await["random"],
        first["random"]
    );
}

#[tokio::test]
async fn fuel_is_the_same_to_the_unit() {
    let session = LOW.hostile();
    let first = session.attack("env", "{}").await;
    let again = session.attack("env", "{}").await;
    assert_eq!(report(&first), report(&again));
    assert_eq!(
        (first.run.fuel, first.run.host_calls),
        (again.run.fuel, again.run.host_calls)
    );
    assert_eq!(first.run.peak_memory, again.run.peak_memory);
}
