//! What a provider's error means: whether to try again, and when.

use std::time::{Duration, SystemTime};

use belljar_protocol::Json;
use belljar_protocol::call::ErrorCode;
use belljar_protocol::model::ModelFailure;
use serde::Deserialize;

use crate::failure::terminal;

/// The longest wait a provider may ask for: past it, trying once an hour costs it nothing.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// The most bytes of an error that are kept as it came.
const MAX_DETAIL: usize = 64 << 10;
/// The most arrays and `error` fields around an error.
const MAX_WRAPPERS: u32 = 4;
/// The most characters of a body that are quoted.
const MAX_EXCERPT: usize = 400;

/// A response that is not a success.
pub(super) fn of_response(
    status: u16,
    content_type: &str,
    body: &[u8],
    retry_after_secs: Option<f64>,
) -> ModelFailure {
    let text = String::from_utf8_lossy(body);
    let text = text.trim_start_matches('\u{feff}').trim();
    let mut failure = match Json::parse(text) {
        Ok(document) => of_document(&document, Some(status)),
        Err(_) => {
            let (retryable, code) = classify(Some(status), &Said::default());
            let said = match excerpt(text) {
                said if said.is_empty() => "no more was said".to_owned(),
                said => said,
            };
            ModelFailure {
                retryable,
                code,
                ..terminal(said)
            }
        }
    };
    failure.message = match content_type {
        "" | "application/json" | "text/event-stream" => {
            format!("HTTP {status}: {}", failure.message)
        }
        other => format!("HTTP {status} ({other}): {}", failure.message),
    };
    failure.retry_after_secs = retry_after_secs.or(failure.retry_after_secs);
    failure
}

/// An error as a JSON document, from a body (with its status) or from the midst of a stream.
pub(super) fn of_document(document: &Json, status: Option<u16>) -> ModelFailure {
    let said = Said::read(document, MAX_WRAPPERS);
    let (retryable, code) = classify(status, &said);
    ModelFailure {
        message: said.message.unwrap_or_else(|| excerpt(document.as_str())),
        retryable,
        code,
        retry_after_secs: said.retry_after_secs,
        detail: (document.as_str().len() <= MAX_DETAIL).then(|| document.clone()),
    }
}

/// Seconds to wait, from the headers of a response.
pub(super) fn retry_after<'a>(
    header: impl Fn(&str) -> Option<&'a str>,
    now: SystemTime,
) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    if let Some(millis) = header("retry-after-ms").and_then(number) {
        return capped(millis / 1000.0);
    }
    let text = header("retry-after")?;
    if let Some(secs) = number(text) {
        return capped(secs);
    }
    let at = httpdate::parse_http_date(text.trim()).ok()?;
    // The sender's own clock, where it says: ours may be minutes off.
    let now = header("date")
        .and_then(|date| httpdate::parse_http_date(date.trim()).ok())
        .unwrap_or(now);
    capped(at.duration_since(now).unwrap_or_default().as_secs_f64())
}

fn capped(secs: f64) -> Option<f64> {
    (secs >= 0.0).then(|| secs.min(MAX_RETRY_AFTER.as_secs_f64()))
}

