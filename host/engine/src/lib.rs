//! The pure core of Belljar: what a session is, and what happens to it.
//!
//! One loop drives everything: [`handle`] turns a command into events, [`apply`] folds events
//! into [`State`], [`plan`] says which work is due. All three are total and deterministic. There
//! is no IO here, no clock, no randomness, no async: time and entropy come in with [`Now`].
//!
//! The rules live in modules named after the sections of the decision protocol:
//!
//! | module | rules |
//! |---|---|
//! | [`mod@turns`] | S1–S8: sessions, turns, abort, stall |
//! | [`mod@inputs`] | I1–I12: what a client's input becomes |
//! | [`mod@proposals`] | P0–P6: what the engine would do by itself |
//! | [`mod@decisions`] | D1–D9: delivery, failure, checking and applying answers |
//! | [`mod@calls`] | C1–C15: calls, retries, deadlines, settling |
//! | [`mod@tree`] | T1–T6: the message tree and reconciling |
//! | [`mod@prompt`] | T7: requests to a model, repaired |
#![forbid(unsafe_code)]

pub mod calls;
pub mod command;
pub mod decisions;
mod draft;
mod ids;
pub mod inputs;
mod money;
mod planner;
pub mod prompt;
pub mod proposals;
mod schema;
mod snapshot;
pub mod state;
pub mod tree;
pub mod turns;
mod view;

pub use command::{AnswerIn, Command, Handled, Now, Party, Rejection, Reply, SettleError};
pub use draft::handle;
pub use planner::{DueCall, DueDecision, Plan, plan};
pub use snapshot::{Unreadable, restore, snapshot};
pub use state::{State, apply};
pub use view::Composed;
