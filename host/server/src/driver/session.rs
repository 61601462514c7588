//! A session in use: one task, one state, one order of things.
//!
//! The state in memory runs ahead of the disk: commands are handled as they come, and their
//! commits collect. They go to the store when something has to leave the host (an
//! acknowledgement, a model request, an event for a subscriber) and no component is at work on
//! what comes next; a component that takes longer than the linger does not hold them back. One
//! append is under way at a time, so commits reach the disk in order, and those that come
//! meanwhile go together in the next. Whatever leaves names the seq it needs on disk.
//!
//! `/scratch` runs ahead as the state does: an answer that is taken is concluded at once, so that
//! the next decision of a chain finds the folder as it is. One that is not taken leaves a folder
//! that is rebuilt from blobs, so the next decision then waits for those to be on disk.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use belljar_engine::{
    AnswerIn, Command, Composed, Handled, Now, Plan, Rejection, Reply, State, apply, handle, plan,
    restore, snapshot,
};
use belljar_protocol::Timestamp;
use belljar_protocol::call::ErrorCode;
use belljar_protocol::decision::{DecisionFailure, FailureClass, Trigger};
use belljar_protocol::event::{Commit, Event};
use belljar_protocol::id::{CallId, DecisionId};
use belljar_protocol::model::{LlmResponse, ModelFailure};
use belljar_protocol::ports::{
    Append, Boxed, Conclusion, Decided, DeltaSink, Job, StoreError, WORK_DUE,
};
use belljar_protocol::problem::Problem;
use belljar_protocol::run::RunRecord;
use belljar_protocol::scratch::{Digest, ScratchChange};
use bytes::Bytes;
use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::host::Inner;
use super::roster::{Key, Mail};
use super::{SessionState, TurnView, versions};

/// Commits read from the store at once while a session is folded.
const PAGE: u32 = 512;
/// Events a tail has at least before a snapshot is written.
const SNAPSHOT_EVENTS: u64 = 256;
/// Times a session is loaded anew because the log had moved on, before its commands are refused.
const RELOADS: u32 = 3;
/// Sessions whose next timer is nearer than this stay loaded.
const NEAR_SECS: f64 = 60.0;
/// Commits that may wait for the disk. Above, nothing new is begun until an append is over, so
/// that a disk that stalls costs time and not memory.
const AHEAD: usize = 128;

type CallAttempt = (CallId, u32);
type Replied = (CallAttempt, Result<LlmResponse, ModelFailure>);

/// Something that waits for a seq to be on disk.
struct Waiting {
    seq: u64,
    what: Leaves,
}

type Answered = Result<Reply, Problem>;

enum Leaves {
    /// The outcome of a command; a refusal too may rest on what is not on disk yet. The command
    /// is kept until then: if the log turns out to have moved on, it is handled again.
    Outcome(Box<Command>, oneshot::Sender<Answered>, Answered),
    Look(
        oneshot::Sender<Result<Option<Box<SessionState>>, Problem>>,
        Option<Box<SessionState>>,
    ),
}

/// An append under way: the commits it carries, and how it ends.
struct Appending {
    commits: Vec<Arc<Commit>>,
    /// The timer it writes, where no work is due before.
    wake: Option<Timestamp>,
    done: Boxed<'static, Result<(), StoreError>>,
}

/// A decision under way.
struct Deciding {
    decision_id: DecisionId,
    attempts: u32,
    done: Boxed<'static, Decided>,
}

pub(super) struct Session {
    host: Arc<Inner>,
    key: Key,
    mail: mpsc::Receiver<Mail>,
    state: State,
    /// On disk up to here.
    durable: u64,
    /// Made, and not handed to the store.
    unsent: Vec<Commit>,
    unsent_blobs: Vec<(Digest, Bytes)>,
    /// When the first of `unsent` was made.
    unsent_since: Instant,
    /// The last seq that brought contents of files.
    blobs_at: u64,
    /// The seq that must be on disk before the scratch folder can be rebuilt.
    rebuilds_from: u64,
    appending: Option<Appending>,
    waiting: VecDeque<Waiting>,
    deciding: Option<Deciding>,
    models: JoinSet<Replied>,
    /// Model calls in flight, or waiting for the seq that must be on disk before they leave.
    calls: BTreeMap<CallAttempt, InFlight>,
    snapshot_seq: u64,
    reloads: u32,
}

enum InFlight {
    /// Leaves once this seq is on disk.
    From(u64),
    Gone(AbortHandle),
}

