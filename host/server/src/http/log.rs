//! A session's log: as pages, and as a stream that can be resumed from any point, for ever.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use belljar_protocol::event::Event;
use belljar_protocol::id::SessionId;
use belljar_protocol::problem::Problem;
use belljar_protocol::sse;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::App;
use super::problems::{Answer, Refusal, json};
use super::sessions::{limit, session_id};
use crate::driver::{Item, LogEvent, Subscription};

/// How far back a stream looks for the end of the turn it is to end with.
const LOOK_BACK: u32 = 256;

/// A comment is sent when nothing else was for this long, so that proxies keep the stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
pub(super) struct LogQuery {
    after: Option<u64>,
    limit: Option<u32>,
    turn_id: Option<String>,
}

pub(super) async fn get(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<LogQuery>,
    headers: HeaderMap,
) -> Answer {
    let session = session_id(id)?;
    let accepts = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    if !accepts.contains("text/event-stream") {
        let page = app
            .host
            .log(
                &app.tenant(),
                &session,
                query.after.unwrap_or(0),
                limit(query.limit),
            )
            .await?;
        return json(StatusCode::OK, &page);
    }
    let after = last_event_id(&headers)?.or(query.after).unwrap_or(0);
    let watch = app.host.subscribe(&app.tenant(), &session, after).await?;
    let until_caught_up = match &query.turn_id {
        Some(turn) if after > 0 => has_ended(&app, &session, turn, after).await?,
        _ => false,
    };
    let stream = Stream {
        watch,
        until: query.turn_id,
        until_caught_up,
        stopping: app.stopping.clone(),
        over: false,
    };
    let body = Body::from_stream(futures::stream::unfold(stream, Stream::frame));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, body).into_response())
}

/// Where a client that lost its stream goes on; 0 is a seq as good as any.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok(None);
    };
    let seq = value
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse().ok());
    seq.map(Some).ok_or_else(|| {
        let detail = "last-event-id must be the `id` of an event of this stream: a whole number";
        Problem::new(422, "last_event_id_malformed", detail).into()
    })
}

/// Whether a turn ended at or shortly before `after`: a stream from there would wait for ever.
/// One query, however long the log is.
async fn has_ended(
    app: &App,
    session: &SessionId,
    turn: &str,
    after: u64,
) -> Result<bool, Refusal> {
    let from = after.saturating_sub(LOOK_BACK.into());
    let page = app
        .host
        .log(&app.tenant(), session, from, LOOK_BACK)
        .await?;
    Ok(page.events.iter().any(|past| {
        past.seq <= after
            && matches!(&*past.event, Event::TurnEnded(ended) if ended.turn_id.as_str() == turn)
    }))
}

struct Stream {
    watch: Subscription,
    /// The turn whose end ends the stream.
    until: Option<String>,
    /// It has ended before the stream began.
    until_caught_up: bool,
    stopping: watch::Receiver<bool>,
    over: bool,
}

impl Stream {
    async fn frame(mut self) -> Option<(Result<String, Infallible>, Self)> {
        if self.over {
            return None;
        }
        let text = tokio::select! {
            item = self.watch.next() => self.write(item?),
            () = tokio::time::sleep(KEEP_ALIVE) => ": keep-alive\n\n".into(),
            () = stopped(&mut self.stopping) => {
                self.over = true;
                sse::write("closed", None, r#"{"reason":"the host is shutting down"}"#)
            }
        };
        Some((Ok(text), self))
    }

    fn write(&mut self, item: Item) -> String {
        match item {
            Item::Event { seq, at, event } => {
                if let (Event::TurnEnded(ended), Some(until)) = (&*event, &self.until) {
                    self.over = ended.turn_id.as_str() == until;
                }
                let kind = event.kind();
                frame(kind, Some(seq), &LogEvent { seq, at, event })
            }
            Item::CaughtUp { seq } => {
                self.over = self.until_caught_up;
                frame("caught-up", None, &serde_json::json!({ "seq": seq }))
            }
            Item::Delta {
                call_id,
                attempt,
                delta,
            } => {
                #[derive(Serialize)]
                struct Delta<'a> {
                    call_id: &'a str,
                    attempt: u32,
                    #[serde(flatten)]
                    delta: belljar_protocol::model::StreamDelta,
                }
                let delta = Delta {
                    call_id: call_id.as_str(),
                    attempt,
                    delta,
                };
                frame("llm.token.delta", None, &delta)
            }
            Item::Closed { reason, read_from } => {
                self.over = true;
                frame(
                    "closed",
                    None,
                    &serde_json::json!({ "reason": reason, "read_from": read_from }),
                )
            }
        }
    }
}

/// Resolves when the server stops.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // A server that is gone has stopped as well.
    drop(stopping.wait_for(|stopping| *stopping).await);
}

fn frame(event: &str, id: Option<u64>, data: &impl Serialize) -> String {
    sse::write(event, id, belljar_protocol::Json::of(data).as_str())
}
