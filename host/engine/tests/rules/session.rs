//! One session under test: a clock and entropy of its own, and one method per thing that can
//! happen to it. Each step also checks that folding the log gives the state it led to.

use belljar_engine::{
    AnswerIn, Command, Now, Party, Plan, Rejection, Reply, SettleError, State, apply, handle, plan,
    restore, snapshot,
};
use belljar_protocol::call::ErrorCode;
use belljar_protocol::decision::{
    Answer, DecisionFailure, DecisionResponse, FailureClass, Identity, proposed_json, request_json,
};
use belljar_protocol::event::{Commit, Event};
use belljar_protocol::id::{CallId, DecisionId, SessionId};
use belljar_protocol::model::{LlmResponse, ModelFailure};
use belljar_protocol::scratch::ScratchChange;
use belljar_protocol::{Json, Timestamp};
use serde_json::{Value, json};

/// When every story begins.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

pub(crate) struct Session {
    pub(crate) state: State,
    pub(crate) log: Vec<Commit>,
    pub(crate) now: Timestamp,
    steps: u64,
}

impl Session {
    /// Nobody has spoken yet.
    pub(crate) fn new() -> Self {
        Self {
            state: State::new(SessionId::from("s")),
            log: Vec::new(),
            now: START,
            steps: 0,
        }
    }

    /// Turn `t1` runs: `u1` was said, `session.start` set [`config`], and `client.messages` is live.
    pub(crate) fn asked() -> Self {
        Self::asked_with(config())
    }

    pub(crate) fn asked_with(config: Value) -> Self {
        let mut s = Self::new();
        s.say("t1", "u1");
        s.answer(json!({ "agent": config }));
        s
    }

    /// Turn `t1` runs, and the model has been asked.
    pub(crate) fn prompted() -> Self {
        let mut s = Self::asked();
        s.accept();
        s
    }

    /// Turn `t1` is over: `u1` was answered with `hi`.
    pub(crate) fn chatted() -> Self {
        let mut s = Self::prompted();
        s.reply(json!({ "content": "hi" }));
        s.accept();
        s
    }

    /// Turn `t1` runs, and the model's tool calls were requested, each `[id, tool]`.
    pub(crate) fn calling(calls: &[[&str; 2]]) -> Self {
        let mut s = Self::prompted();
        s.reply(tool_calls(calls));
        s.accept();
        s
    }

    // ---- what can happen ----

