//! From the guest: counted, measured and checked while it is turned into the protocol's types.

use std::fmt;
use std::sync::Arc;

use belljar_protocol::Json;
use belljar_protocol::agent::{AgentConfig, AgentTool, Handler, RetryPolicy, SubAgent, WireFormat};
use belljar_protocol::call::ErrorCode;
use belljar_protocol::decision::{
    Action, Answer, DecisionResponse, DoneAction, ErrorAction, InterruptAction, LlmCallAction,
    LlmResultAction, MessageSendAction, Records, Response, SubAgentSpawnAction, ToolCallAction,
    ToolResultAction,
};
use belljar_protocol::message::{Content, Function, Message, Role, ToolCall};
use belljar_protocol::model::{Effort, LlmTool, Reasoning};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};

use crate::bindings::{decisions as d, types as t};
use crate::error::SandboxError;
use crate::limits::Limits;

type Result<T> = std::result::Result<T, SandboxError>;

/// Fields a message has of its own: `extra` may not hold them again.
const OWN: &[&str] = &[
    "id",
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "name",
];

/// A guest's answer in the typed world.
pub(crate) fn answer(answer: d::Answer, limits: &Limits) -> Result<Answer> {
    match answer {
        d::Answer::Accept => Ok(Answer::Accept),
        d::Answer::Respond(response) => {
            let mut intake = Intake {
                limits,
                bytes: 0,
                messages: 0,
            };
            intake.response(response).map(Answer::Respond)
        }
    }
}

/// A guest's answer in the JSON world. `null` is an answer that does nothing.
pub(crate) fn json_answer(text: &str, limits: &Limits) -> Result<Answer> {
    if text.len() as u64 > limits.answer_bytes {
        return Err(too_large("bytes", text.len() as u64, limits.answer_bytes));
    }
    // The parser's own limit on depth keeps the stack safe.
    let response: Option<DecisionResponse> =
        serde_json::from_str(text).map_err(|error| SandboxError::AnswerInvalid {
            field: "JSON".into(),
            reason: format!("cannot be read: {error}"),
        })?;
    let response = response.unwrap_or_default();
    let inner = response.actions.iter().map(|action| match action {
        Action::LlmCall(call) => call.messages.as_ref().map_or(0, Vec::len),
        Action::MessageSend(_) => 1,
        _ => 0,
    });
    let messages = response.messages.len() + inner.sum::<usize>();
    count("actions", response.actions.len(), limits.answer_actions)?;
    count("messages", messages, limits.answer_messages)?;
    response
        .state
        .as_ref()
        .map_or(Ok(()), |state| check_state(state, limits))?;
    Ok(response.into())
}

/// A guest's failure in the typed world.
pub(crate) fn failure(failure: t::Failure) -> SandboxError {
    // What the guest adds is shown, never acted on: something that is no JSON is kept as text.
    let detail = failure
        .detail
        .map(|detail| Json::parse(&detail).unwrap_or_else(|_| Json::string(&detail)));
    SandboxError::GuestFailure {
        message: failure.message,
        retryable: failure.retryable,
        detail,
    }
}

/// A guest's failure in the JSON world: `{"message", "retryable"?, "detail"?}`, or any other
/// text, which is then the message of a failure for good.
pub(crate) fn json_failure(text: String) -> SandboxError {
    #[derive(Deserialize)]
    struct Failure {
        message: String,
        #[serde(default)]
        retryable: bool,
        #[serde(default)]
        detail: Option<Json>,
    }
    match serde_json::from_str::<Failure>(&text) {
        Ok(Failure {
            message,
            retryable,
            detail,
        }) => SandboxError::GuestFailure {
            message,
            retryable,
            detail,
        },
        Err(_) => SandboxError::GuestFailure {
            message: text,
            retryable: false,
            detail: None,
        },
    }
}

fn too_large(what: &'static str, used: u64, limit: u64) -> SandboxError {
    SandboxError::AnswerTooLarge { what, used, limit }
}

fn count(what: &'static str, used: usize, limit: usize) -> Result<()> {
    if used > limit {
        Err(too_large(what, used as u64, limit as u64))
    } else {
        Ok(())
    }
}

fn check_state(state: &Json, limits: &Limits) -> Result<()> {
    let used = state.as_str().len() as u64;
    if used > limits.state_bytes {
        return Err(SandboxError::StateTooLarge {
            used,
            limit: limits.state_bytes,
        });
    }
    Ok(())
}

