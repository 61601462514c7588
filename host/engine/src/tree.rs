//! The message tree [T1–T4, T6].
//!
//! A message is stored once; nodes, the active path and a client's view are indices into
//! persistent vectors, so that cloning a tree is free and a step on it costs the logarithm of
//! its size. The one exception is moving to another branch, which costs the distance.

use std::sync::Arc;

use belljar_protocol::Json;
use belljar_protocol::agent::AgentConfig;
use belljar_protocol::id::MessageId;
use belljar_protocol::message::Message;
use imbl::{OrdMap, Vector};

/// A node's place in [`Tree::nodes`].
pub(crate) type NodeIx = u32;

/// One recorded message.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) message: Arc<Message>,
    pub(crate) parent: Option<NodeIx>,
    /// Messages above it.
    pub(crate) depth: u32,
    /// The agent's state and config as they hold at this node [T6]: those of its parent when it
    /// was recorded, until something is written while it is the head.
    pub(crate) holds: Holds,
}

/// What an agent has said of itself, as it holds at one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holds {
    pub(crate) state: Option<Json>,
    pub(crate) config: Option<Arc<Config>>,
}

/// A config, with its tools' schemas compiled at most once.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) wire: Arc<AgentConfig>,
    pub(crate) schemas: crate::schema::Compiled,
}

impl Config {
    pub(crate) fn new(wire: Arc<AgentConfig>) -> Arc<Self> {
        let schemas = crate::schema::Compiled::new(wire.tools.len());
        Arc::new(Self { wire, schemas })
    }
}

/// The tree, its head and the path to it.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    pub(crate) nodes: Vector<Node>,
    by_id: OrdMap<MessageId, NodeIx>,
    /// From the root to the head.
    path: Vector<NodeIx>,
    /// What holds before the first message, on every branch.
    root: Holds,
}

impl Tree {
    /// Recorded messages, on all branches.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Messages on the active path.
    pub fn path_len(&self) -> usize {
        self.path.len()
    }

    /// A message of the active path, from the root.
    pub fn on_path(&self, ix: usize) -> Option<&Arc<Message>> {
        Some(&self.nodes.get(*self.path.get(ix)? as usize)?.message)
    }

    /// The active path's last message.
    pub fn head_id(&self) -> Option<&MessageId> {
        self.id_of(self.head())
    }

    pub(crate) fn head(&self) -> Option<NodeIx> {
        self.path.last().copied()
    }

    pub(crate) fn node(&self, ix: NodeIx) -> Option<&Node> {
        self.nodes.get(ix as usize)
    }

    pub(crate) fn find(&self, id: &MessageId) -> Option<NodeIx> {
        self.by_id.get(id).copied()
    }

    /// The id under which a node was recorded.
    pub(crate) fn id_of(&self, ix: Option<NodeIx>) -> Option<&MessageId> {
        self.node(ix?)?.message.id.as_ref()
    }

    /// What holds at a node; at none: before the first message.
    pub(crate) fn holds_at(&self, ix: Option<NodeIx>) -> &Holds {
        ix.and_then(|ix| self.node(ix))
            .map_or(&self.root, |node| &node.holds)
    }

    /// What holds at the head.
    pub(crate) fn holds(&self) -> &Holds {
        self.holds_at(self.head())
    }

    /// Whether a node lies on the active path.
    pub(crate) fn is_on_path(&self, ix: NodeIx) -> bool {
        self.node(ix)
            .is_some_and(|node| self.path.get(node.depth as usize) == Some(&ix))
    }

    /// The path from the root to a node. The active path is shared; another branch costs the
    /// distance to it.
    pub(crate) fn path_to(&self, ix: Option<NodeIx>) -> Vector<NodeIx> {
        let mut beside = Vec::new();
        let mut at = ix;
        while let Some(ix) = at {
            if self.is_on_path(ix) {
                break;
            }
            beside.push(ix);
            at = self.node(ix).and_then(|node| node.parent);
        }
        let shared = at
            .and_then(|ix| self.node(ix))
            .map_or(0, |node| node.depth as usize + 1);
        let mut path = self.path.take(shared);
        path.extend(beside.into_iter().rev());
        path
    }

