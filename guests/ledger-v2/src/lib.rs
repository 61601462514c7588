//! The ledger agent's next version: it names the currency and can undo.
//!
//! It shows how new tools reach sessions that are already running: the first decision after a swap answers
//! with the new configuration, whatever else it answers.

use belljar_agent::Guest;
use belljar_agent::decisions::{Answer, Request, Response};
use belljar_agent::session;
use belljar_agent::types::{AgentConfig, Failure, Handler};
use ledger_book::agent::Ledger;

const LEDGER: Ledger = Ledger {
    currency: "USD ",
    undo: true,
};

struct Agent;

impl Guest for Agent {
    fn decide(request: Request) -> Result<Answer, Failure> {
        let answer = LEDGER.decide(&request);
        Ok(if swapped(&request) { migrate(answer) } else { answer })
    }
}

fn swapped(request: &Request) -> bool {
    request
        .previous_version
        .as_ref()
        .is_some_and(|previous| *previous != request.version)
}

fn migrate(answer: Answer) -> Answer {
    let response = match answer {
        Answer::Respond(response) => response,
        // Accepting has no room for a configuration, so the proposal is spelt out.
        Answer::Accept => session::proposed(),
    };
    let current = response.agent.clone().or_else(session::config);
    Answer::Respond(Response {
        agent: Some(config_after(current)),
        ..response
    })
}

/// The new configuration, with the tools that the client brought to the session.
fn config_after(current: Option<AgentConfig>) -> AgentConfig {
    let mut config = LEDGER.config();
    for tool in current.into_iter().flat_map(|config| config.tools) {
        let taken = config.tools.iter().any(|own| own.name == tool.name);
        if tool.handler == Some(Handler::Client) && !taken {
            config.tools.push(tool);
        }
    }
    config
}

belljar_agent::export!(Agent with_types_in belljar_agent::bindings);
