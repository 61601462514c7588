//! What every store checks of an append before it looks at the log.

use belljar_protocol::ports::{Append, StoreError};

/// Checks that the commits follow `expected_seq` and one another without gaps.
///
/// Gives the seq the log will end at.
///
/// # Errors
/// `Failed` for what no correct caller sends. It says nothing of the disk and nothing is stored.
pub(crate) fn check(append: &Append) -> Result<u64, StoreError> {
    let refuse = |why: String| {
        let session = &append.session;
        Err(StoreError::Failed(format!(
            "malformed append to session {session}: {why}"
        )))
    };
    if append.commits.is_empty() {
        return refuse("it has no commits".into());
    }
    let mut head = append.expected_seq;
    for commit in &append.commits {
        if commit.events.is_empty() {
            return refuse(format!(
                "the commit at seq {} has no events",
                commit.first_seq
            ));
        }
        if commit.first_seq != head.saturating_add(1) {
            return refuse(format!(
                "a commit begins at seq {} after seq {head}",
                commit.first_seq
            ));
        }
        head = head.saturating_add(commit.events.len() as u64);
    }
    // SQLite's integers are signed; no log gets here, but a wrapped number must not either.
    if i64::try_from(head).is_err() {
        return refuse(format!("seq {head} is out of range"));
    }
    Ok(head)
}