    /// Whether `ix` is the recorded child of `parent` that a view continues with: matching is by
    /// id only [T2].
    pub(crate) fn is_child(&self, ix: NodeIx, parent: Option<NodeIx>) -> bool {
        self.node(ix).is_some_and(|node| node.parent == parent)
    }

    /// Walks a list from a base: how many of its messages are recorded one after another below
    /// it, and where that ends.
    pub(crate) fn matching<'a>(
        &self,
        base: Option<NodeIx>,
        list: impl Iterator<Item = &'a Arc<Message>>,
    ) -> (usize, Option<NodeIx>) {
        let (mut count, mut at) = (0, base);
        for message in list {
            match message.id.as_ref().and_then(|id| self.find(id)) {
                Some(ix) if self.is_child(ix, at) => (count, at) = (count + 1, Some(ix)),
                _ => break,
            }
        }
        (count, at)
    }

    /// Records a chain below `parent`; its last message is the new head.
    pub(crate) fn record(&mut self, parent: Option<&MessageId>, messages: &[Arc<Message>]) {
        let mut at = parent.and_then(|id| self.find(id));
        if at != self.head() {
            self.path = self.path_to(at);
        }
        for message in messages {
            let ix = self.nodes.len() as NodeIx;
            let (depth, holds) = match at.and_then(|ix| self.node(ix)) {
                Some(parent) => (parent.depth + 1, parent.holds.clone()),
                None => (0, self.root.clone()),
            };
            if let Some(id) = &message.id {
                self.by_id.insert(id.clone(), ix);
            }
            self.nodes.push_back(Node {
                message: message.clone(),
                parent: at,
                depth,
                holds,
            });
            self.path.push_back(ix);
            at = Some(ix);
        }
    }

    /// Moves the head to a recorded message, or before the first.
    pub(crate) fn move_head(&mut self, head: Option<&MessageId>) {
        self.path = self.path_to(head.and_then(|id| self.find(id)));
    }

    /// Writes what holds from here on: at the head, or at the root, where it reaches every
    /// branch [T6]. Only `session.start` writes at a root that has messages below it, and only
    /// those its own answer recorded: the loop is over them.
    fn write(&mut self, at_root: bool, write: impl Fn(&mut Holds)) {
        match self.head().filter(|_| !at_root) {
            Some(ix) => {
                if let Some(node) = self.nodes.get_mut(ix as usize) {
                    write(&mut node.holds);
                }
            }
            None => {
                write(&mut self.root);
                if at_root {
                    self.nodes
                        .iter_mut()
                        .for_each(|node| write(&mut node.holds));
                }
            }
        }
    }

    pub(crate) fn set_state(&mut self, state: Option<Json>, at_root: bool) {
        self.write(at_root, |holds| holds.state = state.clone());
    }

    pub(crate) fn set_config(&mut self, config: Arc<Config>, at_root: bool) {
        self.write(at_root, |holds| holds.config = Some(config.clone()));
    }

    /// What holds before the first message.
    pub(crate) fn root_holds(&self) -> &Holds {
        &self.root
    }

    /// Puts back a node as a snapshot has it; parents come before children.
    pub(crate) fn restore_node(
        &mut self,
        message: Arc<Message>,
        parent: Option<NodeIx>,
        holds: Holds,
    ) {
        let depth = parent
            .and_then(|ix| self.node(ix))
            .map_or(0, |node| node.depth + 1);
        if let Some(id) = &message.id {
            self.by_id.insert(id.clone(), self.nodes.len() as NodeIx);
        }
        self.nodes.push_back(Node {
            message,
            parent,
            depth,
            holds,
        });
    }

    /// Puts back the root's values and the head as a snapshot has them.
    pub(crate) fn restore_head(&mut self, root: Holds, head: Option<NodeIx>) {
        self.root = root;
        self.path = self.path_to(head);
    }
}
