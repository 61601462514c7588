//! A sandbox with sessions in it, as the driver would keep them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use belljar_protocol::decision::{
    Action, Answer, Ask, DecisionFailure, Identity, ToolInput, Trigger,
};
use belljar_protocol::id::{SessionId, TenantId, VersionId};
use belljar_protocol::ports::{
    Blobs, Boxed, Components, Conclusion, Decided, DeltaSink, Job, SessionView, StoreError, Worker,
};
use belljar_protocol::scratch::{Digest, ScratchManifest};
use belljar_protocol::{Json, Timestamp};
use belljar_sandbox::{FixedView, Limits, Sandbox, SandboxConfig};
use bytes::Bytes;

/// Blobs in memory.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) blobs: Mutex<HashMap<Digest, Bytes>>,
    pub(crate) reads: AtomicUsize,
}

impl Memory {
    pub(crate) fn put(&self, bytes: Bytes) -> Digest {
        let digest = Digest::of(&bytes);
        self.blobs.lock().unwrap().insert(digest.clone(), bytes);
        digest
    }
}

impl Blobs for Memory {
    fn blob(&self, _: &TenantId, digest: &Digest) -> Boxed<'_, Result<Option<Bytes>, StoreError>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let found = self.blobs.lock().unwrap().get(digest).cloned();
        Box::pin(async move { Ok(found) })
    }
}

/// A guest that `./just guests` has built.
pub(crate) fn guest(name: &str) -> Bytes {
    let folder = std::env::var_os("BELLJAR_GUESTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guests"),
        PathBuf::from,
    );
    let path = folder.join(format!("{name}.wasm"));
    match std::fs::read(&path) {
        Ok(bytes) => bytes.into(),
        Err(error) => panic!("{}: {error}: run ./just guests", path.display()),
    }
}

/// A guest written down as text, in `guests/hostile/wat`.
pub(crate) fn text_guest(name: &str) -> Bytes {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../guests/hostile/wat/{name}.wat"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    wat::parse_str(text).unwrap().into()
}

/// Limits low enough for each attack to take less than a second.
pub(crate) fn low() -> Limits {
    Limits {
        fuel: 100_000_000,
        cpu: Duration::from_secs(5),
        wall: Duration::from_secs(5),
        memory: 16 << 20,
        table_elements: 5_000,
        host_calls: 3_000,
        host_call_bytes: 256 << 10,
        handles: 50,
        answer_bytes: 64 << 10,
        answer_actions: 8,
        answer_messages: 20,
        state_bytes: 16 << 10,
        random_bytes: 1 << 10,
        log_bytes: 4 << 10,
        scratch_bytes: 1 << 20,
        scratch_entries: 20,
        file_bytes: 512 << 10,
        deliveries: 5,
        delivery_bytes: 600 << 10,
        delta_bytes: 1 << 10,
        deltas_bytes: 4 << 10,
        resident: 8,
        resident_per_tenant: 4,
        ..Limits::default()
    }
}

pub(crate) struct Rig {
    pub(crate) sandbox: Sandbox,
    pub(crate) blobs: Arc<Memory>,
    pub(crate) data: tempfile::TempDir,
}

/// One sandbox with [`low`] limits for all tests that need no other.
pub(crate) static LOW: LazyLock<Rig> = LazyLock::new(|| Rig::new(low()));

impl Rig {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::on(tempfile::tempdir().unwrap(), Arc::default(), limits)
    }

    pub(crate) fn on(data: tempfile::TempDir, blobs: Arc<Memory>, limits: Limits) -> Self {
        let config = SandboxConfig {
            data_dir: data.path().join("data"),
            limits,
            secret: [9; 32],
            threads: 2,
            blobs: blobs.clone(),
        };
        Self {
            sandbox: Sandbox::new(config).unwrap(),
            blobs,
            data,
        }
    }

    pub(crate) fn session<'a>(&'a self, component: &Bytes) -> Session<'a> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let digest = self.blobs.put(component.clone());
        Session {
            rig: self,
            version: VersionId::from(format!("sha256:{digest}")),
            previous: None,
            session: SessionId::from(format!("s{}", NEXT.fetch_add(1, Ordering::Relaxed))),
            decision: "d1".into(),
            live_at: Timestamp::from_millis(1_764_547_200_000),
            manifest: Arc::default(),
            view: Arc::new(FixedView::default()),
            deltas: None,
        }
    }

    pub(crate) fn hostile(&self) -> Session<'_> {
        self.session(&guest("hostile"))
    }

    pub(crate) async fn admit(
        &self,
        component: Bytes,
    ) -> Result<belljar_protocol::ports::Admitted, belljar_protocol::ports::Refused> {
        self.sandbox.admit(component).await
    }
}

