//! A host on a store in memory, with an agent and a model written here, and time that tests move.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_protocol::call::ErrorCode;
use belljar_protocol::decision::{
    Answer, DecisionFailure, DecisionResponse, FailureClass, Identity, Trigger,
};
use belljar_protocol::event::Event;
use belljar_protocol::id::{AgentId, SessionId, TenantId, VersionId};
use belljar_protocol::model::{LlmRequest, LlmResponse, ModelFailure, StreamDelta};
use belljar_protocol::ports::{
    Admitted, Boxed, Clock, Components, Conclusion, Decided, DeltaSink, Entropy, Job, Model,
    Models, Refused, Store, Worker,
};
use belljar_protocol::problem::Problem;
use belljar_protocol::run::RunRecord;
use belljar_protocol::scratch::ScratchChange;
use belljar_protocol::version::World;
use belljar_protocol::{Json, Timestamp};
use belljar_server::{Host, HostConfig, Parts, driver::Item, driver::Submitted};
use bytes::Bytes;

/// Time that stands still unless tokio's paused clock moves it.
pub struct TestClock {
    base: i64,
    start: tokio::time::Instant,
}

impl TestClock {
    pub fn new(base: i64) -> Arc<Self> {
        Arc::new(Self {
            base,
            start: tokio::time::Instant::now(),
        })
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.base + self.start.elapsed().as_millis() as i64)
    }
    fn wait_until(&self, at: Timestamp) -> Boxed<'static, ()> {
        let wait = at.secs_since(self.now()).max(0.0);
        Box::pin(tokio::time::sleep(Duration::from_secs_f64(wait)))
    }
}

#[derive(Default)]
pub struct Counting(AtomicU64);

impl Entropy for Counting {
    fn seed(&self) -> [u8; 32] {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.0.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        seed
    }
}

/// What the agent was asked, and how it is told to behave.
#[derive(Default)]
pub struct Agent {
    pub asked: Mutex<Vec<(String, u32, VersionId)>>,
    pub concluded: Mutex<Vec<Conclusion>>,
    /// How long each decision takes.
    pub takes: Mutex<Duration>,
    /// Failures to give before answers.
    pub fails: Mutex<VecDeque<FailureClass>>,
    /// Looked at first; none leaves it to the rest.
    pub script: Mutex<Option<Script>>,
}

pub type Script = Box<dyn FnMut(&Job) -> Option<Decided> + Send>;

/// A run that ended like this, and did nothing else.
pub fn decided(job: &Job, outcome: Result<Answer, DecisionFailure>) -> Decided {
    Decided {
        outcome,
        run: RunRecord {
            version: Some(job.version.clone()),
            fuel: 7,
            ..RunRecord::default()
        },
        scratch: ScratchChange::default(),
        delivered: Vec::new(),
        blobs: Vec::new(),
    }
}

pub const CONFIG: &str =
    r#"{"agent":{"model":"m","stream":true,"tools":[{"name":"add","input":{"type":"object"}}]}}"#;

impl Worker for Agent {
    fn decide(&self, job: Job) -> Boxed<'static, Decided> {
        let kind = job.ask.trigger.kind().to_owned();
        self.asked
            .lock()
            .unwrap()
            .push((kind, job.ask.attempts, job.version.clone()));
        let scripted = match &mut *self.script.lock().unwrap() {
            Some(script) => script(&job),
            None => None,
        };
        let decided = scripted.unwrap_or_else(|| {
            let outcome = match (self.fails.lock().unwrap().pop_front(), &job.ask.trigger) {
                (Some(class), _) => Err(DecisionFailure {
                    class,
                    code: "trap".into(),
                    message: "told to fail".into(),
                    detail: None,
                }),
                (None, Trigger::SessionStart) => Ok(response(CONFIG)),
                (None, Trigger::ToolExecute { .. }) => Ok(response(
                    r#"{"actions":[{"type":"tool.result","result":"3"}]}"#,
                )),
                (None, _) => Ok(Answer::Accept),
            };
            decided(&job, outcome)
        });
        let takes = *self.takes.lock().unwrap();
        Box::pin(async move {
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            decided
        })
    }
    fn conclude(&self, _: &TenantId, _: &SessionId, conclusion: Conclusion) {
        self.concluded.lock().unwrap().push(conclusion);
    }
}

pub fn response(json: &str) -> Answer {
    serde_json::from_str::<DecisionResponse>(json)
        .unwrap()
        .into()
}

/// A model: "go" gets one tool call, a tool's result gets its text back, anything else "hello".
#[derive(Default)]
pub struct FakeModel {
    pub asked: Mutex<Vec<Arc<LlmRequest>>>,
    pub fails: Mutex<VecDeque<ModelFailure>>,
    pub takes: Mutex<Duration>,
    /// The next call ends in a panic.
    pub panics: AtomicBool,
}

