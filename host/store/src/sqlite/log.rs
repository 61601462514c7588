//! Sessions, commits and snapshots in SQL.

use belljar_protocol::event::{Commit, Event};
use belljar_protocol::id::{AgentId, SessionId, TenantId};
use belljar_protocol::ports::{Append, SessionRow, StoreError};
use belljar_protocol::snapshot::Snapshot;
use belljar_protocol::{Json, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::blobs::BlobRow;
use super::writer::{Cost, Refusal};
use super::{failed, stored_number, unreadable};
use crate::append;

/// An append made ready outside the writer: checked, and its events as text.
pub(super) struct Prepared {
    tenant: TenantId,
    session: SessionId,
    agent: AgentId,
    expected: u64,
    head: u64,
    rows: Vec<CommitRow>,
    blobs: Vec<BlobRow>,
    status: String,
    next_wake: Option<i64>,
}

struct CommitRow {
    first_seq: u64,
    last_seq: u64,
    at: i64,
    events: String,
}

impl Prepared {
    /// Checks and encodes an append whose large blobs are in their files, as `blobs` says.
    pub(super) fn new(append: &Append, blobs: Vec<BlobRow>) -> Result<Self, StoreError> {
        let head = append::check(append)?;
        let encode = |commit: &Commit| {
            let events = serde_json::to_string(&commit.events).map_err(|e| {
                StoreError::Failed(format!(
                    "encode a commit of session {}: {e}",
                    append.session
                ))
            })?;
            let (first_seq, last_seq) = (commit.first_seq, commit.last_seq());
            Ok(CommitRow {
                first_seq,
                last_seq,
                at: commit.at.millis(),
                events,
            })
        };
        Ok(Self {
            tenant: append.tenant.clone(),
            session: append.session.clone(),
            agent: append.agent.clone(),
            expected: append.expected_seq,
            head,
            rows: append
                .commits
                .iter()
                .map(encode)
                .collect::<Result<_, StoreError>>()?,
            blobs,
            status: append.status.clone(),
            next_wake: append.next_wake.map(Timestamp::millis),
        })
    }

    /// What it brings into its group.
    pub(super) fn cost(&self) -> Cost {
        let events: usize = self.rows.iter().map(|row| row.events.len()).sum();
        let blobs: usize = self.blobs.iter().map(BlobRow::bytes).sum();
        Cost {
            commits: self.rows.len() as u64,
            bytes: events + blobs,
        }
    }

    /// Writes it, inside the writer's transaction.
    pub(super) fn write(&self, db: &Connection) -> Result<(), Refusal> {
        let found: Option<(i64, i64)> = db
            .prepare_cached("SELECT id, head_seq FROM sessions WHERE tenant = ? AND session = ?")?
            .query_row(
                params![self.tenant.as_str(), self.session.as_str()],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        let ends = found.map_or(0, |(_, head)| head as u64);
        if ends != self.expected {
            return Err(Refusal::Refused(StoreError::Conflict {
                session: self.session.clone(),
                expected: self.expected,
                found: ends,
            }));
        }
        let id = match found {
            Some((id, _)) => self.update(db, id)?,
            None => self.create(db)?,
        };
        let mut insert = db.prepare_cached(
            "INSERT INTO commits (tenant, session, last_seq, first_seq, at, events)
             VALUES (?, ?, ?, ?, ?, ?)",
        )?;
        for row in &self.rows {
            let (last, first) = (row.last_seq as i64, row.first_seq as i64);
            insert.execute(params![
                self.tenant.as_str(),
                id,
                last,
                first,
                row.at,
                row.events
            ])?;
        }
        for blob in &self.blobs {
            blob.write(db, &self.tenant)?;
        }
        Ok(())
    }

    /// When the last commit was made. There is one: `append::check` saw to it.
    fn at(&self) -> i64 {
        self.rows.last().map_or(0, |row| row.at)
    }

    fn update(&self, db: &Connection, id: i64) -> rusqlite::Result<i64> {
        db.prepare_cached(
            "UPDATE sessions SET head_seq = ?, status = ?, next_wake = ?, updated_at = ?
             WHERE id = ?",
        )?
        .execute(params![
            self.head as i64,
            self.status,
            self.next_wake,
            self.at(),
            id
        ])?;
        Ok(id)
    }

    fn create(&self, db: &Connection) -> rusqlite::Result<i64> {
        db.prepare_cached(
            "INSERT INTO sessions
                 (tenant, session, agent, head_seq, status, next_wake, created_at, updated_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            self.tenant.as_str(),
            self.session.as_str(),
            self.agent.as_str(),
            self.head as i64,
            self.status,
            self.next_wake,
            self.rows.first().map_or(0, |row| row.at),
            self.at(),
        ])?;
        Ok(db.last_insert_rowid())
    }
}

const SESSION_COLUMNS: &str = "session, agent, head_seq, status, next_wake, created_at, updated_at";

fn session_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        session: SessionId::from(row.get::<_, String>(0)?),
        agent: AgentId::from(row.get::<_, String>(1)?),
        head_seq: row.get::<_, i64>(2)? as u64,
        status: row.get(3)?,
        next_wake: row.get::<_, Option<i64>>(4)?.map(Timestamp::from_millis),
        created_at: Timestamp::from_millis(row.get(5)?),
        updated_at: Timestamp::from_millis(row.get(6)?),
    })
}