    pub(crate) fn command(&mut self, command: Command) -> Result<Reply, Rejection> {
        self.steps += 1;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.steps.to_be_bytes());
        let now = Now { at: self.now, seed };
        let handled = handle(&self.state, command, &now)?;
        match &handled.commit {
            Some(commit) => {
                assert_eq!(commit.first_seq, self.state.seq() + 1);
                assert_eq!(commit.last_seq(), handled.state.seq());
                let text = Json::of(commit);
                let read: Commit = text.read().unwrap();
                assert_eq!(Json::of(&read).as_str(), text.as_str());
                apply(&mut self.state, &read);
                assert_same(&self.state, &handled.state);
                self.log.push(read);
            }
            None => assert_eq!(handled.state.seq(), self.state.seq()),
        }
        self.state = handled.state;
        Ok(handled.reply)
    }

    /// A client's input; gives the turn that took it in.
    pub(crate) fn submit(&mut self, input: Value) -> Result<String, Rejection> {
        let command = Command::Submit {
            input: read(&input),
            identity: Identity::default(),
            version: None,
        };
        match self.command(command)? {
            Reply::Submitted { turn_id } => {
                Ok(turn_id.map_or_else(String::new, |id| id.to_string()))
            }
            other => panic!("{other:?}"),
        }
    }

    /// `client.message` with `id` as the message's id and its text.
    pub(crate) fn say(&mut self, turn: &str, id: &str) {
        self.submit(message(turn, id)).unwrap();
    }

    /// `client.messages` with a view.
    pub(crate) fn view(&mut self, turn: &str, messages: &Value) {
        self.submit(view(turn, messages)).unwrap();
    }

    /// `client.action`.
    pub(crate) fn act(&mut self, turn: &str, name: &str) -> String {
        self.submit(
            json!({"type": "client.action", "agent_id": "bot", "turn_id": turn, "name": name}),
        )
        .unwrap()
    }

    fn deliver(&mut self, id: &str, outcome: Result<Answer, DecisionFailure>) -> bool {
        let answer = AnswerIn {
            decision_id: DecisionId::from(id),
            outcome,
            run: None,
            scratch: ScratchChange::default(),
            delivered: Vec::new(),
        };
        match self.command(Command::Answer(Box::new(answer))).unwrap() {
            Reply::Answered { accepted } => accepted,
            other => panic!("{other:?}"),
        }
    }

    /// Answers the live decision; it must be taken.
    #[track_caller]
    pub(crate) fn answer(&mut self, answer: Value) {
        assert!(self.try_answer(answer), "refused: {:?}", self.turn_ended());
    }

    /// Answers the live decision; whether the answer was taken.
    #[track_caller]
    pub(crate) fn try_answer(&mut self, answer: Value) -> bool {
        let id = self.live_id();
        self.answer_to(&id, answer)
    }

    pub(crate) fn answer_to(&mut self, id: &str, answer: Value) -> bool {
        let answer: DecisionResponse = read(&answer);
        self.deliver(id, Ok(answer.into()))
    }

    /// Answers the live decision with the text of an answer; one that does not parse is a failure,
    /// as it is of a worker's body.
    pub(crate) fn answer_text(&mut self, text: &str) {
        let id = self.live_id();
        match serde_json::from_str::<DecisionResponse>(text) {
            Ok(answer) => {
                self.deliver(&id, Ok(answer.into()));
            }
            Err(_) => self.fail(FailureClass::Terminal),
        }
    }

    /// Answers the live decision with a wrong answer; gives what the refusal says.
    #[track_caller]
    pub(crate) fn refused(&mut self, answer: Value) -> String {
        assert!(!self.try_answer(answer), "taken");
        let failed = self.last("decision.failed");
        assert_eq!(failed["error"]["code"], "answer_refused");
        failed["error"]["message"].as_str().unwrap().to_owned()
    }

    /// Accepts the proposal.
    #[track_caller]
    pub(crate) fn accept(&mut self) {
        let id = self.live_id();
        assert!(
            self.deliver(&id, Ok(Answer::Accept)),
            "{:?}",
            self.turn_ended()
        );
    }

    /// A delivery that failed.
    #[track_caller]
    pub(crate) fn fail(&mut self, class: FailureClass) {
        let failure = DecisionFailure {
            class,
            code: "decision_failed".into(),
            message: "it broke".into(),
            detail: None,
        };
        let id = self.live_id();
        self.deliver(&id, Err(failure));
    }

    /// The oldest model call in flight is answered.
    #[track_caller]
    pub(crate) fn reply(&mut self, reply: Value) {
        let (call, attempt) = self.in_flight();
        self.reply_to(&call, attempt, reply);
    }

    pub(crate) fn reply_to(&mut self, call: &str, attempt: u32, reply: Value) {
        let outcome = match reply.get("error") {
            None => Ok(read::<LlmResponse>(&reply)),
            Some(error) => Err(ModelFailure {
                message: error.as_str().unwrap().into(),
                retryable: reply["retryable"] == true,
                code: serde_json::from_value(reply["code"].clone())
                    .unwrap_or(ErrorCode::ProviderError),
                retry_after_secs: reply["retry_after_secs"].as_f64(),
                detail: None,
            }),
        };
        let command = Command::Reply {
            call_id: CallId::from(call),
            attempt,
            outcome,
        };
        self.command(command).unwrap();
    }

    /// A result from outside; the status it gets.
    pub(crate) fn settle(
        &mut self,
        by: Party,
        call: &str,
        attempt: Option<u32>,
        result: Value,
    ) -> u16 {
        let outcome = match result.get("error") {
            Some(error) => Err(SettleError {
                error: error.as_str().unwrap().into(),
                retryable: result["retryable"] == true,
            }),
            None => Ok(result.get("result").map(Json::of)),
        };
        let command = Command::Settle {
            call_id: CallId::from(call),
            by,
            attempt,
            outcome,
        };
        self.command(command)
            .map_or_else(|refused| refused.status, |_| 200)
    }

    /// The clock moves; timers fire when they are due.
    pub(crate) fn advance(&mut self, secs: f64) {
        let target = self.now.plus_secs(secs);
        for _ in 0..10_000 {
            let Some(wake) = self.plan().wake.filter(|wake| *wake <= target) else {
                self.now = target;
                return;
            };
            let before = (self.now, self.state.seq());
            self.now = self.now.max(wake);
            self.command(Command::Tick).unwrap();
            assert_ne!(
                before,
                (self.now, self.state.seq()),
                "a due timer fires nothing"
            );
        }
        panic!("timers do not come to rest");
    }

    /// The host goes down and comes up with what is on disk: the log, and snapshots of it.
    pub(crate) fn crash(&mut self) {
        self.state = self.folded();
        self.command(Command::Recover).unwrap();
    }

    pub(crate) fn abort(&mut self) {
        self.command(Command::Abort { by: Party::Client }).unwrap();
    }

    // ---- what there is to see ----

    /// The state from a snapshot and its tail; from the log alone it is the same.
    pub(crate) fn folded(&self) -> State {
        let mut state = State::new(SessionId::from("s"));
        let mut restored: Option<State> = None;
        for commit in &self.log {
            apply(&mut state, commit);
            if let Some(restored) = &mut restored {
                apply(restored, commit);
            }
            if let Some(taken) = snapshot(&state) {
                assert!(Json::parse(taken.body.as_str()).is_ok());
                restored = Some(restore(SessionId::from("s"), &taken).unwrap());
            }
        }
        if let Some(restored) = restored {
            assert_same(&restored, &state);
            return restored;
        }
        state
    }

    pub(crate) fn plan(&self) -> Plan {
        plan(&self.state, self.now)
    }

    /// The live decision as its agent sees it.
    #[track_caller]
    pub(crate) fn ask(&self) -> Value {
        let composed = self.state.composed().expect("a decision is live");
        let text = request_json(&composed.ask, composed.view.as_ref(), None);
        serde_json::from_str(&text).unwrap()
    }

    /// Why the live decision is asked; empty when there is none.
    pub(crate) fn live(&self) -> &'static str {
        self.state
            .composed()
            .map_or("", |composed| composed.ask.trigger.kind())
    }

    #[track_caller]
    pub(crate) fn live_id(&self) -> String {
        let composed = self.state.composed().expect("a decision is live");
        composed.ask.decision_id.to_string()
    }

    #[track_caller]
    pub(crate) fn trigger(&self) -> Value {
        self.ask()["trigger"].take()
    }

    #[track_caller]
    pub(crate) fn proposed(&self) -> Value {
        self.ask()["proposed"].take()
    }

    /// The proposal as an agent that echoes JSON sends it back.
    pub(crate) fn proposal(&self) -> Value {
        let composed = self.state.composed().expect("a decision is live");
        value(proposed_json(composed.view.as_ref()))
    }

    /// The oldest model call in flight, and its attempt.
    #[track_caller]
    pub(crate) fn in_flight(&self) -> (String, u32) {
        let due = self
            .plan()
            .model_calls
            .into_iter()
            .next()
            .expect("a model call is in flight");
        (due.call_id.to_string(), due.attempt)
    }

    /// The request of the oldest model call in flight.
    #[track_caller]
    pub(crate) fn request(&self) -> Value {
        let (call, _) = self.in_flight();
        value(self.state.llm_request(&CallId::from(&*call)))
    }

    /// The messages of that request in short: role, and the call a tool message answers.
    #[track_caller]
    pub(crate) fn prompt(&self) -> Vec<String> {
        shape(&self.request()["messages"])
    }

    /// An open call as agents see it; null when it is not open.
    pub(crate) fn call(&self, id: &str) -> Value {
        let calls = self.state.open_calls();
        let found = calls.iter().find(|call| call.id.as_str() == id);
        value(found)
    }

    /// Ids on the active path.
    pub(crate) fn path(&self) -> Vec<String> {
        let tree = self.state.tree();
        let message = |ix| tree.on_path(ix).unwrap().id.as_ref().unwrap().to_string();
        (0..tree.path_len()).map(message).collect()
    }

    /// What the messages of the active path say.
    pub(crate) fn said(&self) -> Vec<String> {
        let tree = self.state.tree();
        let text = |ix| {
            tree.on_path(ix)
                .unwrap()
                .content
                .as_ref()
                .map(|content| content.text())
        };
        (0..tree.path_len())
            .map(|ix| text(ix).unwrap_or_default())
            .collect()
    }

    /// How the last turn ended.
    pub(crate) fn turn_ended(&self) -> Value {
        value(self.state.last_turn())
    }

    /// The code of the error the last turn ended with; null when it completed.
    pub(crate) fn turn_error(&self) -> Value {
        self.turn_ended()["error"]["code"].take()
    }

    pub(crate) fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.log.iter().flat_map(|commit| &commit.events)
    }

    /// How many events of a kind there are.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.events().filter(|event| event.kind() == kind).count()
    }

    /// The last event of a kind.
    #[track_caller]
    pub(crate) fn last(&self, kind: &str) -> Value {
        value(
            self.events()
                .rfind(|event| event.kind() == kind)
                .expect(kind),
        )
    }

    /// Nothing runs, nothing is open, nothing is due, and the next message is taken.
    #[track_caller]
    pub(crate) fn assert_at_rest(&mut self) {
        assert_eq!(self.state.status(), "idle");
        assert_eq!(self.plan(), Plan::default());
        assert_eq!(self.state.open_calls(), []);
        assert_eq!(self.state.pending_calls(), 0);
        self.say("next", "next");
        assert_ne!(self.live(), "");
    }
}

