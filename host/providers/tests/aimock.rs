//! The OpenAI provider against a server that others wrote: `@copilotkit/aimock`, as
//! `tests/wire/aimock.mjs` sets it up. Needs `./just setup-wire` to have run.
#![allow(clippy::unwrap_used, clippy::expect_used)] // What fails here is a test.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use belljar_protocol::call::ErrorCode;
use belljar_protocol::model::{LlmRequest, LlmResponse, ModelFailure, StreamDelta};
use belljar_protocol::ports::{DeltaSink, Model, Models};
use belljar_providers::{Providers, ProvidersConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

/// The server, and a provider that talks to it.
struct Aimock {
    child: Child,
    model: Arc<dyn Model>,
    name: String,
}

struct Asked {
    outcome: Result<LlmResponse, ModelFailure>,
    deltas: Vec<StreamDelta>,
}

impl Aimock {
    async fn start() -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/wire");
        assert!(
            directory.join("node_modules/@copilotkit/aimock").is_dir(),
            "run ./just setup-wire"
        );
        let mut child = Command::new("node")
            .arg("aimock.mjs")
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("node runs");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let base_url = timeout(PATIENCE, lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .expect("aimock starts");
        let config = json!({ "providers": { "aimock": {
            "base_url": base_url,
            "default_model": "gpt-5-mini",
            "idle_timeout_secs": 2,
            "prices": { "gpt-5-mini": { "input": "2.50", "output": 10 } },
        }}});
        let config: ProvidersConfig = serde_json::from_value(config).unwrap();
        let (model, name) = Providers::from_config(config)
            .unwrap()
            .resolve("default")
            .unwrap();
        Self { child, model, name }
    }

    async fn say(&self, text: &str) -> Asked {
        self.ask(json!([{ "role": "user", "content": text }])).await
    }

    async fn ask(&self, messages: Value) -> Asked {
        let tools = json!([
            { "name": "weather", "description": "The weather.", "input": { "type": "object" } },
            { "name": "time" },
        ]);
        let request = json!({ "model": self.name, "messages": messages, "tools": tools, "max_completion_tokens": 99 });
        let request: LlmRequest = serde_json::from_value(request).unwrap();
        let deltas = Arc::new(Mutex::new(Vec::new()));
        let sink: DeltaSink = {
            let deltas = Arc::clone(&deltas);
            Arc::new(move |delta| deltas.lock().unwrap().push(delta))
        };
        let outcome = timeout(PATIENCE, self.model.ask(Arc::new(request), Some(sink)))
            .await
            .expect("it ends");
        let deltas = std::mem::take(&mut *deltas.lock().unwrap());
        Asked { outcome, deltas }
    }

    async fn stop(mut self) {
        self.child.kill().await.unwrap();
    }
}

impl Asked {
    #[track_caller]
    fn reply(self) -> LlmResponse {
        let reply = self.outcome.unwrap();
        let text: String = self
            .deltas
            .iter()
            .filter_map(|delta| delta.text.as_deref())
            .collect();
        assert_eq!(
            text,
            reply.content.clone().unwrap_or_default(),
            "the stream adds up to the reply"
        );
        let arguments: Vec<String> = reply
            .tool_calls
            .iter()
            .map(|call| {
                let parts = self.deltas.iter().flat_map(|delta| &delta.tool_calls);
                parts
                    .filter(|part| part.id == call.id.as_str())
                    .filter_map(|part| part.arguments.as_deref())
                    .collect()
            })
            .collect();
        let whole: Vec<&str> = reply
            .tool_calls
            .iter()
            .map(|call| call.function.arguments.as_str())
            .collect();
        assert_eq!(arguments, whole, "the stream adds up to the calls");
        reply
    }

    #[track_caller]
    fn failure(self, retryable: bool, code: ErrorCode, message: &str) -> ModelFailure {
        let failure = self.outcome.unwrap_err();
        assert_eq!(
            (failure.retryable, failure.code),
            (retryable, code),
            "{failure:?}"
        );
        assert!(failure.message.contains(message), "{failure:?}");
        failure
    }
}

#[tokio::test]
async fn replies() {
    let aimock = Aimock::start().await;

    let reply = aimock.say("say hello").await.reply();
    assert_eq!(
        reply.content.as_deref(),
        Some("Hello from the other side: grüß gott 👋")
    );
    assert_eq!(
        (reply.model.as_str(), reply.finish_reason.as_deref()),
        ("gpt-5-mini", Some("stop"))
    );
    let usage: Value = reply.usage.unwrap().read().unwrap();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(1000), &json!(10))
    );
    assert_eq!(reply.cost.as_deref(), Some("0.0026"));

    let asked = aimock.say("think first").await;
    let reasoning: String = asked
        .deltas
        .iter()
        .filter_map(|delta| delta.reasoning.as_deref())
        .collect();
    assert_eq!(reasoning, "Six times seven.");
    assert_eq!(asked.reply().content.as_deref(), Some("Forty-two."));

    let reply = aimock.say("speak and call").await.reply();
    assert_eq!(
        (reply.content.as_deref(), reply.tool_calls.len()),
        (Some("Let me look."), 1)
    );

    let reply = aimock.say("write for long").await.reply();
    assert_eq!(reply.finish_reason.as_deref(), Some("length"));

    let asked = aimock.say("take your time").await;
    assert!(asked.deltas.len() > 4, "it comes in pieces");
    assert_eq!(asked.reply().content.as_deref(), Some("Slow and steady."));

    aimock.stop().await;
}