/// Whether the task goes on.
enum Next {
    Go,
    Stop,
}

impl Session {
    /// Loads a session and works until it is idle. Ends at once when the store fails.
    pub(super) async fn run(host: Arc<Inner>, key: Key, mail: mpsc::Receiver<Mail>) {
        let mut session = Self {
            state: State::new(key.session.clone()),
            host,
            key,
            mail,
            durable: 0,
            unsent: Vec::new(),
            unsent_blobs: Vec::new(),
            unsent_since: Instant::now(),
            blobs_at: 0,
            rebuilds_from: 0,
            appending: None,
            waiting: VecDeque::new(),
            deciding: None,
            models: JoinSet::new(),
            calls: BTreeMap::new(),
            snapshot_seq: 0,
            reloads: 0,
        };
        session.host.counters.loaded();
        match session.load().await {
            Ok(()) => session.work().await,
            Err(error) => session.give_up(&error).await,
        }
        // Mail that came while the box was closing belongs to whoever works on the session next.
        // Closed, so this ends; received, so that a sender that is just putting it in is waited for.
        session.mail.close();
        while let Some(mail) = session.mail.recv().await {
            let (host, key) = (session.host.clone(), session.key.clone());
            tokio::spawn(async move { host.send(&key, mail).await });
        }
    }

    /// Folds the log, from the newest snapshot where there is one that reads.
    async fn load(&mut self) -> Result<(), StoreError> {
        let (store, key) = (self.host.parts.store.clone(), self.key.clone());
        self.state = State::new(key.session.clone());
        self.snapshot_seq = 0;
        if let Some(taken) = store.snapshot(&key.tenant, &key.session).await? {
            match restore(key.session.clone(), &taken) {
                Ok(state) => {
                    self.snapshot_seq = taken.seq;
                    self.state = state;
                }
                Err(error) => tracing::warn!(session = %key.session, %error, "snapshot ignored"),
            }
        }
        loop {
            let commits = store
                .read(&key.tenant, &key.session, self.state.seq(), PAGE)
                .await?;
            if commits.is_empty() {
                break;
            }
            for commit in &commits {
                if commit.first_seq != self.state.seq() + 1 {
                    let reason = format!(
                        "a commit begins at {}, after seq {}",
                        commit.first_seq,
                        self.state.seq()
                    );
                    return Err(StoreError::Unreadable {
                        what: format!("the log of session {}", key.session),
                        reason,
                    });
                }
                apply(&mut self.state, commit);
            }
        }
        self.durable = self.state.seq();
        // A session leaves memory only when nothing is in flight: work that is due now was cut
        // off by a crash [D2, C15].
        let due = self.plan();
        if due.decision.is_some() || !due.model_calls.is_empty() {
            self.take(Command::Recover, None);
        }
        Ok(())
    }

    async fn work(&mut self) {
        loop {
            self.start_due();
            self.flush();
            let wake = self.plan().wake;
            let host = self.host.clone();
            let (lingered, idle, has_room) = (self.lingered(), self.is_idle(), self.has_room());
            let exists = self.state.exists();
            let next = tokio::select! {
                biased;
                done = optional(self.appending.as_mut().map(|appending| &mut appending.done)) => {
                    self.appended(done).await
                }
                decided = optional(self.deciding.as_mut().map(|deciding| &mut deciding.done)) => {
                    self.decided(decided);
                    Next::Go
                }
                Some(replied) = self.models.join_next() => {
                    self.replied(replied);
                    Next::Go
                }
                // Before mail, so that a client that never stops talking cannot hold timers back.
                () = wake_at(&host, wake) => {
                    if wake.is_some_and(|at| at <= host.now()) {
                        self.take(Command::Tick, None);
                    }
                    Next::Go
                }
                mail = self.mail.recv(), if has_room => match mail {
                    Some(mail) => {
                        self.open(mail);
                        Next::Go
                    }
                    // Out of the roster: nobody can write here any more.
                    None => Next::Stop,
                },
                () = lingered => Next::Go,
                () = host.idle(idle, exists) => self.retire(),
            };
            if matches!(next, Next::Stop) {
                return;
            }
        }
    }

    fn plan(&self) -> Plan {
        plan(&self.state, self.host.now())
    }

    fn open(&mut self, mail: Mail) {
        match mail {
            Mail::Command(command, reply) => {
                self.take(*command, Some(reply));
            }
            Mail::Look(reply) => {
                let view = self.state.exists().then(|| Box::new(view(&self.state)));
                self.waits(Leaves::Look(reply, view));
            }
            // Going round the loop looks at the plan.
            Mail::Nudge(_loaded) => {}
        }
    }

