//! Delivered files: listed, and downloaded as attachments that no browser interprets.

use std::fmt::Write;

use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;

use super::App;
use super::problems::{Answer, json};
use super::sessions::session_id;

pub(super) async fn list(State(app): State<App>, Path(id): Path<String>) -> Answer {
    #[derive(Serialize)]
    struct Files {
        files: Vec<crate::driver::FileInfo>,
    }
    let files = app.host.files(&app.tenant(), &session_id(id)?).await?;
    json(StatusCode::OK, &Files { files })
}

pub(super) async fn download(
    State(app): State<App>,
    Path((id, path)): Path<(String, String)>,
) -> Answer {
    let session = session_id(id)?;
    let (file, content) = app.host.file(&app.tenant(), &session, &path).await?;
    let etag = format!("\"{}\"", file.sha256);
    let name = path.rsplit('/').next().unwrap_or(&path);
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox"),
    );
    // Both are ASCII by construction, so neither can fail.
    if let Ok(value) = HeaderValue::from_str(&attachment(name)) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    if let Ok(value) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, value);
    }
    Ok(response)
}

/// RFC 6266 with RFC 5987: an ASCII name for old clients, the exact one for all others.
fn attachment(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ' ') {
                c
            } else {
                '_'
            }
        })
        .collect();
    let mut exact = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'~') {
            exact.push(byte as char);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(exact, "%{byte:02X}");
        }
    }
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_cannot_leave_their_header() {
        let value = attachment("a\"; filename=evil\r\nx: y.html");
        assert!(value.is_ascii() && !value.contains(['\r', '\n']));
        assert_eq!(value.matches('"').count(), 2, "{value}");
        assert_eq!(
            attachment("grüße.md"),
            "attachment; filename=\"gr__e.md\"; filename*=UTF-8''gr%C3%BC%C3%9Fe.md"
        );
    }
}
