//! Every route, on one page. The router and the OpenAPI document are made of this list.

use axum::routing::{MethodRouter, delete, get, post, put};

use super::{App, agents, files, health, log, sessions};

/// One method of one path.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// What it does, in a sentence.
    pub(super) summary: &'static str,
    /// Parameters beside those of the path.
    pub(super) takes: &'static [Parameter],
    /// The body's content type and schema.
    pub(super) body: Option<(&'static str, &'static str)>,
    /// Statuses, and the schema of what comes with them.
    pub(super) gives: &'static [(u16, &'static str)],
    /// Statuses that come with a problem, beside those that any route gives.
    pub(super) refuses: &'static [u16],
    pub(super) handler: fn() -> MethodRouter<App>,
}

/// A parameter of a query or a header.
pub(super) struct Parameter {
    pub(super) place: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) meaning: &'static str,
}

const fn query(name: &'static str, kind: &'static str, meaning: &'static str) -> Parameter {
    Parameter {
        place: "query",
        name,
        kind,
        meaning,
    }
}

const LIMIT: Parameter = query(
    "limit",
    "integer",
    "at most so many, 1 to 1000, 100 by default",
);
const AFTER: Parameter = query("after", "integer", "only what came after this seq");
const CURSOR: Parameter = query("cursor", "string", "where the last page ended");
const LIVE: Parameter = query("live", "boolean", "point `live` at it when all checks pass");
const TURN_ID: Parameter = query("turn_id", "string", "end the stream with this turn");
const LAST_EVENT_ID: Parameter = Parameter {
    place: "header",
    name: "Last-Event-ID",
    kind: "integer",
    meaning: "the last `id` the client has seen: the stream goes on after it, whatever `after` says",
};
const JSON: &str = "application/json";

macro_rules! route {
    ($method:ident $path:literal, $summary:literal, $takes:expr, $body:expr, $gives:expr, $refuses:expr, $handler:path) => {
        Route {
            method: stringify!($method),
            path: $path,
            summary: $summary,
            takes: $takes,
            body: $body,
            gives: $gives,
            refuses: $refuses,
            handler: || $method($handler),
        }
    };
}

pub(super) const ROUTES: &[Route] = &[
    route!(get "/healthz", "Whether the process answers.", &[], None, &[(200, "text")], &[], health::live),
    route!(get "/readyz", "Whether the host takes work: its store answers and it is not shutting down.", &[], None, &[(200, "text")], &[503], health::ready),
    route!(get "/metrics", "Prometheus metrics.", &[], None, &[(200, "text")], &[], health::metrics),
    route!(get "/v1/openapi.json", "This document.", &[], None, &[(200, "any")], &[], health::openapi),
    route!(get "/v1/agents", "The agents and their labels.", &[], None, &[(200, "any")], &[503], agents::list),
    route!(get "/v1/agents/{agent}", "One agent.", &[], None, &[(200, "any")], &[404, 422], agents::get),
    route!(get "/v1/agents/{agent}/versions", "An agent's versions, newest first.", &[], None, &[(200, "any")], &[404, 422], agents::versions),
    route!(post "/v1/agents/{agent}/versions", "Uploads a component: 201 for a new version, 200 for bytes that are there already.", &[LIVE], Some(("application/wasm", "binary")), &[(201, "Version"), (200, "Version")], &[413, 415, 422, 503], agents::upload),
    route!(get "/v1/agents/{agent}/versions/{version}", "One version.", &[], None, &[(200, "Version")], &[404, 422], agents::version),
    route!(put "/v1/agents/{agent}/labels/{label}", "Points a label at a version; `swap: \"decision\"` reaches running turns with their next decision.", &[], Some((JSON, "MoveLabel")), &[(200, "LabelMove")], &[404, 415, 422, 503], agents::move_label),
    route!(delete "/v1/agents/{agent}/labels/{label}", "Removes a label.", &[], None, &[(200, "LabelMove")], &[404, 422, 503], agents::remove_label),
    route!(get "/v1/agents/{agent}/history", "All moves of an agent's labels, oldest first.", &[], None, &[(200, "any")], &[404, 422], agents::history),
    route!(post "/v1/agents/{agent}/live/rollback", "Points `live` back where it pointed before its last move.", &[], None, &[(200, "LabelMove")], &[404, 409, 422, 503], agents::rollback),
    route!(get "/v1/sessions", "Sessions by last change, newest first.", &[LIMIT, CURSOR], None, &[(200, "any")], &[422, 503], sessions::list),
    route!(post "/v1/sessions/input", "A client's input to a new session, whose id is minted.", &[], Some((JSON, "ClientInput")), &[(202, "Submitted")], &[400, 404, 409, 413, 415, 422, 429, 503], sessions::input_to_new),
    route!(post "/v1/sessions/{id}/input", "A client's input; creates the session when it is new. Answered once it is on disk.", &[], Some((JSON, "ClientInput")), &[(202, "Submitted")], &[400, 404, 409, 413, 415, 422, 429, 503], sessions::input),
    route!(get "/v1/sessions/{id}/state", "Status, turn, active path, calls, config, state, cost.", &[], None, &[(200, "any")], &[404, 422, 503], sessions::state),
    route!(get "/v1/sessions/{id}/log", "The event log: a page as JSON, or, with `Accept: text/event-stream`, all of it and on for ever; `Last-Event-ID` resumes.", &[AFTER, LIMIT, TURN_ID, LAST_EVENT_ID], None, &[(200, "log")], &[404, 422, 503], log::get),
    route!(post "/v1/sessions/{id}/calls/{call}", "Settles an open call: `{result}` or `{error, retryable}`, `attempt?`.", &[], Some((JSON, "Settle")), &[(200, "any")], &[400, 403, 404, 409, 413, 415, 422, 429, 503], sessions::settle),
    route!(post "/v1/sessions/{id}/abort", "Ends the running turn now.", &[], None, &[(202, "none")], &[404, 422, 429, 503], sessions::abort),
    route!(post "/v1/sessions/{id}/close", "Ends the session for good.", &[], None, &[(202, "none")], &[404, 422, 429, 503], sessions::close),
    route!(get "/v1/sessions/{id}/files", "All files the agent has handed over, oldest first.", &[], None, &[(200, "any")], &[404, 422, 503], files::list),
    route!(get "/v1/sessions/{id}/files/{*path}", "The newest delivery of a path.", &[], None, &[(200, "binary")], &[404, 422, 503], files::download),
    route!(get "/v1/sessions/{id}/decisions", "Each decision: why, what its answer changed, version, fuel, memory, time, log lines.", &[AFTER, LIMIT], None, &[(200, "any")], &[404, 422, 503], sessions::decisions),
    route!(get "/v1/sessions/{id}/decisions/{decision}", "One decision.", &[], None, &[(200, "any")], &[404, 422, 503], sessions::decision),
];
