//! The agent around the book: its configuration, its tools, and what it answers to each trigger.

use std::{fs, io};

use belljar_agent::decisions::{
    Action, Answer, Records, Request, Response, ToolExecute, ToolInput, ToolOutcome, Trigger,
};
use belljar_agent::files::{self, DeliverError};
use belljar_agent::log;
use belljar_agent::types::{AgentConfig, Failure, Tool};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::book::{self, Book, Entry};

const LEDGER: &str = "/scratch/ledger.csv";
const REPORT: &str = "report.md";

/// How a version of the agent differs from the others.
pub struct Ledger {
    /// Stands before every amount it writes.
    pub currency: &'static str,
    /// Offers the tool that takes back the last entry.
    pub undo: bool,
}

#[derive(Clone, Copy)]
enum Do {
    AddEntry,
    Balance,
    Report,
    Undo,
}

#[derive(Deserialize)]
struct AddEntry<'a> {
    description: String,
    /// Read as text: a JSON number may be larger than any `f64`, which is a poor amount but no broken input.
    #[serde(borrow)]
    amount: &'a RawValue,
}

impl Ledger {
    pub fn config(&self) -> AgentConfig {
        let tool = |name: &str, description: &str, input: Option<&str>| Tool {
            name: name.to_owned(),
            description: Some(description.to_owned()),
            input: input.map(str::to_owned),
            output: None,
            handler: None,
        };
        let entry = r#"{"type":"object","properties":{"description":{"type":"string"},"amount":{"type":"number"}},"required":["description","amount"],"additionalProperties":false}"#;
        let mut tools = vec![
            tool(
                "add_entry",
                "Adds an entry to the ledger; the amount is negative for money spent.",
                Some(entry),
            ),
            tool("balance", "Says the balance of the ledger.", None),
            tool("report", "Delivers the ledger as the file report.md.", None),
        ];
        if self.undo {
            tools.push(tool("undo", "Takes back the last entry of the ledger.", None));
        }
        AgentConfig {
            model: "default".to_owned(),
            system: Some(
                "You keep a ledger. Use the tools for every entry, balance and report, and never work out sums yourself."
                    .to_owned(),
            ),
            stream: Some(true),
            handler: None,
            format: None,
            retry: None,
            tools,
            sub_agents: Vec::new(),
        }
    }

    /// Runs its own tools and leaves everything else to the engine.
    pub fn decide(&self, request: &Request) -> Answer {
        match &request.trigger {
            Trigger::SessionStart => Answer::Respond(Response {
                records: Records::None,
                actions: Vec::new(),
                state: None,
                agent: Some(self.config()),
            }),
            Trigger::ToolExecute(call) => self.tool(call),
            _ => Answer::Accept,
        }
    }

    fn tool(&self, call: &ToolExecute) -> Answer {
        // Bad arguments are answered best by the proposal: it tells the model what is wrong with them.
        let ToolInput::Valid(input) = &call.input else {
            return Answer::Accept;
        };
        // A model may know a tool of another version: the session was offered it before a rollback.
        let result = match self.tool_named(&call.name) {
            Some(tool) => self.run(tool, input),
            None => Err(format!("there is no tool {}", call.name)),
        };
        let outcome = match result {
            Ok(text) => {
                log::write(log::Level::Info, &format!("{}: {text}", call.name));
                Ok(serde_json::Value::from(text).to_string())
            }
            Err(message) => {
                log::write(log::Level::Error, &format!("{} failed: {message}", call.name));
                Err(Failure {
                    message,
                    retryable: false,
                    code: None,
                    detail: None,
                })
            }
        };
        Answer::Respond(Response {
            records: Records::None,
            actions: vec![Action::ToolOutcome(ToolOutcome {
                id: None,
                attempt: None,
                outcome,
            })],
            state: None,
            agent: None,
        })
    }

    fn tool_named(&self, name: &str) -> Option<Do> {
        match name {
            "add_entry" => Some(Do::AddEntry),
            "balance" => Some(Do::Balance),
            "report" => Some(Do::Report),
            "undo" if self.undo => Some(Do::Undo),
            _ => None,
        }
    }

    fn run(&self, tool: Do, input: &str) -> Result<String, String> {
        match tool {
            Do::AddEntry => self.add_entry(input),
            Do::Balance => Ok(format!("balance {}", self.money(load()?.balance()))),
            Do::Report => self.report(),
            Do::Undo => self.undo(),
        }
    }

    fn add_entry(&self, input: &str) -> Result<String, String> {
        let AddEntry { description, amount } = serde_json::from_str(input).map_err(|error| {
            log::write(log::Level::Debug, &format!("add_entry: {error}"));
            "add_entry cannot read its input"
        })?;
        let cents = amount
            .get()
            .parse()
            .ok()
            .and_then(book::cents)
            .ok_or_else(|| format!("the amount must be a number of at most {} either way", book::MAX_AMOUNT))?;
        let mut book = load()?;
        let text = format!("added \"{description}\" {}", self.money(cents.into()));
        book.entries.push(Entry { description, cents });
        save(&book)?;
        Ok(format!("{text}, balance {}", self.money(book.balance())))
    }

    fn undo(&self) -> Result<String, String> {
        let mut book = load()?;
        let Entry { description, cents } = book.entries.pop().ok_or("there is no entry to undo")?;
        save(&book)?;
        let (amount, balance) = (self.money(cents.into()), self.money(book.balance()));
        Ok(format!("removed \"{description}\" {amount}, balance {balance}"))
    }

    fn report(&self) -> Result<String, String> {
        let report = load()?.report(|cents| self.money(cents));
        write(&format!("/scratch/{REPORT}"), &report)?;
        let delivered = files::deliver(REPORT, Some("The ledger: every entry and the balance."))
            .map_err(|error| format!("{REPORT} was not delivered: {}", reason(error)))?;
        Ok(format!("{REPORT} delivered ({} bytes)", delivered.bytes))
    }

    fn money(&self, cents: i128) -> String {
        format!("{}{}", self.currency, book::decimal(cents))
    }
}

/// A session without a ledger has an empty one.
fn load() -> Result<Book, String> {
    let csv = match fs::read(LEDGER) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| format!("{LEDGER} is not UTF-8"))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            log::write(log::Level::Debug, &format!("{LEDGER}: {error}"));
            return Err(format!("{LEDGER} cannot be read"));
        }
    };
    Book::parse(&csv).map_err(|problem| format!("{LEDGER} is corrupt: {problem}"))
}

fn save(book: &Book) -> Result<(), String> {
    write(LEDGER, &book.to_csv())
}

fn write(path: &str, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| {
        log::write(log::Level::Debug, &format!("{path}: {error}"));
        format!("{path} cannot be written")
    })
}

fn reason(error: DeliverError) -> String {
    match error {
        DeliverError::NotFound => "not found".to_owned(),
        DeliverError::NotAFile => "not a file".to_owned(),
        DeliverError::TooLarge(limit) => format!("larger than {limit} bytes"),
        DeliverError::Quota => "quota used up".to_owned(),
        DeliverError::BadPath(why) | DeliverError::Failed(why) => why,
    }
}
