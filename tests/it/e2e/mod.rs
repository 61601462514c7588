//! The binary, over HTTP, with components built from source: the whole story, once without
//! trouble, and then killed wherever it can be.

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
