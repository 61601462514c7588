//! To the guest.

use belljar_protocol::agent::{AgentConfig, AgentTool, Handler, RetryPolicy, WireFormat};
use belljar_protocol::call::{Call, CallError, CallKind, CallStatus, ErrorCode};
use belljar_protocol::decision::{
    Action, Ask, ClientContext, ErrorAction, Records, Response, ToolInput, Trigger,
};
use belljar_protocol::id::VersionId;
use belljar_protocol::message::{Content, Message, Role, ToolCall};
use belljar_protocol::model::{Effort, LlmTool, Reasoning};
use belljar_protocol::{Json, Timestamp};
use serde::Serialize;
use serde::ser::SerializeMap;

use crate::bindings::{decisions as d, types as t};

fn text(id: &impl ToString) -> String {
    id.to_string()
}

fn json(json: &Json) -> String {
    json.as_str().to_owned()
}

fn time(at: &Timestamp) -> String {
    at.to_string()
}

/// The request, without the conversation behind it.
pub(crate) fn request(ask: &Ask, version: &VersionId) -> d::Request {
    d::Request {
        session_id: text(&ask.session_id),
        decision_id: text(&ask.decision_id),
        agent_id: text(&ask.agent_id),
        identity: d::Identity {
            id: ask.identity.id.clone(),
            metadata: ask
                .identity
                .metadata
                .iter()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        },
        trigger: trigger(&ask.trigger),
        version: text(version),
        previous_version: ask.previous_version.as_ref().map(text),
        pending_calls: ask.pending_calls,
        ancestry: ask.ancestry.iter().map(text).collect(),
        attempts: ask.attempts,
        deadline: ask.deadline.as_ref().map(time),
        turn_id: ask.turn_id.as_ref().map(text),
    }
}

fn trigger(trigger: &Trigger) -> d::Trigger {
    match trigger {
        Trigger::SessionStart => d::Trigger::SessionStart,
        Trigger::ClientMessages {
            new_from,
            new_messages,
            client,
        } => d::Trigger::ClientMessages(d::ClientMessages {
            new_from: *new_from,
            new_messages: new_messages.iter().map(|m| message(m)).collect(),
            client: json(&Json::of::<ClientContext>(client)),
        }),
        Trigger::ClientAction { name, args } => d::Trigger::ClientAction(d::ClientAction {
            name: name.clone(),
            args: args.as_ref().map(json),
        }),
        Trigger::ToolExecute {
            id,
            name,
            arguments,
            input,
            attempt,
            deadline,
        } => d::Trigger::ToolExecute(d::ToolExecute {
            id: text(id),
            name: name.clone(),
            arguments: arguments.clone(),
            input: match input {
                ToolInput::Valid { value } => d::ToolInput::Valid(json(value)),
                ToolInput::Invalid { value, error } => {
                    d::ToolInput::Invalid((json(value), error.clone()))
                }
                ToolInput::Malformed { error } => d::ToolInput::Malformed(error.clone()),
            },
            attempt: *attempt,
            deadline: deadline.as_ref().map(time),
        }),
        Trigger::ToolFinished { id, name, outcome } => d::Trigger::ToolFinished(d::ToolFinished {
            id: text(id),
            name: name.clone(),
            outcome: outcome.clone(),
        }),
        Trigger::LlmExecute {
            id,
            request,
            format,
            stream,
            attempt,
            deadline,
        } => d::Trigger::LlmExecute(d::LlmExecute {
            id: text(id),
            request: json(request),
            format: format.map(wire_format),
            stream: *stream,
            attempt: *attempt,
            deadline: deadline.as_ref().map(time),
        }),
        Trigger::LlmFinished {
            id,
            outcome,
            truncated,
            usage,
            cost,
        } => d::Trigger::LlmFinished(d::LlmFinished {
            id: text(id),
            message: outcome.as_ref().ok().map(|m| message(m)),
            failure: outcome.as_ref().err().map(call_error),
            truncated: *truncated,
            usage: usage.as_ref().map(json),
            cost: cost.clone(),
        }),
        Trigger::SubAgentFinished {
            id,
            session_id,
            agent_id,
            outcome,
        } => d::Trigger::SubAgentFinished(d::SubAgentFinished {
            id: text(id),
            session_id: text(session_id),
            agent_id: text(agent_id),
            outcome: outcome.clone(),
        }),
        Trigger::InterruptResumed {
            interrupt_id,
            payload,
        } => d::Trigger::InterruptResumed(d::InterruptResumed {
            interrupt_id: interrupt_id.clone(),
            payload: payload.as_ref().map(json),
        }),
    }
}