pub(super) fn session(
    db: &Connection,
    tenant: &TenantId,
    session: &SessionId,
) -> Result<Option<SessionRow>, StoreError> {
    let sql = format!("SELECT {SESSION_COLUMNS} FROM sessions WHERE tenant = ? AND session = ?");
    db.prepare_cached(&sql)
        .and_then(|mut select| {
            select
                .query_row(params![tenant.as_str(), session.as_str()], session_row)
                .optional()
        })
        .map_err(failed)
}

pub(super) fn sessions(
    db: &Connection,
    tenant: &TenantId,
    before: Option<&(Timestamp, SessionId)>,
    limit: u32,
) -> Result<Vec<SessionRow>, StoreError> {
    let list = || -> rusqlite::Result<_> {
        let (from, order) = (
            "FROM sessions WHERE tenant = ?1",
            "ORDER BY updated_at DESC, session DESC LIMIT ?2",
        );
        match before {
            None => db
                .prepare_cached(&format!("SELECT {SESSION_COLUMNS} {from} {order}"))?
                .query_map(params![tenant.as_str(), limit], session_row)?
                .collect(),
            Some((at, session)) => db
                .prepare_cached(&format!(
                    "SELECT {SESSION_COLUMNS} {from} AND (updated_at, session) < (?3, ?4) {order}"
                ))?
                .query_map(
                    params![tenant.as_str(), limit, at.millis(), session.as_str()],
                    session_row,
                )?
                .collect(),
        }
    };
    list().map_err(failed)
}

