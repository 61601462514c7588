//! What the log says of decisions: read from it whenever somebody asks, kept nowhere else.

use std::collections::HashMap;
use std::sync::Arc;

use belljar_protocol::event::{Commit, Event};
use belljar_protocol::id::DecisionId;

use super::{DecisionRecord, Delivery, LogEvent};

/// Collects decisions from commits in order.
pub(super) struct Records {
    wanted: Wanted,
    all: Vec<DecisionRecord>,
    by_id: HashMap<DecisionId, usize>,
}

/// Which decisions are collected.
pub(super) enum Wanted {
    /// The first `most` that were queued after a seq.
    After { seq: u64, most: usize },
    /// One.
    One(DecisionId),
}

impl Records {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            all: Vec::new(),
            by_id: HashMap::new(),
        }
    }

    fn wants(&self, id: &DecisionId, seq: u64) -> bool {
        match &self.wanted {
            Wanted::After { seq: after, most } => seq > *after && self.all.len() < *most,
            Wanted::One(one) => id == one,
        }
    }

    /// Whether later commits say nothing more of what is wanted.
    pub(super) fn is_complete(&self) -> bool {
        let most = match &self.wanted {
            Wanted::After { most, .. } => *most,
            Wanted::One(_) => 1,
        };
        self.all.len() >= most
            && self
                .all
                .iter()
                .all(|record| matches!(record.status, "answered" | "failed" | "dropped"))
    }

    pub(super) fn take(&mut self, commit: &Commit) {
        for (ix, event) in commit.events.iter().enumerate() {
            let seq = commit.first_seq + ix as u64;
            match event {
                Event::DecisionQueued(event) if self.wants(&event.decision_id, seq) => {
                    self.by_id.insert(event.decision_id.clone(), self.all.len());
                    self.all.push(DecisionRecord {
                        decision_id: event.decision_id.clone(),
                        turn_id: event.turn_id.clone(),
                        seq,
                        queued_at: commit.at,
                        trigger: event.trigger.clone(),
                        status: "waiting",
                        accepted_proposal: false,
                        deliveries: Vec::new(),
                        effects: Vec::new(),
                    });
                }
                Event::DecisionFailed(event) => {
                    let Some(record) = self.get(&event.decision_id) else {
                        continue;
                    };
                    record.status = if event.retry_at.is_some() {
                        "retrying"
                    } else {
                        "failed"
                    };
                    record.deliveries.push(Delivery {
                        attempt: event.attempt,
                        at: commit.at,
                        outcome: "failed",
                        class: Some(event.class),
                        error: Some(event.error.clone()),
                        retry_at: event.retry_at,
                        run: event.run.clone(),
                    });
                    if event.retry_at.is_none() {
                        record.effects = effects(commit, ix);
                    }
                }
                Event::DecisionAnswered(event) => {
                    let Some(record) = self.get(&event.decision_id) else {
                        continue;
                    };
                    record.status = "answered";
                    record.accepted_proposal = event.accepted_proposal;
                    record.deliveries.push(Delivery {
                        attempt: event.attempt,
                        at: commit.at,
                        outcome: "answered",
                        class: None,
                        error: None,
                        retry_at: None,
                        run: event.run.clone(),
                    });
                    record.effects = effects(commit, ix);
                }
                Event::DecisionsDropped(event) => {
                    for id in &event.decision_ids {
                        if let Some(record) = self.get(id) {
                            record.status = "dropped";
                        }
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn into_vec(self) -> Vec<DecisionRecord> {
        self.all
    }

    fn get(&mut self, id: &DecisionId) -> Option<&mut DecisionRecord> {
        self.all.get_mut(*self.by_id.get(id)?)
    }
}

/// The events after the answer's own in its commit.
fn effects(commit: &Commit, answered: usize) -> Vec<LogEvent> {
    commit
        .events
        .iter()
        .enumerate()
        .skip(answered + 1)
        .map(|(ix, event)| LogEvent {
            seq: commit.first_seq + ix as u64,
            at: commit.at,
            event: Arc::new(event.clone()),
        })
        .collect()
}
