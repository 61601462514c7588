//! The OpenAI provider against a server in this process that answers byte by byte as told.
#![allow(clippy::unwrap_used, clippy::expect_used)] // What fails here is a test.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use belljar_protocol::call::ErrorCode;
use belljar_protocol::message::{Message, Role};
use belljar_protocol::model::{LlmRequest, LlmResponse, ModelFailure, StreamDelta};
use belljar_protocol::ports::{DeltaSink, Model, Models};
use belljar_providers::openai::OpenAi;
use belljar_providers::{ProviderConfig, Providers, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const KEY: &str = "sk-loopback-0123456789";
const HI: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":10,\"cost\":0.50}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// What the server does once it has read a request. Then it closes.
enum Step {
    Send(String),
    Wait(Duration),
    /// Holds the connection until the client goes.
    Hold,
}

/// A server for one request; the task gives the request it got.
struct Server {
    base_url: String,
    task: JoinHandle<String>,
}

impl Server {
    async fn start(steps: Vec<Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let request = read_request(&mut socket).await;
            for step in steps {
                match step {
                    // The client may be gone already: some tests are about that.
                    Step::Send(text) => drop(socket.write_all(text.as_bytes()).await),
                    Step::Wait(time) => sleep(time).await,
                    Step::Hold => while matches!(socket.read(&mut [0; 64]).await, Ok(1..)) {},
                }
            }
            request
        });
        Self { base_url, task }
    }

    async fn answering(text: impl Into<String>) -> Self {
        Self::start(vec![Step::Send(text.into())]).await
    }

    fn config(&self) -> ProviderConfig {
        ProviderConfig {
            base_url: Some(self.base_url.clone()),
            api_key: Some(Secret::from(KEY)),
            ..ProviderConfig::default()
        }
    }

    async fn ask(&self) -> Result<LlmResponse, ModelFailure> {
        ask(&self.config()).await
    }
}

async fn read_request(socket: &mut TcpStream) -> String {
    let mut request = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        let read = socket.read(&mut bytes).await.unwrap();
        request.extend_from_slice(&bytes[..read]);
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                line.to_lowercase()
                    .strip_prefix("content-length: ")?
                    .parse()
                    .ok()
            });
            if read == 0 || body.len() >= length.unwrap_or(0) {
                return text.into_owned();
            }
        }
    }
}

fn request() -> Arc<LlmRequest> {
    Arc::new(LlmRequest {
        model: "gpt-x".into(),
        messages: vec![Arc::new(Message::text(Role::User, "hello"))],
        tools: None,
        temperature: None,
        max_completion_tokens: None,
        reasoning: None,
    })
}

async fn ask(config: &ProviderConfig) -> Result<LlmResponse, ModelFailure> {
    let model = OpenAi::new("lo", config).unwrap();
    timeout(Duration::from_secs(30), model.ask(request(), None))
        .await
        .expect("the provider does not hang")
}

/// A stream that ends with the connection.
fn stream(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n{body}"
    )
}

/// A stream that says where it ends, so that a cut shows.
fn chunked(parts: &[&str]) -> String {
    let parts: String = parts
        .iter()
        .map(|part| format!("{:x}\r\n{part}\r\n", part.len()))
        .collect();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{parts}"
    )
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

#[track_caller]
fn assert_failed(
    outcome: Result<LlmResponse, ModelFailure>,
    retryable: bool,
    message: &str,
) -> ModelFailure {
    let failure = outcome.unwrap_err();
    assert_eq!(failure.retryable, retryable, "{failure:?}");
    assert!(failure.message.contains(message), "{failure:?}");
    failure
}

