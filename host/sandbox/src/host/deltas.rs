//! `deltas`: the tokens of a model call the agent makes itself.

use belljar_protocol::Json;
use belljar_protocol::agent::WireFormat;
use belljar_protocol::model::StreamDelta;

use serde::Deserialize;

use super::Host;
use crate::bindings::deltas::Host as Deltas;

impl Deltas for Host {
    fn emit(&mut self, delta: String) -> Result<(), String> {
        let Some(sink) = &self.deltas.sink else {
            return Err(
                "deltas may be emitted only while answering an llm.execute that asks for a stream"
                    .into(),
            );
        };
        let limits = &self.limits;
        if delta.len() > limits.delta_bytes {
            return Err(format!(
                "the delta has {} bytes, {} are allowed",
                delta.len(),
                limits.delta_bytes
            ));
        }
        if self.deltas.bytes + delta.len() > limits.deltas_bytes {
            return Err(format!(
                "the deltas of this decision have more than {} bytes together",
                limits.deltas_bytes
            ));
        }
        let json =
            Json::parse(&delta).map_err(|error| format!("the delta is not JSON: {error}"))?;
        let parsed = match self.deltas.format {
            None => json
                .read()
                .map_err(|error| format!("the delta is not a StreamDelta: {error}"))?,
            Some(WireFormat::Openai) => json
                .read::<OpenaiEvent>()
                .map(OpenaiEvent::delta)
                .map_err(|e| not_an_event("openai", &e))?,
            Some(WireFormat::Anthropic) => json
                .read::<AnthropicEvent>()
                .map(AnthropicEvent::delta)
                .map_err(|e| not_an_event("anthropic", &e))?,
        };
        self.deltas.bytes += delta.len();
        if parsed != StreamDelta::default() {
            sink(parsed);
        }
        Ok(())
    }
}

fn not_an_event(format: &str, error: &serde_json::Error) -> String {
    format!("the delta is not an event of the format {format}: {error}")
}

// A provider's own events, as far as clients see them while they come: text and reasoning. The
// rest of a reply (tool calls, usage) is in the answer.

#[derive(Deserialize)]
struct OpenaiEvent {
    #[serde(default)]
    choices: Vec<OpenaiChoice>,
}

#[derive(Deserialize)]
struct OpenaiChoice {
    #[serde(default)]
    delta: OpenaiDelta,
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
struct OpenaiDelta {
    content: Option<String>,
    #[serde(alias = "reasoning_content")]
    reasoning: Option<String>,
}

impl OpenaiEvent {
    fn delta(self) -> StreamDelta {
        self.choices
            .into_iter()
            .next()
            .map_or_else(StreamDelta::default, |choice| StreamDelta {
                text: choice.delta.content,
                reasoning: choice.delta.reasoning,
                tool_calls: Vec::new(),
                finish_reason: choice.finish_reason,
            })
    }
}

#[derive(Deserialize)]
struct AnthropicEvent {
    #[serde(default)]
    delta: AnthropicDelta,
}

#[derive(Deserialize, Default)]
struct AnthropicDelta {
    text: Option<String>,
    thinking: Option<String>,
    stop_reason: Option<String>,
}

impl AnthropicEvent {
    fn delta(self) -> StreamDelta {
        StreamDelta {
            text: self.delta.text,
            reasoning: self.delta.thinking,
            tool_calls: Vec::new(),
            finish_reason: self.delta.stop_reason,
        }
    }
}
