//! What a decision may use, and the accounting of memory.

use std::time::Duration;

use wasmtime::ResourceLimiter;

/// Bytes in a kibibyte.
const KIB: u64 = 1 << 10;
/// Bytes in a mebibyte.
const MIB: u64 = 1 << 20;

/// The limits of one sandbox. [`Limits::default`] is what an operator gets who sets nothing.
///
/// "Refused to the guest" means that the guest sees an error of the interface it called and
/// may go on; everything else ends the decision with the [`crate::SandboxError`] named.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Units of fuel, about one per instruction; set before instantiation, since start
    /// functions are guest code. Default 2·10⁹. Hit: `fuel_exhausted`.
    pub fuel: u64,
    /// Time on a processor. Default 5 s, looked at with every epoch tick. Hit: `cpu_timeout`.
    pub cpu: Duration,
    /// Time from the start of instantiation to the answer, waiting included; an `llm.execute`
    /// has the time its call's deadline leaves instead. Default 30 s. Hit: `wall_timeout`.
    pub wall: Duration,
    /// Most time of an `llm.execute` whose call has no deadline. Default 600 s. Hit:
    /// `wall_timeout`.
    pub llm_wall: Duration,
    /// Bytes of linear memory, summed over all memories. Default 128 MiB. Growth is refused to
    /// the guest; when it traps on that: `memory_exhausted`.
    pub memory: u64,
    /// Table elements, summed over all tables. Default 20 000. Growth is refused to the guest;
    /// when it traps on that, or a component starts with more: `table_exhausted`.
    pub table_elements: u64,
    /// Core instances of one component. Default 32. Hit: refused at upload.
    pub core_instances: u32,
    /// Memories of one component. Default 4. Hit: refused at upload.
    pub memories: u32,
    /// Tables of one component. Default 16. Hit: refused at upload.
    pub tables: u32,
    /// Bytes of wasm stack. Default 512 KiB. Hit: `stack_overflow`.
    pub stack: usize,
    /// Calls from the guest into the host, the engine's own helpers (growing a memory,
    /// say) included: fuel does not price them. Default 100 000. Hit:
    /// `host_call_limit`.
    pub host_calls: u64,
    /// Bytes one call may hand to the host. Default 8 MiB. Hit: `host_call_bytes`, or
    /// `answer_too_large` when it is the answer.
    pub host_call_bytes: usize,
    /// Handles open at once, and entries of the host's table behind them. Default 1 000 each.
    /// Refused to the guest where the interface can say so, else `table_exhausted`.
    pub handles: usize,
    /// Bytes of an answer as JSON. Default 4 MiB. Hit: `answer_too_large`.
    pub answer_bytes: u64,
    /// Actions of an answer. Default 256. Hit: `answer_too_large`.
    pub answer_actions: usize,
    /// Messages of an answer, those inside `llm.call` actions included. Default 1 000. Hit:
    /// `answer_too_large`.
    pub answer_messages: usize,
    /// Bytes of `state` as JSON. Default 1 MiB. Hit: `state_too_large`.
    pub state_bytes: u64,
    /// Random bytes of one call. Default 64 KiB. Hit: `trap`.
    pub random_bytes: u64,
    /// Bytes of log a decision keeps: stdout, stderr and `log` together. Default 64 KiB. Hit:
    /// the rest is counted and dropped, never an error.
    pub log_bytes: usize,
    /// Bytes of all files in `/scratch`. Default 64 MiB. Hit: `scratch_quota`.
    pub scratch_bytes: u64,
    /// Files and folders in `/scratch`. Default 1 000. Hit: `scratch_quota`.
    pub scratch_entries: usize,
    /// Bytes of one file in `/scratch`, and of one delivery. Default 32 MiB. Hit:
    /// `scratch_quota`; `too-large` is refused to the guest for a delivery.
    pub file_bytes: u64,
    /// Deliveries of one decision. Default 100. `quota` is refused to the guest.
    pub deliveries: usize,
    /// Bytes delivered by one decision. Default 64 MiB. `quota` is refused to the guest.
    pub delivery_bytes: u64,
    /// Bytes of one delta. Default 64 KiB. Refused to the guest.
    pub delta_bytes: usize,
    /// Bytes of all deltas of one decision. Default 4 MiB. Refused to the guest.
    pub deltas_bytes: usize,
    /// Bytes of an uploaded component. Default 32 MiB. Hit: refused at upload.
    pub component_bytes: usize,
    /// Decisions resident at once. Default 256; more wait their turn, without failing.
    pub resident: u32,
    /// Decisions of one tenant resident at once. Default 64; more wait their turn.
    pub resident_per_tenant: u32,
    /// Compiled components kept in memory; the least recently used goes. Default 256.
    pub compiled: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel: 2_000_000_000,
            cpu: Duration::from_secs(5),
            wall: Duration::from_secs(30),
            llm_wall: Duration::from_secs(600),
            memory: 128 * MIB,
            table_elements: 20_000,
            core_instances: 32,
            memories: 4,
            tables: 16,
            stack: 512 << 10,
            host_calls: 100_000,
            host_call_bytes: 8 << 20,
            handles: 1_000,
            answer_bytes: 4 * MIB,
            answer_actions: 256,
            answer_messages: 1_000,
            state_bytes: MIB,
            random_bytes: 64 * KIB,
            log_bytes: 64 << 10,
            scratch_bytes: 64 * MIB,
            scratch_entries: 1_000,
            file_bytes: 32 * MIB,
            deliveries: 100,
            delivery_bytes: 64 * MIB,
            delta_bytes: 64 << 10,
            deltas_bytes: 4 << 20,
            component_bytes: 32 << 20,
            resident: 256,
            resident_per_tenant: 64,
            compiled: 256,
        }
    }
}

