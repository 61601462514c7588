//! Messages of a conversation, in the shapes clients, agents and the log share.

use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Json;
use crate::id::{CallId, MessageId};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// What a message says: plain text, or OpenAI-style parts kept as they came.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// A JSON array of content parts; part types unknown to the host are kept.
    Parts(Json),
}

impl Content {
    /// The text of it: all of a text, or the text parts joined.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                #[derive(Deserialize)]
                struct Part {
                    #[serde(rename = "type")]
                    kind: Option<String>,
                    text: Option<String>,
                }
                let parts: Vec<Part> = parts.read().unwrap_or_default();
                parts
                    .into_iter()
                    .filter(|part| part.kind.as_deref() == Some("text"))
                    .filter_map(|part| part.text)
                    .collect()
            }
        }
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => to.serialize_str(text),
            Self::Parts(parts) => parts.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Json::deserialize(from)?;
        match raw.as_str().as_bytes().first() {
            Some(b'"') => Ok(Self::Text(raw.text().unwrap_or_default())),
            Some(b'[') => Ok(Self::Parts(raw)),
            _ => Err(D::Error::custom(
                "content must be a string or an array of content parts",
            )),
        }
    }
}

/// The name and raw argument text of a tool the model asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// The tool's name.
    pub name: String,
    /// Arguments as the model wrote them, parsable or not.
    #[serde(default)]
    pub arguments: String,
}

/// A tool call inside an assistant message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's id, unique in a session [C14].
    pub id: CallId,
    /// Always `function` today; kept as it came.
    #[serde(rename = "type", default = "function_type")]
    pub kind: String,
    /// What is called.
    pub function: Function,
}

fn function_type() -> String {
    "function".into()
}

/// A message. `id` is none while it is a draft that nothing has recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The node's id in the message tree.
    pub id: Option<MessageId>,
    /// Who speaks.
    pub role: Role,
    /// What is said; none for an assistant message that only calls tools.
    pub content: Option<Content>,
    /// Tools the assistant calls.
    pub tool_calls: Vec<ToolCall>,
    /// The call this message answers; required for role `tool`.
    pub tool_call_id: Option<CallId>,
    /// The speaker's name.
    pub name: Option<String>,
    /// Fields this version does not model, in the order they came; sent back unchanged.
    pub extra: Vec<(String, Json)>,
}

impl Message {
    /// A text message without an id.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            id: None,
            role,
            content: Some(Content::Text(text.into())),
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            extra: Vec::new(),
        }
    }

    /// A message of role `tool` that answers `call`.
    pub fn tool_result(call: CallId, text: impl Into<String>) -> Self {
        Self {
            tool_call_id: Some(call),
            ..Self::text(Role::Tool, text)
        }
    }

    /// The same message under `id`.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if let Some(id) = &self.id {
            map.serialize_entry("id", id)?;
        }
        map.serialize_entry("role", &self.role)?;
        if let Some(content) = &self.content {
            map.serialize_entry("content", content)?;
        }
        if !self.tool_calls.is_empty() {
            map.serialize_entry("tool_calls", &self.tool_calls)?;
        }
        if let Some(id) = &self.tool_call_id {
            map.serialize_entry("tool_call_id", id)?;
        }
        if let Some(name) = &self.name {
            map.serialize_entry("name", name)?;
        }
        for (key, value) in &self.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Message;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message object with a `role`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
                let (mut id, mut role, mut content, mut tool_calls) = (None, None, None, None);
                let (mut tool_call_id, mut name, mut extra) = (None, None, Vec::new());
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "id" => id = map.next_value()?,
                        "role" => role = Some(map.next_value()?),
                        "content" => content = map.next_value()?,
                        "tool_calls" => tool_calls = map.next_value::<Option<Vec<ToolCall>>>()?,
                        "tool_call_id" => tool_call_id = map.next_value()?,
                        "name" => name = map.next_value()?,
                        _ => extra.push((key, map.next_value()?)),
                    }
                }
                Ok(Message {
                    id,
                    role: role.ok_or_else(|| A::Error::missing_field("role"))?,
                    content,
                    tool_calls: tool_calls.unwrap_or_default(),
                    tool_call_id,
                    name,
                    extra,
                })
            }
        }
        from.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_and_parts_travel_unchanged() {
        let text = r#"{"role":"assistant","content":[{"type":"hologram","x": 1.0}],"thinking":{"signature":"s", "n":1e3}}"#;
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&message).unwrap(), text);
    }

    #[test]
    fn null_fields_read_as_absent() {
        let text = r#"{"id":null,"role":"assistant","content":null,"tool_calls":null}"#;
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(
            (message.id, message.content, message.tool_calls.len()),
            (None, None, 0)
        );
    }
}