#[tokio::test]
async fn a_request_and_its_streamed_reply() {
    let server = Server::answering(stream(&[HI, STOP, USAGE, DONE].concat())).await;
    let seen = Arc::new(Mutex::new(Vec::<StreamDelta>::new()));
    let sink: DeltaSink = {
        let seen = Arc::clone(&seen);
        Arc::new(move |delta| seen.lock().unwrap().push(delta))
    };
    let model = OpenAi::new("lo", &server.config()).unwrap();
    let reply = model.ask(request(), Some(sink)).await.unwrap();
    assert_eq!(
        (reply.content.as_deref(), reply.model.as_str()),
        (Some("Hi"), "gpt-x")
    );
    assert_eq!(
        reply.cost.as_deref(),
        Some("0.5"),
        "what the provider says it cost"
    );
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].text.as_deref(), Some("Hi"));

    let got = server.task.await.unwrap();
    let (head, body) = got.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains(&format!("authorization: Bearer {KEY}")),
        "{head}"
    );
    assert_eq!(
        body,
        r#"{"model":"gpt-x","messages":[{"role":"user","content":"hello"}],"stream":true,"stream_options":{"include_usage":true}}"#
    );
}

#[tokio::test]
async fn without_a_key_none_is_sent() {
    let server = Server::answering(stream(&[HI, STOP].concat())).await;
    ask(&ProviderConfig {
        api_key: None,
        ..server.config()
    })
    .await
    .unwrap();
    assert!(
        !server
            .task
            .await
            .unwrap()
            .to_lowercase()
            .contains("authorization")
    );
}

#[tokio::test]
async fn configured_prices_come_before_the_providers_own_cost() {
    let server = Server::answering(stream(&[HI, STOP, USAGE, DONE].concat())).await;
    let config = format!(
        "[providers.lo]\nbase_url = '{}'\nprices.gpt-x = {{ input = 0.15, output = '0.60' }}",
        server.base_url
    );
    let providers = Providers::from_config(toml::from_str(&config).unwrap()).unwrap();
    let (model, name) = providers.resolve("lo/gpt-x").unwrap();
    let reply = model
        .ask(
            Arc::new(LlmRequest {
                model: name,
                ..(*request()).clone()
            }),
            None,
        )
        .await
        .unwrap();
    assert_eq!(reply.cost.as_deref(), Some("0.000156"));
}

#[tokio::test]
async fn a_server_that_does_not_stream() {
    let body = r#"{"object":"chat.completion","model":"m","choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}"#;
    let server = Server::answering(response(
        "200 OK",
        "content-type: application/json\r\n",
        body,
    ))
    .await;
    let reply = server.ask().await.unwrap();
    assert_eq!(
        (reply.content.as_deref(), reply.model.as_str()),
        (Some("Hi"), "m")
    );
}

#[tokio::test]
async fn done_ends_the_reply_though_the_connection_stays() {
    let server = Server::start(vec![Step::Send(chunked(&[HI, STOP, DONE])), Step::Hold]).await;
    let begun = Instant::now();
    server.ask().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn too_many_requests_with_seconds() {
    let body =
        r#"{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}"#;
    let server = Server::answering(response(
        "429 Too Many Requests",
        "Retry-After: 20\r\n",
        body,
    ))
    .await;
    let failure = assert_failed(server.ask().await, true, "lo: HTTP 429: slow down");
    assert_eq!(
        (failure.code, failure.retry_after_secs),
        (ErrorCode::RateLimited, Some(20.0))
    );
    assert_eq!(failure.detail.unwrap().as_str(), body);
}

#[tokio::test]
async fn unavailable_until_a_date() {
    let headers = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:50:07 GMT\r\ncontent-type: text/html\r\n";
    let server = Server::answering(response(
        "503 Service Unavailable",
        headers,
        "<h1>Maintenance</h1>",
    ))
    .await;
    let failure = assert_failed(
        server.ask().await,
        true,
        "lo: HTTP 503 (text/html): Maintenance",
    );
    assert_eq!(
        (failure.code, failure.retry_after_secs),
        (ErrorCode::ProviderError, Some(30.0))
    );
}

#[tokio::test]
async fn a_key_that_is_quoted_back_does_not_show() {
    let body = format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}."}}}}"#);
    let server = Server::answering(response("401 Unauthorized", "", &body)).await;
    let failure = assert_failed(
        server.ask().await,
        false,
        "lo: HTTP 401: Incorrect API key provided: ….",
    );
    assert!(!format!("{failure:?}").contains("0123456789"));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let location = "location: http://127.0.0.1:1/\r\n";
    let server = Server::answering(response("307 Temporary Redirect", location, "")).await;
    assert_failed(server.ask().await, false, "redirects are not followed");
}

