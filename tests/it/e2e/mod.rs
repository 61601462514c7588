//! The binary, over HTTP, with components built from source: the whole story, once without
//! trouble, and then killed wherever it can be.

mod examples;
mod kills;
mod many;
mod server;
mod story;
mod wire;

use story::{Agent, Story};

/// The uninterrupted story of an agent, its facts checked.
async fn told(agent: &Agent) -> story::Ending {
    let data = server::prepared(agent);
    let mut story = Story::new(data.path().to_owned());
    story.tell().await;
    story.ending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_agent_keeps_a_ledger_delivers_it_and_is_swapped_in_mid_session() {
    let ending = told(&story::RUST).await;
    story::check(&ending);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_agent_tells_the_same_story_and_is_swapped_for_the_rust_one() {
    let ending = told(&story::PYTHON).await;
    story::check(&ending);
    let rust = told(&story::RUST).await;
    assert_eq!(
        ending, rust,
        "both languages end in the same transcript, files and ledger"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_drains_ends_streams_and_loses_nothing() {
    let data = server::prepared(&story::RUST);
    let server = server::Server::start(data.path(), &[]);
    assert_eq!(server.say("s", "t", "coffee 3.50").await.unwrap().0, 202);
    let (ended, (frames, _)) = tokio::join!(
        async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            server.interrupt()
        },
        // No turn of this name ends, so the stream goes on until the server ends it.
        server.watch("s", 0, "never"),
    );
    assert!(ended.success(), "{ended}");
    assert_eq!(frames.last().unwrap().event, "closed");
    let server = server::Server::start(data.path(), &[]);
    assert!(
        server.watch("s", 0, "t").await.1,
        "the turn ends, now or then"
    );
}