    /// Handles a command: the state moves on at once, what is to leave waits for the disk.
    fn take(&mut self, command: Command, to: Option<oneshot::Sender<Answered>>) -> Option<Reply> {
        let now = Now {
            at: self.host.now(),
            seed: self.host.parts.entropy.seed(),
        };
        let command = self.pinned(command);
        let asked = to.map(|to| (Box::new(command.clone()), to));
        let outcome = handle(&self.state, command, &now)
            .and_then(runs_on_a_version)
            .map(|handled| {
                self.state = handled.state;
                if let Some(commit) = handled.commit {
                    if self.unsent.is_empty() {
                        self.unsent_since = Instant::now();
                    }
                    self.unsent.push(commit);
                }
                handled.reply
            });
        let reply = outcome.as_ref().ok().cloned();
        if let Some((command, to)) = asked {
            self.waits(Leaves::Outcome(command, to, outcome.map_err(Problem::from)));
        }
        reply
    }

    /// A turn is pinned to what `live` says when it starts, not when its input was sent on.
    fn pinned(&self, command: Command) -> Command {
        match command {
            Command::Submit {
                input,
                identity,
                version,
            } => {
                let known = input
                    .agent_id()
                    .and_then(|agent| self.host.labels.live(&self.key.tenant, agent));
                Command::Submit {
                    input,
                    identity,
                    version: known.unwrap_or(version),
                }
            }
            other => other,
        }
    }

    fn waits(&mut self, what: Leaves) {
        self.waiting.push_back(Waiting {
            seq: self.state.seq(),
            what,
        });
        self.release();
    }

    /// Lets go of everything whose seq is on disk.
    fn release(&mut self) {
        while self
            .waiting
            .front()
            .is_some_and(|waiting| waiting.seq <= self.durable)
        {
            let Some(waiting) = self.waiting.pop_front() else {
                return;
            };
            // A receiver that is gone has given up waiting; what it asked for happened all the same.
            match waiting.what {
                Leaves::Outcome(_, to, outcome) => drop(to.send(outcome)),
                Leaves::Look(to, view) => drop(to.send(Ok(view))),
            }
        }
    }

    /// Starts what the plan wants in flight and is not, and stops what it no longer wants.
    fn start_due(&mut self) {
        let plan = self.plan();
        let due = plan.decision.as_ref();
        if self.deciding.as_ref().is_some_and(|deciding| {
            due.is_none_or(|due| {
                due.decision_id != deciding.decision_id || due.attempts != deciding.attempts
            })
        }) {
            // Dropped, by an abort or a fork: what it writes is not wanted.
            self.deciding = None;
            self.conclude(Conclusion::Discarded);
        }
        if let Some(due) = due
            && self.deciding.is_none()
            && !self.host.is_draining()
            && let Some(composed) = self.state.composed()
            && self.may_run(&composed)
        {
            self.deciding = Some(Deciding {
                decision_id: due.decision_id.clone(),
                attempts: due.attempts,
                done: self.decide(composed),
            });
        }
        let wanted: BTreeMap<CallAttempt, Option<Timestamp>> = plan
            .model_calls
            .into_iter()
            .map(|due| ((due.call_id, due.attempt), due.deadline))
            .collect();
        self.calls.retain(|call, in_flight| {
            let keep = wanted.contains_key(call);
            if let (false, InFlight::Gone(task)) = (keep, in_flight) {
                task.abort();
            }
            keep
        });
        let seq = self.state.seq();
        for call in wanted.into_keys() {
            let in_flight = self
                .calls
                .entry(call.clone())
                .or_insert(InFlight::From(seq));
            if let InFlight::From(seq) = in_flight
                && *seq <= self.durable
                && !self.host.is_draining()
            {
                self.ask_model(call);
            }
        }
    }

    /// Whether a decision may begin now: ahead of the disk, unless it cannot or must not be.
    fn may_run(&self, composed: &Composed) -> bool {
        let streams = matches!(
            composed.ask.trigger,
            Trigger::LlmExecute { stream: true, .. }
        );
        self.durable == self.state.seq()
            // Its tokens leave the host while it runs.
            || (!streams && self.rebuilds_from <= self.durable && self.unsent.len() < AHEAD)
    }

    /// Whether more mail is read; what waits for the disk is bounded.
    fn has_room(&self) -> bool {
        self.unsent.len() < AHEAD && self.waiting.len() < self.host.config.mailbox.max(1)
    }

