//! A real agent through its story: answers, files, deliveries, and what becomes of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_protocol::decision::{Answer, Records, Response, Trigger};
use belljar_protocol::run::{LogLevel, LogLine};
use belljar_protocol::scratch::{Digest, ScratchEntry};
use belljar_sandbox::{FixedView, Limits};
use bytes::Bytes;

use crate::rig::{Rig, guest, tool_text};

const COFFEE: &str = r#"{"description":"coffee","amount":3.5}"#;
const TEA: &str = r#"{"description":"tea","amount":2}"#;

async fn story(name: &str) {
    let rig = Rig::new(Limits {
        resident: 4,
        ..Limits::default()
    });
    let mut session = rig.session(&guest(name));

    let started = session.decide(Trigger::SessionStart).await;
    let Ok(Answer::Respond(response)) = &started.outcome else {
        panic!("{:?}", started.outcome)
    };
    let agent = response.agent.as_ref().unwrap();
    assert_eq!(
        (agent.model.as_str(), agent.tools.len(), &response.records),
        ("default", 3, &Records::None)
    );
    session.accept(&started);

    // Nothing of its own to say: it accepts, and nothing touches the disk.
    let finished = Trigger::ToolFinished {
        id: "c0".into(),
        name: "x".into(),
        outcome: Ok(String::new()),
    };
    let accepted = session.decide(finished).await;
    assert_eq!(accepted.outcome, Ok(Answer::Accept));
    session.accept(&accepted);

    let first = session.tool("add_entry", COFFEE).await;
    assert_eq!(tool_text(&first), "added \"coffee\" 3.50, balance 3.50");
    assert_eq!(
        first.run.log[0],
        LogLine {
            level: LogLevel::Info,
            line: format!("add_entry: {}", tool_text(&first))
        }
    );
    let csv = b"description,amount\ncoffee,3.50\n";
    let entry = ScratchEntry::File {
        sha256: Digest::of(csv),
        size: csv.len() as u64,
    };
    assert_eq!(first.scratch.put.get("ledger.csv"), Some(&entry));
    assert_eq!(first.blobs, [(Digest::of(csv), Bytes::from_static(csv))]);
    session.accept(&first);

    // The second sees the first, without a rebuild.
    let reads = rig.blobs.reads.load(Ordering::Relaxed);
    let second = session.tool("add_entry", TEA).await;
    assert_eq!(tool_text(&second), "added \"tea\" 2.00, balance 5.50");
    assert_eq!(rig.blobs.reads.load(Ordering::Relaxed), reads);

    // It is delivered again before it was accepted: it has written once.
    let again = session.tool("add_entry", TEA).await;
    assert_eq!(tool_text(&again), "added \"tea\" 2.00, balance 5.50");
    assert!(
        rig.blobs.reads.load(Ordering::Relaxed) > reads,
        "the folder was in doubt and had to be rebuilt"
    );
    assert_eq!(again.scratch, second.scratch);
    // And that is thrown away as well.
    session.discard();
    assert_eq!(
        tool_text(&session.tool("balance", "{}").await),
        "balance 3.50"
    );

    let report = session.tool("report", "{}").await;
    assert!(tool_text(&report).starts_with("report.md delivered ("));
    let delivered = &report.delivered[0];
    let content = report
        .blobs
        .iter()
        .find(|(digest, _)| *digest == delivered.sha256)
        .unwrap();
    assert_eq!(
        (delivered.path.as_str(), delivered.bytes),
        ("report.md", content.1.len() as u64)
    );
    assert!(String::from_utf8_lossy(&content.1).contains("coffee"));
    session.accept(&report);
    assert_eq!(
        session.manifest.entries.keys().collect::<Vec<_>>(),
        ["ledger.csv", "report.md"]
    );

    let run = report.run;
    assert_eq!(run.version, Some(session.version.clone()));
    assert!(
        run.fuel > 1_000
            && run.peak_memory >= 64 << 10
            && run.host_calls > 5
            && run.wall_us >= run.cpu_us / 2,
        "{run:?}"
    );
    assert!(run.started_at.is_some() && run.log_dropped == 0);
}

#[tokio::test]
async fn the_rust_ledger_keeps_its_book() {
    story("ledger").await;
}

#[tokio::test]
async fn the_python_ledger_keeps_its_book() {
    story("ledger-py").await;
}