impl Model for FakeModel {
    fn ask(
        &self,
        request: Arc<LlmRequest>,
        sink: Option<DeltaSink>,
    ) -> Boxed<'_, Result<LlmResponse, ModelFailure>> {
        self.asked.lock().unwrap().push(request.clone());
        if self.panics.swap(false, Ordering::Relaxed) {
            return Box::pin(async { panic!("told to") });
        }
        let failure = self.fails.lock().unwrap().pop_front();
        let takes = *self.takes.lock().unwrap();
        Box::pin(async move {
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            if let Some(sink) = sink {
                sink(StreamDelta {
                    text: Some("he".into()),
                    ..StreamDelta::default()
                });
            }
            let last = request.messages.last().unwrap();
            let text = last
                .content
                .as_ref()
                .map(|content| content.text())
                .unwrap_or_default();
            let reply = match text.as_str() {
                "go" => {
                    r#"{"model":"m","tool_calls":[{"id":"k","type":"function","function":{"name":"add","arguments":"{}"}}]}"#
                }
                "3" => r#"{"model":"m","content":"three"}"#,
                _ => r#"{"model":"m","content":"hello"}"#,
            };
            Ok(serde_json::from_str(reply).unwrap())
        })
    }
}

pub fn overloaded() -> ModelFailure {
    ModelFailure {
        message: "overloaded".into(),
        retryable: true,
        code: ErrorCode::ProviderError,
        retry_after_secs: None,
        detail: None,
    }
}

struct OneModel(Arc<FakeModel>);

impl Models for OneModel {
    fn resolve(&self, model: &str) -> Result<(Arc<dyn Model>, String), ModelFailure> {
        Ok((self.0.clone(), model.to_owned()))
    }
}

struct AdmitAll;

impl Components for AdmitAll {
    fn admit(&self, component: Bytes) -> Boxed<'static, Result<Admitted, Refused>> {
        Box::pin(async move {
            if component.is_empty() {
                return Err(Refused {
                    step: "component",
                    reason: "it is empty".into(),
                    fix: "send one".into(),
                });
            }
            Ok(Admitted {
                world: World::Agent,
                imports: Vec::new(),
                compile_ms: 1,
            })
        })
    }
}

/// A host and everything around it.
pub struct Bed {
    pub host: Host,
    pub agent: Arc<Agent>,
    pub model: Arc<FakeModel>,
    pub tenant: TenantId,
    pub name: AgentId,
}

impl Bed {
    /// A host with one live version of the agent `bot`.
    pub async fn new(store: Arc<dyn Store>) -> Self {
        let bed = Self::restart(
            store,
            Arc::default(),
            1_800_000_000_000,
            HostConfig::default(),
        )
        .await;
        bed.host
            .upload(
                &bed.tenant,
                &bed.name,
                Bytes::from_static(b"one"),
                true,
                "test",
            )
            .await
            .unwrap();
        bed
    }

    /// A host on a store as another one left it.
    pub async fn restart(
        store: Arc<dyn Store>,
        model: Arc<FakeModel>,
        base: i64,
        config: HostConfig,
    ) -> Self {
        let agent = Arc::new(Agent::default());
        let parts = Parts {
            store,
            worker: agent.clone(),
            components: Arc::new(AdmitAll),
            models: Arc::new(OneModel(model.clone())),
            clock: TestClock::new(base),
            entropy: Arc::new(Counting(AtomicU64::new(base as u64))),
        };
        let host = Host::start(parts, config).await.unwrap();
        Self {
            host,
            agent,
            model,
            tenant: TenantId::built_in(),
            name: AgentId::from("bot"),
        }
    }

    pub async fn say(&self, session: &str, turn: &str, text: &str) -> Result<Submitted, Problem> {
        let input = format!(
            r#"{{"type":"client.message","agent_id":"bot","turn_id":"{turn}","message":{{"role":"user","content":"{text}"}}}}"#
        );
        let input = serde_json::from_str(&input).unwrap();
        self.host
            .submit(
                &self.tenant,
                Some(SessionId::from(session)),
                input,
                Identity::default(),
            )
            .await
    }

    /// Waits for the end of a turn; gives its data or its error's code.
    pub async fn turn(&self, session: &str, turn: &str) -> String {
        let mut watch = self
            .host
            .subscribe(&self.tenant, &SessionId::from(session), 0)
            .await
            .unwrap();
        loop {
            let item = tokio::time::timeout(Duration::from_secs(7_200), watch.next()).await;
            match item.expect("the turn ends").expect("the stream goes on") {
                Item::Event { event, .. } => {
                    if let Event::TurnEnded(ended) = &*event
                        && ended.turn_id.as_str() == turn
                    {
                        return match &ended.error {
                            Some(error) => error.code.clone(),
                            None => ended.data.as_ref().and_then(Json::text).unwrap_or_default(),
                        };
                    }
                }
                Item::CaughtUp { .. } | Item::Delta { .. } => {}
                Item::Closed { reason, .. } => panic!("closed: {reason}"),
            }
        }
    }

    pub fn asked(&self) -> Vec<(String, u32)> {
        self.agent
            .asked
            .lock()
            .unwrap()
            .iter()
            .map(|(kind, attempts, _)| (kind.clone(), *attempts))
            .collect()
    }
}
