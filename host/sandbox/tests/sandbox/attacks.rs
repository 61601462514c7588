//! Each limit, attacked. Every attack ends in a typed error or an error to the guest, and the
//! host serves the next decision ([`Session::fails`] looks).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use belljar_protocol::Json;
use belljar_protocol::agent::WireFormat;
use belljar_protocol::decision::{FailureClass, Trigger};
use belljar_protocol::model::StreamDelta;
use belljar_sandbox::Limits;

use crate::rig::{LOW, Rig, Session, low, report, text_guest};

#[track_caller]
fn is(
    failure: &belljar_protocol::decision::DecisionFailure,
    code: &str,
    class: FailureClass,
    says: &str,
) {
    assert_eq!(
        (failure.code.as_str(), failure.class),
        (code, class),
        "{failure:?}"
    );
    assert!(failure.message.contains(says), "{failure:?}");
}

use FailureClass::{Deterministic, Terminal, TimedOut};

#[test]
fn the_defaults_are_those_of_the_specification() {
    let limits = Limits::default();
    assert_eq!(limits.fuel, 2_000_000_000);
    assert_eq!(
        (limits.cpu, limits.wall),
        (Duration::from_secs(5), Duration::from_secs(30))
    );
    assert_eq!((limits.memory, limits.table_elements), (128 << 20, 20_000));
    assert_eq!(
        (limits.core_instances, limits.memories, limits.stack),
        (32, 4, 512 << 10)
    );
    assert_eq!(
        (limits.host_calls, limits.host_call_bytes, limits.handles),
        (100_000, 8 << 20, 1_000)
    );
    assert_eq!(
        (
            limits.answer_bytes,
            limits.answer_actions,
            limits.answer_messages
        ),
        (4 << 20, 256, 1_000)
    );
    assert_eq!(
        (limits.state_bytes, limits.random_bytes, limits.log_bytes),
        (1 << 20, 64 << 10, 64 << 10)
    );
    assert_eq!(
        (
            limits.scratch_bytes,
            limits.scratch_entries,
            limits.file_bytes
        ),
        (64 << 20, 1_000, 32 << 20)
    );
    assert_eq!((limits.deliveries, limits.delivery_bytes), (100, 64 << 20));
    assert_eq!(
        (limits.delta_bytes, limits.deltas_bytes),
        (64 << 10, 4 << 20)
    );
    assert_eq!(
        (
            limits.component_bytes,
            limits.resident,
            limits.resident_per_tenant
        ),
        (32 << 20, 256, 64)
    );
}

#[tokio::test]
async fn a_loop_runs_out_of_fuel() {
    let failure = LOW.hostile().fails("spin", "{}").await;
    is(
        &failure,
        "fuel_exhausted",
        Deterministic,
        "all 100000000 units used, in ",
    );
}

#[tokio::test]
async fn a_loop_with_fuel_runs_out_of_time() {
    let rig = Rig::new(Limits {
        fuel: u64::MAX / 2,
        cpu: Duration::from_millis(100),
        ..low()
    });
    let session = rig.hostile();
    let decided = session.attack("spin", "{}").await;
    assert!(
        (100_000..400_000).contains(&decided.run.cpu_us),
        "{:?}",
        decided.run
    );
    is(
        &decided.outcome.unwrap_err(),
        "cpu_timeout",
        TimedOut,
        "100ms allowed",
    );
}

#[tokio::test]
async fn a_loop_before_the_export_is_metered_as_well() {
    let session = LOW.session(&text_guest("start-loop"));
    let failure = session
        .decide(Trigger::SessionStart)
        .await
        .outcome
        .unwrap_err();
    is(&failure, "fuel_exhausted", Deterministic, "");
}