impl Limits {
    /// The budget of the smoke decision at upload: the same, with a quarter of the fuel and a
    /// second of time.
    #[must_use]
    pub fn smoke(&self) -> Self {
        let second = Duration::from_secs(1);
        Self {
            fuel: self.fuel / 4,
            cpu: self.cpu.min(second),
            wall: self.wall.min(2 * second),
            ..self.clone()
        }
    }
}

/// Counts memory and table elements of one store, all of them summed; wasmtime's own limiter
/// counts each memory apart.
#[derive(Debug)]
pub(crate) struct Budget {
    memory: Account,
    tables: Account,
    counts: Counts,
}

#[derive(Debug, Clone, Copy)]
struct Counts {
    instances: usize,
    memories: usize,
    tables: usize,
}

/// What is held of one thing, and what was asked for in vain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    /// Most that may be held.
    pub(crate) limit: u64,
    /// Held now. Only grows: a memory never shrinks.
    pub(crate) held: u64,
    /// What the last refused growth would have brought it to.
    pub(crate) refused: Option<u64>,
}

impl Account {
    fn new(limit: u64) -> Self {
        Self {
            limit,
            held: 0,
            refused: None,
        }
    }

    /// Grows one memory or table, unless that is more than may be held or than it may grow to
    /// by itself (`maximum`: what the module says, or a slot of the pool).
    fn grow(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> bool {
        let wanted = self
            .held
            .saturating_add((desired as u64).saturating_sub(current as u64));
        if wanted > self.limit {
            self.refused = Some(wanted);
            return false;
        }
        let fits = maximum.is_none_or(|most| desired <= most);
        if fits {
            self.held = wanted;
        }
        fits
    }
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            memory: Account::new(limits.memory),
            tables: Account::new(limits.table_elements),
            counts: Counts {
                instances: limits.core_instances as usize,
                memories: limits.memories as usize,
                tables: limits.tables as usize,
            },
        }
    }

    /// Linear memory. Memories never shrink, so what is held at the end is the peak.
    pub(crate) fn memory(&self) -> Account {
        self.memory
    }

    /// Table elements.
    pub(crate) fn tables(&self) -> Account {
        self.tables
    }
}

impl ResourceLimiter for Budget {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.memory.grow(current, desired, maximum))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.tables.grow(current, desired, maximum))
    }

    fn instances(&self) -> usize {
        self.counts.instances
    }

    fn memories(&self) -> usize {
        self.counts.memories
    }

    fn tables(&self) -> usize {
        self.counts.tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_are_summed() {
        let mut budget = Budget::new(&Limits {
            memory: 100,
            ..Limits::default()
        });
        assert!(budget.memory_growing(0, 60, None).unwrap());
        assert!(!budget.memory_growing(0, 60, None).unwrap());
        assert_eq!(
            (budget.memory().held, budget.memory().refused),
            (60, Some(120))
        );
        assert!(budget.memory_growing(60, 100, None).unwrap());
        assert!(!budget.memory_growing(0, 1, Some(0)).unwrap());
        assert_eq!(budget.memory().held, 100);
    }
}
