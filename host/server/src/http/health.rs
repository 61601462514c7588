//! Whether the host lives, works, and how much it does.

use std::fmt::Write;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use super::App;
use super::problems::Answer;

pub(super) async fn live() -> Answer {
    Ok((StatusCode::OK, "ok\n").into_response())
}

pub(super) async fn ready(State(app): State<App>) -> Answer {
    app.host.ready().await?;
    Ok((StatusCode::OK, "ready\n").into_response())
}

pub(super) async fn metrics(State(app): State<App>) -> Answer {
    let counters = app.host.counters();
    let rows = [
        (
            "belljar_decisions_total",
            "counter",
            "Decisions started.",
            counters.decisions,
        ),
        (
            "belljar_decisions_failed_total",
            "counter",
            "Deliveries that gave no answer.",
            counters.decisions_failed,
        ),
        (
            "belljar_model_calls_total",
            "counter",
            "Model calls sent.",
            counters.model_calls,
        ),
        (
            "belljar_sessions_loaded",
            "gauge",
            "Sessions in memory.",
            counters.sessions_loaded,
        ),
        (
            "belljar_subscribers",
            "gauge",
            "Open log streams.",
            counters.subscribers,
        ),
        (
            "belljar_store_commits_total",
            "counter",
            "Commits made durable.",
            counters.commits,
        ),
        (
            "belljar_store_transactions_total",
            "counter",
            "Database syncs.",
            counters.transactions,
        ),
        (
            "belljar_store_file_syncs_total",
            "counter",
            "Syncs of files beside the database.",
            counters.file_syncs,
        ),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
        );
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

pub(super) async fn openapi() -> Answer {
    super::problems::json(StatusCode::OK, &super::openapi::document())
}
