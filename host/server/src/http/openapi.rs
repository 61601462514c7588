//! The OpenAPI document, made of the list of routes.

use serde_json::{Map, Value, json};

use super::routes::{ROUTES, Route};

/// The document.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = route.path.replace("{*", "{");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Belljar",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A host for AI agents that nobody has to trust.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": schemas() },
    })
}

fn operation(route: &Route) -> Value {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part
            .strip_prefix('{')?
            .strip_suffix('}')?
            .trim_start_matches('*');
        Some(
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }),
        )
    });
    let beside = route.takes.iter().map(|takes| {
        json!({
            "name": takes.name, "in": takes.place, "description": takes.meaning,
            "schema": { "type": takes.kind },
        })
    });
    let mut responses = Map::new();
    for (status, schema) in route.gives {
        let mut response = json!({ "description": reason(*status) });
        for (kind, schema) in content(schema) {
            response["content"][kind] = json!({ "schema": schema });
        }
        responses.insert(status.to_string(), response);
    }
    for status in route.refuses {
        responses.insert(status.to_string(), problem(reason(*status)));
    }
    // Any route: a name that is not this host's, a bug of the host's.
    let any = "Any other status comes with a problem as well";
    responses.insert("default".into(), problem(any));
    let mut operation = json!({
        "summary": route.summary,
        "parameters": in_path.chain(beside).collect::<Vec<_>>(),
        "responses": responses,
    });
    if let Some((kind, schema)) = route.body {
        let schema = content(schema).pop().map(|(_, schema)| schema);
        operation["requestBody"] =
            json!({ "required": true, "content": { kind: { "schema": schema } } });
    }
    operation
}

fn problem(description: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Problem" });
    json!({
        "description": description,
        "content": { "application/problem+json": { "schema": schema } },
    })
}

/// The content types and schemas of a name used in the list.
fn content(name: &str) -> Vec<(&'static str, Value)> {
    let any = || json!({ "type": "object" });
    let text = || json!({ "type": "string" });
    let binary = || json!({ "type": "string", "format": "binary" });
    match name {
        "none" => vec![],
        "text" => vec![("text/plain", text())],
        "binary" => vec![("application/octet-stream", binary())],
        "any" => vec![("application/json", any())],
        "log" => vec![("application/json", any()), ("text/event-stream", text())],
        schema => {
            let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
            vec![("application/json", schema)]
        }
    }
}

fn reason(status: u16) -> &'static str {
    axum::http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("")
}

fn schemas() -> Value {
    let text = || json!({ "type": "string" });
    let message = json!({
        "type": "object",
        "required": ["role"],
        "properties": {
            "id": text(),
            "role": { "enum": ["system", "user", "assistant", "tool"] },
            "content": { "type": ["string", "array", "null"] },
            "tool_calls": { "type": "array" },
            "tool_call_id": text(),
            "name": text(),
        },
    });
    let input = |kind: &str, required: &[&str], properties: Value| {
        let mut all = json!({ "type": { "const": kind } });
        if let (Some(all), Value::Object(more)) = (all.as_object_mut(), properties) {
            all.extend(more);
        }
        let required: Vec<&str> = ["type"].iter().chain(required).copied().collect();
        json!({ "type": "object", "required": required, "properties": all })
    };
    let refer = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    json!({
        "Problem": {
            "type": "object",
            "description": "RFC 9457 problem details; program against `code`.",
            "required": ["status", "code", "title", "detail", "error"],
            "properties": {
                "status": { "type": "integer" }, "code": text(), "title": text(),
                "detail": text(), "error": text(),
            },
        },
        "Message": message,
        "ClientInput": { "oneOf": [
            input("client.message", &["agent_id", "message"], json!({ "agent_id": text(), "turn_id": text(), "message": refer("Message"), "stream": { "type": "boolean" } })),
            input("client.messages", &["agent_id", "messages"], json!({ "agent_id": text(), "turn_id": text(), "messages": { "type": "array", "items": refer("Message") }, "stream": { "type": "boolean" }, "client": { "type": "object" } })),
            input("client.action", &["agent_id", "name"], json!({ "agent_id": text(), "turn_id": text(), "name": text(), "args": {} })),
            input("interrupt.resume", &["interrupt_id"], json!({ "interrupt_id": text(), "payload": {} })),
            input("tool.result", &["id"], json!({ "id": text(), "attempt": { "type": "integer" }, "result": {} })),
            input("tool.error", &["id", "error"], json!({ "id": text(), "attempt": { "type": "integer" }, "error": text(), "retryable": { "type": "boolean" } })),
        ] },
        "Submitted": {
            "type": "object",
            "required": ["session_id"],
            "properties": { "session_id": text(), "turn_id": { "type": ["string", "null"] } },
        },
        "Settle": {
            "type": "object",
            "oneOf": [{ "required": ["result"] }, { "required": ["error"] }],
            "properties": { "result": {}, "error": text(), "retryable": { "type": "boolean" }, "attempt": { "type": "integer" } },
            "additionalProperties": false,
        },
        "MoveLabel": {
            "type": "object",
            "required": ["version"],
            "properties": { "version": text(), "swap": { "enum": ["turn", "decision"] } },
            "additionalProperties": false,
        },
        "Version": {
            "type": "object",
            "required": ["version", "agent", "size", "world", "imports", "compile_ms", "uploaded_at"],
            "properties": {
                "version": text(), "agent": text(), "size": { "type": "integer" },
                "world": { "enum": ["agent", "agent-json"] },
                "imports": { "type": "array", "items": text() },
                "compile_ms": { "type": "integer" }, "uploaded_at": { "type": "string", "format": "date-time" },
            },
        },
        "LabelMove": {
            "type": "object",
            "required": ["id", "label", "version", "previous", "swap", "by", "at"],
            "properties": {
                "id": { "type": "integer" }, "label": text(),
                "version": { "type": ["string", "null"] }, "previous": { "type": ["string", "null"] },
                "swap": { "enum": ["turn", "decision"] }, "by": text(), "at": { "type": "string", "format": "date-time" },
            },
        },
    })
}
