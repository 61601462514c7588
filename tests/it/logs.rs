//! Logs written by released versions load for ever, and say the same.
//!
//! `BELLJAR_WRITE_LOGS=1` writes a log for each vector that has none yet. A log that is there is
//! never rewritten: a format that no longer reads it is the bug.

use std::path::{Path, PathBuf};

use belljar_engine::{State, apply};
use belljar_protocol::event::Commit;
use belljar_protocol::id::SessionId;
use serde_json::{Value, json};

#[test]
fn golden_logs_load_and_fold_to_what_they_did() {
    let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("logs/v1");
    if std::env::var_os("BELLJAR_WRITE_LOGS").is_some() {
        write_missing(&logs);
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(&logs)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(
        files.len() >= 10,
        "only {} logs in {}",
        files.len(),
        logs.display()
    );
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let (ends, commits) = text.split_once('\n').unwrap();
        let mut state = State::new(SessionId::from("root"));
        for line in commits.lines() {
            let commit: Commit = serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{}: {error}\n{line}", path.display()));
            assert_eq!(
                serde_json::to_string(&commit).unwrap(),
                line,
                "{}",
                path.display()
            );
            apply(&mut state, &commit);
        }
        let ends: Value = serde_json::from_str(ends).unwrap();
        assert_eq!(summary(&state), ends, "{}", path.display());
    }
}

fn write_missing(logs: &Path) {
    std::fs::create_dir_all(logs).unwrap();
    for entry in std::fs::read_dir(conformance::folder()).unwrap() {
        let vector = entry.unwrap().path();
        let log = logs
            .join(vector.file_name().unwrap())
            .with_extension("jsonl");
        let Some(commits) = conformance::log_of(&vector).ok().filter(|_| !log.exists()) else {
            continue;
        };
        let mut state = State::new(SessionId::from("root"));
        commits.iter().for_each(|commit| apply(&mut state, commit));
        let lines = commits
            .iter()
            .map(|commit| serde_json::to_string(commit).unwrap());
        let all: Vec<_> = std::iter::once(summary(&state).to_string())
            .chain(lines)
            .collect();
        std::fs::write(log, all.join("\n") + "\n").unwrap();
    }
}

fn summary(state: &State) -> Value {
    let tree = state.tree();
    let path: Vec<_> = (0..tree.path_len())
        .filter_map(|ix| tree.on_path(ix))
        .map(|message| serde_json::to_value(message).unwrap())
        .collect();
    json!({
        "seq": state.seq(),
        "status": state.status(),
        "path": path,
        "nodes": tree.len(),
        "state": state.agent_state().map(|state| serde_json::from_str::<Value>(state.as_str()).unwrap()),
        "config": state.config().map(|config| serde_json::to_value(config).unwrap()),
        "open_calls": state.open_calls().len(),
        "pending_calls": state.pending_calls(),
        "last_turn": state.last_turn().map(|turn| serde_json::to_value(turn).unwrap()),
    })
}
