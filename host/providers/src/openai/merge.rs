//! From the chunks of a reply to the reply.

use std::collections::BTreeMap;

use belljar_protocol::Json;
use belljar_protocol::id::CallId;
use belljar_protocol::message::{Content, Function, ToolCall};
use belljar_protocol::model::{Image, LlmResponse, ModelFailure, StreamDelta, ToolCallDelta};
use serde::Deserialize;

use super::errors;
use crate::failure::{refused, retryable, terminal};

/// The most tool calls of one reply.
const MAX_CALLS: usize = 1000;

/// Collects a reply.
#[derive(Debug, Default)]
pub(super) struct Merge {
    model: String,
    /// The choice that is read: the first one seen, since only one is asked for.
    choice: Option<u64>,
    text: String,
    refusal: String,
    reasoning: Option<Reasoning>,
    reasoning_details: Vec<serde_json::Value>,
    calls: Vec<Building>,
    /// Where in `calls` the call of a stream index is.
    by_index: BTreeMap<u64, usize>,
    images: Vec<Image>,
    finish_reason: Option<String>,
    usage: Option<Json>,
    /// A completion that came as one document is whole without a finish reason.
    whole: bool,
}

/// Reasoning text, and the name of the field it comes in.
#[derive(Debug)]
struct Reasoning {
    field: &'static str,
    text: String,
}

/// A tool call in the making.
#[derive(Debug)]
struct Building {
    /// The provider's id; none when it gave none.
    given: Option<String>,
    /// The id it goes by: the given one, or a minted one.
    id: String,
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Chunk {
    error: Option<Json>,
    object: Option<Json>,
    model: Option<String>,
    choices: Option<Vec<Choice>>,
    usage: Option<Json>,
}

#[derive(Deserialize)]
struct Choice {
    index: Option<u64>,
    delta: Option<Delta>,
    message: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<Json>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    reasoning_details: Option<Vec<serde_json::Value>>,
    tool_calls: Option<Vec<Fragment>>,
    images: Option<Vec<WireImage>>,
}

#[derive(Deserialize)]
struct Fragment {
    index: Option<u64>,
    id: Option<String>,
    function: Option<FunctionFragment>,
}

#[derive(Deserialize)]
struct FunctionFragment {
    name: Option<String>,
    arguments: Option<Json>,
}

#[derive(Deserialize)]
struct WireImage {
    image_url: Option<Image>,
}

impl Merge {
    /// Whether the model has said that it stopped.
    pub(super) fn has_stopped(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Takes the next document; gives what is new in it.
    pub(super) fn take(&mut self, document: &Json) -> Result<StreamDelta, ModelFailure> {
        let chunk: Chunk = document.read().map_err(|error| {
            let said = errors::excerpt(document.as_str());
            retryable(format!(
                "the response is no chat completion ({error}): {said}"
            ))
        })?;
        let is_error = chunk.object.and_then(|object| object.text()).as_deref() == Some("error");
        if is_error || chunk.error.is_some_and(|error| !error.is_null()) {
            return Err(errors::of_document(document, None));
        }
        if let Some(model) = chunk.model.filter(|_| self.model.is_empty()) {
            self.model = model;
        }
        // Counts may come more than once, each time of everything so far.
        if let Some(usage) = chunk.usage.filter(|usage| !usage.is_null()) {
            self.usage = Some(usage);
        }
        let mut out = StreamDelta::default();
        for choice in chunk.choices.into_iter().flatten() {
            let index = choice.index.unwrap_or(0);
            if *self.choice.get_or_insert(index) == index {
                self.take_choice(choice, &mut out)?;
            }
        }
        Ok(out)
    }

    /// The reply, once nothing more comes.
    pub(super) fn finish(mut self, asked: &str) -> Result<LlmResponse, ModelFailure> {
        if !self.refusal.is_empty() {
            return Err(refused(format!(
                "the model refused: {}",
                errors::excerpt(&self.refusal)
            )));
        }
        match self.finish_reason.as_deref() {
            Some("content_filter") => {
                return Err(refused(
                    "the reply was stopped by the provider's content filter",
                ));
            }
            Some("error") => return Err(retryable("the provider failed while it was answering")),
            Some(_) => {}
            None if self.whole => {}
            None => return Err(retryable("the response ended before the reply did")),
        }
        // Some servers open a call that they never fill, or are cut before its name.
        let cut = self.finish_reason.as_deref() == Some("length");
        self.calls
            .retain(|call| !(call.name.is_empty() && (cut || call.arguments.is_empty())));
        if self.calls.iter().any(|call| call.name.is_empty()) {
            return Err(retryable("the reply calls a tool without naming it"));
        }
        Ok(LlmResponse {
            extra: self.extra(),
            model: if self.model.is_empty() {
                asked.to_owned()
            } else {
                self.model
            },
            content: (!self.text.is_empty()).then_some(self.text),
            tool_calls: self.calls.into_iter().map(Building::into_call).collect(),
            finish_reason: self.finish_reason,
            usage: self.usage,
            cost: None,
            images: self.images,
        })
    }

    fn take_choice(&mut self, choice: Choice, out: &mut StreamDelta) -> Result<(), ModelFailure> {
        let Choice {
            index: _,
            delta,
            message,
            finish_reason,
        } = choice;
        if let Some(mut delta) = delta {
            for fragment in delta.tool_calls.take().into_iter().flatten() {
                out.tool_calls.extend(self.take_fragment(fragment)?);
            }
            self.take_delta(delta, out)?;
        }
        if let Some(mut message) = message {
            self.whole = true;
            for call in message.tool_calls.take().into_iter().flatten() {
                let FragmentParts {
                    id,
                    name,
                    arguments,
                    ..
                } = call.into_parts()?;
                let at = self.open_call(id)?;
                out.tool_calls
                    .extend(self.add_to_call(at, name, &arguments));
            }
            self.take_delta(message, out)?;
        }
        if let Some(reason) = finish_reason.filter(|reason| !reason.is_empty()) {
            out.finish_reason = Some(reason.clone());
            self.finish_reason = Some(reason);
        }
        Ok(())
    }

    fn take_delta(&mut self, delta: Delta, out: &mut StreamDelta) -> Result<(), ModelFailure> {
        let text = delta.content.as_ref().map(text_of).transpose()?;
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.text.push_str(&text);
            out.text.get_or_insert_default().push_str(&text);
        }
        if let Some(refusal) = delta.refusal {
            self.refusal.push_str(&refusal);
        }
        // A server that sends both fields says the same in both.
        let reasoning = match (&self.reasoning, delta.reasoning_content, delta.reasoning) {
            (
                Some(Reasoning {
                    field: "reasoning", ..
                }),
                _,
                text,
            ) => text.map(|text| ("reasoning", text)),
            (Some(_), text, _) => text.map(|text| ("reasoning_content", text)),
            (None, Some(text), _) if !text.is_empty() => Some(("reasoning_content", text)),
            (None, _, text) => text.map(|text| ("reasoning", text)),
        };
        if let Some((field, text)) = reasoning.filter(|(_, text)| !text.is_empty()) {
            let so_far = self.reasoning.get_or_insert_with(|| Reasoning {
                field,
                text: String::new(),
            });
            so_far.text.push_str(&text);
            out.reasoning.get_or_insert_default().push_str(&text);
        }
        for detail in delta.reasoning_details.into_iter().flatten() {
            self.take_reasoning_detail(detail);
        }
        self.images.extend(
            delta
                .images
                .into_iter()
                .flatten()
                .filter_map(|image| image.image_url),
        );
        Ok(())
    }

