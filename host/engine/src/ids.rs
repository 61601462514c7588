//! Fresh identifiers from the entropy a command brings.

use belljar_protocol::id::DecisionId;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::Now;

/// Makes UUIDv7s: the same moment and entropy give the same ids in the same order.
#[derive(Debug, Clone)]
pub(crate) struct Ids {
    now: Now,
    made: u64,
}

impl Ids {
    pub(crate) fn new(now: Now) -> Self {
        Self { now, made: 0 }
    }

    pub(crate) fn fresh(&mut self) -> String {
        let hash = Sha256::new()
            .chain_update(self.now.seed)
            .chain_update(self.made.to_be_bytes())
            .finalize();
        self.made += 1;
        let mut random = [0; 10];
        random.copy_from_slice(&hash[..10]);
        let millis = u64::try_from(self.now.at.millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &random)
            .into_uuid()
            .to_string()
    }
}

/// An id that belongs to a decision: the same one whenever the decision is composed.
pub(crate) fn derived(decision: &DecisionId, what: &str) -> String {
    Uuid::new_v5(
        &Uuid::NAMESPACE_OID,
        format!("{decision}/{what}").as_bytes(),
    )
    .to_string()
}
