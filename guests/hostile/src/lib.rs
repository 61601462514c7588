//! One component, many attacks: the request says which, and each is aimed at one limit of the sandbox.
//!
//! The attack is the trigger's `name` with `args` (`client.action`), its `name` with the tool's input
//! (`tool.execute`), `request.attack` with `request.args` (`llm.execute`), or the last new message as
//! `NAME {"args": "as JSON"}` (`client.messages`). What the attack could do is the `report` it answers with,
//! for attacks that come to an end at all.

mod answers;
mod compute;
mod files;
mod flood;
mod outside;

use serde_json::{Value, json};

wit_bindgen::generate!({ path: "../../wit", world: "agent-json" });

pub(crate) use belljar::agent::{deltas, files as deliveries, log};

/// What an attack is run with: numbers, paths and texts by name, all of them optional.
pub(crate) struct Args(Value);

impl Args {
    fn number(&self, name: &str, default: u64) -> u64 {
        self.0[name].as_u64().unwrap_or(default)
    }

    fn size(&self, name: &str, default: usize) -> usize {
        self.0[name]
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(default)
    }

    fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.0[name].as_str().unwrap_or(default)
    }
}

/// How an attack ends when it does.
pub(crate) enum End {
    /// The attack is over; this is what it saw.
    Report(Value),
    /// The answer is the attack: a whole `DecisionResponse`, too large or too deep to be built as a value.
    Answer(String),
}

struct Hostile;

impl Guest for Hostile {
    fn decide(request: String) -> Result<String, String> {
        let request: Value = serde_json::from_str(&request).map_err(|error| format!("the request: {error}"))?;
        let trigger = &request["trigger"];
        // A calm start: the upload's smoke decision and every session begin with it.
        let Some((name, args)) = attack(trigger) else {
            return Ok(json!({ "agent": { "model": "default" } }).to_string());
        };
        Ok(match run(&name, &Args(args)) {
            Some(End::Report(report)) => json!({ "actions": [action(trigger, &report)] }).to_string(),
            Some(End::Answer(answer)) => answer,
            None => return Err(format!("there is no attack named `{name}`")),
        })
    }
}

fn attack(trigger: &Value) -> Option<(String, Value)> {
    let named = |name: &Value, args: &Value| Some((name.as_str()?.to_owned(), args.clone()));
    match trigger["type"].as_str()? {
        "client.action" => named(&trigger["name"], &trigger["args"]),
        "tool.execute" => named(&trigger["name"], &trigger["input"]["value"]),
        "llm.execute" => named(&trigger["request"]["attack"], &trigger["request"]["args"]),
        "client.messages" => {
            let text = trigger["messages"].as_array()?.last()?["content"].as_str()?;
            let (name, args) = text.split_once(' ').unwrap_or((text, "null"));
            Some((name.to_owned(), serde_json::from_str(args).unwrap_or_default()))
        }
        _ => None,
    }
}

fn run(name: &str, args: &Args) -> Option<End> {
    Some(match name {
        "spin" => compute::spin(),
        "recurse" => compute::recurse(args),
        "grow-memory" => compute::grow_memory(args),
        "exit" => compute::exit(args),
        "abort" => compute::abort(),
        "panic" => compute::panic(),
        "sleep" => compute::sleep(args),
        "poll" => compute::poll(args),
        "big-answer" => answers::big_answer(args),
        "many-actions" => answers::many_actions(args),
        "many-messages" => answers::many_messages(args),
        "deep-json" => answers::deep_json(args),
        "big-state" => answers::big_state(args),
        "not-json" => answers::not_json(),
        "log-flood" => flood::log(args),
        "handle-flood" => flood::handles(args),
        "host-call-flood" => flood::host_calls(args),
        "random-flood" => flood::random(args),
        "many-deliveries" => flood::deliveries(args),
        "emit-delta" => flood::deltas(args),
        "write-file" => files::write(args),
        "many-files" => files::many(args),
        "read-file" => files::read(args),
        "deliver" => files::deliver(args),
        "escape" => files::escape(args),
        "stdin" => outside::stdin(),
        "clock" => outside::clock(),
        "network" => outside::network(args),
        "env" => outside::env(),
        _ => return None,
    })
}

/// The action that answers this kind of trigger with `report`.
fn action(trigger: &Value, report: &Value) -> Value {
    match trigger["type"].as_str() {
        Some("tool.execute") => json!({ "type": "tool.result", "result": report }),
        Some("llm.execute") => {
            json!({ "type": "llm.result", "response": { "model": "hostile", "content": report.to_string() } })
        }
        _ => json!({ "type": "done", "data": report }),
    }
}

export!(Hostile);