    /// Runs the live decision on the version that is to decide it.
    fn decide(&self, composed: Composed) -> Boxed<'static, Decided> {
        let host = self.host.clone();
        let key = self.key.clone();
        let pin = self.state.turn().map(|turn| versions::Pin {
            version: turn.version.clone(),
            since: turn.started_at,
        });
        let scratch = self.state.scratch().clone();
        host.counters.decided();
        let delivery = async move {
            let store = host.parts.store.as_ref();
            let agent = &composed.ask.agent_id;
            let version = match host.labels.of(store, &key.tenant, agent).await {
                Ok(moves) => versions::deciding(&moves, pin.as_ref()),
                Err(error) => {
                    return undecided(FailureClass::Retryable, "store_failed", error.to_string());
                }
            };
            let Some(version) = version else {
                let message = versions::not_live(agent);
                return undecided(FailureClass::Terminal, "agent_not_live", message);
            };
            let deltas = match &composed.ask.trigger {
                Trigger::LlmExecute {
                    id,
                    attempt,
                    stream: true,
                    ..
                } => Some(host.sink(&key, id.clone(), *attempt)),
                _ => None,
            };
            let job = Job {
                tenant: key.tenant.clone(),
                version,
                ask: composed.ask,
                view: composed.view,
                scratch,
                deltas,
            };
            host.parts.worker.decide(job).await
        };
        // What a worker breaks is its decision, not the session: its state is not in there.
        let delivery = AssertUnwindSafe(delivery).catch_unwind();
        Box::pin(async move {
            delivery.await.unwrap_or_else(|_| {
                let message = "the host failed while it ran the decision; its log says more";
                undecided(FailureClass::Deterministic, "host_failure", message.into())
            })
        })
    }

    fn decided(&mut self, decided: Decided) {
        let Some(deciding) = self.deciding.take() else {
            return;
        };
        self.host.counters.answered(decided.outcome.is_ok());
        let answer = AnswerIn {
            decision_id: deciding.decision_id,
            outcome: decided.outcome,
            run: Some(decided.run),
            scratch: decided.scratch,
            delivered: decided.delivered,
        };
        let reply = self.take(Command::Answer(Box::new(answer)), None);
        let conclusion = match reply {
            Some(Reply::Answered { accepted: true }) => {
                if !decided.blobs.is_empty() {
                    self.unsent_blobs.extend(decided.blobs);
                    self.blobs_at = self.state.seq();
                }
                Conclusion::Accepted {
                    generation: self.state.scratch().generation,
                }
            }
            _ => Conclusion::Discarded,
        };
        self.conclude(conclusion);
    }

    fn conclude(&mut self, conclusion: Conclusion) {
        if conclusion == Conclusion::Discarded {
            self.rebuilds_from = self.blobs_at;
        }
        self.host
            .parts
            .worker
            .conclude(&self.key.tenant, &self.key.session, conclusion);
    }

    /// Sends a model call on its way; its commit is on disk.
    fn ask_model(&mut self, call: CallAttempt) {
        let Some(request) = self.state.llm_request(&call.0) else {
            return;
        };
        let sink: Option<DeltaSink> = self
            .state
            .streams(&call.0)
            .then(|| self.host.sink(&self.key, call.0.clone(), call.1));
        let host = self.host.clone();
        let tenant = self.key.tenant.clone();
        host.counters.asked();
        let named = call.clone();
        let task = self.models.spawn(async move {
            let permit = host.model_permit(&tenant).await;
            let outcome = match host.parts.models.resolve(&request.model) {
                Ok((model, name)) => {
                    let request = belljar_protocol::model::LlmRequest {
                        model: name,
                        ..request
                    };
                    model.ask(Arc::new(request), sink).await
                }
                Err(failure) => Err(failure),
            };
            drop(permit);
            (named, outcome)
        });
        self.calls.insert(call, InFlight::Gone(task));
    }

    fn replied(&mut self, replied: Result<Replied, tokio::task::JoinError>) {
        let ((call_id, attempt), outcome) = match replied {
            Ok(replied) => replied,
            Err(error) if error.is_cancelled() => return,
            // A provider that panicked: its task says which call it was.
            Err(error) => {
                let over = self
                    .calls
                    .iter()
                    .find_map(|(call, in_flight)| match in_flight {
                        InFlight::Gone(task) if task.id() == error.id() => Some(call.clone()),
                        InFlight::Gone(_) | InFlight::From(_) => None,
                    });
                let Some(call) = over else { return };
                let failure = ModelFailure {
                    message: "the host failed while it asked the model; its log says more".into(),
                    retryable: false,
                    code: ErrorCode::ProviderError,
                    retry_after_secs: None,
                    detail: None,
                };
                (call, Err(failure))
            }
        };
        self.calls.remove(&(call_id.clone(), attempt));
        self.take(
            Command::Reply {
                call_id,
                attempt,
                outcome,
            },
            None,
        );
    }

    /// Hands what has collected to the store, unless an append is under way or a component is
    /// about to add to it.
    fn flush(&mut self) {
        let runs_ahead =
            self.deciding.is_some() && self.unsent_since.elapsed() < self.host.config.linger;
        if self.unsent.is_empty() || self.appending.is_some() || runs_ahead {
            return;
        }
        let commits: Vec<Commit> = std::mem::take(&mut self.unsent);
        let Some(first) = commits.first() else { return };
        let plan = self.plan();
        let due_now = plan.decision.is_some() || !plan.model_calls.is_empty();
        let next_wake = if due_now { Some(WORK_DUE) } else { plan.wake };
        let append = Append {
            tenant: self.key.tenant.clone(),
            session: self.key.session.clone(),
            agent: self.state.agent_id().cloned().unwrap_or_else(|| "".into()),
            expected_seq: first.first_seq - 1,
            commits: commits.clone(),
            blobs: std::mem::take(&mut self.unsent_blobs),
            status: self.state.status().into(),
            next_wake,
        };
        let done = self.host.parts.store.append(append);
        self.appending = Some(Appending {
            commits: commits.into_iter().map(Arc::new).collect(),
            wake: next_wake.filter(|_| !due_now),
            done,
        });
    }

    /// Resolves when commits that lingered for a component have waited long enough.
    fn lingered(&self) -> impl Future<Output = ()> + use<> {
        let lingers = !self.unsent.is_empty() && self.appending.is_none();
        let until = self.unsent_since + self.host.config.linger;
        async move {
            match lingers {
                true => tokio::time::sleep_until(until).await,
                false => pending().await,
            }
        }
    }

    async fn appended(&mut self, done: Result<(), StoreError>) -> Next {
        let Some(appending) = self.appending.take() else {
            return Next::Go;
        };
        match done {
            Ok(()) => {
                self.reloads = 0;
                self.durable = appending
                    .commits
                    .last()
                    .map_or(self.durable, |commit| commit.last_seq());
                self.host.watchers.publish(&self.key, &appending.commits);
                self.release();
                // Not before: whoever is told looks for it in the store.
                if let Some(at) = appending.wake {
                    self.host.wakes_at(at);
                }
                self.snapshot_if_due();
                Next::Go
            }
            Err(StoreError::Conflict { .. }) if self.reloads < RELOADS => {
                self.reloads += 1;
                tracing::warn!(session = %self.key.session, "the log has moved on: loading it anew");
                self.start_over().await
            }
            Err(error) => {
                self.give_up(&error).await;
                Next::Stop
            }
        }
    }

    /// The log is not what this state was built on: everything that is not on disk is dropped,
    /// and the commands that wait are handled again on what is.
    async fn start_over(&mut self) -> Next {
        self.unsent.clear();
        self.unsent_blobs.clear();
        self.blobs_at = 0;
        self.deciding = None;
        self.conclude(Conclusion::Discarded);
        self.models.abort_all();
        self.calls.clear();
        let waiting = std::mem::take(&mut self.waiting);
        if let Err(error) = self.load().await {
            self.give_up(&error).await;
            return Next::Stop;
        }
        for waiting in waiting {
            match waiting.what {
                Leaves::Outcome(command, to, _) => {
                    self.take(*command, Some(to));
                }
                Leaves::Look(to, _) => self.open(Mail::Look(to)),
            }
        }
        Next::Go
    }

    /// The store cannot be trusted: nobody is told that anything happened.
    async fn give_up(&mut self, error: &StoreError) {
        let fatal = matches!(error, StoreError::Failed(_));
        let problem = Problem::new(503, "store_failed", format!("nothing was stored: {error}"));
        self.conclude(Conclusion::Discarded);
        tracing::error!(session = %self.key.session, %error, "a session cannot go on");
        if fatal {
            self.host.fatal(&error.to_string());
        }
        self.host.roster.remove(&self.key);
        self.mail.close();
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting.what {
                Leaves::Outcome(_, to, _) => drop(to.send(Err(problem.clone()))),
                Leaves::Look(to, _) => drop(to.send(Err(problem.clone()))),
            }
        }
        while let Some(mail) = self.mail.recv().await {
            match mail {
                Mail::Command(_, to) => drop(to.send(Err(problem.clone()))),
                Mail::Look(to) => drop(to.send(Err(problem.clone()))),
                Mail::Nudge(_loaded) => {}
            }
        }
    }

    /// Writes a snapshot, off the loop, when the tail has outgrown the last one.
    fn snapshot_if_due(&mut self) {
        let tail = self.state.seq() - self.snapshot_seq;
        // Only what is on disk may be in a snapshot.
        if tail < SNAPSHOT_EVENTS.max(self.snapshot_seq)
            || self.durable != self.state.seq()
            || self.state.is_deciding()
        {
            return;
        }
        self.snapshot_seq = self.state.seq();
        let (state, store, key) = (
            self.state.clone(),
            self.host.parts.store.clone(),
            self.key.clone(),
        );
        tokio::spawn(async move {
            let taken = tokio::task::spawn_blocking(move || snapshot(&state))
                .await
                .ok()
                .flatten();
            let Some(taken) = taken else { return };
            if let Err(error) = store.put_snapshot(&key.tenant, &key.session, taken).await {
                tracing::warn!(session = %key.session, %error, "snapshot not written");
            }
        });
    }

    /// Nothing is under way, nothing is due soon.
    fn is_idle(&self) -> bool {
        let plan = self.plan();
        let near = self.host.now().plus_secs(NEAR_SECS);
        self.unsent.is_empty()
            && self.appending.is_none()
            && self.waiting.is_empty()
            && self.deciding.is_none()
            && self.calls.is_empty()
            && plan.decision.is_none()
            && plan.wake.is_none_or(|at| at > near)
    }

    fn retire(&mut self) -> Next {
        match self.host.roster.retire(&self.key, &mut self.mail) {
            true => Next::Stop,
            false => Next::Go,
        }
    }
}

