//! What is due, from state and time alone: recovery after a crash is "fold, plan".

use belljar_protocol::Timestamp;
use belljar_protocol::agent::Handler;
use belljar_protocol::call::{CallStatus, Work};
use belljar_protocol::id::{CallId, DecisionId};

use crate::State;

/// The work that is due, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The decision to deliver; at most one [D1].
    pub decision: Option<DueDecision>,
    /// Model calls the host is to have in flight.
    pub model_calls: Vec<DueCall>,
    /// Calls that wait for a client.
    pub client_calls: Vec<DueCall>,
    /// The earliest timer. At or before now: send `Command::Tick`.
    pub wake: Option<Timestamp>,
}

/// A decision that is to be with its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueDecision {
    /// The decision.
    pub decision_id: DecisionId,
    /// Which delivery this is; a further one has a higher number.
    pub attempts: u32,
}

/// A call that is to be in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueCall {
    /// The call.
    pub call_id: CallId,
    /// The attempt; a further one has a higher number.
    pub attempt: u32,
    /// When this attempt is given up.
    pub deadline: Option<Timestamp>,
}

/// Lists what is due. Pure: the same state and time give the same plan. Costs the open calls,
/// not the history.
pub fn plan(state: &State, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut wake = |at: Option<Timestamp>| plan.wake = [plan.wake, at].into_iter().flatten().min();
    if let Some(live) = &state.live {
        match live.not_before.filter(|at| *at > now) {
            Some(at) => wake(Some(at)),
            None => {
                plan.decision = Some(DueDecision {
                    decision_id: live.queued.decision_id.clone(),
                    attempts: live.attempts,
                });
            }
        }
    }
    for entry in state.calls.open() {
        match entry.status {
            CallStatus::RetryScheduled => wake(entry.retry_at),
            CallStatus::Pending => {
                wake(entry.deadline);
                let due = DueCall {
                    call_id: entry.request.id.clone(),
                    attempt: entry.attempt,
                    deadline: entry.deadline,
                };
                match (entry.request.handler, &entry.request.work) {
                    (Handler::Server, Work::Llm(_)) => plan.model_calls.push(due),
                    (Handler::Client, _) => plan.client_calls.push(due),
                    _ => {}
                }
            }
            CallStatus::Queued | CallStatus::Completed | CallStatus::Failed => {}
        }
    }
    plan
}
