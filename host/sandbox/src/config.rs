//! The one place where wasmtime is configured. Everything here is part of the compiled cache's
//! key, so a change makes old images stale rather than wrong.

use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
    Strategy,
};

use crate::limits::Limits;

/// How often the epoch advances: guests yield to each other, and time limits are looked at.
pub(crate) const TICK: std::time::Duration = std::time::Duration::from_millis(5);

/// The engine: with a pool where the address space allows it, without one otherwise.
pub(crate) fn engine(limits: &Limits) -> wasmtime::Result<Engine> {
    let mut pooled = base(limits);
    pooled.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(limits)));
    match Engine::new(&pooled) {
        Ok(engine) => Ok(engine),
        Err(error) => {
            tracing::warn!(%error, "no room for a pool of instances, each decision allocates its own: slower, as safe");
            Engine::new(&base(limits))
        }
    }
}

fn base(limits: &Limits) -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        // Two runs of a decision must agree to the bit.
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false)
        .consume_fuel(true)
        .epoch_interruption(true)
        // On by default: two to four times slower calls, and an experimental surface.
        .concurrency_support(false)
        .wasm_threads(false)
        .wasm_memory64(false)
        // The collector has open aborts; exceptions need it, so they are off as well.
        .wasm_gc(false)
        .wasm_function_references(false)
        .wasm_exceptions(false)
        .gc_support(false)
        .max_wasm_stack(limits.stack)
        .async_stack_size(limits.stack + (1536 << 10))
        .memory_init_cow(true);
    config
}

fn pool(limits: &Limits) -> PoolingAllocationConfig {
    let resident = limits.resident.max(1);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(resident)
        .total_core_instances(resident.saturating_mul(limits.core_instances))
        .total_memories(resident.saturating_mul(2).max(limits.memories))
        .total_tables(resident.saturating_mul(4).max(limits.tables))
        .total_stacks(resident)
        .max_core_instances_per_component(limits.core_instances)
        .max_memories_per_component(limits.memories)
        .max_tables_per_component(limits.tables)
        .max_memories_per_module(limits.memories)
        .max_tables_per_module(limits.tables)
        // The limiter speaks first: a slot is never smaller than what the default allows.
        .max_memory_size(usize::try_from(limits.memory.max(128 << 20)).unwrap_or(usize::MAX))
        .table_elements(usize::try_from(limits.table_elements.max(20_000)).unwrap_or(usize::MAX))
        .max_core_instance_size(4 << 20)
        .max_component_instance_size(4 << 20)
        // Where the kernel can tell which pages were written (6.7 and later), only those are put
        // back and nothing is faulted in again: a third off the time of a small decision.
        .pagemap_scan(Enabled::Auto)
        .linear_memory_keep_resident(1 << 20)
        .table_keep_resident(64 << 10);
    pool
}
