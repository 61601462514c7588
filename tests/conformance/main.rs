//! `conformance [DIR]`: one line per vector, then `N passed, N failed`; exit 1 on a failure.
//! A vector that is listed as not yet passing counts as neither, and fails the run once it passes.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing the table is what it is for")]

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let folder = std::env::args_os()
        .nth(1)
        .map_or_else(conformance::folder, PathBuf::from);
    let (mut passed, mut failed, mut not_yet) = (0, 0, 0);
    for verdict in conformance::run_folder(&folder)? {
        let name = verdict.name;
        let (count, line) = match (verdict.not_yet, verdict.failures.first()) {
            (None, None) => (&mut passed, format!("ok      {name}")),
            (Some(reason), Some(_)) => (&mut not_yet, format!("not yet {name}: {reason}")),
            (Some(_), None) => (
                &mut failed,
                format!("FAILED  {name}: it passes, and is listed as not yet"),
            ),
            (None, Some(failure)) => (&mut failed, format!("FAILED  {name}: {failure}")),
        };
        *count += 1;
        println!("{line}");
    }
    if not_yet > 0 {
        println!("{not_yet} not yet (listed in tests/conformance/lib.rs)");
    }
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
