//! Sessions: input, state, calls, decisions, their end.

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use belljar_engine::{Party, SettleError};
use belljar_protocol::decision::Identity;
use belljar_protocol::id::{CallId, DecisionId, SessionId};
use belljar_protocol::input::ClientInput;
use belljar_protocol::problem::Problem;
use belljar_protocol::{Json, Timestamp};
use serde::{Deserialize, Serialize};

use super::App;
use super::problems::{Answer, INPUT_BYTES, JSON_BYTES, Refusal, json, read_json};

/// Items of a list, unless asked otherwise; at most [`MAX_LIMIT`].
pub(super) const LIMIT: u32 = 100;
/// Most items of a list.
pub(super) const MAX_LIMIT: u32 = 1_000;

/// Checks the form of a session id from a path.
pub(super) fn session_id(id: String) -> Result<SessionId, Refusal> {
    let session = SessionId::from(id);
    if session.is_well_formed() {
        return Ok(session);
    }
    let detail = format!("`{session}` is no session id: 1 to 64 of A-Z a-z 0-9 _ - are");
    Err(Problem::new(422, "session_id_malformed", detail).into())
}

pub(super) async fn input(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let session = session_id(id)?;
    submit(&app, Some(session), &headers, body).await
}

pub(super) async fn input_to_new(State(app): State<App>, headers: HeaderMap, body: Body) -> Answer {
    submit(&app, None, &headers, body).await
}

async fn submit(app: &App, session: Option<SessionId>, headers: &HeaderMap, body: Body) -> Answer {
    let input: ClientInput = read_json(headers, body, INPUT_BYTES).await?;
    let submitted = app
        .host
        .submit(&app.tenant(), session, input, Identity::default())
        .await?;
    json(StatusCode::ACCEPTED, &submitted)
}

#[derive(Deserialize)]
pub(super) struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

pub(super) async fn list(State(app): State<App>, Query(query): Query<ListQuery>) -> Answer {
    #[derive(Serialize)]
    struct Row {
        session_id: SessionId,
        agent_id: belljar_protocol::id::AgentId,
        status: String,
        head_seq: u64,
        created_at: Timestamp,
        updated_at: Timestamp,
    }
    #[derive(Serialize)]
    struct Sessions {
        sessions: Vec<Row>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<String>,
    }
    let limit = limit(query.limit);
    let before = query.cursor.as_deref().map(read_cursor).transpose()?;
    let rows = app.host.sessions(&app.tenant(), before, limit).await?;
    let cursor = rows
        .last()
        .filter(|_| rows.len() == limit as usize)
        .map(|row| format!("{}.{}", row.updated_at.millis(), row.session));
    let sessions = rows
        .into_iter()
        .map(|row| Row {
            session_id: row.session,
            agent_id: row.agent,
            status: row.status,
            head_seq: row.head_seq,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
        .collect();
    json(StatusCode::OK, &Sessions { sessions, cursor })
}

/// How many items a list gives.
pub(super) fn limit(asked: Option<u32>) -> u32 {
    asked.unwrap_or(LIMIT).clamp(1, MAX_LIMIT)
}

fn read_cursor(cursor: &str) -> Result<(Timestamp, SessionId), Refusal> {
    let read = || {
        let (at, session) = cursor.split_once('.')?;
        Some((
            Timestamp::from_millis(at.parse().ok()?),
            SessionId::from(session),
        ))
    };
    read().ok_or_else(|| {
        let detail =
            format!("`{cursor}` is no cursor that this host gave; leave it out to begin anew");
        Problem::new(422, "cursor_malformed", detail).into()
    })
}

pub(super) async fn state(State(app): State<App>, Path(id): Path<String>) -> Answer {
    json(
        StatusCode::OK,
        &app.host.state(&app.tenant(), &session_id(id)?).await?,
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleBody {
    /// `null` is a result as well: only a body without the key has none.
    #[serde(default, deserialize_with = "given")]
    result: Option<Json>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    retryable: bool,
    #[serde(default)]
    attempt: Option<u32>,
}

fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

pub(super) async fn settle(
    State(app): State<App>,
    Path((id, call)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let session = session_id(id)?;
    let SettleBody {
        result,
        error,
        retryable,
        attempt,
    } = read_json(&headers, body, JSON_BYTES).await?;
    let outcome = match (result, error) {
        (Some(result), None) => Ok(Some(result).filter(|result| result.as_str() != "null")),
        (None, Some(error)) => Err(SettleError { error, retryable }),
        (result, _) => {
            let has = result.map_or("neither `result` nor", |_| "both `result` and");
            let detail = format!("the body has {has} `error`; a call ends with one of them");
            return Err(Problem::new(422, "body_invalid", detail).into());
        }
    };
    app.host
        .settle(
            &app.tenant(),
            &session,
            CallId::from(call),
            Party::Operator,
            attempt,
            outcome,
        )
        .await?;
    json(StatusCode::OK, &serde_json::json!({}))
}

pub(super) async fn abort(State(app): State<App>, Path(id): Path<String>) -> Answer {
    app.host
        .abort(&app.tenant(), &session_id(id)?, Party::Client)
        .await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

pub(super) async fn close(State(app): State<App>, Path(id): Path<String>) -> Answer {
    app.host
        .close(&app.tenant(), &session_id(id)?, Party::Client)
        .await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

#[derive(Deserialize)]
pub(super) struct PageQuery {
    #[serde(default)]
    after: u64,
    limit: Option<u32>,
}

pub(super) async fn decisions(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Answer {
    #[derive(Serialize)]
    struct Decisions {
        decisions: Vec<crate::driver::DecisionRecord>,
    }
    let session = session_id(id)?;
    let decisions = app
        .host
        .decisions(&app.tenant(), &session, query.after, limit(query.limit))
        .await?;
    json(StatusCode::OK, &Decisions { decisions })
}

pub(super) async fn decision(
    State(app): State<App>,
    Path((id, decision)): Path<(String, String)>,
) -> Answer {
    let session = session_id(id)?;
    json(
        StatusCode::OK,
        &app.host
            .decision(&app.tenant(), &session, &DecisionId::from(decision))
            .await?,
    )
}
