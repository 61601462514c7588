//! Attacks on `/scratch`: filling it, and getting out of it.

use std::fmt::Debug;
use std::{fs, io};

use serde_json::{Map, Value, json};
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags};

use crate::deliveries::DeliverError;
use crate::{Args, End, deliveries};

/// Writes `bytes` bytes, or `text`, to `path`, in pieces of 64 KiB so that a quota meets it half-way.
pub fn write(args: &Args) -> End {
    let path = args.text("path", "/scratch/file");
    let text = args.0["text"].as_str().map(str::as_bytes);
    let filler = [0x2e; 64 << 10];
    let mut left = text.map_or_else(|| args.size("bytes", 1), <[u8]>::len);
    let result = fs::File::create(path).and_then(|mut file| {
        if let Some(text) = text {
            left = 0;
            return io::Write::write_all(&mut file, text);
        }
        while left > 0 {
            let piece = left.min(filler.len());
            io::Write::write_all(&mut file, &filler[..piece])?;
            left -= piece;
        }
        Ok(())
    });
    End::Report(json!({ "path": path, "unwritten": left, "error": error_of(result) }))
}

/// Makes `count` files (folders with `"kind": "dirs"`) of `bytes` bytes each, until one is refused.
pub fn many(args: &Args) -> End {
    let count = args.number("count", 10_000);
    let content = vec![b'.'; args.size("bytes", 0)];
    for number in 0..count {
        let path = format!("/scratch/many-{number}");
        let made = if args.text("kind", "files") == "dirs" {
            fs::create_dir(path)
        } else {
            fs::write(path, &content)
        };
        if made.is_err() {
            return End::Report(json!({ "made": number, "error": error_of(made) }));
        }
    }
    End::Report(json!({ "made": count, "error": null }))
}

pub fn read(args: &Args) -> End {
    let path = args.text("path", "/scratch/file");
    End::Report(match fs::read(path) {
        Ok(bytes) => json!({ "bytes": bytes.len(), "text": String::from_utf8_lossy(&bytes), "error": null }),
        Err(error) => json!({ "error": error.to_string() }),
    })
}

pub fn deliver(args: &Args) -> End {
    End::Report(
        match deliveries::deliver(args.text("path", "file"), args.0["description"].as_str()) {
            Ok(file) => json!({ "path": file.path, "bytes": file.bytes, "sha256": file.sha256, "error": null }),
            Err(error) => json!({ "error": described(&error) }),
        },
    )
}

/// Tries every way out of `/scratch` to `target`. Each entry of the report is `ok: …` for a way that
/// worked and the error for one that did not.
pub fn escape(args: &Args) -> End {
    let target = args.text("target", "etc/passwd");
    let (relative, absolute) = (format!("../../../../../../../../{target}"), format!("/{target}"));
    let mut tried = Map::new();
    let mut note = |way: &str, result: Result<String, String>| {
        let text = result.map_or_else(|error| error, |what| format!("ok: {what}"));
        tried.insert(way.to_owned(), Value::from(text));
    };

    for (way, path) in [
        ("std-relative", relative.clone()),
        ("std-absolute", absolute.clone()),
        ("std-through-scratch", format!("/scratch/{relative}")),
    ] {
        note(way, fs::read_to_string(path).map_err(|error| error.to_string()));
    }
    // std checks paths before the host sees them, so the interface below it is tried as well.
    match crate::flood::scratch() {
        Ok(scratch) => raw_escapes(&scratch, &relative, &absolute, &mut note),
        Err(error) => note("scratch", Err(error.name().to_owned())),
    }
    End::Report(Value::Object(tried))
}

fn raw_escapes(
    scratch: &Descriptor,
    relative: &str,
    absolute: &str,
    note: &mut impl FnMut(&str, Result<String, String>),
) {
    let read = |path: &str, flags| {
        let file = scratch.open_at(flags, path, OpenFlags::empty(), DescriptorFlags::READ)?;
        Ok(String::from_utf8_lossy(&file.read(4096, 0)?.0).into_owned())
    };
    let done = |result: Result<(), ErrorCode>| result.map(|()| "done".to_owned()).map_err(named);
    let follow = PathFlags::SYMLINK_FOLLOW;

    note("open-relative", read(relative, follow).map_err(named));
    note("open-absolute", read(absolute, follow).map_err(named));
    for (name, target) in [("relative", relative), ("absolute", absolute)] {
        let link = format!("link-{name}");
        note(&format!("symlink-{name}"), done(scratch.symlink_at(target, &link)));
        note(&format!("read-symlink-{name}"), read(&link, follow).map_err(named));
        note(
            &format!("hard-link-{name}"),
            done(scratch.link_at(PathFlags::empty(), target, scratch, &format!("hard-{name}"))),
        );
    }
    // A link to a file of its own is refused as well: a delivered file must have one name.
    let _ = fs::write("/scratch/own", "own");
    note("symlink-own", done(scratch.symlink_at("own", "own-soft")));
    note(
        "hard-link-own",
        done(scratch.link_at(PathFlags::empty(), "own", scratch, "own-hard")),
    );
    note("rename-out", done(scratch.rename_at("own", scratch, "../../own")));
    note("mkdir-out", done(scratch.create_directory_at("../escaped")));
    note("create-out", {
        let created = scratch.open_at(follow, "../escaped.txt", OpenFlags::CREATE, DescriptorFlags::WRITE);
        created.map(|_| "done".to_owned()).map_err(named)
    });
}

fn named(error: ErrorCode) -> String {
    error.name().to_owned()
}

fn error_of<T, E: ToString>(result: Result<T, E>) -> Value {
    result.err().map_or(Value::Null, |error| Value::from(error.to_string()))
}

/// A delivery's error as its name in the contract, with what it carries.
pub(crate) fn described(error: &DeliverError) -> Value {
    let with = |name: &str, detail: &dyn Debug| Value::from(format!("{name}: {detail:?}"));
    match error {
        DeliverError::NotFound => "not-found".into(),
        DeliverError::NotAFile => "not-a-file".into(),
        DeliverError::TooLarge(limit) => with("too-large", limit),
        DeliverError::Quota => "quota".into(),
        DeliverError::BadPath(why) => with("bad-path", why),
        DeliverError::Failed(why) => with("failed", why),
    }
}
