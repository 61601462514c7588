//! One story, told step by step against the engine's core.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, bail, ensure};
use belljar_engine::{
    AnswerIn, Command, Now, Party, Plan, Rejection, SettleError, State, apply, handle, plan,
    restore, snapshot,
};
use belljar_protocol::call::ErrorCode;
use belljar_protocol::decision::{
    Answer, DecisionFailure, DecisionResponse, FailureClass, Identity, proposed_json, request_json,
};
use belljar_protocol::event::{Commit, Event};
use belljar_protocol::id::{CallId, DecisionId, SessionId};
use belljar_protocol::input::ClientInput;
use belljar_protocol::model::{LlmResponse, ModelFailure};
use belljar_protocol::scratch::ScratchChange;
use belljar_protocol::{Json, Timestamp};
use serde_json::{Value, json};

use crate::matching::Names;

/// Ways of telling a story that must not make a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Acceptance as such; the state is kept.
    Plain,
    /// Acceptance as the proposal sent back, the way JSON workers do it.
    Echo,
    /// The state is folded from the log, or restored from a snapshot and its tail, at each step.
    Refold,
}

impl Manner {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Echo, Self::Refold];
}

/// A model request that left and was not answered.
#[derive(Debug, Clone)]
struct Held {
    call_id: CallId,
    attempt: u32,
}

struct Story {
    manner: Manner,
    names: Names,
    state: State,
    log: Vec<Commit>,
    now: Timestamp,
    entropy: u64,
    /// Requests the story has seen leave.
    seen: BTreeSet<(CallId, u32)>,
    held: Vec<Held>,
}

/// Tells a vector's story; gives the log it leaves.
pub(crate) fn tell(vector: &Value, manner: Manner) -> Result<Vec<Commit>> {
    let mut names = Names::default();
    names.bind("$root", json!("root"));
    let mut story = Story {
        manner,
        names,
        state: State::new(SessionId::from("root")),
        log: Vec::new(),
        now: Timestamp::from_millis(1_800_000_000_000),
        entropy: 0,
        seen: BTreeSet::new(),
        held: Vec::new(),
    };
    let steps = vector["steps"].as_array().context("a vector has `steps`")?;
    for (ix, step) in steps.iter().enumerate() {
        let kind = step
            .as_object()
            .and_then(|step| step.keys().next())
            .cloned()
            .unwrap_or_default();
        story
            .step(step)
            .with_context(|| format!("step {ix} ({kind})"))?;
        if manner == Manner::Refold {
            story
                .refold()
                .with_context(|| format!("folding after step {ix} ({kind})"))?;
        }
    }
    Ok(story.log)
}

impl Story {
    fn step(&mut self, step: &Value) -> Result<()> {
        ensure!(step.get("in").is_none(), "other sessions are not there yet");
        let expect = step.get("expect").cloned().unwrap_or(Value::Null);
        if let Some(input) = step.get("submit") {
            self.submit(input, &expect)
        } else if let Some(pattern) = step.get("decide") {
            self.decide(pattern, &step["answer"])
        } else if let Some(pattern) = step.get("llm") {
            self.llm(pattern, step)
        } else if let Some(reply) = step.get("llm_reply") {
            ensure!(!self.held.is_empty(), "no model request is on hold");
            let held = self.held.remove(0);
            self.reply(held, reply)
        } else if let Some(pattern) = step.get("client_tool") {
            self.client_tool(pattern)
        } else if let Some(result) = step.get("settle") {
            self.settle(result, step["by"].as_str().unwrap_or("worker"), &expect)
        } else if let Some(again) = step.get("answer_again") {
            self.answer_again(again)
        } else if let Some(secs) = step.get("advance") {
            self.advance(secs.as_f64().context("`advance` takes seconds")?)
        } else if step.get("abort").is_some() {
            self.command(Command::Abort { by: Party::Client })?
                .map_err(Into::into)
        } else if step.get("close").is_some() {
            self.command(Command::Close { by: Party::Client })?
                .map_err(Into::into)
        } else if step.get("crash").is_some() {
            self.refold()?;
            self.seen.clear();
            self.held.clear();
            self.command(Command::Recover)?.map_err(Into::into)
        } else if let Some(pattern) = step.get("turn") {
            self.turn(pattern)
        } else if let Some(pattern) = step.get("session") {
            let found = self.session();
            self.names.check(pattern, Some(&found), "session")
        } else if step.get("idle").is_some() {
            let plan = self.plan();
            ensure!(
                plan.decision.is_none(),
                "a decision is due: {:?}",
                self.state.composed().map(|c| c.ask)
            );
            ensure!(
                self.unseen(&plan).is_none(),
                "a model request is due: {:?}",
                plan.model_calls
            );
            Ok(())
        } else {
            bail!("a step this driver does not know: {step}")
        }
    }

