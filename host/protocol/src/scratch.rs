//! What a session's `/scratch` holds, as the log knows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The sha256 of some bytes, as lower-case hex.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(Arc<str>);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(hex::encode(sha2::Sha256::digest(bytes)).into())
    }
    /// The digest as 64 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Reads 64 lower-case hex digits; none for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let ok = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        ok.then(|| Self(text.into()))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// One entry of a scratch directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScratchEntry {
    /// A file.
    File {
        /// Its content.
        sha256: Digest,
        /// Its length in bytes.
        size: u64,
    },
    /// A directory, listed so that empty ones survive.
    Dir {},
}

/// All of a session's `/scratch`: path (relative, `/` between parts) to entry.
///
/// `generation` counts the commits that changed it; the directory on disk is a cache of one
/// generation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScratchManifest {
    /// How many commits have changed it.
    pub generation: u64,
    /// What it holds, sorted by path.
    pub entries: BTreeMap<String, ScratchEntry>,
}

/// What one decision changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScratchChange {
    /// Entries added or changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub put: BTreeMap<String, ScratchEntry>,
    /// Paths that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

impl ScratchChange {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.removed.is_empty()
    }
}

impl ScratchManifest {
    /// The manifest after `change`, one generation on.
    #[must_use]
    pub fn after(&self, change: &ScratchChange) -> Self {
        let mut entries = self.entries.clone();
        for path in &change.removed {
            entries.remove(path);
        }
        entries.extend(
            change
                .put
                .iter()
                .map(|(path, entry)| (path.clone(), entry.clone())),
        );
        Self {
            generation: self.generation + 1,
            entries,
        }
    }
}

/// A file handed over by an agent; it never changes and stays until its session is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveredFile {
    /// Its path, relative to `/scratch`, as the client sees it.
    pub path: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its content.
    pub sha256: Digest,
    /// What the agent said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
