//! A folded session as a document, and back: so that loading costs the tail, not the history.
//!
//! The document's types are its own: state is not serialisable, so that its shape stays free.

use std::collections::BTreeMap;
use std::sync::Arc;

use belljar_protocol::agent::AgentConfig;
use belljar_protocol::call::{CallRequest, CallStatus, LlmReply, Outcome};
use belljar_protocol::decision::Identity;
use belljar_protocol::event::{DecisionQueued, TurnEnded};
use belljar_protocol::id::{AgentId, CallId, DecisionId, MessageId, SessionId, TurnId, VersionId};
use belljar_protocol::message::Message;
use belljar_protocol::scratch::{DeliveredFile, ScratchManifest};
use belljar_protocol::snapshot::{FORMAT, Snapshot};
use belljar_protocol::{Json, Timestamp};
use serde::{Deserialize, Serialize};

use crate::calls::Entry;
use crate::money::Sum;
use crate::state::{ActiveTurn, Delivered, Info, Queued, State, TurnRecord};
use crate::tree::{Config, Holds, NodeIx};

/// Why a snapshot cannot be used; the log can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It was written by another version of the host.
    #[error("the snapshot has format {found}, this host reads {FORMAT}; read the log instead")]
    Format {
        /// The format it has.
        found: u32,
    },
    /// It is damaged.
    #[error("the snapshot at seq {seq} is damaged: {reason}; read the log instead")]
    Damaged {
        /// The seq it claims.
        seq: u64,
        /// What the reader said.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Body {
    info: InfoBody,
    closed: bool,
    started: bool,
    turns: Vec<TurnBody>,
    turn: Option<ActiveBody>,
    last_turn: Option<Arc<TurnEnded>>,
    queue: Vec<DecisionQueued>,
    /// Each value of state and config once; nodes name them by place.
    states: Vec<Json>,
    configs: Vec<Arc<AgentConfig>>,
    root: HoldsBody,
    nodes: Vec<NodeBody>,
    head: Option<NodeIx>,
    calls: Vec<CallBody>,
    unprocessed: Vec<CallId>,
    asked_by: Vec<(CallId, CallId)>,
    scratch: Arc<ScratchManifest>,
    files: Vec<FileBody>,
    last_version: Option<VersionId>,
    total: SumBody,
}

#[derive(Serialize, Deserialize)]
struct InfoBody {
    agent_id: AgentId,
    identity: Identity,
    ancestry: Vec<SessionId>,
    created_at: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct TurnBody {
    turn_id: TurnId,
    bodies: Vec<Arc<str>>,
    joined: Option<TurnId>,
}

#[derive(Serialize, Deserialize)]
struct ActiveBody {
    turn_id: TurnId,
    version: Option<VersionId>,
    started_at: Timestamp,
    stream: Option<bool>,
    by_action: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opened_by: Option<DecisionId>,
    spent: SumBody,
}

#[derive(Serialize, Deserialize)]
struct SumBody {
    cost: Option<String>,
    usage: Option<Json>,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
struct HoldsBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config: Option<usize>,
}

#[derive(Serialize, Deserialize)]
struct NodeBody {
    message: Arc<Message>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<NodeIx>,
    holds: HoldsBody,
}

#[derive(Serialize, Deserialize)]
struct CallBody {
    request: Arc<CallRequest>,
    status: CallStatus,
    attempt: u32,
    #[serde(default)]
    failures: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    /// The message of its reply is this recorded node's, and is not written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply: Option<ReplyBody>,
    order: u64,
}

#[derive(Serialize, Deserialize)]
struct ReplyBody {
    message: MessageId,
    truncated: bool,
    model: String,
    usage: Option<Json>,
    cost: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct FileBody {
    seq: u64,
    at: Timestamp,
    file: DeliveredFile,
}

/// Values written once each. Neighbours share their state, so comparing with the last one
/// written finds nearly all repeats.
#[derive(Default)]
struct Values {
    states: Vec<Json>,
    configs: Vec<Arc<Config>>,
    /// Where a config is in `configs`, by its address.
    places: BTreeMap<*const Config, usize>,
}

impl Values {
    fn config(&mut self, config: Option<&Arc<Config>>) -> Option<usize> {
        let config = config?;
        let place = self.places.entry(Arc::as_ptr(config)).or_insert_with(|| {
            self.configs.push(config.clone());
            self.configs.len() - 1
        });
        Some(*place)
    }