pub(crate) struct Session<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) version: VersionId,
    pub(crate) previous: Option<VersionId>,
    pub(crate) session: SessionId,
    pub(crate) decision: String,
    pub(crate) live_at: Timestamp,
    pub(crate) manifest: Arc<ScratchManifest>,
    pub(crate) view: Arc<dyn SessionView>,
    pub(crate) deltas: Option<DeltaSink>,
}

impl Session<'_> {
    pub(crate) fn tenant() -> TenantId {
        TenantId::built_in()
    }

    pub(crate) fn job(&self, trigger: Trigger) -> Job {
        Job {
            tenant: Self::tenant(),
            version: self.version.clone(),
            ask: Ask {
                session_id: self.session.clone(),
                decision_id: self.decision.as_str().into(),
                agent_id: "ledger".into(),
                identity: Identity::default(),
                trigger,
                previous_version: self.previous.clone(),
                pending_calls: 0,
                ancestry: Vec::new(),
                attempts: 1,
                deadline: None,
                turn_id: Some("t1".into()),
                live_at: self.live_at,
            },
            view: self.view.clone(),
            scratch: self.manifest.clone(),
            deltas: self.deltas.clone(),
        }
    }

    pub(crate) async fn decide(&self, trigger: Trigger) -> Decided {
        self.rig.sandbox.decide(self.job(trigger)).await
    }

    /// Takes a decision's changes over, as a commit does.
    pub(crate) fn accept(&mut self, decided: &Decided) {
        assert!(decided.outcome.is_ok(), "{:?}", decided.outcome);
        for (digest, bytes) in &decided.blobs {
            assert_eq!(self.rig.blobs.put(bytes.clone()), *digest);
        }
        if !decided.scratch.is_empty() {
            self.manifest = Arc::new(self.manifest.after(&decided.scratch));
        }
        let conclusion = Conclusion::Accepted {
            generation: self.manifest.generation,
        };
        self.rig
            .sandbox
            .conclude(&Self::tenant(), &self.session, conclusion);
    }

    pub(crate) fn discard(&self) {
        self.rig
            .sandbox
            .conclude(&Self::tenant(), &self.session, Conclusion::Discarded);
    }

    pub(crate) async fn tool(&self, name: &str, input: &str) -> Decided {
        self.decide(Trigger::ToolExecute {
            id: "c1".into(),
            name: name.into(),
            arguments: input.into(),
            input: ToolInput::Valid {
                value: Json::parse(input).unwrap(),
            },
            attempt: 1,
            deadline: None,
        })
        .await
    }

    /// One attack of the hostile guest.
    pub(crate) async fn attack(&self, name: &str, args: &str) -> Decided {
        let args = Some(Json::parse(args).unwrap());
        self.decide(Trigger::ClientAction {
            name: name.into(),
            args,
        })
        .await
    }

    /// An attack, and the failure it ended in.
    pub(crate) async fn fails(&self, name: &str, args: &str) -> DecisionFailure {
        let decided = self.attack(name, args).await;
        assert!(
            decided.scratch.is_empty() && decided.blobs.is_empty() && decided.delivered.is_empty()
        );
        let failure = decided.outcome.expect_err(name);
        // The host still serves the next request.
        let next = self.decide(Trigger::SessionStart).await;
        assert!(next.outcome.is_ok(), "{:?}", next.outcome);
        failure
    }

    /// An attack, and what it reports.
    pub(crate) async fn reports(&self, name: &str, args: &str) -> serde_json::Value {
        report(&self.attack(name, args).await)
    }
}

/// The report of an attack that came to an end.
pub(crate) fn report(decided: &Decided) -> serde_json::Value {
    match &decided.outcome {
        Ok(Answer::Respond(response)) => match &response.actions[..] {
            [Action::Done(done)] => done.data.as_ref().unwrap().read().unwrap(),
            [Action::LlmResult(result)] => {
                let response: serde_json::Value = result.response.read().unwrap();
                serde_json::from_str(response["content"].as_str().unwrap()).unwrap()
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// The text a tool answered with.
pub(crate) fn tool_text(decided: &Decided) -> String {
    match &decided.outcome {
        Ok(Answer::Respond(response)) => match &response.actions[..] {
            [Action::ToolResult(result)] => result.result.as_ref().unwrap().text().unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}