/// About how many bytes a message is, for the size of a page.
pub(crate) fn size(message: &Message) -> usize {
    let content = match &message.content {
        Some(Content::Text(text)) => text.len(),
        Some(Content::Parts(parts)) => parts.as_str().len(),
        None => 0,
    };
    let calls = message
        .tool_calls
        .iter()
        .map(|c| 32 + c.function.name.len() + c.function.arguments.len());
    let extra = message
        .extra
        .iter()
        .map(|(k, v)| k.len() + v.as_str().len());
    64 + content + calls.sum::<usize>() + extra.sum::<usize>()
}

pub(crate) fn message(message: &Message) -> t::Message {
    t::Message {
        id: message.id.as_ref().map(text),
        role: match message.role {
            Role::System => t::Role::System,
            Role::User => t::Role::User,
            Role::Assistant => t::Role::Assistant,
            Role::Tool => t::Role::Tool,
        },
        content: message.content.as_ref().map(|content| match content {
            Content::Text(text) => t::Content::Text(text.clone()),
            Content::Parts(parts) => t::Content::Parts(json(parts)),
        }),
        tool_calls: message.tool_calls.iter().map(tool_use).collect(),
        tool_call_id: message.tool_call_id.as_ref().map(text),
        name: message.name.clone(),
        extra: (!message.extra.is_empty()).then(|| json(&Json::of(&Members(&message.extra)))),
    }
}

/// Members of a JSON object, in their order.
struct Members<'a>(&'a [(String, Json)]);

impl Serialize for Members<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

fn tool_use(call: &ToolCall) -> t::ToolUse {
    t::ToolUse {
        id: text(&call.id),
        name: call.function.name.clone(),
        arguments: call.function.arguments.clone(),
    }
}

fn handler(handler: Handler) -> t::Handler {
    match handler {
        Handler::Server => t::Handler::Server,
        Handler::Worker => t::Handler::Worker,
        Handler::Client => t::Handler::Client,
    }
}

fn wire_format(format: WireFormat) -> t::WireFormat {
    match format {
        WireFormat::Openai => t::WireFormat::Openai,
        WireFormat::Anthropic => t::WireFormat::Anthropic,
    }
}

fn retry(retry: &RetryPolicy) -> t::RetryPolicy {
    t::RetryPolicy {
        timeout_secs: retry.timeout_secs,
        max_retries: retry.max_retries,
        backoff_base_secs: retry.backoff_base_secs,
        backoff_max_secs: retry.backoff_max_secs,
    }
}

pub(crate) fn config(config: &AgentConfig) -> t::AgentConfig {
    t::AgentConfig {
        model: config.model.clone(),
        system: config.system.clone(),
        stream: config.stream,
        handler: config.handler.map(handler),
        format: config.format.map(wire_format),
        retry: config.retry.as_ref().map(retry),
        tools: config.tools.iter().map(agent_tool).collect(),
        sub_agents: config
            .sub_agents
            .iter()
            .map(|agent| t::SubAgent {
                id: text(&agent.id),
                description: agent.description.clone(),
            })
            .collect(),
    }
}

fn agent_tool(tool: &AgentTool) -> t::Tool {
    t::Tool {
        name: tool.name.clone(),
        description: tool.description.clone(),
        input: tool.input.as_ref().map(json),
        output: tool.output.as_ref().map(json),
        handler: tool.handler.map(handler),
    }
}

fn llm_tool(tool: &LlmTool) -> t::Tool {
    t::Tool {
        name: tool.name.clone(),
        description: Some(tool.description.clone()),
        input: tool.input.as_ref().map(json),
        output: tool.output.as_ref().map(json),
        handler: None,
    }
}

pub(crate) fn call(call: &Call) -> t::Call {
    t::Call {
        id: text(&call.id),
        kind: match call.kind {
            CallKind::ToolCall => t::CallKind::ToolCall,
            CallKind::LlmCall => t::CallKind::LlmCall,
            CallKind::SubAgent => t::CallKind::SubAgent,
        },
        status: match call.status {
            CallStatus::Queued => t::CallStatus::Queued,
            CallStatus::Pending => t::CallStatus::Pending,
            CallStatus::RetryScheduled => t::CallStatus::RetryScheduled,
            CallStatus::Completed => t::CallStatus::Completed,
            CallStatus::Failed => t::CallStatus::Failed,
        },
        attempt: call.attempt,
        deadline: call.deadline.as_ref().map(time),
        anchor: call.anchor.as_ref().map(text),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
        handler: call.handler.map(handler),
        stream: call.stream,
        agent_id: call.agent_id.as_ref().map(text),
        session_id: call.session_id.as_ref().map(text),
    }
}

