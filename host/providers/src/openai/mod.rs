//! OpenAI's chat completions, which many other servers speak too.
//!
//! [`body`] builds a request, [`ReplyReader`] reads the response; both are pure. [`OpenAi`]
//! joins them over HTTP. What those other servers do differently has a fixture each in
//! `tests/fixtures/openai`.

mod errors;
#[cfg(test)]
mod fixtures;
mod merge;
mod parse;
mod reply;
mod request;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use belljar_protocol::Json;
use belljar_protocol::model::{LlmRequest, LlmResponse, ModelFailure};
use belljar_protocol::ports::{Boxed, DeltaSink, Model};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url};

pub use reply::ReplyReader;
pub use request::body;

use crate::config::{ConfigError, ProviderConfig, Secret};
use crate::failure::{retryable, terminal};
use crate::price::{Price, stated_cost};

const IDLE_TIMEOUT_SECS: f64 = 60.0;
const CONNECT_TIMEOUT_SECS: f64 = 10.0;
/// The most bytes read of the body of an error.
const MAX_ERROR_BODY: usize = 64 << 10;

/// One API that speaks chat completions.
pub struct OpenAi {
    name: String,
    url: Url,
    client: Client,
    key: Option<Secret>,
    authorization: Option<HeaderValue>,
    prices: BTreeMap<String, Price>,
    idle_timeout: Duration,
}

impl OpenAi {
    /// The API that `config` describes, known by `name` in messages. Connects to nothing yet.
    ///
    /// # Errors
    /// A value of the config cannot be used.
    pub fn new(name: &str, config: &ProviderConfig) -> Result<Self, ConfigError> {
        let at = |key: &str| format!("providers.{name}.{key}");
        let url = chat_completions(config.base_url())
            .map_err(|problem| ConfigError::new(at("base_url"), problem))?;
        let idle_timeout = duration(config.idle_timeout_secs.unwrap_or(IDLE_TIMEOUT_SECS))
            .map_err(|problem| ConfigError::new(at("idle_timeout_secs"), problem))?;
        let connect_timeout = duration(config.connect_timeout_secs.unwrap_or(CONNECT_TIMEOUT_SECS))
            .map_err(|problem| ConfigError::new(at("connect_timeout_secs"), problem))?;
        let authorization = config
            .api_key
            .as_ref()
            .map(|key| bearer(key).map_err(|problem| ConfigError::new(at("api_key"), problem)))
            .transpose()?;
        let client = client(&url, connect_timeout).map_err(|error| {
            ConfigError::new(
                at("base_url"),
                format!("no HTTP client for it: {}", causes(&error)),
            )
        })?;
        Ok(Self {
            name: name.to_owned(),
            url,
            client,
            key: config.api_key.clone(),
            authorization,
            prices: config.prices.clone(),
            idle_timeout,
        })
    }

    async fn exchange(
        &self,
        request: &LlmRequest,
        sink: Option<DeltaSink>,
    ) -> Result<LlmResponse, ModelFailure> {
        let mut response = self.send(request).await?;
        let content_type = content_type(response.headers());
        if !response.status().is_success() {
            return Err(self.error(response, &content_type).await);
        }
        let mut reader = ReplyReader::new(content_type == "text/event-stream");
        if request
            .reasoning
            .as_ref()
            .is_some_and(|reasoning| reasoning.exclude == Some(true))
        {
            reader = reader.without_reasoning();
        }
        let show = |deltas: Vec<_>| {
            if let Some(sink) = &sink {
                deltas.into_iter().for_each(|delta| sink(delta));
            }
        };
        while !reader.is_done() {
            match self.in_time(response.chunk()).await {
                Ok(Some(bytes)) => show(reader.push(&bytes)?),
                Ok(None) => break,
                // Only token counts are lost, and asking again would be paid for again.
                Err(failure) if reader.has_stopped() => {
                    tracing::debug!(provider = %self.name, "the stream broke after the reply was whole: {failure}");
                    break;
                }
                Err(failure) => return Err(failure),
            }
        }
        let (deltas, mut reply) = reader.finish(&request.model)?;
        show(deltas);
        reply.cost = reply
            .usage
            .as_ref()
            .and_then(|usage| self.cost(usage, &request.model, &reply.model));
        Ok(reply)
    }

    async fn send(&self, request: &LlmRequest) -> Result<Response, ModelFailure> {
        let body = body(request)
            .map_err(|error| terminal(format!("the request has no JSON form: {error}")))?;
        let mut post = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream, application/json");
        if let Some(authorization) = &self.authorization {
            post = post.header(AUTHORIZATION, authorization.clone());
        }
        self.in_time(post.body(body).send()).await
    }

