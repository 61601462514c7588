//! The database's schema: forward-only migrations and how connections are set up.

use std::path::Path;
use std::time::Duration;

use belljar_protocol::ports::StoreError;
use rusqlite::{Connection, OpenFlags};

use super::failed;

/// The migrations, in order; the schema's version is how many of them were applied.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/0001_first.sql")];

/// Marks a SQLite file as ours ("BJAR"), so that another program's is refused, not migrated.
const APPLICATION_ID: i64 = 0x424A_4152;

/// How long a connection waits for a lock. Inside the process nothing waits for one; this is for
/// a person who looks at the database with another program.
const BUSY: Duration = Duration::from_secs(5);

/// Opens the database for writing and brings it to this build's schema, creating it if need be.
///
/// # Errors
/// `Unreadable` for a newer schema or a file that is not ours; `Failed` for the rest.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    let mut db = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(failed)?;
    // Before anything is changed: a database that this build may not touch stays as it is.
    let version = check(&db, path)?;
    configure_writing(&db).map_err(failed)?;
    migrate(&mut db, version).map_err(failed)?;
    Ok(db)
}

/// Opens a further connection that writes pages (for checkpoints).
pub(super) fn open_again(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    configure_writing(&db).map_err(failed)?;
    Ok(db)
}

/// Opens a connection that only reads.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(BUSY).map_err(failed)?;
    db.set_prepared_statement_cache_capacity(32);
    db.pragma_update(None, "cache_size", -4096)
        .map_err(failed)?;
    Ok(db)
}

fn configure_writing(db: &Connection) -> rusqlite::Result<()> {
    db.busy_timeout(BUSY)?;
    db.set_prepared_statement_cache_capacity(32);
    db.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    // FULL syncs the log with every transaction; NORMAL would lose what was acknowledged.
    db.pragma_update(None, "synchronous", "full")?;
    db.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    db.pragma_update(None, "cache_size", -16384)?;
    Ok(())
}

fn pragma(db: &Connection, name: &str) -> rusqlite::Result<i64> {
    db.pragma_query_value(None, name, |row| row.get(0))
}

/// The version of the schema in the file, when this build may use it.
fn check(db: &Connection, path: &Path) -> Result<usize, StoreError> {
    let unreadable = |reason: String| StoreError::Unreadable {
        what: format!("the database {}", path.display()),
        reason,
    };
    let objects: i64 = db
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|e| unreadable(e.to_string()))?;
    let application = pragma(db, "application_id").map_err(failed)?;
    if objects > 0 && application != APPLICATION_ID {
        return Err(unreadable("it belongs to another program".into()));
    }
    let version = pragma(db, "user_version").map_err(failed)?;
    let known = MIGRATIONS.len();
    match usize::try_from(version) {
        Ok(version) if version <= known => Ok(version),
        _ => Err(unreadable(format!(
            "its schema is version {version} and this build knows up to {known}: \
             run a newer belljar, nothing was changed"
        ))),
    }
}

/// Applies the migrations after `version`, each whole or not at all.
fn migrate(db: &mut Connection, version: usize) -> rusqlite::Result<()> {
    for (ix, sql) in MIGRATIONS.iter().enumerate().skip(version) {
        let step = db.transaction()?;
        step.execute_batch(sql)?;
        step.pragma_update(None, "application_id", APPLICATION_ID)?;
        step.pragma_update(None, "user_version", ix as i64 + 1)?;
        step.commit()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrates_once_and_refuses_what_is_newer_or_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        drop(open(&path).unwrap());
        let db = open(&path).unwrap();
        assert_eq!(
            pragma(&db, "user_version").unwrap(),
            MIGRATIONS.len() as i64
        );
        db.pragma_update(None, "user_version", 99).unwrap();
        drop(db);
        let newer = open(&path).unwrap_err().to_string();
        assert!(
            newer.contains("version 99") && newer.contains("newer belljar"),
            "{newer}"
        );

        let other = dir.path().join("other.db");
        Connection::open(&other)
            .unwrap()
            .execute_batch("CREATE TABLE t (a)")
            .unwrap();
        let refused = open(&other).unwrap_err().to_string();
        assert!(refused.contains("another program"), "{refused}");

        let text = dir.path().join("text.db");
        std::fs::write(
            &text,
            "not a database, and long enough to be looked at as one",
        )
        .unwrap();
        assert!(matches!(
            open(&text).unwrap_err(),
            StoreError::Unreadable { .. }
        ));
    }
}
