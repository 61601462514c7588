//! Agents, their versions and labels.

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use belljar_protocol::id::{AgentId, VersionId};
use belljar_protocol::problem::Problem;
use belljar_protocol::version::Swap;
use serde::{Deserialize, Serialize};

use super::App;
use super::problems::{
    Answer, COMPONENT_BYTES, JSON_BYTES, Refusal, is_of_kind, json, read, read_json,
};

/// Who moves labels, until keys exist.
const BY: &str = "operator";

#[derive(Deserialize)]
pub(super) struct UploadQuery {
    #[serde(default)]
    live: bool,
}

pub(super) async fn upload(
    State(app): State<App>,
    Path(agent): Path<String>,
    Query(query): Query<UploadQuery>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let agent = agent_id(agent)?;
    is_of_kind(&headers, "application/wasm")?;
    let component = read(&headers, body, COMPONENT_BYTES).await?;
    let uploaded = app
        .host
        .upload(&app.tenant(), &agent, component, query.live, BY)
        .await?;
    let status = if uploaded.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    json(status, &uploaded.version)
}

pub(super) async fn list(State(app): State<App>) -> Answer {
    #[derive(Serialize)]
    struct Agents {
        agents: Vec<crate::driver::AgentInfo>,
    }
    json(
        StatusCode::OK,
        &Agents {
            agents: app.host.agents(&app.tenant()).await?,
        },
    )
}

pub(super) async fn get(State(app): State<App>, Path(agent): Path<String>) -> Answer {
    json(
        StatusCode::OK,
        &app.host.agent(&app.tenant(), &agent_id(agent)?).await?,
    )
}

pub(super) async fn versions(State(app): State<App>, Path(agent): Path<String>) -> Answer {
    #[derive(Serialize)]
    struct Versions {
        versions: Vec<belljar_protocol::version::Version>,
    }
    let versions = app.host.versions(&app.tenant(), &agent_id(agent)?).await?;
    json(StatusCode::OK, &Versions { versions })
}

pub(super) async fn version(
    State(app): State<App>,
    Path((agent, version)): Path<(String, String)>,
) -> Answer {
    let version = VersionId::from(version);
    json(
        StatusCode::OK,
        &app.host
            .version(&app.tenant(), &agent_id(agent)?, &version)
            .await?,
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveBody {
    version: VersionId,
    #[serde(default)]
    swap: Swap,
}

pub(super) async fn move_label(
    State(app): State<App>,
    Path((agent, label)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (agent, label) = (agent_id(agent)?, label_name(label)?);
    let MoveBody { version, swap } = read_json(&headers, body, JSON_BYTES).await?;
    let moved = app
        .host
        .move_label(&app.tenant(), &agent, &label, Some(version), swap, BY)
        .await?;
    json(StatusCode::OK, &moved)
}

pub(super) async fn remove_label(
    State(app): State<App>,
    Path((agent, label)): Path<(String, String)>,
) -> Answer {
    let (agent, label) = (agent_id(agent)?, label_name(label)?);
    let moved = app
        .host
        .move_label(&app.tenant(), &agent, &label, None, Swap::Turn, BY)
        .await?;
    json(StatusCode::OK, &moved)
}

pub(super) async fn history(State(app): State<App>, Path(agent): Path<String>) -> Answer {
    #[derive(Serialize)]
    struct History {
        moves: Vec<belljar_protocol::version::LabelMove>,
    }
    let moves = app
        .host
        .label_history(&app.tenant(), &agent_id(agent)?)
        .await?;
    json(StatusCode::OK, &History { moves })
}

pub(super) async fn rollback(State(app): State<App>, Path(agent): Path<String>) -> Answer {
    json(
        StatusCode::OK,
        &app.host
            .rollback_live(&app.tenant(), &agent_id(agent)?, BY)
            .await?,
    )
}

fn agent_id(name: String) -> Result<AgentId, Refusal> {
    let agent = AgentId::from(name);
    if agent.is_well_formed() {
        return Ok(agent);
    }
    let detail = format!(
        "`{agent}` is no agent name: 1 to 64 of A-Z a-z 0-9 _ - . are, not starting with a dot"
    );
    Err(Problem::new(422, "agent_malformed", detail).into())
}

fn label_name(label: String) -> Result<String, Refusal> {
    // Labels have the form of agents' names.
    if AgentId::from(label.as_str()).is_well_formed() {
        return Ok(label);
    }
    let detail =
        format!("`{label}` is no label: 1 to 64 of A-Z a-z 0-9 _ - . are, not starting with a dot");
    Err(Problem::new(422, "label_malformed", detail).into())
}