#[tokio::test]
async fn waiting_runs_out_of_time() {
    let rig = Rig::new(Limits {
        wall: Duration::from_millis(200),
        ..low()
    });
    for attack in ["sleep", "poll"] {
        let started = Instant::now();
        let session = rig.hostile();
        let decided = session.attack(attack, "{}").await;
        is(
            &decided.outcome.unwrap_err(),
            "wall_timeout",
            TimedOut,
            "within 200ms",
        );
        assert!(decided.run.cpu_us < 100_000, "{:?}", decided.run);
        assert!(started.elapsed() < Duration::from_secs(3));
    }
    assert_eq!(
        rig.hostile().reports("sleep", r#"{"ms":10}"#).await["slept_ms"],
        10
    );
}

#[tokio::test]
async fn a_spinning_guest_does_not_hold_up_its_neighbours() {
    let rig = Rig::new(Limits {
        fuel: u64::MAX / 2,
        cpu: Duration::from_millis(800),
        ..low()
    });
    assert!(
        rig.hostile()
            .decide(Trigger::SessionStart)
            .await
            .outcome
            .is_ok(),
        "compiled"
    );
    // As many as there are threads, and one more.
    let spinning: Vec<Session<'_>> = (0..3).map(|_| rig.hostile()).collect();
    let spins: Vec<_> = spinning
        .iter()
        .map(|s| rig.sandbox_decide(s, "spin"))
        .collect();
    let quiet = rig.hostile();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = Instant::now();
    assert!(quiet.decide(Trigger::SessionStart).await.outcome.is_ok());
    let took = started.elapsed();
    for spin in spins {
        assert_eq!(spin.await.outcome.unwrap_err().code, "cpu_timeout");
    }
    assert!(took < Duration::from_millis(300), "{took:?}");
}

#[tokio::test]
async fn memory_is_refused_and_a_trap_on_that_is_named() {
    let failure = LOW.hostile().fails("grow-memory", "{}").await;
    is(
        &failure,
        "memory_exhausted",
        Deterministic,
        "16777216 allowed",
    );
    let got = LOW
        .hostile()
        .attack("grow-memory", r#"{"polite":true}"#)
        .await;
    assert!(report(&got)["bytes"].as_u64().unwrap() < 16 << 20);
    assert!(got.run.peak_memory <= 16 << 20 && got.run.peak_memory > 8 << 20);
    // Neither is too much, both are; instantiation is already refused.
    let two = Rig::new(Limits {
        memory: 100 << 20,
        ..low()
    });
    let failure = two
        .session(&text_guest("sum-of-memories"))
        .decide(Trigger::SessionStart)
        .await
        .outcome
        .unwrap_err();
    is(
        &failure,
        "memory_exhausted",
        Deterministic,
        "167772160 bytes asked for",
    );
    let failure = LOW
        .session(&text_guest("table-grow"))
        .decide(Trigger::SessionStart)
        .await
        .outcome
        .unwrap_err();
    is(
        &failure,
        "table_exhausted",
        Deterministic,
        "more than 5000 table elements",
    );
}

#[tokio::test]
async fn calls_nest_only_so_deep() {
    let failure = LOW.hostile().fails("recurse", "{}").await;
    is(&failure, "stack_overflow", Deterministic, "524288 bytes");
}

#[tokio::test]
async fn calls_into_the_host_are_counted() {
    for call in ["clock", "log", "delta"] {
        let failure = LOW
            .hostile()
            .fails("host-call-flood", &format!(r#"{{"call":"{call}"}}"#))
            .await;
        is(
            &failure,
            "host_call_limit",
            Deterministic,
            "more than 3000 calls",
        );
    }
}

#[tokio::test]
async fn ways_to_leave_without_an_answer() {
    is(
        &LOW.hostile().fails("exit", r#"{"code":3}"#).await,
        "guest_exit",
        Deterministic,
        "",
    );
    is(
        &LOW.hostile().fails("abort", "{}").await,
        "trap",
        Deterministic,
        "unreachable",
    );
    let decided = LOW.hostile().attack("panic", "{}").await;
    assert!(
        decided
            .run
            .log
            .iter()
            .any(|line| line.line.contains("as it was told to")),
        "{:?}",
        decided.run.log
    );
    is(
        &decided.outcome.unwrap_err(),
        "trap",
        Deterministic,
        "unreachable",
    );
    is(
        &LOW.hostile().fails("no such attack", "{}").await,
        "decision_failed",
        Terminal,
        "no attack named",
    );
    for odd in ["bad-pointer", "not-utf8"] {
        let failure = LOW
            .session(&text_guest(odd))
            .decide(Trigger::SessionStart)
            .await
            .outcome
            .unwrap_err();
        is(&failure, "trap", Deterministic, "");
    }
}

#[tokio::test]
async fn answers_are_bounded() {
    let hostile = LOW.hostile();
    let large = hostile.fails("big-answer", r#"{"bytes":100000}"#).await;
    is(&large, "answer_too_large", Deterministic, "65536 allowed");
    // So large that the host does not read it to the end.
    let huge = hostile.fails("big-answer", r#"{"bytes":1000000}"#).await;
    is(&huge, "answer_too_large", Deterministic, "65536 allowed");
    let many = hostile.fails("many-actions", r#"{"count":100}"#).await;
    is(
        &many,
        "answer_too_large",
        Deterministic,
        "actions is 100, 8 allowed",
    );
    let many = hostile.fails("many-messages", r#"{"count":100}"#).await;
    is(
        &many,
        "answer_too_large",
        Deterministic,
        "messages is 100, 20 allowed",
    );
    let deep = hostile.fails("deep-json", r#"{"depth":20000}"#).await;
    is(&deep, "answer_invalid", Terminal, "nested");
    let state = hostile.fails("big-state", r#"{"bytes":20000}"#).await;
    is(&state, "state_too_large", Deterministic, "16384 allowed");
    is(
        &hostile.fails("not-json", "{}").await,
        "answer_invalid",
        Terminal,
        "cannot be read",
    );
}

#[tokio::test]
async fn the_log_is_cut_and_cleaned() {
    let decided = LOW.hostile().attack("log-flood", r#"{"lines":100}"#).await;
    assert_eq!(report(&decided)["failed"], 0);
    let bytes: usize = decided.run.log.iter().map(|line| line.line.len()).sum();
    assert!(
        bytes <= 4 << 10 && bytes > 1 << 10 && decided.run.log_dropped > 100_000,
        "{bytes}"
    );
    for line in &decided.run.log {
        assert!(
            !line.line.chars().any(|c| c.is_control() || c == '\u{202e}'),
            "{line:?}"
        );
        assert!(!line.line.contains("owned"), "{line:?}");
    }
}

#[tokio::test]
async fn handles_run_out() {
    for kind in ["files", "dirs", "streams"] {
        let decided = LOW
            .hostile()
            .attack("handle-flood", &format!(r#"{{"kind":"{kind}"}}"#))
            .await;
        match &decided.outcome {
            // An error the guest could look at.
            Ok(_) => {
                let taken = report(&decided)["taken"].as_u64().unwrap();
                assert!(taken > 10 && taken <= 50, "{taken}");
            }
            Err(failure) => is(
                failure,
                "table_exhausted",
                Deterministic,
                "more than 50 handles",
            ),
        }
    }
    // An interface that has no error for it.
    let failure = LOW
        .hostile()
        .fails("handle-flood", r#"{"kind":"pollables"}"#)
        .await;
    is(
        &failure,
        "table_exhausted",
        Deterministic,
        "more than 50 handles",
    );
}

#[tokio::test]
async fn one_call_carries_only_so_much() {
    let failure = LOW
        .hostile()
        .fails("random-flood", r#"{"bytes":2000}"#)
        .await;
    is(&failure, "trap", Deterministic, "exceeds limit 1024");
    assert_eq!(
        LOW.hostile()
            .reports("random-flood", r#"{"bytes":1024}"#)
            .await["bytes"],
        1024
    );
    let delta = Limits {
        host_call_bytes: 10_000,
        ..low()
    };
    let rig = Rig::new(delta);
    let failure = rig
        .hostile()
        .fails("emit-delta", r#"{"bytes":20000}"#)
        .await;
    is(
        &failure,
        "host_call_bytes",
        Deterministic,
        "more than 10000 bytes",
    );
}

#[tokio::test]
async fn scratch_is_bounded() {
    let hostile = LOW.hostile();
    for (attack, args, says) in [
        (
            "write-file",
            r#"{"bytes":600000}"#,
            "file is 600000, 524288 allowed",
        ),
        ("many-files", r#"{"count":30}"#, "entries is 21, 20 allowed"),
        (
            "many-files",
            r#"{"count":30,"kind":"dirs"}"#,
            "entries is 21, 20 allowed",
        ),
        (
            "many-files",
            r#"{"count":3,"bytes":500000}"#,
            "bytes is 1500000, 1048576 allowed",
        ),
    ] {
        is(
            &hostile.fails(attack, args).await,
            "scratch_quota",
            Deterministic,
            says,
        );
    }
    // What a refused decision wrote is gone.
    let read = hostile
        .reports("read-file", r#"{"path":"/scratch/many-1"}"#)
        .await;
    assert!(read["error"].is_string(), "{read}");
    is(
        &hostile
            .fails("write-file", r#"{"path":"/scratch/new\nline"}"#)
            .await,
        "scratch_entry",
        Deterministic,
        "newline",
    );
}

#[tokio::test]
async fn nothing_leads_out_of_scratch() {
    let session = LOW.hostile();
    let decided = session.attack("escape", "{}").await;
    let ways = report(&decided);
    for (way, outcome) in ways.as_object().unwrap() {
        let outcome = outcome.as_str().unwrap();
        assert!(!outcome.starts_with("ok"), "{way}: {outcome}");
        assert!(!outcome.contains("root:"), "{way}: {outcome}");
    }
    assert_eq!(ways["symlink-own"], "not-permitted");
    assert_eq!(ways["hard-link-own"], "not-permitted");
    assert_eq!(decided.scratch.put.keys().collect::<Vec<_>>(), ["own"]);
}

#[tokio::test]
async fn deliveries_are_checked_and_counted() {
    let mut session = LOW.hostile();
    let many = session
        .attack("many-deliveries", r#"{"count":9,"bytes":10}"#)
        .await;
    assert_eq!(
        (
            report(&many)["delivered"].as_u64(),
            report(&many)["error"].as_str()
        ),
        (Some(5), Some("quota"))
    );
    assert_eq!((many.delivered.len(), many.blobs.len()), (5, 1));
    session.accept(&many);
    let large = session
        .reports("many-deliveries", r#"{"count":9,"bytes":400000}"#)
        .await;
    assert_eq!(
        (large["delivered"].as_u64(), large["error"].as_str()),
        (Some(1), Some("quota"))
    );
    session.discard();
    for (path, error) in [
        ("missing", "not-found"),
        ("/etc/passwd", "bad-path: \"the path is absolute"),
        ("../x", "bad-path: \"the path has the part `..`"),
        ("a\\nb", "bad-path: \"the path has the character"),
        (".", "bad-path"),
    ] {
        let said = session
            .reports("deliver", &format!(r#"{{"path":"{path}"}}"#))
            .await;
        assert!(
            said["error"].as_str().unwrap().starts_with(error),
            "{path}: {said}"
        );
    }
    let ok = session
        .attack(
            "deliver",
            r#"{"path":"gift.bin","description":"a \u001b[31mgift"}"#,
        )
        .await;
    assert_eq!(report(&ok)["bytes"], 10);
    assert_eq!(ok.delivered[0].description.as_deref(), Some("a gift"));
    assert!(ok.scratch.is_empty());
}

#[tokio::test]
async fn deltas_go_only_where_they_are_asked_for() {
    let refused = LOW.hostile().reports("emit-delta", "{}").await;
    assert!(
        refused["error"]
            .as_str()
            .unwrap()
            .contains("only while answering an llm.execute"),
        "{refused}"
    );

    let heard: Arc<Mutex<Vec<StreamDelta>>> = Arc::default();
    let hears = heard.clone();
    let mut session = LOW.hostile();
    session.deltas = Some(Arc::new(move |delta| hears.lock().unwrap().push(delta)));
    let ask = |args: &str, stream: bool, format: Option<WireFormat>| Trigger::LlmExecute {
        id: "c1".into(),
        request: Json::parse(&format!(r#"{{"attack":"emit-delta","args":{args}}}"#)).unwrap(),
        format,
        stream,
        attempt: 1,
        deadline: None,
    };
    let emit =
        async |args: &str, stream, format| report(&session.decide(ask(args, stream, format)).await);

    assert_eq!(emit(r#"{"count":2}"#, true, None).await["emitted"], 2);
    assert_eq!(
        heard
            .lock()
            .unwrap()
            .drain(..)
            .map(|delta| delta.text.unwrap())
            .collect::<Vec<_>>(),
        ["ddddd", "ddddd"]
    );
    assert!(emit("{}", false, None).await["error"].is_string());
    let large = emit(r#"{"bytes":2000}"#, true, None).await;
    assert!(
        large["error"]
            .as_str()
            .unwrap()
            .contains("1024 are allowed"),
        "{large}"
    );
    let many = emit(r#"{"bytes":900,"count":100}"#, true, None).await;
    assert_eq!(many["emitted"], 4);
    assert!(
        many["error"]
            .as_str()
            .unwrap()
            .contains("4096 bytes together"),
        "{many}"
    );
    for (delta, says) in [
        (r#""[1,""#, "not JSON"),
        (r#"{"text":1}"#, "not a StreamDelta"),
    ] {
        let odd = emit(&format!(r#"{{"delta":{delta}}}"#), true, None).await;
        assert!(odd["error"].as_str().unwrap().contains(says), "{odd}");
    }
    heard.lock().unwrap().clear();
    let event = r#"{"delta":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}}"#;
    assert_eq!(
        emit(event, true, Some(WireFormat::Anthropic)).await["emitted"],
        1
    );
    assert_eq!(heard.lock().unwrap()[0].text.as_deref(), Some("hi"));
}

#[tokio::test]
async fn there_is_no_world_outside() {
    let network = LOW.hostile().reports("network", "{}").await;
    for (step, outcome) in network.as_object().unwrap() {
        assert_ne!(outcome, "ok", "{step}");
    }
    assert_eq!(
        LOW.hostile().reports("env", "{}").await,
        serde_json::json!({"env":[],"args":[]})
    );
    assert_eq!(LOW.hostile().reports("stdin", "{}").await["bytes"], 0);
}

#[tokio::test]
async fn more_decisions_than_places_wait() {
    let sessions: Vec<_> = (0..40).map(|_| LOW.hostile()).collect();
    let all: Vec<_> = sessions
        .iter()
        .map(|s| LOW.sandbox_decide(s, "clock"))
        .collect();
    for one in all {
        assert!(one.await.outcome.is_ok());
    }
}

#[tokio::test]
async fn a_component_nobody_stored_is_missing() {
    let mut session = LOW.hostile();
    for version in ["sha256:00", "1.0.0", &format!("sha256:{}", "0".repeat(64))] {
        session.version = version.into();
        let failure = session
            .decide(Trigger::SessionStart)
            .await
            .outcome
            .unwrap_err();
        is(&failure, "component_missing", Terminal, version);
    }
}

#[tokio::test]
async fn a_dropped_decision_ends() {
    let rig = Rig::new(Limits {
        fuel: u64::MAX / 2,
        resident: 1,
        resident_per_tenant: 1,
        cpu: Duration::from_secs(60),
        wall: Duration::from_secs(60),
        ..low()
    });
    let session = rig.hostile();
    drop(tokio::time::timeout(Duration::from_millis(100), session.attack("spin", "{}")).await);
    // The only place is free again.
    assert!(session.decide(Trigger::SessionStart).await.outcome.is_ok());
}

impl Rig {
    /// A decision that is already running when this returns.
    fn sandbox_decide(
        &self,
        session: &Session<'_>,
        attack: &str,
    ) -> belljar_protocol::ports::Boxed<'static, belljar_protocol::ports::Decided> {
        use belljar_protocol::ports::Worker;
        self.sandbox.decide(session.job(Trigger::ClientAction {
            name: attack.into(),
            args: None,
        }))
    }
}

/// Looks for what another decision left in its memory, then leaves something everywhere itself.
const NOSY: &str = r#"(component
  (core module $agent
    (memory (export "memory") 64)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (i32.shl
        (memory.grow (i32.shr_u (i32.add (local.get 3) (i32.const 65535)) (i32.const 16)))
        (i32.const 16)))
    (func (export "decide") (param i32 i32) (result i32)
      (local $at i32)
      (local.set $at (i32.const 4096))
      (loop $next
        (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then (unreachable)))
        (i64.store (local.get $at) (i64.const -1))
        (local.set $at (i32.add (local.get $at) (i32.const 512)))
        (br_if $next (i32.lt_u (local.get $at) (i32.const 4194304))))
      (i32.const 16))
    (data (i32.const 16) "\00\00\00\00\20\00\00\00\02\00\00\00")
    (data (i32.const 32) "{}"))
  (core instance $agent (instantiate $agent))
  (func (export "decide") (param "request" string) (result (result string (error string)))
    (canon lift (core func $agent "decide")
      (memory (core memory $agent "memory"))
      (realloc (core func $agent "realloc")))))"#;

#[tokio::test]
async fn memory_of_another_decision_is_never_seen() {
    // One place: every decision gets the memory of the one before it.
    let rig = Rig::new(Limits {
        resident: 1,
        resident_per_tenant: 1,
        ..low()
    });
    let session = rig.session(&wat::parse_str(NOSY).unwrap().into());
    for _ in 0..20 {
        let decided = session.decide(Trigger::SessionStart).await;
        assert!(decided.outcome.is_ok(), "{:?}", decided.outcome);
    }
}
