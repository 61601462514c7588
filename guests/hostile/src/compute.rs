//! Attacks that take time, memory or stack, and ways to leave without an answer.

use std::hint::black_box;
use std::time::Duration;

use serde_json::json;
use wasip2::clocks::monotonic_clock;

use crate::{Args, End};

pub fn spin() -> End {
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

pub fn recurse(args: &Args) -> End {
    let depth = args.number("depth", u64::MAX);
    End::Report(json!({ "depth": depth, "sum": deeper(0, depth) }))
}

/// What is done after the call keeps this from becoming a loop. It has no arrays or references: those would
/// live on the guest's own stack in linear memory, which ends before the host's limit does.
#[inline(never)]
fn deeper(depth: u64, limit: u64) -> u64 {
    if depth == limit {
        return 0;
    }
    deeper(depth + 1, limit).rotate_left(depth as u32 & 63).wrapping_mul(31) ^ depth
}

/// Takes memory until there is no more, then ends as a Rust program does: in a trap. With `"polite": true`
/// it lives on and says how much it got.
pub fn grow_memory(args: &Args) -> End {
    let chunk = args.size("chunk", 1 << 20);
    let polite = args.0["polite"] == true;
    let mut held: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut memory = Vec::new();
        if polite && memory.try_reserve_exact(chunk).is_err() {
            return End::Report(json!({ "bytes": held.len() * chunk }));
        }
        memory.resize(chunk, 0x5a);
        held.push(black_box(memory));
    }
}

pub fn exit(args: &Args) -> End {
    std::process::exit(i32::try_from(args.number("code", 0)).unwrap_or(1))
}

pub fn abort() -> End {
    std::process::abort()
}

#[allow(clippy::panic, reason = "panicking is the attack")]
pub fn panic() -> End {
    panic!("the hostile guest panics as it was told to")
}

pub fn sleep(args: &Args) -> End {
    const FOREVER_MS: u64 = 1 << 42;
    let ms = args.number("ms", FOREVER_MS);
    std::thread::sleep(Duration::from_millis(ms));
    End::Report(json!({ "slept_ms": ms }))
}

pub fn poll(args: &Args) -> End {
    let nanos = args.number("nanos", u64::MAX);
    monotonic_clock::subscribe_duration(nanos).block();
    End::Report(json!({ "polled_nanos": nanos }))
}
