//! Which version a decision runs on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use belljar_engine::state::ActiveTurn;
use belljar_protocol::id::{AgentId, TenantId, VersionId};
use belljar_protocol::ports::{Store, StoreError};
use belljar_protocol::version::{LabelMove, Swap};

/// The label that turns run on.
pub(super) const LIVE: &str = "live";

type Moves = Arc<Vec<LabelMove>>;

/// The moves of agents' labels, read from the store once.
#[derive(Default)]
pub(super) struct Labels {
    known: Mutex<HashMap<(TenantId, AgentId), Moves>>,
}

impl Labels {
    pub(super) async fn of(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Moves, StoreError> {
        let key = (tenant.clone(), agent.clone());
        if let Some(moves) = self.lock().get(&key) {
            return Ok(moves.clone());
        }
        let moves = Arc::new(store.label_moves(tenant, agent).await?);
        // An agent nobody has uploaded is not remembered, or strangers' names would fill memory.
        if !moves.is_empty() {
            self.lock().entry(key).or_insert_with(|| moves.clone());
        }
        Ok(moves)
    }

    /// A label moved: what is known of the agent is read again.
    pub(super) fn forget(&self, tenant: &TenantId, agent: &AgentId) {
        self.lock().remove(&(tenant.clone(), agent.clone()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(TenantId, AgentId), Moves>> {
        self.known
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Where a label points.
pub(super) fn at(moves: &[LabelMove], label: &str) -> Option<VersionId> {
    moves
        .iter()
        .rfind(|moved| moved.label == label)?
        .version
        .clone()
}

/// A turn is pinned to the version it started with. A move of `live` after its start that says
/// `swap: "decision"` reaches it with its next decision or attempt. Outside a turn, `live` holds.
pub(super) fn deciding(moves: &[LabelMove], turn: Option<&ActiveTurn>) -> Option<VersionId> {
    let live = || at(moves, LIVE);
    let Some(turn) = turn else { return live() };
    let swapped = moves.iter().any(|moved| {
        moved.label == LIVE && moved.swap == Swap::Decision && moved.at >= turn.started_at
    });
    if swapped {
        live()
    } else {
        turn.version.clone().or_else(live)
    }
}