pub(super) fn read(
    db: &Connection,
    tenant: &TenantId,
    session: &SessionId,
    after: u64,
    limit: u32,
) -> Result<Vec<Commit>, StoreError> {
    let rows = || -> rusqlite::Result<Vec<CommitRow>> {
        db.prepare_cached(
            "SELECT first_seq, last_seq, at, events FROM commits
             WHERE tenant = ?1
               AND session = (SELECT id FROM sessions WHERE tenant = ?1 AND session = ?2)
               AND last_seq > ?3
             ORDER BY last_seq LIMIT ?4",
        )?
        .query_map(
            params![
                tenant.as_str(),
                session.as_str(),
                stored_number(after),
                limit
            ],
            |row| {
                Ok(CommitRow {
                    first_seq: row.get::<_, i64>(0)? as u64,
                    last_seq: row.get::<_, i64>(1)? as u64,
                    at: row.get(2)?,
                    events: row.get(3)?,
                })
            },
        )?
        .collect()
    };
    let mut commits = Vec::new();
    // Where the next commit must begin, so that a lost row is seen and not folded over.
    let mut next: Option<u64> = None;
    for row in rows().map_err(failed)? {
        let CommitRow {
            first_seq,
            last_seq,
            at,
            events,
        } = row;
        let what =
            || format!("commit {first_seq}..{last_seq} of session {session} of tenant {tenant}");
        let follows = match next {
            None => first_seq <= after.saturating_add(1),
            Some(next) => first_seq == next,
        };
        if !follows {
            return Err(unreadable(what(), "the commit before it is missing"));
        }
        let events: Vec<Event> =
            serde_json::from_str(&events).map_err(|e| unreadable(what(), e))?;
        if events.len() as u64 != (last_seq + 1).saturating_sub(first_seq) || events.is_empty() {
            return Err(unreadable(
                what(),
                format!("it holds {} events", events.len()),
            ));
        }
        next = Some(last_seq + 1);
        commits.push(Commit {
            first_seq,
            at: Timestamp::from_millis(at),
            events,
        });
    }
    Ok(commits)
}

pub(super) fn snapshot(
    db: &Connection,
    tenant: &TenantId,
    session: &SessionId,
) -> Result<Option<Snapshot>, StoreError> {
    let found: Option<(u32, i64, String)> = db
        .prepare_cached(
            "SELECT format, seq, body FROM snapshots
             WHERE tenant = ?1
               AND session = (SELECT id FROM sessions WHERE tenant = ?1 AND session = ?2)",
        )
        .and_then(|mut select| {
            select
                .query_row(params![tenant.as_str(), session.as_str()], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })
                .optional()
        })
        .map_err(failed)?;
    let Some((format, seq, body)) = found else {
        return Ok(None);
    };
    let body = Json::parse(&body).map_err(|e| {
        unreadable(
            format!("the snapshot of session {session} of tenant {tenant}"),
            e,
        )
    })?;
    Ok(Some(Snapshot {
        format,
        seq: seq as u64,
        body,
    }))
}

pub(super) fn put_snapshot(
    db: &Connection,
    tenant: &TenantId,
    session: &SessionId,
    snapshot: &Snapshot,
) -> Result<(), Refusal> {
    // A session that is not there has nothing to fold: no row, and no harm.
    db.prepare_cached(
        "INSERT INTO snapshots (tenant, session, seq, format, body)
         SELECT tenant, id, ?3, ?4, ?5 FROM sessions WHERE tenant = ?1 AND session = ?2
         ON CONFLICT (tenant, session) DO UPDATE
             SET seq = excluded.seq, format = excluded.format, body = excluded.body",
    )?
    .execute(params![
        tenant.as_str(),
        session.as_str(),
        stored_number(snapshot.seq),
        snapshot.format,
        snapshot.body.as_str(),
    ])?;
    Ok(())
}

pub(super) fn due(
    db: &Connection,
    after: Timestamp,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<(TenantId, SessionId)>, StoreError> {
    let list = || -> rusqlite::Result<_> {
        db.prepare_cached(
            "SELECT tenant, session FROM sessions WHERE next_wake > ? AND next_wake <= ?
             ORDER BY next_wake, id LIMIT ?",
        )?
        .query_map(params![after.millis(), now.millis(), limit], |row| {
            Ok((
                TenantId::from(row.get::<_, String>(0)?),
                SessionId::from(row.get::<_, String>(1)?),
            ))
        })?
        .collect()
    };
    list().map_err(failed)
}

pub(super) fn next_wake(
    db: &Connection,
    after: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    db.prepare_cached("SELECT min(next_wake) FROM sessions WHERE next_wake > ?")
        .and_then(|mut select| {
            select.query_row(params![after.millis()], |row| row.get::<_, Option<i64>>(0))
        })
        .map(|at| at.map(Timestamp::from_millis))
        .map_err(failed)
}
