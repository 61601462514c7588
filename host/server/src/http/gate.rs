//! Who may knock: requests for this host's names only, and from no page of another site.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use belljar_protocol::problem::Problem;

use super::App;
use super::problems::{Refusal, translated};

pub(super) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    let authority = request
        .uri()
        .authority()
        .map(|authority| authority.as_str().to_owned());
    match refusal(request.headers(), authority.as_deref(), &app.config.hosts) {
        Some(problem) => Refusal(problem).into_response(),
        None => translated(next.run(request).await).await,
    }
}

fn refusal(headers: &HeaderMap, authority: Option<&str>, more: &[String]) -> Option<Problem> {
    let named = headers
        .get(header::HOST)
        .map(|value| value.to_str().unwrap_or(""));
    let said = named.or(authority).unwrap_or("");
    if !host_of(said).is_some_and(|host| is_ours(host, more)) {
        let detail = format!(
            "`{said}` is no name of this host; call it by a loopback name, or list the name under `hosts`"
        );
        return Some(Problem::new(403, "host_refused", detail));
    }
    let origin = headers.get(header::ORIGIN)?.to_str().unwrap_or("");
    // With its port: what else is served on this machine is another site.
    let of_origin = origin.split_once("://").map(|(_, rest)| rest);
    if of_origin.is_some_and(|of_origin| of_origin.eq_ignore_ascii_case(said)) {
        return None;
    }
    let detail = format!("requests of pages from `{origin}` are refused");
    Some(Problem::new(403, "origin_refused", detail))
}

/// The host of `host[:port]`, brackets of IPv6 kept off; none for anything else.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(host)
}

fn is_ours(host: &str, more: &[String]) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || more.iter().any(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(host: &str, origin: Option<&str>) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        refusal(&headers, None, &["belljar.internal".into()]).map(|problem| problem.code)
    }

    #[test]
    fn only_own_names_and_no_other_sites() {
        for host in [
            "localhost",
            "LOCALHOST:7700",
            "127.0.0.1:7700",
            "127.9.9.9",
            "[::1]:7700",
            "belljar.internal",
        ] {
            assert_eq!(code(host, None), None, "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "localhost.evil.example",
            "localhost:7700@evil.example",
            "[::1]evil.example",
            "[::1",
            "",
            "[::2]",
        ] {
            assert_eq!(code(host, None).as_deref(), Some("host_refused"), "{host}");
        }
        assert_eq!(code("localhost:7700", Some("http://localhost:7700")), None);
        for origin in [
            "null",
            "localhost:7700",
            "http://localhost",
            "http://localhost:3000",
            "http://localhost:7700@evil.example",
            "http://evil.example",
            "http://localhost.evil.example",
            "https://127.0.0.1@evil.example",
        ] {
            assert_eq!(
                code("localhost:7700", Some(origin)).as_deref(),
                Some("origin_refused"),
                "{origin}"
            );
        }
    }
}
