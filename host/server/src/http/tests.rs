//! What needs a look inside (a handler that panics), an agent that delivers, or a real
//! connection. The rest of the routes is in `host/server/tests/http.rs`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use belljar_protocol::Timestamp;
use belljar_protocol::decision::{Answer, DecisionResponse, Trigger};
use belljar_protocol::model::ModelFailure;
use belljar_protocol::ports::{
    Admitted, Boxed, Clock, Components, Conclusion, Decided, Entropy, Job, Model, Models, Refused,
    Worker,
};
use belljar_protocol::run::RunRecord;
use belljar_protocol::scratch::{DeliveredFile, Digest, ScratchChange};
use belljar_protocol::version::World;
use belljar_store::MemoryStore;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tower::ServiceExt;

use super::*;
use crate::driver::{HostConfig, Parts};

/// Names that an agent may deliver under, each with what it delivers, in this order.
const DELIVERED: &[(&str, &[u8])] = &[
    ("report.md", b"first"),
    (
        "a b/gr\u{fc}\u{df}e \"1\"; filename=evil.html",
        b"\x00\xff\r\n\x00",
    ),
    ("100%/%2e%2e.txt", b"percent"),
    ("report.md", b"second"),
];

/// An agent whose every turn delivers everything and is done, and whatever else a host needs.
struct Fake;

impl Worker for Fake {
    fn decide(&self, job: Job) -> Boxed<'static, Decided> {
        let starts = matches!(job.ask.trigger, Trigger::SessionStart);
        let answer = match starts {
            true => r#"{"agent":{"model":"m"}}"#,
            false => r#"{"actions":[{"type":"done"}]}"#,
        };
        let answer: DecisionResponse = serde_json::from_str(answer).unwrap();
        let delivers = if starts { &[] } else { DELIVERED };
        let file = |(path, content): &(&str, &[u8])| DeliveredFile {
            path: (*path).to_owned(),
            bytes: content.len() as u64,
            sha256: Digest::of(content),
            description: None,
        };
        let blob = |(_, content): &(&str, &'static [u8])| {
            (Digest::of(content), Bytes::from_static(content))
        };
        let decided = Decided {
            outcome: Ok(Answer::from(answer)),
            run: RunRecord::default(),
            scratch: ScratchChange::default(),
            delivered: delivers.iter().map(file).collect(),
            blobs: delivers.iter().map(blob).collect(),
        };
        Box::pin(async move { decided })
    }
    fn conclude(&self, _: &TenantId, _: &belljar_protocol::id::SessionId, _: Conclusion) {}
}

impl Components for Fake {
    fn admit(&self, _: Bytes) -> Boxed<'static, Result<Admitted, Refused>> {
        let admitted = Admitted {
            world: World::Agent,
            imports: Vec::new(),
            compile_ms: 1,
        };
        Box::pin(async move { Ok(admitted) })
    }
}

impl Models for Fake {
    fn resolve(&self, _: &str) -> Result<(Arc<dyn Model>, String), ModelFailure> {
        unreachable!("the agent asks no model")
    }
}

impl Clock for Fake {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000)
    }
    fn wait_until(&self, _: Timestamp) -> Boxed<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[derive(Default)]
struct Counting(std::sync::atomic::AtomicU8);

impl Entropy for Counting {
    fn seed(&self) -> [u8; 32] {
        [self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed); 32]
    }
}

/// A host with one live version of the agent `bot`.
async fn host() -> Host {
    let parts = Parts {
        store: Arc::new(MemoryStore::new()),
        worker: Arc::new(Fake),
        components: Arc::new(Fake),
        models: Arc::new(Fake),
        clock: Arc::new(Fake),
        entropy: Arc::new(Counting::default()),
    };
    let host = Host::start(parts, HostConfig::default()).await.unwrap();
    let (tenant, component) = (TenantId::built_in(), Bytes::from_static(b"one"));
    host.upload(&tenant, &"bot".into(), component, true, "test")
        .await
        .unwrap();
    host
}

async fn send(router: &Router, request: Request<Body>) -> Response {
    let answer = router.clone().oneshot(request);
    let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
    answer.expect("an answer in time").unwrap()
}

async fn whole(response: Response) -> (StatusCode, HeaderMap, Bytes) {
    let (status, headers) = (response.status(), response.headers().clone());
    let body = tokio::time::timeout(Duration::from_secs(10), response.into_body().collect()).await;
    let body = body.expect("the body ends").unwrap();
    (status, headers, body.to_bytes())
}

