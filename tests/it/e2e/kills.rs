//! The story, killed after each of its commits and at random moments: it must end as if nothing
//! had happened.

use std::time::Duration;

use super::server::{self, Server};
use super::story::{Agent, PYTHON, RUST, Story};
use super::told;

/// Ends the process right after the n-th append is on disk, before anybody hears of it.
const CRASH_AFTER: &str = "BELLJAR_CRASH_AFTER_COMMIT";

async fn killed_after_each_commit(agent: &Agent, step: usize) {
    let expected = told(agent).await;
    let mut nth = 1;
    loop {
        let data = server::prepared(agent);
        let mut story = Story::new(data.path().to_owned());
        story.env = vec![vec![(CRASH_AFTER, nth.to_string())]];
        story.tell().await;
        assert_eq!(story.ending().await, expected, "killed after commit {nth}");
        if story.deaths == 0 {
            assert!(nth > 20, "the story has more than {nth} commits");
            return;
        }
        nth += step;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_each_commit_of_the_story_it_ends_the_same() {
    killed_after_each_commit(&RUST, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_every_fifth_commit_the_python_story_ends_the_same() {
    killed_after_each_commit(&PYTHON, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_moments_it_ends_the_same() {
    let expected = told(&RUST).await;
    // Any moments do; these are the same in every run, as far as a clock can be.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut deaths = 0;
    for round in 0..2 {
        let data = server::prepared(&RUST);
        let mut story = Story::new(data.path().to_owned());
        let moments: Vec<_> = (0..7)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                Duration::from_millis((random >> 33) % 60)
            })
            .collect();
        story.tell_with_kills(&moments).await;
        assert_eq!(
            story.ending().await,
            expected,
            "round {round}, killed at {moments:?}"
        );
        deaths += story.deaths;
    }
    assert!(deaths >= 10, "only {deaths} kills hit a running server");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_within_one_turn_it_ends_the_same() {
    let expected = told(&RUST).await;
    let data = server::prepared(&RUST);
    let mut story = Story::new(data.path().to_owned());
    // Each server dies after its second append: progress is made, two commits a life.
    story.env = vec![vec![(CRASH_AFTER, "2".to_owned())]; 8];
    story.tell().await;
    assert!(story.deaths >= 8);
    assert_eq!(story.ending().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_data_is_refused() {
    let data = server::prepared(&RUST);
    let first = Server::start(data.path(), &[]);
    let refused = std::panic::catch_unwind(|| Server::start(data.path(), &[]));
    assert!(refused.is_err(), "two hosts must never write the same log");
    assert_eq!(first.ask("GET", "/readyz", None).await.unwrap().0, 200);
}
