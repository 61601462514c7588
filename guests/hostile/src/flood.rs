//! Attacks by number: of log lines, handles, host calls, random bytes, deliveries, deltas.

use std::io::Write;

use serde_json::{Value, json};
use wasip2::clocks::{monotonic_clock, wall_clock};
use wasip2::filesystem::preopens;
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags};
use wasip2::io::streams::InputStream;

use crate::files::described;
use crate::{Args, End, deliveries as handover, deltas as import, log as lines};

/// Writes to all three ways into the log, with bytes that a terminal would obey.
pub fn log(args: &Args) -> End {
    let line = format!("\x1b[2J\x1b]0;owned\x07\r\u{202e}{}\x1b[31m", "flood ".repeat(160));
    let count = args.number("lines", 1_000);
    let mut failed = 0;
    for number in 0..count {
        failed += u64::from(writeln!(std::io::stdout(), "{number} {line}").is_err());
        failed += u64::from(writeln!(std::io::stderr(), "{number} {line}").is_err());
        lines::write(lines::Level::Error, &line);
    }
    End::Report(json!({ "lines": count * 3, "failed": failed }))
}

/// Takes handles of one kind and keeps them. The raw interface is used because the adapter below std has
/// a small table of its own, which would stop this long before the host does.
pub fn handles(args: &Args) -> End {
    let kind = args.text("kind", "dirs");
    let count = args.number("count", 1_000_000);
    let (taken, error) = match kind {
        "files" => take(count, |scratch| open(scratch, "flood", OpenFlags::CREATE)),
        "streams" => {
            let file = scratch().and_then(|scratch| open(&scratch, "flood", OpenFlags::CREATE));
            match file {
                Ok(file) => take(count, |_| -> Result<InputStream, ErrorCode> { file.read_via_stream(0) }),
                Err(error) => (0, error.name()),
            }
        }
        "pollables" => take(count, |_| Ok(monotonic_clock::subscribe_duration(u64::MAX))),
        _ => take(count, |scratch| open(scratch, ".", OpenFlags::DIRECTORY)),
    };
    End::Report(json!({ "kind": kind, "taken": taken, "error": error }))
}

/// Counts how many handles `one` gives before an error, holding on to all of them.
fn take<T>(count: u64, one: impl Fn(&Descriptor) -> Result<T, ErrorCode>) -> (usize, &'static str) {
    let scratch = match scratch() {
        Ok(scratch) => scratch,
        Err(error) => return (0, error.name()),
    };
    let mut held = Vec::new();
    for _ in 0..count {
        match one(&scratch) {
            Ok(handle) => held.push(handle),
            Err(error) => return (held.len(), error.name()),
        }
    }
    (held.len(), "")
}

pub(crate) fn scratch() -> Result<Descriptor, ErrorCode> {
    let found = preopens::get_directories()
        .into_iter()
        .find(|(_, path)| path == "/scratch");
    found.map(|(scratch, _)| scratch).ok_or(ErrorCode::NoEntry)
}

fn open(scratch: &Descriptor, path: &str, open: OpenFlags) -> Result<Descriptor, ErrorCode> {
    let flags = if open.contains(OpenFlags::CREATE) {
        DescriptorFlags::READ | DescriptorFlags::WRITE
    } else {
        DescriptorFlags::READ
    };
    scratch.open_at(PathFlags::empty(), path, open, flags)
}

/// Calls the host for little guest fuel: `"call"` is `clock` (the default), `log` or `delta`.
pub fn host_calls(args: &Args) -> End {
    let count = args.number("count", 2_000_000);
    for _ in 0..count {
        match args.text("call", "clock") {
            "log" => lines::write(lines::Level::Debug, ""),
            "delta" => drop(import::emit("{}")),
            _ => drop(wall_clock::now()),
        }
    }
    End::Report(json!({ "calls": count }))
}

pub fn random(args: &Args) -> End {
    let bytes = wasip2::random::random::get_random_bytes(args.number("bytes", 64 << 20));
    End::Report(json!({ "bytes": bytes.len() }))
}

/// Delivers one file again and again; each delivery counts, each with `bytes` bytes.
pub fn deliveries(args: &Args) -> End {
    let count = args.number("count", 101);
    if let Err(error) = std::fs::write("/scratch/gift.bin", vec![7; args.size("bytes", 1)]) {
        return End::Report(json!({ "delivered": 0, "error": error.to_string() }));
    }
    for delivered in 0..count {
        if let Err(error) = handover::deliver("gift.bin", None) {
            return End::Report(json!({ "delivered": delivered, "error": described(&error) }));
        }
    }
    End::Report(json!({ "delivered": count, "error": null }))
}

/// Emits `delta` (of `bytes` bytes of text when it is not given) `count` times, until one is refused.
pub fn deltas(args: &Args) -> End {
    let delta = match &args.0["delta"] {
        Value::Null => json!({ "text": "d".repeat(args.size("bytes", 5)) }).to_string(),
        Value::String(raw) => raw.clone(),
        delta => delta.to_string(),
    };
    let count = args.number("count", 1);
    for emitted in 0..count {
        if let Err(error) = import::emit(&delta) {
            return End::Report(json!({ "emitted": emitted, "error": error }));
        }
    }
    End::Report(json!({ "emitted": count, "error": null }))
}
