//! A client of the server's HTTP interface.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar_protocol::problem::Problem;
use belljar_protocol::sse::{Frame, Reader};
use bytes::Bytes;
use reqwest::{Method, Response};
use serde_json::Value;

/// A server.
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    pub(crate) fn new(base: &str) -> Result<Self> {
        // A proxy of the environment has no business between this and a server on loopback.
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self {
            http,
            base: base.trim_end_matches('/').to_owned(),
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Bytes,
        accept: &str,
    ) -> Result<Response> {
        let url = format!("{}{path}", self.base);
        let response = self
            .http
            .request(method, &url)
            .header("content-type", kind)
            .header("accept", accept)
            .body(body)
            .send()
            .await
            .with_context(|| format!("asking {url}; is the server running? (`belljar serve`)"))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        match serde_json::from_str::<Problem>(&text) {
            Ok(problem) => Err(problem.into()),
            Err(_) => bail!("{url} answered {status}: {text}"),
        }
    }

    async fn json(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let response = self
            .send(
                method,
                path,
                "application/json",
                body.into(),
                "application/json",
            )
            .await?;
        let text = response.text().await?;
        serde_json::from_str(&text).with_context(|| format!("{path} gave no JSON"))
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.json(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(Method::PUT, path, Some(body)).await
    }

    /// Uploads a component; says whether it is new.
    pub(crate) async fn upload(
        &self,
        agent: &str,
        component: Bytes,
        live: bool,
    ) -> Result<(Value, bool)> {
        let path = format!("/v1/agents/{}/versions?live={live}", segment(agent));
        let response = self
            .send(
                Method::POST,
                &path,
                "application/wasm",
                component,
                "application/json",
            )
            .await?;
        let created = response.status().as_u16() == 201;
        Ok((serde_json::from_str(&response.text().await?)?, created))
    }

    /// A file's bytes.
    pub(crate) async fn download(&self, path: &str) -> Result<Bytes> {
        Ok(self
            .send(Method::GET, path, "application/json", Bytes::new(), "*/*")
            .await?
            .bytes()
            .await?)
    }

    /// A stream of a session's log.
    pub(crate) async fn stream(&self, path: &str) -> Result<Frames> {
        let response = self
            .send(
                Method::GET,
                path,
                "application/json",
                Bytes::new(),
                "text/event-stream",
            )
            .await?;
        Ok(Frames {
            response,
            reader: Reader::default(),
            ready: Vec::new().into_iter(),
        })
    }
}

/// A segment of a path, whatever characters it has.
pub(crate) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.' => {
                out.push(byte.into());
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The frames of a stream.
pub(crate) struct Frames {
    response: Response,
    reader: Reader,
    ready: std::vec::IntoIter<Frame>,
}

impl Frames {
    /// The next frame; none at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.ready.next() {
                return Ok(Some(frame));
            }
            match self
                .response
                .chunk()
                .await
                .context("the stream broke off")?
            {
                Some(chunk) => self.ready = self.reader.push(&chunk).into_iter(),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_stays_one_segment() {
        assert_eq!(segment("report-1_a.md"), "report-1_a.md");
        assert_eq!(segment("a b/../c?d#e%ü"), "a%20b%2F..%2Fc%3Fd%23e%25%C3%BC");
    }
}
