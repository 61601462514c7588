//! Many at once: clients of one session, and sessions of one host.

use std::sync::Arc;

use serde_json::json;

use super::server::{self, Server};
use super::story::RUST;

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_that_submit_at_once_get_one_turn() {
    let data = server::prepared(&RUST);
    let server = Server::start(data.path(), &[]);
    for round in 0..10 {
        let session = format!("s{round}");
        let (a, b) = tokio::join!(
            server.say(&session, "a", "coffee 1"),
            server.say(&session, "b", "coffee 1")
        );
        let answers = [a.unwrap(), b.unwrap()];
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.0).collect();
        assert!(
            statuses == [202, 409] || statuses == [202, 202] || statuses == [409, 202],
            "{answers:?}"
        );
        // Both are taken only when the first was over before the second came.
        let (_, state) = server
            .ask("GET", &format!("/v1/sessions/{session}/state"), None)
            .await
            .unwrap();
        for (answer, turn) in answers.iter().zip(["a", "b"]) {
            if answer.0 == 409 {
                assert_eq!(answer.1["code"], "turn_active", "{state}");
                assert_ne!(answer.1["turn_id"], turn);
            }
        }
    }
    // The same turn from both: both are told the same, and it runs once.
    let (a, b) = tokio::join!(
        server.say("same", "t", "coffee 1"),
        server.say("same", "t", "coffee 1")
    );
    assert_eq!((a.as_ref().unwrap().0, &a), (202, &b));
    server.watch("same", 0, "t").await;
    let (_, decisions) = server
        .ask("GET", "/v1/sessions/same/decisions", None)
        .await
        .unwrap();
    let executed = decisions["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["trigger"]["type"] == "tool.execute");
    assert_eq!(executed.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_sessions_at_once_each_keep_their_own_ledger() {
    let data = server::prepared(&RUST);
    let server = Arc::new(Server::start(data.path(), &[]));
    let mut sessions = tokio::task::JoinSet::new();
    for n in 0..200 {
        let server = server.clone();
        sessions.spawn(async move {
            let session = format!("s{n}");
            for (turn, line) in [("t0", format!("rent {n}.25")), ("t1", "balance".to_owned())] {
                let (status, problem) = server.say(&session, turn, &line).await.unwrap();
                assert_eq!(status, 202, "{problem}");
                let (_, ended) = server.watch(&session, 0, turn).await;
                assert!(ended, "{session} {turn}");
            }
            let (_, state) = server
                .ask("GET", &format!("/v1/sessions/{session}/state"), None)
                .await
                .unwrap();
            assert_eq!(state["last_turn"]["data"], json!(format!("balance {n}.25")));
        });
    }
    sessions.join_all().await;
    let (_, listed) = server
        .ask("GET", "/v1/sessions?limit=1000", None)
        .await
        .unwrap();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 200);
}
