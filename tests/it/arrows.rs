//! The crates' arrows: who may know whom.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Each crate and those of the project it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("belljar-protocol", &[]),
    ("belljar-engine", &["belljar-protocol"]),
    ("belljar-sandbox", &["belljar-protocol"]),
    ("belljar-store", &["belljar-protocol"]),
    ("belljar-providers", &["belljar-protocol"]),
    ("belljar-server", &["belljar-protocol", "belljar-engine"]),
];

/// Libraries that only one crate may name.
const OWNED: &[(&str, &[&str])] = &[
    ("wasmtime", &["belljar-sandbox"]),
    ("wasmtime-wasi", &["belljar-sandbox"]),
    ("rusqlite", &["belljar-store"]),
    ("object_store", &["belljar-store"]),
    ("axum", &["belljar-server"]),
];

/// Libraries with clocks, IO or threads, which the pure crates do without.
const IMPURE: &[&str] = &[
    "tokio",
    "futures",
    "reqwest",
    "rand",
    "getrandom",
    "rusqlite",
    "wasmtime",
];

#[test]
fn crates_know_only_whom_they_may() {
    let depends = dependencies();
    for (name, allowed) in ARROWS {
        let ours: Vec<_> = depends[*name]
            .iter()
            .filter(|dep| dep.starts_with("belljar-"))
            .collect();
        for dep in ours {
            assert!(
                allowed.contains(&dep.as_str()),
                "{name} must not depend on {dep}"
            );
        }
    }
    for (library, owners) in OWNED {
        for (name, deps) in &depends {
            let tests = name == "belljar-tests" || name == "belljar-cli";
            let owner = owners.contains(&name.as_str());
            assert!(
                tests || owner || !deps.contains(*library),
                "{name} must not name {library}"
            );
        }
    }
    for name in ["belljar-protocol", "belljar-engine"] {
        for library in IMPURE {
            assert!(
                !depends[name].contains(*library),
                "{name} is pure and must not name {library}"
            );
        }
    }
}

/// Normal dependencies of the workspace's crates; those of tests do not count.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
            "--locked",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    packages
        .iter()
        .map(|package| {
            let normal = package["dependencies"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|dependency| dependency["kind"].is_null())
                .map(|dependency| dependency["name"].as_str().unwrap().to_owned())
                .collect();
            (package["name"].as_str().unwrap().to_owned(), normal)
        })
        .collect()
}