/// What two states say is the same.
#[track_caller]
pub(crate) fn assert_same(a: &State, b: &State) {
    let told = |state: &State| {
        let asked = state
            .composed()
            .map(|composed| request_json(&composed.ask, composed.view.as_ref(), None));
        let snapshot = snapshot(state).map(|snapshot| snapshot.body.as_str().to_owned());
        (state.seq(), snapshot, asked)
    };
    assert_eq!(told(a), told(b));
}

/// Tools: `add` with a schema, `now` without, `pick` of the client; and a sub-agent `helper`.
pub(crate) fn config() -> Value {
    json!({
        "model": "m",
        "system": "Be brief.",
        "tools": [
            {"name": "add", "input": {
                "type": "object",
                "properties": {"a": {"type": "number"}},
                "required": ["a"]
            }},
            {"name": "now"},
            {"name": "pick", "handler": "client"}
        ],
        "sub_agents": [{"id": "helper"}]
    })
}

/// A model's reply with tool calls, each `[id, tool]`, with arguments that suit [`config`].
pub(crate) fn tool_calls(calls: &[[&str; 2]]) -> Value {
    let call = |[id, name]: &[&str; 2]| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{\"a\":1}"}});
    json!({ "tool_calls": calls.iter().map(call).collect::<Vec<_>>() })
}

pub(crate) fn message(turn: &str, id: &str) -> Value {
    json!({"type": "client.message", "agent_id": "bot", "turn_id": turn, "message": user(id)})
}

pub(crate) fn view(turn: &str, messages: &Value) -> Value {
    json!({"type": "client.messages", "agent_id": "bot", "turn_id": turn, "messages": messages})
}

pub(crate) fn user(id: &str) -> Value {
    json!({"id": id, "role": "user", "content": id})
}

pub(crate) fn says(id: &str) -> Value {
    json!({"id": id, "role": "assistant", "content": id})
}

pub(crate) fn shape(messages: &Value) -> Vec<String> {
    let short = |message: &Value| match message["tool_call_id"].as_str() {
        Some(call) => format!("tool {call}"),
        None => message["role"].as_str().unwrap().to_owned(),
    };
    messages.as_array().unwrap().iter().map(short).collect()
}

/// Values go through text, as they do outside.
pub(crate) fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_str(&value.to_string()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

pub(crate) fn value<T: serde::Serialize>(of: T) -> Value {
    serde_json::from_str(Json::of(&of).as_str()).unwrap()
}