    fn command(&mut self, command: Command) -> Result<Result<(), Rejection>> {
        self.entropy += 1;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.entropy.to_be_bytes());
        match handle(&self.state, command, &Now { at: self.now, seed }) {
            Err(rejection) => Ok(Err(rejection)),
            Ok(handled) => {
                let before = self.state.seq();
                self.state = handled.state;
                if let Some(commit) = handled.commit {
                    ensure!(
                        commit.first_seq == before + 1,
                        "a commit begins at {}, not {}",
                        commit.first_seq,
                        before + 1
                    );
                    ensure!(
                        commit.last_seq() == self.state.seq(),
                        "the state is not at its commit's end"
                    );
                    self.log.push(commit);
                }
                Ok(Ok(()))
            }
        }
    }

    fn plan(&self) -> Plan {
        plan(&self.state, self.now)
    }

    fn unseen(&self, plan: &Plan) -> Option<Held> {
        let due = plan
            .model_calls
            .iter()
            .map(|due| (due.call_id.clone(), due.attempt));
        due.into_iter()
            .find(|due| !self.seen.contains(due))
            .map(|(call_id, attempt)| Held { call_id, attempt })
    }

    fn expect(&mut self, outcome: &Result<(), Rejection>, ok: u16, expect: &Value) -> Result<()> {
        let found = match outcome {
            Ok(()) => json!({ "status": ok }),
            Err(rejection) => {
                let mut error = json!({ "code": rejection.code, "message": rejection.message });
                for (key, value) in &rejection.more {
                    error[*key] = json!(value);
                }
                json!({ "status": rejection.status, "error": error })
            }
        };
        self.names.check(expect, Some(&found), "expect")
    }

    fn submit(&mut self, input: &Value, expect: &Value) -> Result<()> {
        let input = self.names.fill(input);
        let input: ClientInput = serde_json::from_str(&input.to_string())?;
        let command = Command::Submit {
            input,
            identity: Identity::default(),
            version: None,
        };
        let outcome = self.command(command)?;
        self.expect(&outcome, 202, expect)
    }

    fn decide(&mut self, pattern: &Value, answer: &Value) -> Result<()> {
        let due = self
            .plan()
            .decision
            .ok_or_else(|| anyhow!("no decision is due"))?;
        let composed = self
            .state
            .composed()
            .context("the plan names a decision that is not live")?;
        ensure!(
            composed.ask.decision_id == due.decision_id,
            "the plan names another decision"
        );
        let request = request_json(&composed.ask, composed.view.as_ref(), None);
        let request: Value = serde_json::from_str(&request)?;
        self.names.check(pattern, Some(&request), "decide")?;
        let outcome = self.outcome(answer, &request)?;
        let accepted = outcome.is_ok();
        self.command(answer_in(&due.decision_id, outcome))?
            .with_context(|| format!("an answer (accepted: {accepted}) was rejected"))
    }

    fn outcome(
        &mut self,
        answer: &Value,
        request: &Value,
    ) -> Result<Result<Answer, DecisionFailure>> {
        match answer {
            Value::String(word) if word == "accept" && self.manner != Manner::Echo => {
                Ok(Ok(Answer::Accept))
            }
            Value::String(word) if word == "accept" => {
                let composed = self.state.composed().context("no decision is live")?;
                Ok(Ok(proposed_json(composed.view.as_ref()).into()))
            }
            Value::String(word) if word == "nothing" => Ok(Ok(DecisionResponse::default().into())),
            Value::Object(_) if answer.get("fail").is_some() => {
                let class = match answer["fail"].as_str() {
                    Some("retryable") => FailureClass::Retryable,
                    Some("deterministic") => FailureClass::Deterministic,
                    Some("terminal") => FailureClass::Terminal,
                    other => bail!("`fail` cannot be {other:?}"),
                };
                Ok(Err(DecisionFailure {
                    class,
                    code: "decision_failed".into(),
                    message: answer["error"].as_str().unwrap_or_default().into(),
                    detail: None,
                }))
            }
            Value::Object(_) => {
                let mut answer = self.names.fill(answer);
                match answer["messages"].as_str() {
                    Some("trigger") => answer["messages"] = request["trigger"]["messages"].clone(),
                    Some("proposed") => {
                        answer["messages"] = request["proposed"]["messages"].clone();
                    }
                    _ => {}
                }
                let answer: DecisionResponse = serde_json::from_str(&answer.to_string())?;
                Ok(Ok(answer.into()))
            }
            other => bail!("an answer cannot be {other}"),
        }
    }

    fn answer_again(&mut self, again: &Value) -> Result<()> {
        let again = self.names.fill(again);
        let id = again["decision_id"]
            .as_str()
            .context("`answer_again` names a decision")?;
        let outcome = self.outcome(&again["answer"], &Value::Null)?;
        let before = self.log.len();
        self.command(answer_in(&DecisionId::from(id), outcome))??;
        ensure!(
            self.log.len() == before,
            "a late answer changed the session"
        );
        Ok(())
    }

    fn llm(&mut self, pattern: &Value, step: &Value) -> Result<()> {
        let held = self
            .unseen(&self.plan())
            .ok_or_else(|| anyhow!("no model request is due"))?;
        self.seen.insert((held.call_id.clone(), held.attempt));
        let request = self
            .state
            .llm_request(&held.call_id)
            .context("a due call has a request")?;
        let request: Value = serde_json::from_str(Json::of(&request).as_str())?;
        self.names.check(pattern, Some(&request), "llm")?;
        if let Some(call) = step.get("call") {
            self.names.check(call, Some(&json!(held.call_id)), "call")?;
        }
        if let Some(attempt) = step.get("attempt") {
            self.names
                .check(attempt, Some(&json!(held.attempt)), "attempt")?;
        }
        match &step["reply"] {
            Value::String(word) if word == "hold" => {
                self.held.push(held);
                Ok(())
            }
            reply => self.reply(held, reply),
        }
    }

    fn reply(&mut self, held: Held, reply: &Value) -> Result<()> {
        let outcome = match reply.get("error") {
            Some(error) => Err(ModelFailure {
                message: error.as_str().unwrap_or_default().into(),
                retryable: reply["retryable"].as_bool().unwrap_or(false),
                code: serde_json::from_value(reply["code"].clone())
                    .unwrap_or(ErrorCode::ProviderError),
                retry_after_secs: reply["retry_after_secs"].as_f64(),
                detail: None,
            }),
            None => Ok(serde_json::from_str::<LlmResponse>(&reply.to_string())?),
        };
        let command = Command::Reply {
            call_id: held.call_id,
            attempt: held.attempt,
            outcome,
        };
        self.command(command)?.map_err(Into::into)
    }

    fn client_tool(&mut self, pattern: &Value) -> Result<()> {
        let plan = self.plan();
        let due = plan
            .client_calls
            .iter()
            .find(|due| !self.seen.contains(&(due.call_id.clone(), due.attempt)))
            .ok_or_else(|| anyhow!("no client tool is due"))?;
        self.seen.insert((due.call_id.clone(), due.attempt));
        let call = self
            .state
            .open_calls()
            .into_iter()
            .find(|call| call.id == due.call_id);
        let found: Value = serde_json::from_str(Json::of(&call).as_str())?;
        self.names.check(pattern, Some(&found), "client_tool")
    }

    fn settle(&mut self, result: &Value, by: &str, expect: &Value) -> Result<()> {
        let result = self.names.fill(result);
        let outcome = match result.get("error") {
            Some(error) => Err(SettleError {
                error: error.as_str().unwrap_or_default().into(),
                retryable: result["retryable"].as_bool().unwrap_or(false),
            }),
            None => Ok(result.get("result").map(Json::of)),
        };
        let by = match by {
            "client" => Party::Client,
            "worker" => Party::Worker,
            "operator" => Party::Operator,
            other => bail!("`by` cannot be {other}"),
        };
        let call_id = CallId::from(result["id"].as_str().context("`settle` names a call")?);
        let attempt = result["attempt"].as_u64().map(|attempt| attempt as u32);
        let outcome = self.command(Command::Settle {
            call_id,
            by,
            attempt,
            outcome,
        })?;
        self.expect(&outcome, 200, expect)
    }

    /// Moves the clock; timers that become due fire in the order they are due.
    fn advance(&mut self, secs: f64) -> Result<()> {
        let target = self.now.plus_secs(secs);
        for _ in 0..1_000 {
            let wake = self.plan().wake.filter(|wake| *wake <= target);
            let Some(wake) = wake else {
                self.now = target;
                return Ok(());
            };
            let stuck = self.now >= wake;
            self.now = self.now.max(wake);
            let before = self.log.len();
            self.command(Command::Tick)??;
            // A decision whose wait is over needs no event: the plan names it from now on.
            ensure!(
                !stuck || self.log.len() > before,
                "a timer at {wake} is due and fires nothing"
            );
        }
        bail!("timers do not come to rest")
    }

    fn turn(&mut self, pattern: &Value) -> Result<()> {
        let wanted = self.names.fill(&pattern["turn_id"]);
        let ended = self
            .log
            .iter()
            .rev()
            .flat_map(|commit| commit.events.iter().rev())
            .find_map(|event| match event {
                Event::TurnEnded(ended) if wanted.is_null() || wanted == json!(ended.turn_id) => {
                    Some(ended)
                }
                _ => None,
            });
        let ended = ended.with_context(|| format!("turn {wanted} has not ended"))?;
        let found: Value = serde_json::from_str(Json::of(ended).as_str())?;
        self.names.check(pattern, Some(&found), "turn")
    }

    fn session(&self) -> Value {
        let tree = self.state.tree();
        let messages: Vec<_> = (0..tree.path_len())
            .filter_map(|ix| tree.on_path(ix))
            .collect();
        let parse = |json: &Json| serde_json::from_str(json.as_str()).unwrap_or(Value::Null);
        json!({
            "status": self.state.status(),
            "messages": parse(&Json::of(&messages)),
            "calls": parse(&Json::of(&self.state.open_calls())),
            "pending_calls": self.state.pending_calls(),
            "pauses": [],
            "state": self.state.agent_state().map(parse),
            "tree_size": tree.len(),
            "head_id": tree.head_id(),
        })
    }

    /// Drops the state and makes it anew, from the log alone and from a snapshot with its tail.
    fn refold(&mut self) -> Result<()> {
        let mut state = State::new(SessionId::from("root"));
        let mut middle = None;
        for (ix, commit) in self.log.iter().enumerate() {
            let text = Json::of(commit);
            let read: Commit = text.read().context("a commit does not read back")?;
            ensure!(read == *commit, "a commit reads back as another");
            apply(&mut state, commit);
            if let Some(snapshot) = snapshot(&state).filter(|_| ix <= self.log.len() / 2) {
                middle = Some((ix, snapshot));
            }
        }
        ensure!(
            state.seq() == self.state.seq(),
            "folding ends at another seq"
        );
        same(&state, &self.state).context("folding the log gives another state")?;
        if let Some((ix, taken)) = middle {
            let mut restored = restore(SessionId::from("root"), &taken)?;
            for commit in &self.log[ix + 1..] {
                apply(&mut restored, commit);
            }
            same(&restored, &state).context("a snapshot and its tail give another state")?;
            state = restored;
        }
        self.state = state;
        Ok(())
    }
}

fn same(a: &State, b: &State) -> Result<()> {
    ensure!(
        snapshot(a) == snapshot(b),
        "snapshots differ:\n{:?}\n{:?}",
        snapshot(a),
        snapshot(b)
    );
    let asked = |state: &State| {
        state
            .composed()
            .map(|composed| request_json(&composed.ask, composed.view.as_ref(), None))
    };
    ensure!(
        asked(a) == asked(b),
        "live decisions differ:\n{:?}\n{:?}",
        asked(a),
        asked(b)
    );
    Ok(())
}

fn answer_in(id: &DecisionId, outcome: Result<Answer, DecisionFailure>) -> Command {
    Command::Answer(Box::new(AnswerIn {
        decision_id: id.clone(),
        outcome,
        run: None,
        scratch: ScratchChange::default(),
        delivered: Vec::new(),
    }))
}