#[tokio::test]
async fn a_new_process_trusts_the_marker_and_nothing_else() {
    let ledger = guest("ledger");
    let rig = Rig::new(Limits {
        resident: 4,
        ..Limits::default()
    });
    let mut session = rig.session(&ledger);
    let first = session.tool("add_entry", COFFEE).await;
    session.accept(&first);
    let (name, manifest) = (session.session.clone(), session.manifest.clone());

    let Rig {
        sandbox,
        blobs,
        data,
    } = rig;
    drop(sandbox);
    let rig = Rig::on(
        data,
        blobs,
        Limits {
            resident: 4,
            ..Limits::default()
        },
    );
    let mut session = rig.session(&ledger);
    (session.session, session.manifest) = (name, manifest);
    let reads = rig.blobs.reads.load(Ordering::Relaxed);
    assert_eq!(
        tool_text(&session.tool("balance", "{}").await),
        "balance 3.50"
    );
    assert_eq!(
        rig.blobs.reads.load(Ordering::Relaxed),
        reads,
        "neither component nor scratch was read"
    );

    // A decision that has written and was never concluded leaves no marker.
    let lost = session.tool("add_entry", TEA).await;
    assert_eq!(tool_text(&lost), "added \"tea\" 2.00, balance 5.50");
    let (name, manifest) = (session.session.clone(), session.manifest.clone());
    let Rig {
        sandbox,
        blobs,
        data,
    } = rig;
    drop(sandbox);
    let rig = Rig::on(
        data,
        blobs,
        Limits {
            resident: 4,
            ..Limits::default()
        },
    );
    let mut session = rig.session(&ledger);
    (session.session, session.manifest) = (name, manifest);
    assert_eq!(
        tool_text(&session.tool("balance", "{}").await),
        "balance 3.50"
    );

    // A generation nobody wrote here (another host did, or a fork) is made from blobs.
    let mut session = rig.session(&ledger);
    session.manifest = Arc::new(first_manifest(&first));
    assert_eq!(
        tool_text(&session.tool("balance", "{}").await),
        "balance 3.50"
    );
    rig.blobs.blobs.lock().unwrap().clear();
    let mut session = rig.session(&ledger);
    session.manifest = Arc::new(first_manifest(&first));
    let failure = session.tool("balance", "{}").await.outcome.unwrap_err();
    assert_eq!(failure.code, "blob_missing", "{failure:?}");
}

fn first_manifest(
    first: &belljar_protocol::ports::Decided,
) -> belljar_protocol::scratch::ScratchManifest {
    belljar_protocol::scratch::ScratchManifest::default().after(&first.scratch)
}

#[tokio::test]
async fn a_decision_that_only_accepts_makes_no_folder() {
    let rig = Rig::new(Limits {
        resident: 4,
        ..Limits::default()
    });
    let session = rig.session(&guest("ledger"));
    let finished = Trigger::ToolFinished {
        id: "c0".into(),
        name: "x".into(),
        outcome: Ok(String::new()),
    };
    let accepted = session.decide(finished).await;
    assert_eq!(accepted.outcome, Ok(Answer::Accept));
    let scratch = rig.data.path().join("data/scratch");
    assert_eq!(std::fs::read_dir(scratch).unwrap().count(), 0);
}

#[tokio::test]
async fn sessions_do_not_see_each_other() {
    let rig = Rig::new(Limits {
        resident: 4,
        ..Limits::default()
    });
    let mut one = rig.session(&guest("ledger"));
    let other = rig.session(&guest("ledger"));
    let first = one.tool("add_entry", COFFEE).await;
    one.accept(&first);
    assert_eq!(
        tool_text(&other.tool("balance", "{}").await),
        "balance 0.00"
    );
}
#[tokio::test]
async fn a_new_version_reads_the_session_and_migrates_it() {
    let rig = Rig::new(Limits {
        resident: 4,
        ..Limits::default()
    });
    let mut session = rig.session(&guest("ledger-v2"));
    let config = r#"{"model":"default","tools":[{"name":"add_entry","description":"old"},{"name":"pick","input":{"type":"object"},"handler":"client"}]}"#;
    let done = r#"{"type":"llm.call","model":"m","retry":{"timeout_secs":1.5,"max_retries":1,"backoff_base_secs":1.0,"backoff_max_secs":2.0}}"#;
    session.view = Arc::new(FixedView {
        config: Some(Arc::new(serde_json::from_str(config).unwrap())),
        proposed: Response {
            records: Records::Proposed,
            actions: vec![serde_json::from_str(done).unwrap()],
            ..Response::default()
        },
        ..FixedView::default()
    });
    let finished = || Trigger::ToolFinished {
        id: "c0".into(),
        name: "x".into(),
        outcome: Ok(String::new()),
    };

    // The version that decided before is this one: nothing to migrate.
    session.previous = Some(session.version.clone());
    assert_eq!(session.decide(finished()).await.outcome, Ok(Answer::Accept));

    session.previous = Some("sha256:0".into());
    let Ok(Answer::Respond(response)) = session.decide(finished()).await.outcome else {
        panic!()
    };
    assert_eq!(
        (&response.records, &response.actions),
        (&Records::Proposed, &session.view.proposed().actions)
    );
    let agent = response.agent.unwrap();
    let names: Vec<_> = agent.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["add_entry", "balance", "report", "undo", "pick"]);
    assert_eq!(
        agent.tools[4].input.as_ref().unwrap().as_str(),
        r#"{"type":"object"}"#
    );
}