impl Drop for Session {
    /// However the task ends, by an abort or a panic too, nobody is left writing to it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(session = %self.key.session, "a session's task panicked");
        }
        self.mail.close();
        self.host.roster.sweep(&self.key);
        self.host.counters.unloaded();
    }
}

/// A turn that opens runs on a version; an agent that has none live opens no turn.
fn runs_on_a_version(handled: Handled) -> Result<Handled, Rejection> {
    let opens_without = handled
        .commit
        .iter()
        .flat_map(|commit| &commit.events)
        .any(|event| matches!(event, Event::TurnStarted(turn) if turn.version.is_none()));
    match handled.state.agent_id() {
        Some(agent) if opens_without => Err(Rejection::new(
            409,
            "agent_not_live",
            versions::not_live(agent),
        )),
        _ => Ok(handled),
    }
}

/// A future that may not be there: then it never resolves.
async fn optional<F: Future + Unpin>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

pub(super) async fn wake_at(host: &Inner, at: Option<Timestamp>) {
    match at {
        Some(at) => host.parts.clock.wait_until(at).await,
        None => pending().await,
    }
}

/// A delivery that did not come to run.
fn undecided(class: FailureClass, code: &str, message: String) -> Decided {
    Decided {
        outcome: Err(DecisionFailure {
            class,
            code: code.into(),
            message,
            detail: None,
        }),
        run: RunRecord::default(),
        scratch: ScratchChange::default(),
        delivered: Vec::new(),
        blobs: Vec::new(),
    }
}

/// The session as clients see it.
fn view(state: &State) -> SessionState {
    let tree = state.tree();
    SessionState {
        session_id: state.session_id().clone(),
        agent_id: state.agent_id().cloned(),
        status: state.status(),
        seq: state.seq(),
        created_at: state.created_at(),
        turn: state.turn().map(|turn| TurnView {
            turn_id: turn.turn_id.clone(),
            version: turn.version.clone(),
            started_at: turn.started_at,
        }),
        last_turn: state.last_turn().cloned(),
        messages: (0..tree.path_len())
            .filter_map(|ix| tree.on_path(ix).cloned())
            .collect(),
        head_id: tree.head_id().cloned(),
        tree_size: tree.len(),
        calls: state.open_calls(),
        pending_calls: state.pending_calls(),
        pauses: [],
        config: state.config().cloned(),
        state: state.agent_state().cloned(),
        cost: state.total_cost(),
        usage: state.total_usage(),
        version: state.last_version().cloned(),
    }
}
