//! Problem details, and reading bodies so that whatever is wrong with them is one.

use std::any::Any;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use belljar_protocol::problem::Problem;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of a JSON body, inputs apart: 1 MiB; 413 beyond.
pub(super) const JSON_BYTES: usize = 1024 * 1024;
/// Most bytes of an input: 16 MiB; 413 beyond.
pub(super) const INPUT_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes of a component: 32 MiB; 413 beyond.
pub(super) const COMPONENT_BYTES: usize = 32 * 1024 * 1024;

/// A problem as a response.
pub(super) struct Refusal(pub(super) Problem);

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let status =
            StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = problem
            .more
            .get("retry_after")
            .and_then(serde_json::Value::as_u64);
        let mut response = (status, problem.to_json().as_str().to_owned()).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(secs) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
        response
    }
}

/// What every handler gives.
pub(super) type Answer = Result<Response, Refusal>;

/// A value as a JSON response. Written straight from the value, so JSON of others is as it came.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let text = serde_json::to_string(value).map_err(|error| {
        Problem::new(
            500,
            "internal",
            format!("the answer could not be written: {error}"),
        )
    })?;
    Ok((status, [(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Reads a body of at most `limit` bytes: one that says it is longer is refused unread.
pub(super) async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let too_large = || {
        let detail = format!("the body is larger than {limit} bytes, the most this route takes");
        Problem::new(413, "body_too_large", detail).with("limit", limit)
    };
    let says = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if says.is_some_and(|says| says > limit as u64) {
        return Err(too_large().into());
    }
    to_bytes(body, limit).await.map_err(|error| {
        let cut = std::error::Error::source(&error)
            .is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
        match cut {
            true => too_large().into(),
            false => Problem::new(
                400,
                "body_broken",
                format!("the body did not arrive whole: {error}"),
            )
            .into(),
        }
    })
}

/// Checks the body's content type, parameters apart.
pub(super) fn is_of_kind(headers: &HeaderMap, wanted: &str) -> Result<(), Refusal> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    let detail = format!("content-type is `{kind}`; send `{wanted}`");
    Err(Problem::new(415, "content_type", detail).into())
}

/// Reads a JSON body.
pub(super) async fn read_json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<T, Refusal> {
    is_of_kind(headers, "application/json")?;
    let bytes = read(headers, body, limit).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        // What does not parse is malformed; what parses and is not the shape asked for is invalid.
        let (status, code) = match error.classify() {
            serde_json::error::Category::Data => (422, "body_invalid"),
            _ => (400, "json_malformed"),
        };
        Problem::new(status, code, format!("the body: {error}")).into()
    })
}

/// What the framework itself refuses (a query or a path that does not read) as a problem.
pub(super) async fn translated(response: Response) -> Response {
    let kind = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let status = response.status();
    if !status.is_client_error() || !kind.starts_with("text/plain") {
        return response;
    }
    let said = to_bytes(response.into_body(), JSON_BYTES)
        .await
        .unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    Refusal(Problem::new(status.as_u16(), "request_malformed", said)).into_response()
}

pub(super) async fn no_such_route(method: Method, uri: Uri) -> Refusal {
    let detail = format!(
        "there is no route {method} {}; see /v1/openapi.json",
        uri.path()
    );
    Problem::new(404, "route_unknown", detail).into()
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> Refusal {
    let detail = format!(
        "{} does not take {method}; see /v1/openapi.json",
        uri.path()
    );
    Problem::new(405, "method_not_allowed", detail).into()
}

/// A handler panicked: the host's bug, told as such, and the connection lives.
#[allow(clippy::needless_pass_by_value, reason = "the layer hands it over")]
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let said = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!(panic = said, "a handler panicked");
    let detail = "the host failed while it answered; its log says more";
    Refusal(Problem::new(500, "internal", detail)).into_response()
}