    /// Text of the same block is joined: what goes back must be the blocks the model wrote.
    fn take_reasoning_detail(&mut self, detail: serde_json::Value) {
        if let (Some(serde_json::Value::Object(last)), serde_json::Value::Object(next)) =
            (self.reasoning_details.last_mut(), &detail)
        {
            let is_text = next.get("type").and_then(|kind| kind.as_str()) == Some("reasoning.text");
            if is_text
                && last.get("type") == next.get("type")
                && last.get("index") == next.get("index")
            {
                for (key, value) in next {
                    match (last.get_mut(key), value) {
                        (
                            Some(serde_json::Value::String(so_far)),
                            serde_json::Value::String(more),
                        ) if key == "text" => {
                            so_far.push_str(more);
                        }
                        (Some(_), serde_json::Value::Null) => {}
                        _ => {
                            last.insert(key.clone(), value.clone());
                        }
                    }
                }
                return;
            }
        }
        self.reasoning_details.push(detail);
    }

    /// Merges by index. Where there is none, a fragment with an id belongs to the call of that
    /// id, and one without to the last call.
    fn take_fragment(&mut self, fragment: Fragment) -> Result<Option<ToolCallDelta>, ModelFailure> {
        let FragmentParts {
            index,
            id,
            name,
            arguments,
        } = fragment.into_parts()?;
        let open = match (index, &id) {
            (Some(index), _) => self.by_index.get(&index).copied(),
            (None, Some(id)) => self
                .calls
                .iter()
                .rposition(|call| call.given.as_ref() == Some(id)),
            (None, None) => self.calls.len().checked_sub(1),
        };
        let at = match open {
            Some(at)
                if !self.calls[at].is_followed_by(id.as_deref(), name.as_deref(), &arguments) =>
            {
                // An id that comes late only tells the next call from this one: clients already
                // know this one by the minted id.
                let call = &mut self.calls[at];
                call.given = call.given.take().or(id);
                at
            }
            _ if id.is_none() && name.is_none() && arguments.is_empty() => return Ok(None),
            _ => self.open_call(id)?,
        };
        if let Some(index) = index {
            self.by_index.insert(index, at);
        }
        Ok(self.add_to_call(at, name, &arguments))
    }