#[tokio::test]
async fn tool_calls_and_their_results() {
    let aimock = Aimock::start().await;
    let reply = aimock.say("weather and time").await.reply();
    let calls: Vec<_> = reply
        .tool_calls
        .iter()
        .map(|call| {
            (
                call.id.as_str(),
                call.function.name.as_str(),
                call.function.arguments.as_str(),
            )
        })
        .collect();
    assert_eq!(
        calls,
        [
            (
                "call_weather",
                "weather",
                r#"{"city":"Oslo","note":"blåbær"}"#
            ),
            ("call_time", "time", r#"{"zone":"CET"}"#)
        ]
    );
    assert_eq!(
        (reply.content, reply.finish_reason.as_deref()),
        (None, Some("tool_calls"))
    );

    let reply = aimock
        .ask(json!([
            { "role": "user", "content": "weather and time" },
            { "id": "m1", "role": "assistant", "tool_calls": reply.tool_calls },
            { "id": "m2", "role": "tool", "tool_call_id": "call_weather", "content": "rain" },
            { "id": "m3", "role": "tool", "tool_call_id": "call_time", "content": "noon" },
        ]))
        .await
        .reply();
    assert_eq!(reply.content.as_deref(), Some("It is raining at noon."));
    aimock.stop().await;
}

#[tokio::test]
async fn failures() {
    let aimock = Aimock::start().await;
    use ErrorCode::{ProviderError, RateLimited, Refused};

    let failure = aimock.say("too many").await.failure(
        true,
        RateLimited,
        "aimock: HTTP 429: Rate limit reached",
    );
    assert_eq!(failure.retry_after_secs, Some(7.0));
    aimock.say("no money left").await.failure(
        false,
        RateLimited,
        "HTTP 429: You exceeded your current quota",
    );
    aimock
        .say("too long")
        .await
        .failure(false, ProviderError, "HTTP 400: Context too long");
    aimock.say("break down").await.failure(
        true,
        ProviderError,
        "HTTP 500: The server had an error",
    );
    aimock
        .say("something nobody foresaw")
        .await
        .failure(true, ProviderError, "HTTP 503");
    aimock
        .say("say something bad")
        .await
        .failure(false, Refused, "content filter");

    aimock
        .say("talk nonsense")
        .await
        .failure(true, ProviderError, "cannot be read");
    aimock
        .say("hang up at once")
        .await
        .failure(true, ProviderError, "the connection broke");
    for text in ["stop in the middle", "hang up in the middle"] {
        let asked = aimock.say(text).await;
        assert!(
            asked.deltas.iter().any(|delta| delta.text.is_some()),
            "{text}: some of it came"
        );
        asked.failure(true, ProviderError, "the connection broke");
    }

    let begun = Instant::now();
    aimock
        .say("fall silent")
        .await
        .failure(true, ProviderError, "silent for 2 s");
    assert!(begun.elapsed() < PATIENCE / 2);

    aimock.say("say hello").await.reply();
    aimock.stop().await;
}
