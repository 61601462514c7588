//! From a request of ours to the body of theirs.

use belljar_protocol::Json;
use belljar_protocol::message::{Content, Message, Role, ToolCall};
use belljar_protocol::model::{Effort, LlmRequest, LlmTool, Reasoning};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// What a tool without `input` takes.
const NO_ARGUMENTS: &str = r#"{"type":"object","properties":{}}"#;

/// The body of a streaming chat completion.
///
/// Always streaming, so that a silent server is noticed between two pieces and not at the end.
///
/// # Errors
/// None in practice: every value in a request has a JSON form.
pub fn body(request: &LlmRequest) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Body {
        model: &request.model,
        messages: request
            .messages
            .iter()
            .map(|message| WireMessage(message))
            .collect(),
        tools: request
            .tools
            .iter()
            .flat_map(|tools| tools.iter())
            .map(WireTool)
            .collect(),
        temperature: request
            .temperature
            .filter(|temperature| temperature.is_finite()),
        max_completion_tokens: request.max_completion_tokens,
        reasoning_effort: request.reasoning.as_ref().and_then(effort),
        stream: true,
        stream_options: StreamOptions {
            include_usage: true,
        },
    })
}

fn effort(reasoning: &Reasoning) -> Option<Effort> {
    // `exclude` is kept by the reply's reader; chat completions has no field for it.
    let Reasoning {
        effort,
        max_tokens,
        enabled,
        exclude: _,
    } = reasoning;
    if max_tokens.is_some() {
        tracing::debug!("chat completions has no field for `reasoning.max_tokens`, left out");
    }
    if enabled.is_some() {
        tracing::debug!("chat completions has no field for `reasoning.enabled`, left out");
    }
    *effort
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<Effort>,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

struct WireMessage<'a>(&'a Message);

impl Serialize for WireMessage<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // `id` is ours: strict servers refuse a field they do not know.
        let Message {
            id: _,
            role,
            content,
            tool_calls,
            tool_call_id,
            name,
            extra,
        } = self.0;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("role", role)?;
        match content {
            Some(content) => map.serialize_entry("content", content)?,
            // A reply that only calls tools must say null when it is sent back, not "".
            None if *role == Role::Assistant && !tool_calls.is_empty() => {
                map.serialize_entry("content", &None::<Content>)?;
            }
            None => map.serialize_entry("content", "")?,
        }
        if !tool_calls.is_empty() {
            let calls: Vec<_> = tool_calls.iter().map(WireToolCall).collect();
            map.serialize_entry("tool_calls", &calls)?;
        }
        if let Some(id) = tool_call_id {
            map.serialize_entry("tool_call_id", id)?;
        }
        if let Some(name) = name {
            map.serialize_entry("name", name)?;
        }
        for (key, value) in extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

struct WireToolCall<'a>(&'a ToolCall);

impl Serialize for WireToolCall<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            arguments: &'a str,
        }
        let ToolCall { id, kind, function } = self.0;
        // Servers that parse the arguments of past calls take "" for broken JSON.
        let arguments = match function.arguments.as_str() {
            "" => "{}",
            text => text,
        };
        let mut map = to.serialize_map(Some(3))?;
        map.serialize_entry("id", id)?;
        map.serialize_entry("type", kind)?;
        map.serialize_entry(
            "function",
            &Function {
                name: &function.name,
                arguments,
            },
        )?;
        map.end()
    }
}

struct WireTool<'a>(&'a LlmTool);

impl Serialize for WireTool<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            description: &'a str,
            parameters: Parameters<'a>,
        }
        let LlmTool {
            name,
            description,
            input,
            output: _,
        } = self.0;
        let function = Function {
            name,
            description,
            parameters: Parameters(input.as_ref()),
        };
        let mut map = to.serialize_map(Some(2))?;
        map.serialize_entry("type", "function")?;
        map.serialize_entry("function", &function)?;
        map.end()
    }
}

struct Parameters<'a>(Option<&'a Json>);

impl Serialize for Parameters<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(schema) => schema.serialize(to),
            None => Json::parse(NO_ARGUMENTS)
                .map_err(serde::ser::Error::custom)?
                .serialize(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn request(text: &str) -> LlmRequest {
        serde_json::from_str(text).unwrap()
    }

    #[track_caller]
    fn check(from: &str, to: &str) {
        let body = String::from_utf8(body(&request(from)).unwrap()).unwrap();
        let tail = r#","stream":true,"stream_options":{"include_usage":true}}"#;
        assert_eq!(body, format!("{to}{tail}"));
    }

    #[test]
    fn a_plain_request() {
        check(
            r#"{"model":"m","messages":[{"id":"x","role":"system","content":"s"},{"role":"user","content":"u"}],
                "temperature":0.5,"max_completion_tokens":9}"#,
            r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}],"temperature":0.5,"max_completion_tokens":9"#,
        );
    }

    #[test]
    fn content_null_beside_tool_calls_stays_null() {
        check(
            r#"{"model":"m","messages":[
                {"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":""}}]},
                {"role":"tool","tool_call_id":"c"}]}"#,
            r#"{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"","tool_call_id":"c"}]"#,
        );
    }

    #[test]
    fn arguments_go_back_as_the_model_wrote_them() {
        check(
            r#"{"model":"m","messages":[{"role":"assistant","content":"t","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\": 1.0"}}]}]}"#,
            r#"{"model":"m","messages":[{"role":"assistant","content":"t","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\": 1.0"}}]}]"#,
        );
    }

    #[test]
    fn unknown_parts_and_fields_pass_as_they_came() {
        check(
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"hologram","x": 1.0}],"name":"n","reasoning_content":{"k": 1e3}}]}"#,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"hologram","x": 1.0}],"name":"n","reasoning_content":{"k": 1e3}}]"#,
        );
    }

    #[test]
    fn a_tool_without_input_takes_an_object_without_properties() {
        check(
            r#"{"model":"m","messages":[],"tools":[{"name":"f"},{"name":"g","description":"d","input":{"type":"object"},"output":{}}]}"#,
            r#"{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}},{"type":"function","function":{"name":"g","description":"d","parameters":{"type":"object"}}}]"#,
        );
    }

    #[test]
    fn an_empty_list_of_tools_is_left_out() {
        let mut from = request(r#"{"model":"m","messages":[]}"#);
        from.tools = Some(Arc::new(Vec::new()));
        assert!(
            !String::from_utf8(body(&from).unwrap())
                .unwrap()
                .contains("tools")
        );
    }

    #[test]
    fn effort_is_mapped_and_the_rest_of_reasoning_left_out() {
        check(
            r#"{"model":"m","messages":[],"reasoning":{"effort":"xhigh","max_tokens":1,"exclude":true,"enabled":true}}"#,
            r#"{"model":"m","messages":[],"reasoning_effort":"xhigh""#,
        );
    }
}
