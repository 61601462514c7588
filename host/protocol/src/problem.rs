//! Errors as HTTP clients see them: RFC 9457 problem details with a stable code.

use serde::{Deserialize, Serialize};

use crate::Json;

/// A refusal, as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// A stable code to program against.
    pub code: String,
    /// The status's name.
    pub title: String,
    /// What was wrong, where, and what to do.
    pub detail: String,
    /// The same sentence, where session-protocol clients look for it.
    pub error: String,
    /// More fields, by code: `turn_id`, `interrupt_id`, `step`, ….
    #[serde(flatten)]
    pub more: std::collections::BTreeMap<String, serde_json::Value>,
}

impl Problem {
    /// A problem with a code and a sentence.
    pub fn new(status: u16, code: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            status,
            code: code.into(),
            title: title(status).into(),
            error: detail.clone(),
            detail,
            more: std::collections::BTreeMap::new(),
        }
    }

    /// The same with one more field.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<serde_json::Value>) -> Self {
        self.more.insert(key.into(), value.into());
        self
    }

    /// The problem as a JSON document.
    pub fn to_json(&self) -> Json {
        Json::of(self)
    }
}

fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}