async fn ask(
    router: &Router,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost:7700")
        .header("content-type", "application/json");
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let (status, _, body) = whole(send(router, request.body(body).unwrap()).await).await;
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Says something and reads the stream until the turn is over.
async fn turn(router: &Router, session: &str, turn: &str) -> String {
    let message = json!({ "role": "user", "content": "hi" });
    let input =
        json!({ "type": "client.message", "agent_id": "bot", "turn_id": turn, "message": message });
    let path = format!("/v1/sessions/{session}/input");
    let (status, accepted) = ask(router, "POST", &path, Some(input)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{accepted}");
    stream(
        router,
        &format!("/v1/sessions/{session}/log?turn_id={turn}"),
        0,
    )
    .await
}

/// All of a stream that ends by itself.
async fn stream(router: &Router, path: &str, last_event_id: u64) -> String {
    let request = Request::get(path)
        .header("host", "localhost")
        .header("accept", "text/event-stream")
        .header("last-event-id", last_event_id)
        .body(Body::empty())
        .unwrap();
    let (status, _, body) = whole(send(router, request).await).await;
    assert_eq!(status, StatusCode::OK);
    String::from_utf8(body.to_vec()).unwrap()
}

fn encoded(path: &str) -> String {
    path.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn files_keep_their_bytes_and_their_names_leave_no_header() {
    let router = router(host().await, HttpConfig::default());
    turn(&router, "s", "t").await;
    let (_, listed) = ask(&router, "GET", "/v1/sessions/s/files", None).await;
    let paths: Vec<_> = listed["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| &file["path"])
        .collect();
    assert_eq!(
        paths,
        DELIVERED.iter().map(|(path, _)| path).collect::<Vec<_>>(),
        "oldest first"
    );

    for (path, content) in &DELIVERED[1..] {
        let uri = format!("/v1/sessions/s/files/{}", encoded(path));
        let request = Request::get(uri)
            .header("host", "localhost")
            .body(Body::empty())
            .unwrap();
        let (status, headers, body) = whole(send(&router, request).await).await;
        assert_eq!(
            (status, &body[..]),
            (StatusCode::OK, *content),
            "{path}: the newest, byte for byte"
        );
        let is = |name: header::HeaderName| headers[name].to_str().expect("it is ASCII").to_owned();
        assert_eq!(is(header::CONTENT_TYPE), "application/octet-stream");
        assert_eq!(is(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(is(header::ETAG), format!("\"{}\"", Digest::of(content)));
        let name = path.rsplit('/').next().unwrap();
        let disposition = is(header::CONTENT_DISPOSITION);
        let (plain, exact) = disposition.split_once("; filename*=UTF-8''").unwrap();
        assert!(
            plain.starts_with("attachment; filename=\"") && plain.matches('"').count() == 2,
            "{plain}"
        );
        assert!(!exact.contains([';', '"', ' ']), "{exact}");
        let decoded: Vec<u8> = exact
            .split('%')
            .enumerate()
            .flat_map(|(n, piece)| match n {
                0 => piece.as_bytes().to_vec(),
                _ => {
                    let byte = u8::from_str_radix(&piece[..2], 16).unwrap();
                    [&[byte], &piece.as_bytes()[2..]].concat()
                }
            })
            .collect();
        assert_eq!(String::from_utf8(decoded).unwrap(), name);
    }
    for path in [
        "none.md",
        "..%2Freport.md",
        "a%20b",
        "../../state",
        "report.md%00",
    ] {
        let (status, problem) = ask(
            &router,
            "GET",
            &format!("/v1/sessions/s/files/{path}"),
            None,
        )
        .await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (404, &json!("file_unknown")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_stream_of_a_turn_that_is_over_ends_when_it_has_caught_up() {
    let router = router(host().await, HttpConfig::default());
    let told = turn(&router, "s", "t1").await;
    let end = told.matches("\nid: ").count() as u64 + 1;
    let log = "/v1/sessions/s/log?turn_id=t1";
    let resumed = stream(&router, log, end - 1).await;
    assert!(resumed.contains("event: turn.ended"), "{resumed}");
    let over = stream(&router, log, end).await;
    assert_eq!(
        over,
        format!("event: caught-up\ndata: {{\"seq\":{end}}}\n\n")
    );
    turn(&router, "s", "t2").await;
    assert!(stream(&router, log, end).await.contains("event: caught-up"));
}

#[tokio::test]
async fn sessions_are_listed_a_page_at_a_time() {
    let router = router(host().await, HttpConfig::default());
    for session in ["a", "b", "c", "d", "e"] {
        turn(&router, session, "t").await;
    }
    let (mut seen, mut pages, mut query) = (Vec::new(), 0, "limit=2".to_owned());
    loop {
        let (_, page) = ask(&router, "GET", &format!("/v1/sessions?{query}"), None).await;
        let rows = page["sessions"].as_array().unwrap();
        seen.extend(
            rows.iter()
                .map(|row| row["session_id"].as_str().unwrap().to_owned()),
        );
        pages += 1;
        match page["cursor"].as_str() {
            Some(cursor) => query = format!("limit=2&cursor={cursor}"),
            None => break,
        }
    }
    seen.sort();
    assert_eq!((seen.join(""), pages), ("abcde".into(), 3), "each once");
}

#[tokio::test]
async fn a_body_with_a_misspelt_or_missing_key_changes_nothing() {
    let router = router(host().await, HttpConfig::default());
    turn(&router, "s", "t").await;
    let (call, label) = ("/v1/sessions/s/calls/k", "/v1/agents/bot/labels/live");
    for (method, path, body, says) in [
        ("POST", call, json!({ "retryable": true }), "neither"),
        ("POST", call, json!({ "eror": "x" }), "`eror`"),
        (
            "POST",
            call,
            json!({ "result": null, "error": "x" }),
            "both",
        ),
        (
            "PUT",
            label,
            json!({ "version": "sha256:0", "share": 0.1 }),
            "`share`",
        ),
        (
            "PUT",
            label,
            json!({ "version": "sha256:0", "swap": "now" }),
            "`now`",
        ),
    ] {
        let (status, problem) = ask(&router, method, path, Some(body.clone())).await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (422, &json!("body_invalid")),
            "{body}"
        );
        assert!(
            problem["detail"].as_str().unwrap().contains(says),
            "{problem}"
        );
    }
    let (_, unknown) = ask(&router, "POST", call, Some(json!({ "result": null }))).await;
    assert_eq!(unknown["code"], "call_unknown", "`null` is a result");
}

#[tokio::test]
async fn each_kind_of_body_has_its_own_limit() {
    let router = router(host().await, HttpConfig::default());
    for (method, path, kind, most) in [
        ("PUT", "/v1/agents/bot/labels/live", "application/json", 1),
        ("POST", "/v1/sessions/s/calls/k", "application/json", 1),
        ("POST", "/v1/sessions/input", "application/json", 16),
        ("POST", "/v1/sessions/s/input", "application/json", 16),
        ("POST", "/v1/agents/bot/versions", "application/wasm", 32),
    ] {
        let most = most * 1024 * 1024;
        for (bytes, refused) in [(most, false), (most + 1, true)] {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("host", "localhost")
                .header("content-type", kind)
                .body(Body::from(vec![b' '; bytes]))
                .unwrap();
            let (status, _, _) = whole(send(&router, request).await).await;
            assert_eq!(
                status.as_u16() == 413,
                refused,
                "{path} with {bytes} bytes: {status}"
            );
        }
    }
}

#[tokio::test]
async fn a_configured_name_is_the_hosts_as_well() {
    let config = HttpConfig {
        hosts: vec!["bell.internal".into()],
    };
    let router = router(host().await, config);
    for (name, status) in [
        ("bell.internal:7700", 200),
        ("BELL.internal", 200),
        ("x.bell.internal", 403),
    ] {
        let request = Request::get("/healthz")
            .header("host", name)
            .body(Body::empty())
            .unwrap();
        assert_eq!(
            send(&router, request).await.status().as_u16(),
            status,
            "{name}"
        );
    }
}

/// Sends a request on a connection that stays open; gives the head and body of the answer.
async fn exchange(connection: &mut TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let read = connection.read(&mut piece).await.unwrap();
        assert_ne!(read, 0, "the connection lives");
        answer.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if length.is_some_and(|length| body.len() >= length.parse().unwrap()) {
            return text;
        }
    }
}

#[tokio::test]
async fn a_handler_that_panics_gives_a_problem_and_the_connection_lives() {
    async fn panics() -> &'static str {
        panic!("a secret of the host")
    }
    let (_alive, stopping) = watch::channel(false);
    let app = App {
        host: host().await,
        config: Arc::default(),
        stopping,
    };
    let routes = Router::new()
        .route("/panics", get(panics))
        .route("/healthz", get(health::live));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut connection = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    tokio::spawn(axum::serve(listener, guarded(routes, app)).into_future());
    let failed = exchange(&mut connection, "/panics").await;
    assert!(failed.starts_with("HTTP/1.1 500"), "{failed}");
    assert!(failed.contains("application/problem+json") && failed.contains(r#""code":"internal""#));
    assert!(
        !failed.contains("secret"),
        "what it said is for the log: {failed}"
    );
    let lives = exchange(&mut connection, "/healthz").await;
    assert!(lives.starts_with("HTTP/1.1 200"), "{lives}");
}

#[tokio::test]
async fn a_server_that_stops_ends_its_streams_and_says_so() {
    let (host, listener) = (
        host().await,
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    let address = listener.local_addr().unwrap();
    turn(&router(host.clone(), HttpConfig::default()), "s", "t").await;
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, host, HttpConfig::default(), async {
        drop(stopped.await);
    }));
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request =
        "GET /v1/sessions/s/log HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let (mut told, mut piece, mut stop) = (String::new(), [0; 4096], Some(stop));
    loop {
        let read = connection.read(&mut piece).await.unwrap();
        if read == 0 {
            break;
        }
        told.push_str(&String::from_utf8_lossy(&piece[..read]));
        if told.contains("event: caught-up")
            && let Some(stop) = stop.take()
        {
            stop.send(()).unwrap();
        }
    }
    assert!(
        told.contains("event: closed") && told.contains("shutting down"),
        "{told}"
    );
    tokio::time::timeout(Duration::from_secs(5), server)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}