fn error_code(code: ErrorCode) -> t::ErrorCode {
    match code {
        ErrorCode::ProviderError => t::ErrorCode::ProviderError,
        ErrorCode::RateLimited => t::ErrorCode::RateLimited,
        ErrorCode::Refused => t::ErrorCode::Refused,
        ErrorCode::BudgetExceeded => t::ErrorCode::BudgetExceeded,
        ErrorCode::DeadlineExceeded => t::ErrorCode::DeadlineExceeded,
    }
}

/// A call that failed for good; nothing retries it any more.
fn call_error(error: &CallError) -> t::Failure {
    t::Failure {
        message: error.message.clone(),
        retryable: false,
        code: error.code.map(error_code),
        detail: error.detail.as_ref().map(json),
    }
}

fn settled(error: &ErrorAction) -> t::Failure {
    t::Failure {
        message: error.error.clone(),
        retryable: error.retryable.unwrap_or(false),
        code: error.code.map(error_code),
        detail: error.detail.as_ref().map(json),
    }
}

fn reasoning(from: &Reasoning) -> t::Reasoning {
    t::Reasoning {
        effort: from.effort.map(|effort| match effort {
            Effort::None => t::Effort::None,
            Effort::Minimal => t::Effort::Minimal,
            Effort::Low => t::Effort::Low,
            Effort::Medium => t::Effort::Medium,
            Effort::High => t::Effort::High,
            Effort::Xhigh => t::Effort::Xhigh,
        }),
        max_tokens: from.max_tokens,
        exclude: from.exclude,
        enabled: from.enabled,
    }
}

pub(crate) fn response(response: &Response) -> d::Response {
    d::Response {
        records: match &response.records {
            Records::None => d::Records::None,
            Records::Proposed => d::Records::Proposed,
            Records::These(messages) => {
                d::Records::These(messages.iter().map(|m| message(m)).collect())
            }
        },
        actions: response.actions.iter().map(action).collect(),
        state: response.state.as_ref().map(json),
        agent: response.agent.as_ref().map(|agent| config(agent)),
    }
}

fn action(action: &Action) -> d::Action {
    let or_null = |json: &Option<Json>| {
        json.as_ref()
            .map_or_else(|| "null".to_owned(), |json| json.as_str().to_owned())
    };
    match action {
        Action::LlmCall(call) => d::Action::LlmCall(d::LlmCall {
            id: call.id.as_ref().map(text),
            model: call.model.clone(),
            messages: call
                .messages
                .as_ref()
                .map(|all| all.iter().map(|m| message(m)).collect()),
            tools: call
                .tools
                .as_ref()
                .map(|tools| tools.iter().map(llm_tool).collect()),
            temperature: call.temperature,
            max_completion_tokens: call.max_completion_tokens,
            reasoning: call.reasoning.as_ref().map(reasoning),
            stream: call.stream,
            retry: call.retry.as_ref().map(retry),
            handler: call.handler.map(handler),
        }),
        Action::ToolCall(call) => d::Action::ToolCall(d::ToolCall {
            id: call.id.as_ref().map(text),
            name: call.name.clone(),
            arguments: or_null(&call.arguments),
            handler: call.handler.map(handler),
            retry: call.retry.as_ref().map(retry),
        }),
        Action::ToolResult(result) => d::Action::ToolOutcome(d::ToolOutcome {
            id: result.id.as_ref().map(text),
            attempt: result.attempt,
            outcome: Ok(or_null(&result.result)),
        }),
        Action::ToolError(error) => d::Action::ToolOutcome(d::ToolOutcome {
            id: error.id.as_ref().map(text),
            attempt: error.attempt,
            outcome: Err(settled(error)),
        }),
        Action::LlmResult(result) => d::Action::LlmOutcome(d::LlmOutcome {
            id: result.id.as_ref().map(text),
            attempt: result.attempt,
            outcome: Ok(json(&result.response)),
        }),
        Action::LlmError(error) => d::Action::LlmOutcome(d::LlmOutcome {
            id: error.id.as_ref().map(text),
            attempt: error.attempt,
            outcome: Err(settled(error)),
        }),
        Action::SubAgentSpawn(spawn) => d::Action::SubAgentSpawn(d::SubAgentSpawn {
            session_id: text(&spawn.session_id),
            agent_id: text(&spawn.agent_id),
            tool_call_id: text(&spawn.tool_call_id),
            retry: spawn.retry.as_ref().map(retry),
        }),
        Action::MessageSend(send) => d::Action::MessageSend(d::MessageSend {
            session_id: text(&send.session_id),
            message: message(&send.message),
        }),
        Action::Interrupt(interrupt) => d::Action::Interrupt(d::Interrupt {
            interrupt_id: interrupt.interrupt_id.clone(),
            reason: interrupt.reason.clone(),
            payload: interrupt.payload.as_ref().map(json),
        }),
        Action::Done(done) => d::Action::Done(done.data.as_ref().map(json)),
    }
}
