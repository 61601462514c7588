//! Versions of agents and the labels that point at them, in SQL.

use belljar_protocol::Timestamp;
use belljar_protocol::id::{AgentId, TenantId, VersionId};
use belljar_protocol::ports::StoreError;
use belljar_protocol::version::{LabelMove, Swap, Version};
use rusqlite::{Connection, OptionalExtension, params};

use super::writer::Refusal;
use super::{failed, unreadable};

pub(super) fn has_version(
    db: &Connection,
    tenant: &TenantId,
    version: &Version,
) -> Result<bool, StoreError> {
    db.prepare_cached("SELECT 1 FROM versions WHERE tenant = ? AND agent = ? AND version = ?")
        .and_then(|mut select| {
            select.exists(params![
                tenant.as_str(),
                version.agent.as_str(),
                version.version.as_str()
            ])
        })
        .map_err(failed)
}

/// Writes a version; `false` when it was there. `about` is its JSON.
pub(super) fn put_version(
    db: &Connection,
    tenant: &TenantId,
    version: &Version,
    about: &str,
) -> Result<bool, Refusal> {
    let rows = db
        .prepare_cached(
            "INSERT INTO versions (tenant, agent, version, about) VALUES (?, ?, ?, ?)
             ON CONFLICT (tenant, agent, version) DO NOTHING",
        )?
        .execute(params![
            tenant.as_str(),
            version.agent.as_str(),
            version.version.as_str(),
            about
        ])?;
    Ok(rows == 1)
}

pub(super) fn versions(
    db: &Connection,
    tenant: &TenantId,
    agent: &AgentId,
) -> Result<Vec<Version>, StoreError> {
    let rows =
        || -> rusqlite::Result<Vec<(String, String)>> {
            db.prepare_cached(
            "SELECT version, about FROM versions WHERE tenant = ? AND agent = ? ORDER BY id DESC",
        )?
        .query_map(params![tenant.as_str(), agent.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
        };
    let read = |(version, about): (String, String)| {
        serde_json::from_str(&about).map_err(|e| {
            unreadable(
                format!("version {version} of agent {agent} of tenant {tenant}"),
                e,
            )
        })
    };
    rows().map_err(failed)?.into_iter().map(read).collect()
}

pub(super) fn agents(db: &Connection, tenant: &TenantId) -> Result<Vec<AgentId>, StoreError> {
    let list = || -> rusqlite::Result<_> {
        db.prepare_cached("SELECT DISTINCT agent FROM versions WHERE tenant = ? ORDER BY agent")?
            .query_map(params![tenant.as_str()], |row| {
                Ok(AgentId::from(row.get::<_, String>(0)?))
            })?
            .collect()
    };
    list().map_err(failed)
}

/// Records `wanted` with its `id` and `previous` filled in, and gives it back.
pub(super) fn move_label(
    db: &Connection,
    tenant: &TenantId,
    agent: &AgentId,
    wanted: LabelMove,
) -> Result<LabelMove, Refusal> {
    let (tenant, agent) = (tenant.as_str(), agent.as_str());
    let last: i64 = db
        .prepare_cached(
            "SELECT coalesce(max(id), 0) FROM label_moves WHERE tenant = ? AND agent = ?",
        )?
        .query_row(params![tenant, agent], |row| row.get(0))?;
    let previous: Option<String> = db
        .prepare_cached(
            "SELECT version FROM label_moves WHERE tenant = ? AND agent = ? AND label = ?
             ORDER BY id DESC LIMIT 1",
        )?
        .query_row(params![tenant, agent, wanted.label], |row| row.get(0))
        .optional()?
        .flatten();
    let made = LabelMove {
        id: last as u64 + 1,
        previous: previous.map(VersionId::from),
        ..wanted
    };
    db.prepare_cached(
        "INSERT INTO label_moves (tenant, agent, id, label, version, previous, swap, by, at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        tenant,
        agent,
        last + 1,
        made.label,
        made.version.as_ref().map(VersionId::as_str),
        made.previous.as_ref().map(VersionId::as_str),
        swap_name(made.swap),
        made.by,
        made.at.millis(),
    ])?;
    Ok(made)
}

pub(super) fn label_moves(
    db: &Connection,
    tenant: &TenantId,
    agent: &AgentId,
) -> Result<Vec<LabelMove>, StoreError> {
    let rows = || -> rusqlite::Result<Vec<(LabelMove, String)>> {
        db.prepare_cached(
            "SELECT id, label, version, previous, by, at, swap FROM label_moves
             WHERE tenant = ? AND agent = ? ORDER BY id",
        )?
        .query_map(params![tenant.as_str(), agent.as_str()], |row| {
            let made = LabelMove {
                id: row.get::<_, i64>(0)? as u64,
                label: row.get(1)?,
                version: row.get::<_, Option<String>>(2)?.map(VersionId::from),
                previous: row.get::<_, Option<String>>(3)?.map(VersionId::from),
                swap: Swap::default(),
                by: row.get(4)?,
                at: Timestamp::from_millis(row.get(5)?),
            };
            Ok((made, row.get(6)?))
        })?
        .collect()
    };
    let read = |(made, swap): (LabelMove, String)| match swap_of(&swap) {
        Some(swap) => Ok(LabelMove { swap, ..made }),
        None => Err(unreadable(
            format!("label move {} of agent {agent} of tenant {tenant}", made.id),
            format!("unknown swap `{swap}`"),
        )),
    };
    rows().map_err(failed)?.into_iter().map(read).collect()
}

/// As the protocol's JSON has it.
fn swap_name(swap: Swap) -> &'static str {
    match swap {
        Swap::Turn => "turn",
        Swap::Decision => "decision",
    }
}

fn swap_of(name: &str) -> Option<Swap> {
    [Swap::Turn, Swap::Decision]
        .into_iter()
        .find(|swap| swap_name(*swap) == name)
}
