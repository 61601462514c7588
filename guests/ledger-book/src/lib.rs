//! What the versions of the ledger agent have in common: the book ([`book`]) and the agent around it
//! ([`agent`]). A version says how it writes money and which tools it offers.
//!
//! `guests/ledger-py` does the same in Python, to the byte.

pub mod agent;
pub mod book;