/// Where in an answer something stands; written out only when it is wrong.
#[derive(Clone, Copy)]
enum At<'a> {
    Root(&'static str),
    Item(&'a At<'a>, usize),
    Field(&'a At<'a>, &'static str),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(name) => f.write_str(name),
            Self::Item(of, ix) => write!(f, "{of}[{ix}]"),
            Self::Field(of, name) => write!(f, "{of}.{name}"),
        }
    }
}

impl At<'_> {
    fn wrong(&self, reason: impl Into<String>) -> SandboxError {
        SandboxError::AnswerInvalid {
            field: self.to_string(),
            reason: reason.into(),
        }
    }
}

/// Bytes a text takes inside a JSON string.
fn escaped(text: &str) -> u64 {
    text.bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..=0x1f => 6,
            _ => 1,
        })
        .sum()
}

struct Intake<'a> {
    limits: &'a Limits,
    bytes: u64,
    messages: usize,
}

impl Intake<'_> {
    fn add(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        if self.bytes > self.limits.answer_bytes {
            return Err(too_large("bytes", self.bytes, self.limits.answer_bytes));
        }
        Ok(())
    }

    /// A text's share: its bytes as JSON, with what surrounds a field.
    fn text(&mut self, text: String) -> Result<String> {
        self.add(escaped(&text) + 8)?;
        Ok(text)
    }

    fn maybe<T: From<String>>(&mut self, text: Option<String>) -> Result<Option<T>> {
        text.map(|text| self.text(text).map(T::from)).transpose()
    }

    fn json(&mut self, at: At<'_>, text: &str) -> Result<Json> {
        self.add(text.len() as u64 + 8)?;
        Json::parse(text).map_err(|error| at.wrong(format!("is not JSON: {error}")))
    }

    fn maybe_json(&mut self, at: At<'_>, text: Option<String>) -> Result<Option<Json>> {
        text.map(|text| self.json(at, &text)).transpose()
    }

    fn response(&mut self, from: d::Response) -> Result<Response> {
        count("actions", from.actions.len(), self.limits.answer_actions)?;
        let records = match from.records {
            d::Records::None => Records::None,
            d::Records::Proposed => Records::Proposed,
            d::Records::These(messages) => {
                Records::These(self.messages(At::Root("records"), messages)?)
            }
        };
        let mut actions = Vec::with_capacity(from.actions.len());
        for (ix, action) in from.actions.into_iter().enumerate() {
            actions.push(self.action(At::Item(&At::Root("actions"), ix), action)?);
        }
        let state = self.maybe_json(At::Root("state"), from.state)?;
        state
            .as_ref()
            .map_or(Ok(()), |state| check_state(state, self.limits))?;
        let agent = from
            .agent
            .map(|agent| self.config(agent))
            .transpose()?
            .map(Arc::new);
        Ok(Response {
            records,
            actions,
            state,
            agent,
        })
    }

    fn messages(&mut self, at: At<'_>, messages: Vec<t::Message>) -> Result<Vec<Arc<Message>>> {
        count(
            "messages",
            self.messages + messages.len(),
            self.limits.answer_messages,
        )?;
        let all = messages.into_iter().enumerate();
        all.map(|(ix, message)| self.message(At::Item(&at, ix), message))
            .collect()
    }

    fn message(&mut self, at: At<'_>, from: t::Message) -> Result<Arc<Message>> {
        self.messages += 1;
        count("messages", self.messages, self.limits.answer_messages)?;
        self.add(32)?;
        let content = match from.content {
            None => None,
            Some(t::Content::Text(text)) => Some(Content::Text(self.text(text)?)),
            Some(t::Content::Parts(text)) => {
                let parts = self.json(At::Field(&at, "content"), &text)?;
                if !parts.as_str().starts_with('[') {
                    return Err(At::Field(&at, "content").wrong("is not an array of content parts"));
                }
                Some(Content::Parts(parts))
            }
        };
        let calls = from.tool_calls.into_iter().map(|call| {
            Ok(ToolCall {
                id: self.text(call.id)?.into(),
                kind: "function".into(),
                function: Function {
                    name: self.text(call.name)?,
                    arguments: self.text(call.arguments)?,
                },
            })
        });
        let tool_calls = calls.collect::<Result<_>>()?;
        let extra = match self.maybe_json(At::Field(&at, "extra"), from.extra)? {
            None => Vec::new(),
            Some(extra) => members(At::Field(&at, "extra"), &extra)?,
        };
        Ok(Arc::new(Message {
            id: self.maybe(from.id)?,
            role: match from.role {
                t::Role::System => Role::System,
                t::Role::User => Role::User,
                t::Role::Assistant => Role::Assistant,
                t::Role::Tool => Role::Tool,
            },
            content,
            tool_calls,
            tool_call_id: self.maybe(from.tool_call_id)?,
            name: self.maybe(from.name)?,
            extra,
        }))
    }

    fn action(&mut self, at: At<'_>, from: d::Action) -> Result<Action> {
        self.add(32)?;
        Ok(match from {
            d::Action::LlmCall(call) => Action::LlmCall(self.llm_call(at, call)?),
            d::Action::ToolCall(call) => Action::ToolCall(ToolCallAction {
                id: self.maybe(call.id)?,
                name: self.text(call.name)?,
                arguments: Some(self.json(At::Field(&at, "arguments"), &call.arguments)?),
                handler: call.handler.map(handler),
                retry: retry(At::Field(&at, "retry"), call.retry)?,
            }),
            d::Action::ToolOutcome(d::ToolOutcome {
                id,
                attempt,
                outcome,
            }) => match outcome {
                Ok(result) => Action::ToolResult(ToolResultAction {
                    id: self.maybe(id)?,
                    attempt,
                    result: Some(self.json(At::Field(&at, "outcome"), &result)?),
                }),
                Err(failure) => Action::ToolError(self.error(at, id, attempt, failure)?),
            },
            d::Action::LlmOutcome(d::LlmOutcome {
                id,
                attempt,
                outcome,
            }) => match outcome {
                Ok(response) => Action::LlmResult(LlmResultAction {
                    id: self.maybe(id)?,
                    attempt,
                    response: self.json(At::Field(&at, "outcome"), &response)?,
                }),
                Err(failure) => Action::LlmError(self.error(at, id, attempt, failure)?),
            },
            d::Action::SubAgentSpawn(spawn) => Action::SubAgentSpawn(SubAgentSpawnAction {
                session_id: self.text(spawn.session_id)?.into(),
                agent_id: self.text(spawn.agent_id)?.into(),
                tool_call_id: self.text(spawn.tool_call_id)?.into(),
                retry: retry(At::Field(&at, "retry"), spawn.retry)?,
            }),
            d::Action::MessageSend(send) => Action::MessageSend(MessageSendAction {
                session_id: self.text(send.session_id)?.into(),
                message: self.message(At::Field(&at, "message"), send.message)?,
            }),
            d::Action::Interrupt(interrupt) => Action::Interrupt(InterruptAction {
                interrupt_id: self.maybe(interrupt.interrupt_id)?,
                reason: self.text(interrupt.reason)?,
                payload: self.maybe_json(At::Field(&at, "payload"), interrupt.payload)?,
            }),
            d::Action::Done(data) => Action::Done(DoneAction {
                data: self.maybe_json(At::Field(&at, "data"), data)?,
            }),
        })
    }

    fn error(
        &mut self,
        at: At<'_>,
        id: Option<String>,
        attempt: Option<u32>,
        from: t::Failure,
    ) -> Result<ErrorAction> {
        Ok(ErrorAction {
            id: self.maybe(id)?,
            attempt,
            error: self.text(from.message)?,
            retryable: Some(from.retryable),
            code: from.code.map(error_code),
            detail: self.maybe_json(At::Field(&at, "detail"), from.detail)?,
        })
    }

    fn llm_call(&mut self, at: At<'_>, from: d::LlmCall) -> Result<LlmCallAction> {
        let tools = match from.tools {
            None => None,
            Some(tools) => {
                let at = At::Field(&at, "tools");
                let all = tools.into_iter().enumerate().map(|(ix, tool)| {
                    let tool = self.tool(At::Item(&at, ix), tool)?;
                    Ok(LlmTool {
                        name: tool.name,
                        description: tool.description.unwrap_or_default(),
                        input: tool.input,
                        output: tool.output,
                    })
                });
                Some(Arc::new(all.collect::<Result<_>>()?))
            }
        };
        let messages = from
            .messages
            .map(|messages| self.messages(At::Field(&at, "messages"), messages));
        Ok(LlmCallAction {
            id: self.maybe(from.id)?,
            model: self.maybe(from.model)?,
            messages: messages.transpose()?,
            tools,
            temperature: from
                .temperature
                .map(|n| finite(At::Field(&at, "temperature"), n))
                .transpose()?,
            max_completion_tokens: from.max_completion_tokens,
            reasoning: from.reasoning.map(reasoning),
            stream: from.stream,
            retry: retry(At::Field(&at, "retry"), from.retry)?,
            handler: from.handler.map(handler),
        })
    }

    fn config(&mut self, from: t::AgentConfig) -> Result<AgentConfig> {
        let at = At::Root("agent");
        let tools_at = At::Field(&at, "tools");
        let tools = from
            .tools
            .into_iter()
            .enumerate()
            .map(|(ix, tool)| self.tool(At::Item(&tools_at, ix), tool));
        let tools = tools.collect::<Result<_>>()?;
        let sub_agents = from.sub_agents.into_iter().map(|agent| {
            Ok(SubAgent {
                id: self.text(agent.id)?.into(),
                description: self.maybe(agent.description)?,
            })
        });
        let sub_agents = sub_agents.collect::<Result<_>>()?;
        Ok(AgentConfig {
            model: self.text(from.model)?,
            system: self.maybe(from.system)?,
            stream: from.stream,
            handler: from.handler.map(handler),
            format: from.format.map(|format| match format {
                t::WireFormat::Openai => WireFormat::Openai,
                t::WireFormat::Anthropic => WireFormat::Anthropic,
            }),
            retry: retry(At::Field(&at, "retry"), from.retry)?,
            tools,
            sub_agents,
        })
    }

    fn tool(&mut self, at: At<'_>, from: t::Tool) -> Result<AgentTool> {
        self.add(32)?;
        Ok(AgentTool {
            name: self.text(from.name)?,
            description: self.maybe(from.description)?,
            input: self.maybe_json(At::Field(&at, "input"), from.input)?,
            output: self.maybe_json(At::Field(&at, "output"), from.output)?,
            handler: from.handler.map(handler),
        })
    }
}

