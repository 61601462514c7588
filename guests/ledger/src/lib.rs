//! An agent that keeps a ledger in `/scratch/ledger.csv` and hands it over as `report.md`.

use belljar_agent::Guest;
use belljar_agent::decisions::{Answer, Request};
use belljar_agent::types::Failure;
use ledger_book::agent::Ledger;

const LEDGER: Ledger = Ledger {
    currency: "",
    undo: false,
};

struct Agent;

impl Guest for Agent {
    fn decide(request: Request) -> Result<Answer, Failure> {
        Ok(LEDGER.decide(&request))
    }
}

belljar_agent::export!(Agent with_types_in belljar_agent::bindings);
