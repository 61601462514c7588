//! `session`: the conversation, read page by page from the view, never copied as a whole.

use std::sync::Arc;

use belljar_protocol::Json;
use belljar_protocol::message::Message;

use super::Host;
use crate::bindings::session::Host as Session;
use crate::bindings::{decisions, types};
use crate::convert::outgoing;

/// Most items of a page.
const PAGE_ITEMS: u32 = 1_000;
/// Most bytes of a page; an item larger than that is a page of its own.
const PAGE_BYTES: usize = 4 << 20;

impl Session for Host {
    fn state(&mut self) -> Option<String> {
        self.view.state().map(text)
    }

    fn config(&mut self) -> Option<types::AgentConfig> {
        self.view.config().map(|config| outgoing::config(&config))
    }

    fn message_count(&mut self) -> u32 {
        self.view.message_count()
    }

    fn messages(&mut self, offset: u32, limit: u32) -> Vec<types::Message> {
        messages(offset, limit, |ix| self.view.message(ix))
    }

    fn view_count(&mut self) -> u32 {
        self.view.view_count()
    }

    fn view(&mut self, offset: u32, limit: u32) -> Vec<types::Message> {
        messages(offset, limit, |ix| self.view.view_message(ix))
    }

    fn node_count(&mut self) -> u32 {
        self.view.node_count()
    }

    fn nodes(&mut self, offset: u32, limit: u32) -> Vec<types::Node> {
        page(offset, limit, |ix| {
            let (message, parent) = self.view.node(ix)?;
            let node = types::Node {
                message: outgoing::message(&message),
                parent_id: parent.map(|id| id.as_str().to_owned()),
            };
            Some((outgoing::size(&message), node))
        })
    }

    fn head_id(&mut self) -> Option<String> {
        self.view.head_id().map(|id| id.as_str().to_owned())
    }

    fn calls(&mut self) -> Vec<types::Call> {
        self.view.calls().iter().map(outgoing::call).collect()
    }

    fn proposed(&mut self) -> decisions::Response {
        outgoing::response(self.view.proposed())
    }

    fn proposed_messages(&mut self, offset: u32, limit: u32) -> Vec<types::Message> {
        messages(offset, limit, |ix| self.view.proposed_message(ix))
    }
}

fn text(json: &Json) -> String {
    json.as_str().to_owned()
}

fn messages(
    offset: u32,
    limit: u32,
    get: impl Fn(u32) -> Option<Arc<Message>>,
) -> Vec<types::Message> {
    page(offset, limit, |ix| {
        let message = get(ix)?;
        Some((outgoing::size(&message), outgoing::message(&message)))
    })
}

/// Items from `offset` on until one of the limits, or until there are no more.
fn page<T>(offset: u32, limit: u32, get: impl Fn(u32) -> Option<(usize, T)>) -> Vec<T> {
    let mut items = Vec::new();
    let mut bytes = 0;
    for ix in offset..offset.saturating_add(limit.min(PAGE_ITEMS)) {
        let Some((size, item)) = get(ix) else { break };
        bytes += size;
        if bytes > PAGE_BYTES && !items.is_empty() {
            break;
        }
        items.push(item);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_at_its_limits_but_is_never_empty() {
        let all =
            |sizes: &'static [usize]| move |ix: u32| sizes.get(ix as usize).map(|size| (*size, ix));
        assert_eq!(page(1, 10, all(&[1, 1, 1])), [1, 2]);
        assert_eq!(page(0, 10, all(&[PAGE_BYTES, 1])), [0]);
        assert_eq!(page(0, 10, all(&[PAGE_BYTES + 1, 1])), [0]);
        assert_eq!(page(9, u32::MAX, all(&[1])), [0; 0]);
        assert_eq!(page(0, u32::MAX, |ix| Some((0, ix))).len(), 1_000);
    }
}
