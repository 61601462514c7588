//! What an upload is told: the step, the reason, the fix.

use belljar_protocol::decision::Trigger;
use belljar_protocol::version::World;
use belljar_sandbox::Limits;
use bytes::Bytes;

use crate::rig::{LOW, Rig, guest, low, text_guest};

async fn refused(component: Bytes, step: &str, says: &str) {
    let refused = LOW.admit(component).await.expect_err(step);
    assert_eq!(refused.step, step, "{refused}");
    assert!(refused.reason.contains(says), "{refused}");
    assert!(!refused.fix.is_empty());
}

#[tokio::test]
async fn real_agents_are_admitted() {
    let rig = Rig::new(Limits {
        resident: 4,
        ..Limits::default()
    });
    for (name, world) in [
        ("ledger", World::Agent),
        ("ledger-v2", World::Agent),
        ("hostile", World::AgentJson),
        ("ledger-py", World::Agent),
    ] {
        let admitted = rig.admit(guest(name)).await.unwrap();
        assert_eq!(admitted.world, world, "{name}");
        assert!(
            admitted
                .imports
                .iter()
                .any(|import| import.starts_with("wasi:filesystem/types@0.2.")),
            "{admitted:?}"
        );
    }
    // The smoke decisions have left nothing behind.
    assert_eq!(
        std::fs::read_dir(rig.data.path().join("data/scratch"))
            .unwrap()
            .count(),
        0
    );
    // And the compiled component is there: not even its bytes are asked for.
    let session = rig.session(&guest("ledger"));
    rig.blobs.blobs.lock().unwrap().clear();
    assert!(session.decide(Trigger::SessionStart).await.outcome.is_ok());
}

#[tokio::test]
async fn what_is_not_an_agent_is_refused_at_its_step() {
    assert_eq!(
        LOW.admit(text_guest("minimal")).await.unwrap().world,
        World::AgentJson
    );
    refused(
        Bytes::from(vec![0; (32 << 20) + 1]),
        "size",
        "33554433 bytes, 33554432 are allowed",
    )
    .await;
    refused("(component)".into(), "component", "not WebAssembly").await;
    refused(Bytes::new(), "component", "not WebAssembly").await;
    refused(text_guest("core-module"), "component", "a core module").await;
    let mut cut = text_guest("minimal").to_vec();
    cut.truncate(100);
    refused(cut.into(), "compile", "").await;
    refused(
        text_guest("unknown-import"),
        "imports",
        "`evil:host/shell@1.0.0`, which the host does not offer",
    )
    .await;
    refused(
        text_guest("no-export"),
        "exports",
        "no export `decide`; it exports nothing",
    )
    .await;
    refused(text_guest("wrong-export"), "exports", "decide").await;
    refused(text_guest("many-memories"), "resources", "memories").await;
    refused(text_guest("huge-memory"), "resources", "1073741824").await;
    refused(text_guest("huge-table"), "resources", "1000000").await;
    refused(text_guest("many-instances"), "resources", "instances").await;
    refused(text_guest("start-loop"), "smoke", "fuel exhausted").await;
    refused(text_guest("table-grow"), "smoke", "table_exhausted").await;
}

#[tokio::test]
async fn a_version_of_wasi_that_is_not_here_is_named() {
    let component =
        wat::parse_str(r#"(component (import "wasi:cli/environment@0.3.0" (instance)))"#).unwrap();
    refused(
        component.into(),
        "imports",
        "of which the host offers version 0.2",
    )
    .await;
}

#[tokio::test]
async fn a_precompiled_image_is_never_loaded() {
    let rig = Rig::new(low());
    assert!(rig.admit(text_guest("minimal")).await.is_ok());
    let image = the_image(&rig);
    let bytes = std::fs::read(&image).unwrap();
    // Without the MAC before it: just what another wasmtime would load.
    refused(
        Bytes::from(bytes[32..].to_vec()),
        "component",
        "precompiled",
    )
    .await;
}

#[tokio::test]
async fn an_image_somebody_else_wrote_is_compiled_again() {
    let rig = Rig::new(low());
    let minimal = text_guest("minimal");
    assert!(rig.admit(minimal.clone()).await.is_ok());
    let image = the_image(&rig);
    let good = std::fs::read(&image).unwrap();
    for change in [0, 31, 32, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[change] ^= 1;
        std::fs::write(&image, bad).unwrap();
        let Rig {
            sandbox,
            blobs,
            data,
        } = Rig::new(low());
        // The same folder and key, another process's memory.
        drop(sandbox);
        copy(rig.data.path(), data.path());
        let other = Rig::on(data, blobs, low());
        let session = other.session(&minimal);
        assert!(session.decide(Trigger::SessionStart).await.outcome.is_ok());
        assert_eq!(
            other.blobs.reads.load(std::sync::atomic::Ordering::Relaxed),
            1,
            "compiled again"
        );
        assert_eq!(
            std::fs::read(the_image(&other)).unwrap()[32..],
            good[32..],
            "and put right"
        );
    }
    use std::os::unix::fs::PermissionsExt;
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(image.parent().unwrap()), 0o700);
    assert_eq!(mode(&rig.data.path().join("data/cache.key")), 0o600);
}

#[tokio::test]
async fn concurrent_first_uses_compile_once() {
    let rig = Rig::new(low());
    let sessions: Vec<_> = (0..4).map(|_| rig.hostile()).collect();
    let all: Vec<_> = sessions
        .iter()
        .map(|session| session.decide(Trigger::SessionStart))
        .collect();
    for one in all {
        assert!(one.await.outcome.is_ok());
    }
    assert_eq!(
        rig.blobs.reads.load(std::sync::atomic::Ordering::Relaxed),
        1
    );
}

fn the_image(rig: &Rig) -> std::path::PathBuf {
    let only = |folder: std::path::PathBuf| {
        let mut entries = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let first = entries.next().unwrap();
        assert!(entries.next().is_none());
        first
    };
    only(only(rig.data.path().join("data/cache")))
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::remove_dir_all(to.join("data")).unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(from.join("data"))
        .arg(to)
        .status()
        .unwrap();
    assert!(copied.success());
}
