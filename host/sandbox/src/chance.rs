//! Time and chance as a decision sees them: the same on every run of it.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use belljar_protocol::Timestamp;
use rand_core::TryRng;
use sha2::{Digest, Sha256};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

use crate::mac::Key;

/// A wall clock that stands still.
pub(crate) struct Still(pub(crate) Timestamp);

impl HostWallClock for Still {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }
    fn now(&self) -> Duration {
        // WASI's wall clock knows nothing before 1970.
        Duration::from_millis(u64::try_from(self.0.millis()).unwrap_or(0))
    }
}

/// A monotonic clock that starts at 0.
pub(crate) struct Since(pub(crate) Instant);

impl HostMonotonicClock for Since {
    fn resolution(&self) -> u64 {
        1_000
    }
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A decision's seed: without the host's secret nobody can tell it.
pub(crate) fn seed(secret: &Key, tenant: &str, session: &str, decision: &str) -> [u8; 32] {
    let length = |text: &str| (text.len() as u64).to_le_bytes();
    secret.code(&[
        b"belljar decision seed 1",
        &length(tenant),
        tenant.as_bytes(),
        &length(session),
        session.as_bytes(),
        decision.as_bytes(),
    ])
}

/// SHA-256 in counter mode over a seed: written down here, so that it gives the same bytes in
/// every version of this host.
pub(crate) struct Chance {
    seed: [u8; 32],
    stream: u8,
    block: u64,
    bytes: [u8; 32],
    used: usize,
}

impl Chance {
    /// One of 256 independent streams of a seed.
    pub(crate) fn new(seed: [u8; 32], stream: u8) -> Self {
        Self {
            seed,
            stream,
            block: 0,
            bytes: [0; 32],
            used: 32,
        }
    }

    fn fill(&mut self, into: &mut [u8]) {
        for byte in into {
            if self.used == self.bytes.len() {
                self.bytes = Sha256::new()
                    .chain_update(self.seed)
                    .chain_update([self.stream])
                    .chain_update(self.block.to_le_bytes())
                    .finalize()
                    .into();
                self.block += 1;
                self.used = 0;
            }
            *byte = self.bytes[self.used];
            self.used += 1;
        }
    }
}

impl TryRng for Chance {
    type Error = Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Infallible> {
        self.fill(into);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_bytes_for_ever() {
        let seed = seed(&Key::new(&[7; 32]), "t", "s", "d");
        let mut bytes = [0; 40];
        Chance::new(seed, 0).fill(&mut bytes);
        // Pinned: a recorded decision must see these again.
        assert_eq!(hex::encode(&bytes[..8]), PINNED);
        let mut other = [0; 40];
        Chance::new(seed, 1).fill(&mut other);
        assert_ne!(bytes, other);
    }

    const PINNED: &str = "72c79c17f13137f3";
}
