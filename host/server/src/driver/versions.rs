//! Which version a decision runs on.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_protocol::Timestamp;
use belljar_protocol::id::{AgentId, TenantId, VersionId};
use belljar_protocol::ports::{Store, StoreError};
use belljar_protocol::version::{LabelMove, Swap};

/// The label that turns run on.
pub(super) const LIVE: &str = "live";

type Moves = Arc<Vec<LabelMove>>;
type Whose = (TenantId, AgentId);

/// The moves of agents' labels, read from the store once.
#[derive(Default)]
pub(super) struct Labels(Mutex<Known>);

#[derive(Default)]
struct Known {
    moves: HashMap<Whose, Moves>,
    /// Counts what was forgotten: a read that began before the last time is not remembered.
    forgotten: u64,
}

impl Labels {
    /// The moves of an agent's labels, oldest first; empty for an agent nobody has uploaded.
    pub(super) async fn of(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        agent: &AgentId,
    ) -> Result<Moves, StoreError> {
        let whose = (tenant.clone(), agent.clone());
        // A store may begin to read before it is awaited, and what is known needs no reading.
        let read = async { store.label_moves(tenant, agent).await };
        self.through(whose, read).await
    }

    async fn through(
        &self,
        whose: Whose,
        read: impl Future<Output = Result<Vec<LabelMove>, StoreError>>,
    ) -> Result<Moves, StoreError> {
        let began = {
            let known = self.lock();
            if let Some(moves) = known.moves.get(&whose) {
                return Ok(moves.clone());
            }
            known.forgotten
        };
        let moves = Arc::new(read.await?);
        let mut known = self.lock();
        // A label that moved meanwhile may not be in what was read. And an agent nobody has
        // uploaded is not remembered, or strangers' names would fill memory.
        if known.forgotten == began && !moves.is_empty() {
            known.moves.insert(whose, moves.clone());
        }
        Ok(moves)
    }

    /// Where `live` points as far as memory knows; none when the store would have to be asked.
    pub(super) fn live(&self, tenant: &TenantId, agent: &AgentId) -> Option<Option<VersionId>> {
        let known = self.lock();
        let moves = known.moves.get(&(tenant.clone(), agent.clone()))?;
        Some(at(moves, LIVE))
    }

    /// A label moved: what is known of the agent is read again.
    pub(super) fn forget(&self, tenant: &TenantId, agent: &AgentId) {
        let mut known = self.lock();
        known.forgotten += 1;
        known.moves.remove(&(tenant.clone(), agent.clone()));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// What a turn was pinned to, and when.
#[derive(Debug, Clone)]
pub(super) struct Pin {
    pub(super) version: Option<VersionId>,
    pub(super) since: Timestamp,
}

/// A turn is pinned to the version it started with. A later move of `live` that says
/// `swap: "decision"` reaches it with its next decision or attempt; one that says `turn` does
/// not. Outside a turn, `live` holds.
pub(super) fn deciding(moves: &[LabelMove], pin: Option<&Pin>) -> Option<VersionId> {
    let Some(pin) = pin else {
        return at(moves, LIVE);
    };
    // The move that pinned the turn is known by its version, so that one made in the same
    // moment, or while the turn's input was on its way, still counts as a later one.
    let pinned_by = moves.iter().rposition(|moved| {
        moved.label == LIVE && moved.at <= pin.since && moved.version == pin.version
    });
    let later = match pinned_by {
        Some(ix) => moves.get(ix + 1..),
        None => moves
            .iter()
            .position(|moved| moved.at >= pin.since)
            .and_then(|ix| moves.get(ix..)),
    };
    let swapped = later
        .unwrap_or_default()
        .iter()
        .rfind(|moved| moved.label == LIVE && moved.swap == Swap::Decision);
    match swapped {
        Some(moved) => moved.version.clone(),
        None => pin.version.clone().or_else(|| at(moves, LIVE)),
    }
}

/// What to tell somebody whose agent has nothing to run.
pub(super) fn not_live(agent: &AgentId) -> String {
    format!("agent `{agent}` has no live version; PUT /v1/agents/{agent}/labels/live")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(id: u64, to: &str, swap: Swap, at: i64) -> LabelMove {
        LabelMove {
            id,
            label: LIVE.into(),
            version: Some(to.into()),
            previous: None,
            swap,
            by: "test".into(),
            at: Timestamp::from_millis(at),
        }
    }

    fn on(version: &str, moves: &[LabelMove], since: i64) -> String {
        let pin = Pin {
            version: Some(version.into()),
            since: Timestamp::from_millis(since),
        };
        deciding(moves, Some(&pin)).unwrap().as_str().to_owned()
    }

    #[test]
    fn a_running_turn_follows_the_moves_that_say_decision_and_no_others() {
        let (turn, decision) = (Swap::Turn, Swap::Decision);
        let first = moved(1, "a", turn, 10);
        assert_eq!(on("a", std::slice::from_ref(&first), 20), "a");
        let next_turn = [first.clone(), moved(2, "b", turn, 30)];
        assert_eq!(on("a", &next_turn, 20), "a");
        let at_once = [first.clone(), moved(2, "b", decision, 30)];
        assert_eq!(on("a", &at_once, 20), "b");
        let both = [
            first.clone(),
            moved(2, "b", decision, 30),
            moved(3, "c", turn, 40),
        ];
        assert_eq!(on("a", &both, 20), "b", "the later one is for later turns");
        assert_eq!(deciding(&both, None).unwrap().as_str(), "c");
    }

    #[test]
    fn a_move_in_the_moment_a_turn_starts_counts_as_what_it_was() {
        let moves = [
            moved(1, "a", Swap::Turn, 10),
            moved(2, "b", Swap::Decision, 20),
        ];
        assert_eq!(on("a", &moves, 20), "b", "it came after the pin");
        assert_eq!(on("b", &moves, 20), "b", "it is the pin");
        assert_eq!(on("a", &moves, 21), "b", "the input was on its way");
        let back = [&moves[..], &[moved(3, "c", Swap::Turn, 20)]].concat();
        assert_eq!(on("c", &back, 20), "c", "moves before the pin are past");
        // A clock that went back: the move that pinned it seems to come later.
        assert_eq!(on("c", &back, 15), "b");
        let old = [&back[..], &[moved(4, "d", Swap::Turn, 90)]].concat();
        assert_eq!(on("d", &old, 80), "d");
    }

    #[tokio::test]
    async fn a_read_that_a_move_overtook_is_not_remembered() {
        let labels = Labels::default();
        let whose = || (TenantId::built_in(), AgentId::from("bot"));
        let (tenant, agent) = whose();
        let stale = labels
            .through(whose(), async {
                labels.forget(&tenant, &agent);
                Ok(vec![moved(1, "a", Swap::Turn, 10)])
            })
            .await;
        assert_eq!(stale.unwrap().len(), 1);
        assert_eq!(labels.live(&tenant, &agent), None);
        let moves = vec![moved(1, "a", Swap::Turn, 10), moved(2, "b", Swap::Turn, 20)];
        labels.through(whose(), async { Ok(moves) }).await.unwrap();
        assert_eq!(labels.live(&tenant, &agent), Some(Some("b".into())));
        let unknown = (TenantId::built_in(), AgentId::from("nobody"));
        labels
            .through(unknown.clone(), async { Ok(Vec::new()) })
            .await
            .unwrap();
        assert_eq!(labels.live(&unknown.0, &unknown.1), None);
    }
}