    fn holds(&mut self, holds: &Holds) -> HoldsBody {
        let state = holds.state.as_ref().map(|state| {
            // By text: it travels byte for byte, and equal values may be written differently.
            if self.states.last().map(Json::as_str) != Some(state.as_str()) {
                self.states.push(state.clone());
            }
            self.states.len() - 1
        });
        HoldsBody {
            state,
            config: self.config(holds.config.as_ref()),
        }
    }
}

/// Writes a state down. None while a decision is live: what it was frozen from is not kept, and
/// a moment later there is none. None, too, of one that holds a value nested so deep that the
/// document around it could not be read back.
pub fn snapshot(state: &State) -> Option<Snapshot> {
    let info = state.info.as_ref().filter(|_| state.live.is_none())?;
    let mut values = Values::default();
    let root = values.holds(state.tree.root_holds());
    let nodes = state
        .tree
        .nodes
        .iter()
        .map(|node| NodeBody {
            message: node.message.clone(),
            parent: node.parent,
            holds: values.holds(&node.holds),
        })
        .collect();
    let calls = state
        .calls
        .all
        .values()
        .map(|entry| call_body(state, entry, &mut values))
        .collect();
    let body = Body {
        info: InfoBody {
            agent_id: info.agent_id.clone(),
            identity: info.identity.clone(),
            ancestry: info.ancestry.clone(),
            created_at: info.created_at,
        },
        closed: state.closed,
        started: state.started,
        turns: state
            .turns
            .iter()
            .map(|(turn_id, record)| TurnBody {
                turn_id: turn_id.clone(),
                bodies: record.bodies.iter().cloned().collect(),
                joined: record.joined.clone(),
            })
            .collect(),
        turn: state.turn.as_ref().map(|turn| ActiveBody {
            turn_id: turn.turn_id.clone(),
            version: turn.version.clone(),
            started_at: turn.started_at,
            stream: turn.stream,
            by_action: turn.by_action,
            opened_by: turn.opened_by.clone(),
            spent: sum_body(&turn.spent),
        }),
        last_turn: state.last_turn.clone(),
        queue: state
            .queue
            .iter()
            .map(|queued| DecisionQueued {
                decision_id: queued.decision_id.clone(),
                turn_id: queued.turn_id.clone(),
                front: false,
                trigger: queued.trigger.clone(),
            })
            .collect(),
        states: values.states,
        configs: values
            .configs
            .iter()
            .map(|config| config.wire.clone())
            .collect(),
        root,
        nodes,
        head: state.tree.head(),
        calls,
        unprocessed: state.calls.unprocessed.iter().cloned().collect(),
        asked_by: state
            .calls
            .asked_by
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
        scratch: state.scratch.clone(),
        files: state
            .files
            .iter()
            .map(|file| FileBody {
                seq: file.seq,
                at: file.at,
                file: file.file.clone(),
            })
            .collect(),
        last_version: state.last_version.clone(),
        total: sum_body(&state.total),
    };
    let body = Json::of(&body);
    Json::parse(body.as_str()).is_ok().then_some(Snapshot {
        format: FORMAT,
        seq: state.seq,
        body,
    })
}

fn call_body(state: &State, entry: &Entry, values: &mut Values) -> CallBody {
    let mut outcome = entry.outcome.as_deref().cloned();
    let mut reply = None;
    if let Some(Outcome::Reply(LlmReply {
        message,
        truncated,
        model,
        usage,
        cost,
    })) = &outcome
        && let Some(id) = &message.id
        && let Some(node) = state.tree.find(id).and_then(|ix| state.tree.node(ix))
        && node.message == *message
    {
        reply = Some(ReplyBody {
            message: id.clone(),
            truncated: *truncated,
            model: model.clone(),
            usage: usage.clone(),
            cost: cost.clone(),
        });
        outcome = None;
    }
    CallBody {
        request: entry.request.clone(),
        status: entry.status,
        attempt: entry.attempt,
        failures: entry.failures,
        deadline: entry.deadline,
        retry_at: entry.retry_at,
        config: values.config(entry.config.as_ref()),
        outcome,
        reply,
        order: entry.order,
    }
}

fn sum_body(sum: &Sum) -> SumBody {
    SumBody {
        cost: sum.cost(),
        usage: sum.usage(),
    }
}

/// Reads a state back.
///
/// # Errors
/// [`Unreadable`] when the snapshot is of another format or damaged; fold the log instead.
pub fn restore(session_id: SessionId, snapshot: &Snapshot) -> Result<State, Unreadable> {
    if snapshot.format != FORMAT {
        return Err(Unreadable::Format {
            found: snapshot.format,
        });
    }
    let damaged = |reason: String| Unreadable::Damaged {
        seq: snapshot.seq,
        reason,
    };
    let body: Body = snapshot.body.read().map_err(|e| damaged(e.to_string()))?;
    let configs: Vec<Arc<Config>> = body.configs.into_iter().map(Config::new).collect();
    let states = body.states;
    let holds = |at: HoldsBody| Holds {
        state: at.state.and_then(|ix| states.get(ix).cloned()),
        config: at.config.and_then(|ix| configs.get(ix).cloned()),
    };
    let mut state = State::new(session_id);
    state.seq = snapshot.seq;
    state.info = Some(Arc::new(Info {
        agent_id: body.info.agent_id,
        identity: body.info.identity,
        ancestry: body.info.ancestry,
        created_at: body.info.created_at,
    }));
    state.closed = body.closed;
    state.started = body.started;
    state.turns = body
        .turns
        .into_iter()
        .map(|turn| {
            let record = TurnRecord {
                bodies: turn.bodies.into_iter().collect(),
                joined: turn.joined,
            };
            (turn.turn_id, record)
        })
        .collect();
    state.turn = body.turn.map(|turn| ActiveTurn {
        turn_id: turn.turn_id,
        version: turn.version,
        started_at: turn.started_at,
        stream: turn.stream,
        by_action: turn.by_action,
        opened_by: turn.opened_by,
        spent: sum(&turn.spent),
    });
    state.last_turn = body.last_turn;
    state.queue = body
        .queue
        .into_iter()
        .map(|queued| Queued {
            decision_id: queued.decision_id,
            turn_id: queued.turn_id,
            trigger: queued.trigger,
        })
        .collect();
    for (ix, node) in body.nodes.into_iter().enumerate() {
        if node.parent.is_some_and(|parent| parent as usize >= ix) {
            return Err(damaged(format!("node {ix} comes before its parent")));
        }
        state
            .tree
            .restore_node(node.message, node.parent, holds(node.holds));
    }
    if body
        .head
        .is_some_and(|head| head as usize >= state.tree.len())
    {
        return Err(damaged("the head is no node".into()));
    }
    state.tree.restore_head(holds(body.root), body.head);
    for call in body.calls {
        let outcome = match call.reply {
            Some(reply) => {
                let node = state
                    .tree
                    .find(&reply.message)
                    .and_then(|ix| state.tree.node(ix));
                let node =
                    node.ok_or_else(|| damaged(format!("no message `{}`", reply.message)))?;
                Some(Outcome::Reply(LlmReply {
                    message: node.message.clone(),
                    truncated: reply.truncated,
                    model: reply.model,
                    usage: reply.usage,
                    cost: reply.cost,
                }))
            }
            None => call.outcome,
        };
        state.calls.restore(Entry {
            request: call.request,
            status: call.status,
            attempt: call.attempt,
            failures: call.failures,
            deadline: call.deadline,
            retry_at: call.retry_at,
            config: call.config.and_then(|ix| configs.get(ix).cloned()),
            outcome: outcome.map(Arc::new),
            order: call.order,
        });
    }
    state.calls.unprocessed = body.unprocessed.into_iter().collect();
    state.calls.asked_by = body.asked_by.into_iter().collect();
    state.scratch = body.scratch;
    state.files = body
        .files
        .into_iter()
        .map(|file| Delivered {
            seq: file.seq,
            at: file.at,
            file: file.file,
        })
        .collect();
    state.last_version = body.last_version;
    state.total = sum(&body.total);
    Ok(state)
}

fn sum(body: &SumBody) -> Sum {
    Sum::restore(body.cost.as_deref(), body.usage.as_ref())
}
