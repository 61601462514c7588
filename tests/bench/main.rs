//! Benchmarks: each figure stands beside its floor, which is measured in the same run, in turns
//! with it, so that a busy machine slows both. Nothing is asserted: a table is printed, and
//! `target/bench.json` holds the same as a list of `{name, value, unit, floor, ratio, aim}`.
//!
//! | module | measures |
//! |---|---|
//! | `decide` | a decision: beside bare wasmtime, in a long session, after a restart |
//! | `turns` | durable turns: one beside its floor, many sessions at once, over HTTP |
//! | `appends` | the store alone |
//! | `idle` | the memory of sessions nobody speaks to |
//!
//! `cargo bench -p belljar-tests --bench bench -- decide turns` runs only those.
#![allow(clippy::print_stdout, reason = "the table is what this is for")]

mod appends;
mod bare;
mod decide;
mod idle;
mod report;
mod rig;
mod turns;

use std::time::Instant;

use anyhow::Result;

use report::Report;

fn main() -> Result<()> {
    // Cargo passes `--bench`; what is not a flag is the name of a module.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let started = Instant::now();
    let mut report = Report::default();
    // First, while the process has not grown for other reasons.
    if runs("idle") {
        idle::run(&runtime, &mut report)?;
    }
    if runs("decide") {
        decide::run(&runtime, &mut report)?;
    }
    if runs("turns") {
        turns::run(&runtime, &mut report)?;
    }
    if runs("appends") {
        appends::run(&runtime, &mut report)?;
    }
    // The file always holds everything.
    if wanted.is_empty() {
        report.write(&rig::target().join("bench.json"))?;
    }
    println!("\n{} s", started.elapsed().as_secs());
    Ok(())
}