fn handler(from: t::Handler) -> Handler {
    match from {
        t::Handler::Server => Handler::Server,
        t::Handler::Worker => Handler::Worker,
        t::Handler::Client => Handler::Client,
    }
}

fn error_code(from: t::ErrorCode) -> ErrorCode {
    match from {
        t::ErrorCode::ProviderError => ErrorCode::ProviderError,
        t::ErrorCode::RateLimited => ErrorCode::RateLimited,
        t::ErrorCode::Refused => ErrorCode::Refused,
        t::ErrorCode::BudgetExceeded => ErrorCode::BudgetExceeded,
        t::ErrorCode::DeadlineExceeded => ErrorCode::DeadlineExceeded,
    }
}

fn reasoning(from: t::Reasoning) -> Reasoning {
    Reasoning {
        effort: from.effort.map(|effort| match effort {
            t::Effort::None => Effort::None,
            t::Effort::Minimal => Effort::Minimal,
            t::Effort::Low => Effort::Low,
            t::Effort::Medium => Effort::Medium,
            t::Effort::High => Effort::High,
            t::Effort::Xhigh => Effort::Xhigh,
        }),
        max_tokens: from.max_tokens,
        exclude: from.exclude,
        enabled: from.enabled,
    }
}

/// JSON has no other numbers.
fn finite(at: At<'_>, number: f64) -> Result<f64> {
    if number.is_finite() {
        Ok(number)
    } else {
        Err(at.wrong("is not a finite number"))
    }
}