    /// Waits for the provider no longer than it may be silent.
    async fn in_time<T>(
        &self,
        step: impl Future<Output = reqwest::Result<T>>,
    ) -> Result<T, ModelFailure> {
        match tokio::time::timeout(self.idle_timeout, step).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                let what = match error.is_connect() {
                    true => "cannot connect",
                    false => "the connection broke",
                };
                Err(retryable(format!(
                    "{what}: {}",
                    causes(&error.without_url())
                )))
            }
            Err(_) => {
                let secs = self.idle_timeout.as_secs_f64();
                Err(retryable(format!(
                    "silent for {secs} s (idle_timeout_secs)"
                )))
            }
        }
    }

    async fn error(&self, mut response: Response, content_type: &str) -> ModelFailure {
        let status = response.status();
        let mut body = Vec::new();
        // A body that breaks off says as much as it has said.
        while let Ok(Some(bytes)) = self.in_time(response.chunk()).await {
            body.extend_from_slice(&bytes);
            if body.len() >= MAX_ERROR_BODY {
                body.truncate(MAX_ERROR_BODY);
                break;
            }
        }
        let header = |name: &str| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let wait = errors::retry_after(header, SystemTime::now());
        let mut failure = errors::of_response(status.as_u16(), content_type, &body, wait);
        if status.is_redirection() {
            failure
                .message
                .push_str("; redirects are not followed, base_url must be the final address");
        }
        if status == StatusCode::UNAUTHORIZED && self.key.is_none() {
            failure
                .message
                .push_str("; no key is configured (api_key_env)");
        }
        failure
    }

    fn cost(&self, usage: &Json, asked: &str, answered: &str) -> Option<String> {
        match self.prices.get(asked).or_else(|| self.prices.get(answered)) {
            Some(price) => price.cost(usage),
            None => stated_cost(usage),
        }
    }

    /// Says whose failure it is, and nothing of the key, which some servers quote.
    fn report(&self, failure: ModelFailure) -> ModelFailure {
        let redact = |text: &str| match &self.key {
            Some(key) => without_key(text, key.expose()),
            None => text.to_owned(),
        };
        ModelFailure {
            message: format!("{}: {}", self.name, redact(&failure.message)),
            detail: failure
                .detail
                .and_then(|detail| Json::parse(&redact(detail.as_str())).ok()),
            ..failure
        }
    }
}

impl Model for OpenAi {
    fn ask(
        &self,
        request: Arc<LlmRequest>,
        sink: Option<DeltaSink>,
    ) -> Boxed<'_, Result<LlmResponse, ModelFailure>> {
        Box::pin(async move {
            self.exchange(&request, sink)
                .await
                .map_err(|failure| self.report(failure))
        })
    }
}

fn chat_completions(base_url: &str) -> Result<Url, String> {
    let mut url = Url::parse(base_url.trim()).map_err(|error| format!("not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must hold no user name or password".to_owned());
    }
    // An http(s) URL always has a path to add to.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["chat", "completions"]);
    }
    Ok(url)
}

fn duration(secs: f64) -> Result<Duration, String> {
    match Duration::try_from_secs_f64(secs) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("{secs} is no time to wait")),
    }
}

fn bearer(key: &Secret) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose()))
        .map_err(|_| "holds a character that no header may hold".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

fn client(url: &Url, connect_timeout: Duration) -> reqwest::Result<Client> {
    // Fails when the process has a provider already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .connect_timeout(connect_timeout)
        // A redirect would carry prompt and key to where nobody sent them.
        .redirect(reqwest::redirect::Policy::none())
        // Whether to try again is the engine's to say.
        .retry(reqwest::retry::never())
        .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")));
    if url.scheme() == "http" {
        // Nothing to verify, so it works where there are no certificates either.
        builder = builder.tls_certs_only([]);
    }
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    if host == "localhost" || address.is_ok_and(|address| address.is_loopback()) {
        builder = builder.no_proxy();
    }
    builder.build()
}

/// The text without the key, and without the part of it that a cut may have left.
fn without_key(text: &str, key: &str) -> String {
    /// Fewer characters than this give nothing away.
    const PART: usize = 4;
    if key.len() < PART {
        return text.to_owned();
    }
    let text = text.replace(key, "…");
    let pieces = text.split('…').map(|piece| {
        // Keys are ASCII, or no header could hold them.
        let part = (PART..key.len())
            .rev()
            .find(|&len| piece.ends_with(&key[..len]));
        &piece[..piece.len() - part.unwrap_or(0)]
    });
    pieces.collect::<Vec<_>>().join("…")
}

fn content_type(headers: &HeaderMap) -> String {
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// An error with its causes, which reqwest keeps to itself.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls() {
        let url = |text| chat_completions(text).map(String::from);
        assert_eq!(
            url("http://h/v1").as_deref(),
            Ok("http://h/v1/chat/completions")
        );
        assert_eq!(
            url("http://h/v1/").as_deref(),
            Ok("http://h/v1/chat/completions")
        );
        assert_eq!(url("http://h").as_deref(), Ok("http://h/chat/completions"));
        assert_eq!(
            url("https://h/d?api-version=1").as_deref(),
            Ok("https://h/d/chat/completions?api-version=1")
        );
        for wrong in [
            "h/v1",
            "ftp://h",
            "file:///x",
            "http://user:secret@h/v1",
            "",
        ] {
            let problem = url(wrong).unwrap_err();
            assert!(!problem.contains("secret"), "{problem}");
        }
    }

    #[test]
    fn a_key_with_a_line_feed_is_refused_without_being_shown() {
        let config = ProviderConfig {
            api_key: Some(Secret::from("sk-\nsecret")),
            ..Default::default()
        };
        let error = OpenAi::new("p", &config).err().unwrap().to_string();
        assert!(
            error.starts_with("providers.p.api_key: ") && !error.contains("secret"),
            "{error}"
        );
    }

    #[test]
    fn a_key_is_taken_out_even_where_it_was_cut() {
        assert_eq!(
            without_key("wrong key sk-1234567.", "sk-1234567"),
            "wrong key …."
        );
        assert_eq!(
            without_key("wrong key sk-1234…; and", "sk-1234567"),
            "wrong key …; and"
        );
        assert_eq!(without_key("nothing", "sk-1234567"), "nothing");
        assert_eq!(without_key("any text", ""), "any text");
    }

    #[test]
    fn waits_must_be_times() {
        for secs in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let config = ProviderConfig {
                idle_timeout_secs: Some(secs),
                ..Default::default()
            };
            assert!(OpenAi::new("p", &config).is_err(), "{secs}");
        }
    }
}