/// The start of a text that others wrote, on one line and without markup.
pub(super) fn excerpt(text: &str) -> String {
    let mut out = String::new();
    let mut in_tag = false;
    let html = text.trim_start().starts_with('<');
    for c in text.chars() {
        match c {
            '<' if html => in_tag = true,
            '>' if in_tag => {
                in_tag = false;
                out.push(' ');
            }
            _ if in_tag => {}
            c if c.is_whitespace() || c.is_control() => out.push(' '),
            c => out.push(c),
        }
        // Four times over: runs of white space shrink below.
        if out.len() > 4 * MAX_EXCERPT {
            break;
        }
    }
    let words: Vec<&str> = out.split(' ').filter(|word| !word.is_empty()).collect();
    let line = words.join(" ");
    match line.char_indices().nth(MAX_EXCERPT) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// What an error says of itself.
#[derive(Debug, Default)]
struct Said {
    message: Option<String>,
    /// Its `type`, `code` and `status`, lower case.
    words: Vec<String>,
    /// A status among them.
    status: Option<u16>,
    retry_after_secs: Option<f64>,
}

#[derive(Deserialize, Default)]
struct ErrorFields {
    error: Option<Json>,
    message: Option<Json>,
    detail: Option<Json>,
    #[serde(rename = "type")]
    kind: Option<Json>,
    code: Option<Json>,
    status: Option<Json>,
    details: Option<Json>,
}

impl Said {
    fn read(document: &Json, wrappers: u32) -> Self {
        let Some(wrappers) = wrappers.checked_sub(1) else {
            return Self::default();
        };
        // Some wrap it in an array, most in `error`, some in neither.
        if let Ok(list) = document.read::<Vec<Json>>() {
            return list
                .first()
                .map(|inner| Self::read(inner, wrappers))
                .unwrap_or_default();
        }
        if let Some(text) = document.text() {
            return Self {
                message: Some(excerpt(&text)),
                ..Self::default()
            };
        }
        let fields: ErrorFields = document.read().unwrap_or_default();
        if let Some(inner) = fields.error.filter(|error| !error.is_null()) {
            return Self::read(&inner, wrappers);
        }
        let words: Vec<String> = [fields.kind, fields.code, fields.status]
            .into_iter()
            .flatten()
            .map(|word| word.to_argument_text().to_lowercase())
            .collect();
        Self {
            message: fields
                .message
                .or(fields.detail)
                .map(|message| excerpt(&message.to_argument_text()))
                .filter(|message| !message.is_empty()),
            status: words.iter().find_map(|word| word.parse().ok()),
            words,
            retry_after_secs: fields.details.as_ref().and_then(retry_info),
        }
    }

    fn any(&self, words: &[&str]) -> bool {
        self.words.iter().any(|word| words.contains(&word.as_str()))
    }
}

/// Google's `RetryInfo`: `"retryDelay": "34s"`.
fn retry_info(details: &Json) -> Option<f64> {
    #[derive(Deserialize)]
    struct Detail {
        #[serde(rename = "retryDelay")]
        retry_delay: Option<String>,
    }
    let details: Vec<Detail> = details.read().ok()?;
    let delay = details.into_iter().find_map(|detail| detail.retry_delay)?;
    capped(delay.strip_suffix('s')?.parse().ok()?)
}

fn classify(status: Option<u16>, said: &Said) -> (bool, ErrorCode) {
    if said.any(&["insufficient_quota", "billing_hard_limit_reached"]) {
        return (false, ErrorCode::RateLimited);
    }
    if said.any(&[
        "content_filter",
        "content_policy_violation",
        "responsibleaipolicyviolation",
    ]) {
        return (false, ErrorCode::Refused);
    }
    match status.or(said.status) {
        Some(429) => (true, ErrorCode::RateLimited),
        Some(408 | 409 | 500..) => (true, ErrorCode::ProviderError),
        Some(300..500) => (false, ErrorCode::ProviderError),
        // In the midst of a stream there is no status, only words.
        _ if said.any(&[
            "rate_limit_exceeded",
            "rate_limit_error",
            "rate_limited",
            "resource_exhausted",
        ]) =>
        {
            (true, ErrorCode::RateLimited)
        }
        _ if said.any(&[
            "invalid_request_error",
            "context_length_exceeded",
            "authentication_error",
            "invalid_api_key",
            "permission_error",
            "not_found_error",
            "model_not_found",
        ]) =>
        {
            (false, ErrorCode::ProviderError)
        }
        _ => (true, ErrorCode::ProviderError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        status: u16,
        content_type: &str,
        body: &str,
        retryable: bool,
        code: ErrorCode,
        message: &str,
    ) {
        let failure = of_response(status, content_type, body.as_bytes(), None);
        assert_eq!(
            (failure.retryable, failure.code),
            (retryable, code),
            "{failure:?}"
        );
        assert_eq!(failure.message, message);
    }

    #[test]
    fn statuses_decide() {
        use ErrorCode::{ProviderError, RateLimited};
        for (status, retryable, code) in [
            (300, false, ProviderError),
            (400, false, ProviderError),
            (401, false, ProviderError),
            (402, false, ProviderError),
            (404, false, ProviderError),
            (408, true, ProviderError),
            (409, true, ProviderError),
            (413, false, ProviderError),
            (422, false, ProviderError),
            (429, true, RateLimited),
            (500, true, ProviderError),
            (502, true, ProviderError),
            (503, true, ProviderError),
            (529, true, ProviderError),
        ] {
            let message = format!("HTTP {status}: m");
            check(
                status,
                "application/json",
                r#"{"error":{"message":"m"}}"#,
                retryable,
                code,
                &message,
            );
            check(
                status,
                "",
                "",
                retryable,
                code,
                &format!("HTTP {status}: no more was said"),
            );
        }
    }

    #[test]
    fn a_spent_quota_is_not_waited_for() {
        let body = r#"{"error":{"message":"You exceeded your quota","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#;
        check(
            429,
            "application/json",
            body,
            false,
            ErrorCode::RateLimited,
            "HTTP 429: You exceeded your quota",
        );
    }

    #[test]
    fn a_filtered_prompt_is_refused() {
        let body = r#"{"error":{"message":"filtered","type":null,"param":"prompt","code":"content_filter","status":400}}"#;
        check(
            400,
            "application/json",
            body,
            false,
            ErrorCode::Refused,
            "HTTP 400: filtered",
        );
    }

    #[test]
    fn bodies_may_be_html_text_or_json_of_another_shape() {
        let html = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><hr>nginx</body></html>";
        let e = ErrorCode::ProviderError;
        check(
            502,
            "text/html",
            html,
            true,
            e,
            "HTTP 502 (text/html): 502 Bad Gateway nginx",
        );
        check(
            503,
            "text/plain",
            "upstream\nconnect error",
            true,
            e,
            "HTTP 503 (text/plain): upstream connect error",
        );
        check(
            400,
            "application/json",
            r#"{"detail":"no such model"}"#,
            false,
            e,
            "HTTP 400: no such model",
        );
        check(
            400,
            "application/json",
            r#"{"error":"no such model"}"#,
            false,
            e,
            "HTTP 400: no such model",
        );
        check(
            400,
            "application/json",
            r#"{"object":"error","message":"too long","code":400}"#,
            false,
            e,
            "HTTP 400: too long",
        );
        check(
            404,
            "application/json",
            r#"{"x":1}"#,
            false,
            e,
            r#"HTTP 404: {"x":1}"#,
        );
        check(
            400,
            "application/json",
            r#"[{"error":{"code":400,"message":"m"}}]"#,
            false,
            e,
            "HTTP 400: m",
        );
        let failure = of_response(500, "", &[0xff; 100_000], None);
        assert!(
            failure.message.chars().count() < 420,
            "{}",
            failure.message.len()
        );
    }

    #[test]
    fn an_error_wrapped_without_end_is_not_unwrapped() {
        for (open, close) in [("{\"error\":", "}"), ("[", "]")] {
            for depth in [100, 400_000] {
                let body = format!("{}1{}", open.repeat(depth), close.repeat(depth));
                let failure = of_response(500, "", body.as_bytes(), None);
                assert!(failure.retryable && failure.message.len() < 2000);
            }
        }
    }

    #[test]
    fn a_retry_info_in_the_body_counts() {
        let body = r#"[{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":[{"@type":"q"},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}]"#;
        assert_eq!(
            of_response(429, "", body.as_bytes(), None).retry_after_secs,
            Some(34.5)
        );
        assert_eq!(
            of_response(429, "", body.as_bytes(), Some(2.0)).retry_after_secs,
            Some(2.0)
        );
    }

    #[test]
    fn words_decide_in_the_midst_of_a_stream() {
        use ErrorCode::{ProviderError, RateLimited, Refused};
        for (document, retryable, code) in [
            (
                r#"{"error":{"message":"m","type":"server_error"}}"#,
                true,
                ProviderError,
            ),
            (
                r#"{"error":{"message":"m","code":"rate_limit_exceeded"}}"#,
                true,
                RateLimited,
            ),
            (r#"{"error":{"message":"m","code":429}}"#, true, RateLimited),
            (
                r#"{"error":{"message":"m","code":"502"}}"#,
                true,
                ProviderError,
            ),
            (
                r#"{"error":{"message":"m","code":400}}"#,
                false,
                ProviderError,
            ),
            (
                r#"{"error":{"message":"m","code":"context_length_exceeded"}}"#,
                false,
                ProviderError,
            ),
            (
                r#"{"error":{"message":"m","code":"content_filter"}}"#,
                false,
                Refused,
            ),
            (r#"{"error":"m"}"#, true, ProviderError),
        ] {
            let failure = of_document(&Json::parse(document).unwrap(), None);
            assert_eq!(
                (failure.retryable, failure.code),
                (retryable, code),
                "{document}"
            );
            assert_eq!(
                (failure.message.as_str(), failure.detail.unwrap().as_str()),
                ("m", document)
            );
        }
    }

    #[test]
    fn retry_after_in_seconds_dates_and_nonsense() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777); // Sun, 06 Nov 1994 08:49:37 GMT
        let wait = |headers: &[(&str, &'static str)]| {
            retry_after(
                |name| {
                    headers
                        .iter()
                        .find(|(key, _)| *key == name)
                        .map(|(_, value)| *value)
                },
                now,
            )
        };
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&[("retry-after", "7")]), Some(7.0));
        assert_eq!(wait(&[("retry-after", " 0.5 ")]), Some(0.5));
        assert_eq!(
            wait(&[("retry-after", "7"), ("retry-after-ms", "1500")]),
            Some(1.5)
        );
        assert_eq!(wait(&[("retry-after", "99999999")]), Some(3600.0));
        assert_eq!(wait(&[("retry-after", "inf")]), Some(3600.0));
        for nonsense in ["-1", "NaN", "soon", ""] {
            assert_eq!(wait(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
        for date in [
            "Sun, 06 Nov 1994 08:49:57 GMT",
            "Sunday, 06-Nov-94 08:49:57 GMT",
            "Sun Nov  6 08:49:57 1994",
        ] {
            assert_eq!(wait(&[("retry-after", date)]), Some(20.0), "{date}");
        }
        let past = ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT");
        assert_eq!(wait(&[past]), Some(0.0));
        let their_clock = ("date", "Sun, 06 Nov 1994 07:59:55 GMT");
        assert_eq!(wait(&[past, their_clock]), Some(5.0));
    }
}
