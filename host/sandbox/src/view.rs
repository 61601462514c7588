//! A [`SessionView`] made of plain values.

use std::sync::Arc;

use belljar_protocol::Json;
use belljar_protocol::agent::AgentConfig;
use belljar_protocol::call::Call;
use belljar_protocol::decision::Response;
use belljar_protocol::id::MessageId;
use belljar_protocol::message::Message;
use belljar_protocol::ports::SessionView;

/// A session as plain values: the empty one for the upload's smoke decision, others for tests.
#[derive(Debug, Default)]
pub struct FixedView {
    /// The agent's state.
    pub state: Option<Json>,
    /// The agent's config.
    pub config: Option<Arc<AgentConfig>>,
    /// The active path.
    pub messages: Vec<Arc<Message>>,
    /// The client's whole view.
    pub view: Vec<Arc<Message>>,
    /// The message tree: messages and their parents.
    pub nodes: Vec<(Arc<Message>, Option<MessageId>)>,
    /// The head of the active path.
    pub head: Option<MessageId>,
    /// The open calls.
    pub calls: Vec<Call>,
    /// The proposal.
    pub proposed: Response,
    /// Messages the proposal records.
    pub proposed_messages: Vec<Arc<Message>>,
}

fn length<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}

impl SessionView for FixedView {
    fn state(&self) -> Option<&Json> {
        self.state.as_ref()
    }
    fn config(&self) -> Option<Arc<AgentConfig>> {
        self.config.clone()
    }
    fn message_count(&self) -> u32 {
        length(&self.messages)
    }
    fn message(&self, ix: u32) -> Option<Arc<Message>> {
        self.messages.get(ix as usize).cloned()
    }
    fn view_count(&self) -> u32 {
        length(&self.view)
    }
    fn view_message(&self, ix: u32) -> Option<Arc<Message>> {
        self.view.get(ix as usize).cloned()
    }
    fn node_count(&self) -> u32 {
        length(&self.nodes)
    }
    fn node(&self, ix: u32) -> Option<(Arc<Message>, Option<MessageId>)> {
        self.nodes.get(ix as usize).cloned()
    }
    fn head_id(&self) -> Option<MessageId> {
        self.head.clone()
    }
    fn calls(&self) -> Vec<Call> {
        self.calls.clone()
    }
    fn proposed(&self) -> &Response {
        &self.proposed
    }
    fn proposed_count(&self) -> u32 {
        length(&self.proposed_messages)
    }
    fn proposed_message(&self, ix: u32) -> Option<Arc<Message>> {
        self.proposed_messages.get(ix as usize).cloned()
    }
}
