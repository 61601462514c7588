//! Drives the engine's core through stories told as vectors, with a clock of its own.
//!
//! A vector is one session's story from outside: what goes in, which decision or request must
//! come out next, what is answered. The same story is told in several [`Manner`]s that must not
//! make a difference.
#![forbid(unsafe_code)]

mod matching;
mod story;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
pub use story::Manner;

/// Vectors that do not pass yet, each with the reason. None is skipped silently: one that passes
/// although it is listed here fails the run.
pub const NOT_YET: &[(&str, &str)] = &[
    (
        "client-tool",
        "answers to client tools inside a view [I3, I4]",
    ),
    (
        "client-tools-layered",
        "a client's own tools on the config [I9]",
    ),
    ("llm-failure-pauses", "pauses [P5, P7]"),
    ("pause-resume", "pauses [U1-U4]"),
    ("queue-next-turn", "queued messages [S4]"),
    ("sub-agent", "children [A1-A3]"),
    (
        "worker-llm",
        "provider formats of worker-handled model calls [C10]",
    ),
];

/// How one vector went.
#[derive(Debug)]
pub struct Verdict {
    /// The file's name without its ending.
    pub name: String,
    /// What went wrong, in all manners; empty when it passed.
    pub failures: Vec<String>,
    /// Why it is not expected to pass yet.
    pub not_yet: Option<&'static str>,
}

impl Verdict {
    /// Whether the vector did what was expected of it.
    pub fn is_as_expected(&self) -> bool {
        self.failures.is_empty() == self.not_yet.is_none()
    }
}

/// The folder with the vectors: `BELLJAR_VECTORS`, else the project's own.
pub fn folder() -> PathBuf {
    std::env::var_os("BELLJAR_VECTORS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"),
        PathBuf::from,
    )
}

/// Runs every `*.json` of a folder, by name.
///
/// # Errors
/// The folder or a file cannot be read, a file is not a vector, or there is none.
pub fn run_folder(folder: &Path) -> Result<Vec<Verdict>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    anyhow::ensure!(
        !files.is_empty(),
        "no vectors (*.json) in {}",
        folder.display()
    );
    files.iter().map(|path| run_file(path)).collect()
}

/// The log that a vector's story leaves.
///
/// # Errors
/// The file is not a vector, or its story fails.
pub fn log_of(path: &Path) -> Result<Vec<belljar_protocol::event::Commit>> {
    story::tell(&read(path)?, Manner::Plain)
}

fn read(path: &Path) -> Result<serde_json::Value> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
}

fn run_file(path: &Path) -> Result<Verdict> {
    let name = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let vector = read(path)?;
    let failures = Manner::ALL
        .into_iter()
        .filter_map(|manner| {
            story::tell(&vector, manner)
                .err()
                .map(|error| format!("({manner:?}) {error:#}"))
        })
        .collect();
    let not_yet = NOT_YET
        .iter()
        .find(|(listed, _)| *listed == name)
        .map(|(_, reason)| *reason);
    Ok(Verdict {
        name,
        failures,
        not_yet,
    })
}