#[tokio::test]
async fn the_body_of_an_error_may_have_no_end() {
    let mut steps = vec![Step::Send(
        "HTTP/1.1 500 Oops\r\ncontent-type: text/plain\r\n\r\n".into(),
    )];
    steps.extend((0..64).map(|_| Step::Send("no ".repeat(1 << 12))));
    steps.push(Step::Hold);
    let server = Server::start(steps).await;
    let failure = assert_failed(server.ask().await, true, "HTTP 500 (text/plain): no no");
    assert!(failure.message.len() < 500);
}

#[tokio::test]
async fn nobody_listens() {
    // Bound but not listening: nobody else can take the port meanwhile.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let config = ProviderConfig {
        base_url: Some(format!("http://{address}/v1")),
        ..ProviderConfig::default()
    };
    assert_failed(ask(&config).await, true, "lo: cannot connect: ");
}

#[tokio::test]
async fn the_connection_breaks_before_the_answer() {
    let server = Server::start(vec![]).await;
    assert_failed(server.ask().await, true, "lo: the connection broke");
}

#[tokio::test]
async fn the_connection_breaks_in_the_stream() {
    let server = Server::answering(chunked(&[HI])).await;
    assert_failed(server.ask().await, true, "lo: the connection broke");
    let server = Server::answering(stream(HI)).await;
    assert_failed(
        server.ask().await,
        true,
        "lo: the response ended before the reply did",
    );
}

#[tokio::test]
async fn the_connection_breaks_after_the_model_has_stopped() {
    let server = Server::answering(chunked(&[HI, STOP])).await;
    let reply = server.ask().await.unwrap();
    assert_eq!((reply.content.as_deref(), reply.usage), (Some("Hi"), None));
}

#[tokio::test]
async fn silence_is_not_waited_out() {
    for before in ["".to_owned(), chunked(&[]), chunked(&[HI])] {
        let server = Server::start(vec![Step::Send(before), Step::Hold]).await;
        let begun = Instant::now();
        let outcome = ask(&ProviderConfig {
            idle_timeout_secs: Some(0.2),
            ..server.config()
        })
        .await;
        assert_failed(outcome, true, "lo: silent for 0.2 s");
        assert!(begun.elapsed() < Duration::from_secs(10));
        // The connection is closed, so that the server stops as well.
        timeout(Duration::from_secs(10), server.task)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn silence_after_the_model_has_stopped_costs_only_the_usage() {
    let server = Server::start(vec![Step::Send(chunked(&[HI, STOP])), Step::Hold]).await;
    let reply = ask(&ProviderConfig {
        idle_timeout_secs: Some(0.2),
        ..server.config()
    })
    .await
    .unwrap();
    assert_eq!(reply.content.as_deref(), Some("Hi"));
}

#[tokio::test]
async fn a_slow_stream_may_take_longer_than_the_longest_silence() {
    let mut steps = vec![Step::Send(stream(""))];
    for _ in 0..8 {
        steps.extend([
            Step::Send(": still thinking\n\n".into()),
            Step::Wait(Duration::from_millis(200)),
        ]);
    }
    steps.push(Step::Send([HI, STOP, DONE].concat()));
    let server = Server::start(steps).await;
    ask(&ProviderConfig {
        idle_timeout_secs: Some(1.2),
        ..server.config()
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_stream_without_end_is_cut_off() {
    let mut steps = vec![Step::Send(stream(""))];
    steps.extend((0..40).map(|_| Step::Send(HI.repeat(10_000))));
    let server = Server::start(steps).await;
    assert_failed(server.ask().await, false, "larger than 16777216 bytes");
}

#[tokio::test]
async fn dropping_the_question_closes_the_connection() {
    let server = Server::start(vec![Step::Send(chunked(&[HI])), Step::Hold]).await;
    let model = OpenAi::new("lo", &server.config()).unwrap();
    assert!(
        timeout(Duration::from_millis(300), model.ask(request(), None))
            .await
            .is_err()
    );
    timeout(Duration::from_secs(10), server.task)
        .await
        .unwrap()
        .unwrap();
}
