//! The routes, over a host on a store in memory: shapes, refusals, streams.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests say what they expect"
)]

#[path = "driver/bed.rs"]
#[allow(unreachable_pub, dead_code, reason = "it serves several test binaries")]
mod bed;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::Response;
use bed::Bed;
use belljar_protocol::sse::{Frame, Reader};
use belljar_server::{HttpConfig, http};
use belljar_store::MemoryStore;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

async fn bed() -> (Bed, Router) {
    let bed = Bed::new(Arc::new(MemoryStore::new())).await;
    let router = http::router(bed.host.clone(), HttpConfig::default());
    (bed, router)
}

struct Got {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

async fn send(router: &Router, request: Request<Body>) -> Response {
    router.clone().oneshot(request).await.unwrap()
}

async fn ask(router: &Router, method: &str, path: &str, body: Option<Value>) -> Got {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost:7700");
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    got(send(router, request.body(body).unwrap()).await).await
}

async fn got(response: Response) -> Got {
    let (status, headers) = (response.status(), response.headers().clone());
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body =
        serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
    Got {
        status,
        headers,
        body,
    }
}

fn message(turn: &str, text: &str) -> Value {
    json!({ "type": "client.message", "agent_id": "bot", "turn_id": turn, "message": { "role": "user", "content": text } })
}

fn is_problem(got: &Got, status: u16, code: &str) {
    assert_eq!(
        (got.status.as_u16(), got.body["code"].as_str()),
        (status, Some(code)),
        "{}",
        got.body
    );
    assert_eq!(
        got.headers[header::CONTENT_TYPE],
        "application/problem+json"
    );
    assert_eq!(got.body["error"], got.body["detail"]);
    assert_eq!(got.body["status"], status);
}

#[tokio::test(start_paused = true)]
async fn an_input_is_answered_202_and_shows_in_state_log_and_decisions() {
    let (bed, router) = bed().await;
    let accepted = ask(
        &router,
        "POST",
        "/v1/sessions/s/input",
        Some(message("t", "go")),
    )
    .await;
    assert_eq!(
        (accepted.status, accepted.body),
        (
            StatusCode::ACCEPTED,
            json!({ "session_id": "s", "turn_id": "t" })
        )
    );
    bed.turn("s", "t").await;
    let state = ask(&router, "GET", "/v1/sessions/s/state", None).await.body;
    assert_eq!(state["status"], "idle");
    assert_eq!(state["messages"].as_array().unwrap().len(), 4);
    assert_eq!(state["last_turn"]["data"], "three");
    let page = ask(&router, "GET", "/v1/sessions/s/log?after=2&limit=3", None)
        .await
        .body;
    let seqs: Vec<_> = page["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["seq"].clone())
        .collect();
    assert_eq!(seqs, [3, 4, 5]);
    assert_eq!(page["head_seq"], state["seq"]);
    let decisions = ask(&router, "GET", "/v1/sessions/s/decisions", None)
        .await
        .body;
    let first = &decisions["decisions"][0];
    assert_eq!(
        (&first["trigger"]["type"], &first["status"]),
        (&json!("session.start"), &json!("answered"))
    );
    assert_eq!(first["deliveries"][0]["run"]["fuel"], 7);
    let id = first["decision_id"].as_str().unwrap();
    assert_eq!(
        ask(
            &router,
            "GET",
            &format!("/v1/sessions/s/decisions/{id}"),
            None
        )
        .await
        .body,
        *first
    );
    let listed = ask(&router, "GET", "/v1/sessions", None).await.body;
    assert_eq!(listed["sessions"][0]["session_id"], "s");
}

#[tokio::test(start_paused = true)]
async fn a_session_id_is_minted_when_none_is_given() {
    let (_bed, router) = bed().await;
    let mut input = message("t", "hi");
    input.as_object_mut().unwrap().remove("turn_id");
    let accepted = ask(&router, "POST", "/v1/sessions/input", Some(input)).await;
    assert_eq!(accepted.status, StatusCode::ACCEPTED);
    for id in ["session_id", "turn_id"] {
        assert_eq!(
            accepted.body[id].as_str().unwrap().len(),
            36,
            "{id} is a UUID"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_are_problems_that_say_what_and_where() {
    let (_bed, router) = bed().await;
    let input = "/v1/sessions/s/input";
    for (method, path, body, status, code) in [
        ("GET", "/nowhere", None, 404, "route_unknown"),
        ("DELETE", "/v1/agents", None, 405, "method_not_allowed"),
        (
            "GET",
            "/v1/sessions/none/state",
            None,
            404,
            "session_unknown",
        ),
        ("GET", "/v1/sessions/none/log", None, 404, "session_unknown"),
        (
            "GET",
            "/v1/sessions/none/files",
            None,
            404,
            "session_unknown",
        ),
        (
            "POST",
            "/v1/sessions/none/abort",
            None,
            404,
            "session_unknown",
        ),
        (
            "GET",
            "/v1/sessions/a%20b/state",
            None,
            422,
            "session_id_malformed",
        ),
        (
            "GET",
            "/v1/sessions/a.b/state",
            None,
            422,
            "session_id_malformed",
        ),
        (
            "GET",
            "/v1/sessions?limit=many",
            None,
            400,
            "request_malformed",
        ),
        (
            "GET",
            "/v1/sessions?cursor=x",
            None,
            422,
            "cursor_malformed",
        ),
        (
            "GET",
            "/v1/sessions/%FF/state",
            None,
            400,
            "request_malformed",
        ),
        ("GET", "/v1/agents/nobody", None, 404, "agent_unknown"),
        ("GET", "/v1/agents/.hidden", None, 422, "agent_malformed"),
        (
            "GET",
            "/v1/agents/bot/versions/sha256:0",
            None,
            404,
            "version_unknown",
        ),
        (
            "PUT",
            "/v1/agents/bot/labels/live",
            Some(json!({ "version": "sha256:0" })),
            404,
            "version_unknown",
        ),
        (
            "PUT",
            "/v1/agents/bot/labels/live",
            Some(json!({ "swap": "turn" })),
            422,
            "body_invalid",
        ),
        (
            "DELETE",
            "/v1/agents/bot/labels/canary",
            None,
            404,
            "label_unknown",
        ),
        (
            "POST",
            "/v1/agents/bot/live/rollback",
            None,
            409,
            "nothing_to_roll_back",
        ),
        (
            "POST",
            input,
            Some(json!({ "type": "client.shout" })),
            422,
            "body_invalid",
        ),
        (
            "POST",
            input,
            Some(json!({ "type": "client.message", "agent_id": "bot" })),
            422,
            "body_invalid",
        ),
        (
            "POST",
            input,
            Some(
                json!({ "type": "client.message", "agent_id": "bot", "message": { "role": "assistant", "content": "x" } }),
            ),
            422,
            "message_role",
        ),
        (
            "POST",
            input,
            Some(
                json!({ "type": "client.message", "agent_id": "nobody", "message": { "role": "user", "content": "x" } }),
            ),
            404,
            "agent_unknown",
        ),
        (
            "POST",
            input,
            Some(json!({ "type": "tool.result", "id": "k" })),
            404,
            "session_unknown",
        ),
        ("POST", input, None, 415, "content_type"),
        ("POST", "/v1/agents/bot/versions", None, 415, "content_type"),
    ] {
        let refused = ask(&router, method, path, body).await;
        assert_eq!(
            (refused.status.as_u16(), refused.body["code"].as_str()),
            (status, Some(code)),
            "{method} {path}: {}",
            refused.body
        );
        is_problem(&refused, status, code);
    }
    let request = Request::post(input)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Body::from("{\"type\": "))
        .unwrap();
    let refused = got(send(&router, request).await).await;
    is_problem(&refused, 400, "json_malformed");
    assert!(
        refused.body["detail"].as_str().unwrap().contains("line 1"),
        "{}",
        refused.body
    );
}

#[tokio::test(start_paused = true)]
async fn s4_a_second_turn_is_refused_and_names_the_running_one() {
    let (bed, router) = bed().await;
    *bed.model.takes.lock().unwrap() = Duration::from_secs(60);
    ask(
        &router,
        "POST",
        "/v1/sessions/s/input",
        Some(message("t", "hi")),
    )
    .await;
    let refused = ask(
        &router,
        "POST",
        "/v1/sessions/s/input",
        Some(message("t2", "hi")),
    )
    .await;
    is_problem(&refused, 409, "turn_active");
    assert_eq!(refused.body["turn_id"], "t");
    assert_eq!(
        ask(&router, "POST", "/v1/sessions/s/abort", None)
            .await
            .status,
        StatusCode::ACCEPTED
    );
    assert_eq!(bed.turn("s", "t").await, "aborted");
}

#[tokio::test(start_paused = true)]
async fn bodies_are_capped_whether_they_say_their_length_or_not() {
    let (_bed, router) = bed().await;
    let upload = |body: Body| {
        Request::post("/v1/agents/bot/versions")
            .header("host", "localhost")
            .header("content-type", "application/wasm")
            .body(body)
            .unwrap()
    };
    let mut says = upload(Body::empty());
    says.headers_mut()
        .insert("content-length", (33 * 1024 * 1024).into());
    is_problem(&got(send(&router, says).await).await, 413, "body_too_large");
    let chunk = bytes::Bytes::from(vec![0; 1024 * 1024]);
    let endless = futures::stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone()));
    is_problem(
        &got(send(&router, upload(Body::from_stream(endless))).await).await,
        413,
        "body_too_large",
    );
}

#[tokio::test(start_paused = true)]
async fn other_names_and_other_sites_are_refused_on_every_route() {
    let (_bed, router) = bed().await;
    for (header, value, code) in [
        ("host", "evil.example", "host_refused"),
        ("origin", "http://evil.example", "origin_refused"),
    ] {
        for path in ["/healthz", "/v1/agents", "/nowhere"] {
            let mut request = Request::get(path)
                .header("host", "localhost")
                .body(Body::empty())
                .unwrap();
            request.headers_mut().insert(header, value.parse().unwrap());
            is_problem(&got(send(&router, request).await).await, 403, code);
        }
    }
    let request = Request::get("/healthz").body(Body::empty()).unwrap();
    is_problem(
        &got(send(&router, request).await).await,
        403,
        "host_refused",
    );
}

#[tokio::test(start_paused = true)]
async fn an_upload_is_201_and_the_same_bytes_again_are_200() {
    let (_bed, router) = bed().await;
    let upload = |body: &'static str, query: &str| {
        let request = Request::post(format!("/v1/agents/new/versions{query}"))
            .header("host", "localhost")
            .header("content-type", "application/wasm")
            .body(Body::from(body))
            .unwrap();
        let router = router.clone();
        async move { got(send(&router, request).await).await }
    };
    let refused = upload("", "").await;
    is_problem(&refused, 422, "component_refused");
    assert_eq!(refused.body["step"], "component");
    assert!(refused.body["reason"].is_string() && refused.body["fix"].is_string());
    let first = upload("a", "?live=true").await;
    assert_eq!(first.status, StatusCode::CREATED);
    let again = upload("a", "").await;
    assert_eq!((again.status, &again.body), (StatusCode::OK, &first.body));
    let second = upload("b", "").await.body;
    let agent = ask(&router, "GET", "/v1/agents/new", None).await.body;
    assert_eq!(
        (&agent["labels"]["live"], &agent["versions"]),
        (&first.body["version"], &json!(2))
    );
    let body = json!({ "version": second["version"], "swap": "decision" });
    let moved = ask(&router, "PUT", "/v1/agents/new/labels/live", Some(body)).await;
    assert_eq!(
        (moved.status, &moved.body["previous"]),
        (StatusCode::OK, &first.body["version"])
    );
    assert_eq!(
        ask(&router, "POST", "/v1/agents/new/live/rollback", None)
            .await
            .body["version"],
        first.body["version"]
    );
    let history = ask(&router, "GET", "/v1/agents/new/history", None)
        .await
        .body;
    assert_eq!(history["moves"].as_array().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn calls_are_settled_by_id_in_the_order_of_c4() {
    let (bed, router) = bed().await;
    ask(
        &router,
        "POST",
        "/v1/sessions/s/input",
        Some(message("t", "go")),
    )
    .await;
    bed.turn("s", "t").await;
    let unknown = ask(
        &router,
        "POST",
        "/v1/sessions/s/calls/zz",
        Some(json!({ "result": 1 })),
    )
    .await;
    is_problem(&unknown, 404, "call_unknown");
    let over = ask(
        &router,
        "POST",
        "/v1/sessions/s/calls/k",
        Some(json!({ "result": 1 })),
    )
    .await;
    is_problem(&over, 409, "call_not_pending");
    let both = ask(
        &router,
        "POST",
        "/v1/sessions/s/calls/k",
        Some(json!({ "result": 1, "error": "x" })),
    )
    .await;
    is_problem(&both, 422, "body_invalid");
}

/// Reads frames of a stream until one of this event.
async fn until(body: &mut Body, reader: &mut Reader, event: &str) -> Vec<Frame> {
    let mut frames = Vec::new();
    loop {
        let chunk = tokio::time::timeout(Duration::from_secs(3_600), body.frame()).await;
        let Some(chunk) = chunk.expect("the stream goes on") else {
            return frames;
        };
        frames.extend(reader.push(&chunk.unwrap().into_data().unwrap()));
        if frames.last().is_some_and(|frame| frame.event == event) {
            return frames;
        }
    }
}

async fn stream(router: &Router, path: &str, last_event_id: Option<&str>) -> Body {
    let mut request = Request::get(path)
        .header("host", "localhost")
        .header("accept", "text/event-stream");
    if let Some(id) = last_event_id {
        request = request.header("last-event-id", id);
    }
    let response = send(router, request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "text/event-stream"
    );
    response.into_body()
}

#[tokio::test(start_paused = true)]
async fn a_stream_replays_says_when_it_has_caught_up_and_goes_on_live() {
    let (bed, router) = bed().await;
    ask(
        &router,
        "POST",
        "/v1/sessions/s/input",
        Some(message("t", "go")),
    )
    .await;
    bed.turn("s", "t").await;
    let (mut body, mut reader) = (
        stream(&router, "/v1/sessions/s/log", None).await,
        Reader::default(),
    );
    let replay = until(&mut body, &mut reader, "caught-up").await;
    let ids: Vec<u64> = replay
        .iter()
        .filter_map(|frame| frame.id.as_ref()?.parse().ok())
        .collect();
    assert_eq!(
        ids,
        (1..=ids.len() as u64).collect::<Vec<_>>(),
        "every event, in order"
    );
    let head = *ids.last().unwrap();
    assert_eq!(
        replay.last().unwrap().data,
        json!({ "seq": head }).to_string()
    );

    ask(
        &router,
        "POST",
        "/v1/sessions/s/input",
        Some(message("t2", "hi")),
    )
    .await;
    let live = until(&mut body, &mut reader, "turn.ended").await;
    let delta = live
        .iter()
        .find(|frame| frame.event == "llm.token.delta")
        .expect("tokens are shown");
    assert_eq!(delta.id, None, "what is not stored has no id");
    let said: Value = serde_json::from_str(&delta.data).unwrap();
    assert_eq!((&said["text"], &said["attempt"]), (&json!("he"), &json!(1)));
    let next = live.iter().find_map(|frame| frame.id.clone()).unwrap();
    assert_eq!(next, (head + 1).to_string());

    // Resuming wins over `after`, 0 is an id, and what a client has seen is not sent again.
    let (mut body, mut reader) = (
        stream(
            &router,
            "/v1/sessions/s/log?after=0",
            Some(&head.to_string()),
        )
        .await,
        Reader::default(),
    );
    let resumed = until(&mut body, &mut reader, "caught-up").await;
    assert_eq!(resumed[0].id.as_deref(), Some(next.as_str()));
    let (mut body, mut reader) = (
        stream(&router, "/v1/sessions/s/log?after=5", Some("0")).await,
        Reader::default(),
    );
    assert_eq!(
        until(&mut body, &mut reader, "caught-up").await[0]
            .id
            .as_deref(),
        Some("1")
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_a_turn_ends_with_it_and_an_idle_one_is_kept_alive() {
    let (bed, router) = bed().await;
    ask(
        &router,
        "POST",
        "/v1/sessions/s/input",
        Some(message("t", "go")),
    )
    .await;
    bed.turn("s", "t").await;
    let body = stream(&router, "/v1/sessions/s/log?turn_id=t", None).await;
    let bytes = tokio::time::timeout(Duration::from_secs(5), body.collect())
        .await
        .expect("it ends")
        .unwrap()
        .to_bytes();
    assert!(String::from_utf8_lossy(&bytes).contains("event: turn.ended"));

    let mut idle = stream(&router, "/v1/sessions/s/log", None).await;
    until(&mut idle, &mut Reader::default(), "caught-up").await;
    let start = tokio::time::Instant::now();
    let comment = idle.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(&comment[..], b": keep-alive\n\n");
    assert_eq!(start.elapsed(), Duration::from_secs(15));
    let request = Request::get("/v1/sessions/s/log")
        .header("host", "localhost")
        .header("accept", "text/event-stream")
        .header("last-event-id", "x");
    is_problem(
        &got(send(&router, request.body(Body::empty()).unwrap()).await).await,
        422,
        "last_event_id_malformed",
    );
}

#[tokio::test(start_paused = true)]
async fn the_openapi_document_lists_every_route_with_its_parameters() {
    let (_bed, router) = bed().await;
    let document = ask(&router, "GET", "/v1/openapi.json", None).await.body;
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 20);
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let named = operation["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|p| p["in"] == "path")
                .count();
            assert_eq!(named, path.matches('{').count(), "{method} {path}");
            // What the document lists is there: no method of it falls through to 405 or the 404 of the router.
            let concrete = path.replace(['{', '}'], "");
            let found = ask(&router, &method.to_uppercase(), &concrete, None).await;
            assert!(
                !["route_unknown", "method_not_allowed"]
                    .contains(&found.body["code"].as_str().unwrap_or("")),
                "{method} {path}"
            );
        }
    }
    let references: Vec<&str> = document
        .to_string()
        .leak()
        .split("#/components/schemas/")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    for name in references {
        assert!(
            document["components"]["schemas"][name].is_object(),
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn health_and_metrics() {
    let (bed, router) = bed().await;
    assert_eq!(
        ask(&router, "GET", "/healthz", None).await.status,
        StatusCode::OK
    );
    assert_eq!(
        ask(&router, "GET", "/readyz", None).await.status,
        StatusCode::OK
    );
    bed.say("s", "t", "hi").await.unwrap();
    bed.turn("s", "t").await;
    let metrics = ask(&router, "GET", "/metrics", None).await.body;
    assert!(
        metrics
            .as_str()
            .unwrap()
            .contains("belljar_decisions_total 3"),
        "{metrics}"
    );
    bed.host.drain(Duration::from_secs(1)).await;
    let refused = ask(&router, "GET", "/readyz", None).await;
    is_problem(&refused, 503, "draining");
    assert_eq!(refused.headers[header::RETRY_AFTER], "5");
    is_problem(
        &ask(
            &router,
            "POST",
            "/v1/sessions/s/input",
            Some(message("t9", "hi")),
        )
        .await,
        503,
        "draining",
    );
}