    fn open_call(&mut self, given: Option<String>) -> Result<usize, ModelFailure> {
        if self.calls.len() == MAX_CALLS {
            return Err(terminal(format!(
                "the reply calls more than {MAX_CALLS} tools"
            )));
        }
        let id = given.clone().unwrap_or_else(|| self.mint());
        self.calls.push(Building {
            given,
            id,
            name: String::new(),
            arguments: String::new(),
        });
        Ok(self.calls.len() - 1)
    }

    fn add_to_call(
        &mut self,
        at: usize,
        name: Option<String>,
        arguments: &str,
    ) -> Option<ToolCallDelta> {
        let call = &mut self.calls[at];
        // Most send the name once; some repeat it, some cut it.
        let name = name.filter(|name| *name != call.name);
        if let Some(name) = &name {
            call.name.push_str(name);
        }
        call.arguments.push_str(arguments);
        (name.is_some() || !arguments.is_empty()).then(|| ToolCallDelta {
            id: call.id.clone(),
            name,
            arguments: (!arguments.is_empty()).then(|| arguments.to_owned()),
        })
    }

    /// An id for a call that has none: the same for the same reply.
    fn mint(&self) -> String {
        let taken = |id: &String| self.calls.iter().any(|call| call.id == *id);
        let mut n = self.calls.len();
        loop {
            let id = format!("call_{n}");
            if !taken(&id) {
                return id;
            }
            n += 1;
        }
    }

    /// What the message must carry when it is sent back.
    fn extra(&mut self) -> Option<Json> {
        let mut extra = serde_json::Map::new();
        if !self.reasoning_details.is_empty() {
            extra.insert(
                "reasoning_details".into(),
                std::mem::take(&mut self.reasoning_details).into(),
            );
        }
        // Models that think between tool calls want their thoughts back until they have answered.
        if let Some(Reasoning { field, text }) = self.reasoning.take()
            && !self.calls.is_empty()
        {
            extra.insert(field.into(), text.into());
        }
        (!extra.is_empty()).then(|| Json::of(&extra))
    }
}

/// A fragment, with what is empty taken as absent.
struct FragmentParts {
    index: Option<u64>,
    id: Option<String>,
    name: Option<String>,
    arguments: String,
}

impl Fragment {
    fn into_parts(self) -> Result<FragmentParts, ModelFailure> {
        let (name, arguments) = match self.function {
            Some(function) => (function.name, function.arguments),
            None => (None, None),
        };
        Ok(FragmentParts {
            index: self.index,
            id: self.id.filter(|id| !id.is_empty()),
            name: name.filter(|name| !name.is_empty()),
            arguments: arguments
                .as_ref()
                .map(arguments_of)
                .transpose()?
                .unwrap_or_default(),
        })
    }
}

impl Building {
    /// Whether a fragment that seems to go on with this call begins another one: it carries
    /// another id, or, where it has none, it names a tool after the end of the arguments.
    fn is_followed_by(&self, id: Option<&str>, name: Option<&str>, arguments: &str) -> bool {
        match (&self.given, id) {
            (Some(own), Some(id)) => own != id,
            (_, None) => {
                name.is_some()
                    && self.arguments.trim_end().ends_with('}')
                    && arguments.trim_start().starts_with('{')
            }
            (None, Some(_)) => false,
        }
    }

    fn into_call(self) -> ToolCall {
        ToolCall {
            id: CallId::new(self.id),
            kind: "function".into(),
            function: Function {
                name: self.name,
                arguments: self.arguments,
            },
        }
    }
}

/// A string's own text, which may fail to decode: some servers cut a character between chunks.
fn string(json: &Json) -> Result<String, ModelFailure> {
    json.read().map_err(|error| {
        let said = errors::excerpt(json.as_str());
        retryable(format!("the response holds broken text ({error}): {said}"))
    })
}

/// Text that comes as a string, or as parts.
fn text_of(content: &Json) -> Result<String, ModelFailure> {
    if content.as_str().starts_with('"') {
        return string(content);
    }
    Ok(content
        .read::<Content>()
        .map(|content| content.text())
        .unwrap_or_default())
}

/// Arguments as text. Some servers send them as the object itself.
fn arguments_of(arguments: &Json) -> Result<String, ModelFailure> {
    if arguments.as_str().starts_with('"') {
        return string(arguments);
    }
    Ok(arguments.to_argument_text())
}