fn retry(at: At<'_>, from: Option<t::RetryPolicy>) -> Result<Option<RetryPolicy>> {
    from.map(|from| {
        Ok(RetryPolicy {
            timeout_secs: from
                .timeout_secs
                .map(|n| finite(At::Field(&at, "timeout-secs"), n))
                .transpose()?,
            max_retries: from.max_retries,
            backoff_base_secs: finite(At::Field(&at, "backoff-base-secs"), from.backoff_base_secs)?,
            backoff_max_secs: finite(At::Field(&at, "backoff-max-secs"), from.backoff_max_secs)?,
        })
    })
    .transpose()
}

/// The members of a JSON object, in their order.
struct Members(Vec<(String, Json)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Fields)
    }
}

fn members(at: At<'_>, json: &Json) -> Result<Vec<(String, Json)>> {
    let Members(members) = json
        .read()
        .map_err(|error| at.wrong(format!("is not an object: {error}")))?;
    match members.iter().find(|(key, _)| OWN.contains(&key.as_str())) {
        Some((key, _)) => Err(at.wrong(format!(
            "holds `{key}`, which the message has as a field of its own"
        ))),
        None => Ok(members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respond(actions: Vec<d::Action>) -> d::Response {
        d::Response {
            records: d::Records::None,
            actions,
            state: None,
            agent: None,
        }
    }

    fn refused(response: d::Response) -> String {
        answer(d::Answer::Respond(response), &Limits::default())
            .unwrap_err()
            .to_string()
    }

    fn message(content: &str) -> t::Message {
        t::Message {
            id: None,
            role: t::Role::User,
            content: Some(t::Content::Text(content.into())),
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            extra: None,
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_index_and_field() {
        let call = |arguments: &str| {
            d::Action::ToolCall(d::ToolCall {
                id: None,
                name: "x".into(),
                arguments: arguments.into(),
                handler: None,
                retry: None,
            })
        };
        let text = refused(respond(vec![call("{}"), call("{")]));
        assert!(
            text.starts_with("the answer's actions[1].arguments is not JSON: EOF"),
            "{text}"
        );

        let mut bad = message("hi");
        bad.extra = Some(r#"{"role":"system"}"#.into());
        let text = refused(d::Response {
            records: d::Records::These(vec![bad]),
            ..respond(vec![])
        });
        assert_eq!(
            text,
            "the answer's records[0].extra holds `role`, which the message has as a field of its own"
        );

        let retry = t::RetryPolicy {
            timeout_secs: Some(f64::NAN),
            max_retries: 0,
            backoff_base_secs: 0.0,
            backoff_max_secs: 0.0,
        };
        let spawn = d::SubAgentSpawn {
            session_id: "s".into(),
            agent_id: "a".into(),
            tool_call_id: "t".into(),
            retry: Some(retry),
        };
        let text = refused(respond(vec![d::Action::SubAgentSpawn(spawn)]));
        assert_eq!(
            text,
            "the answer's actions[0].retry.timeout-secs is not a finite number"
        );
    }

    #[test]
    fn answers_are_counted_in_json_bytes() {
        let limits = Limits {
            answer_bytes: 1_000,
            answer_messages: 3,
            ..Limits::default()
        };
        let these = |messages| {
            d::Answer::Respond(d::Response {
                records: d::Records::These(messages),
                ..respond(vec![])
            })
        };
        assert!(answer(these(vec![message(&"a".repeat(800))]), &limits).is_ok());
        // Six bytes each as JSON.
        let error = answer(these(vec![message(&"\u{1}".repeat(800))]), &limits).unwrap_err();
        assert_eq!(error.code(), "answer_too_large");
        let error = answer(these(vec![message("a"); 4]), &limits).unwrap_err();
        assert_eq!(
            error,
            SandboxError::AnswerTooLarge {
                what: "messages",
                used: 4,
                limit: 3
            }
        );
    }

    #[test]
    fn json_answers_meet_the_same_limits() {
        let limits = Limits {
            answer_actions: 1,
            state_bytes: 10,
            ..Limits::default()
        };
        let code = |text: &str| json_answer(text, &limits).map_err(|error| error.code());
        assert_eq!(code("null"), Ok(Answer::Respond(Response::default())));
        assert_eq!(
            code(r#"{"actions":[{"type":"done"},{"type":"done"}]}"#),
            Err("answer_too_large")
        );
        assert_eq!(code(r#"{"state":"0123456789"}"#), Err("state_too_large"));
        let deep = format!(
            r#"{{"state":{}{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(code(&deep), Err("answer_invalid"));
        assert_eq!(
            code(r#"{"actions":[{"type":"nothing"}]}"#),
            Err("answer_invalid")
        );
    }

    #[test]
    fn failures_say_whether_another_try_may_help() {
        let class = |text: &str| json_failure(text.into()).class();
        use belljar_protocol::decision::FailureClass::{Retryable, Terminal};
        assert_eq!(class("out of coffee"), Terminal);
        assert_eq!(class(r#"{"message":"busy","retryable":true}"#), Retryable);
    }
}
