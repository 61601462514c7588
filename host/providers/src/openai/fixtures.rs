//! Every file in `tests/fixtures/openai` is the body of a response, named after its quirk; the
//! file of the same name with `.expected` says what becomes of it. A quirk met in the wild is
//! named where it was reported. `UPDATE_FIXTURES=1` rewrites the expectations, for review.

use std::path::{Path, PathBuf};
use std::{env, fs};

use belljar_protocol::model::{LlmResponse, ModelFailure, StreamDelta};
use serde_json::{Value, json};

use super::ReplyReader;

type Outcome = Result<(Vec<StreamDelta>, LlmResponse), ModelFailure>;

fn read(event_stream: bool, chunks: &[&[u8]]) -> Outcome {
    let mut reader = ReplyReader::new(event_stream);
    let mut deltas = Vec::new();
    for chunk in chunks {
        deltas.extend(reader.push(chunk)?);
    }
    let (last, reply) = reader.finish("asked")?;
    deltas.extend(last);
    Ok((deltas, reply))
}

fn written(outcome: &Outcome) -> Value {
    match outcome {
        Ok((deltas, reply)) => json!({ "reply": reply, "deltas": deltas }),
        Err(failure) => json!({ "failure": {
            "message": failure.message,
            "code": failure.code,
            "retryable": failure.retryable,
            "detail": failure.detail,
        }}),
    }
}

fn fixtures() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openai");
    let mut paths: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

/// A stream may come under any content type.
fn content_types(path: &Path) -> &'static [bool] {
    match path.extension().unwrap().to_str().unwrap() {
        "sse" if path.file_stem().unwrap() != "nothing" => &[true, false],
        _ => &[false],
    }
}

#[test]
fn each_quirk_gives_what_is_expected() {
    let update = env::var_os("UPDATE_FIXTURES").is_some();
    let (expectations, bodies): (Vec<_>, Vec<_>) = fixtures().into_iter().partition(|path| {
        path.extension()
            .is_some_and(|extension| extension == "expected")
    });
    for path in &bodies {
        let body = fs::read(path).unwrap();
        let expected = PathBuf::from(format!("{}.expected", path.display()));
        for &event_stream in content_types(path) {
            let outcome = written(&read(event_stream, &[&body]));
            if update {
                fs::write(&expected, format!("{outcome:#}\n")).unwrap();
            }
            let text = fs::read_to_string(&expected)
                .unwrap_or_else(|_| panic!("{} is missing", expected.display()));
            let expected: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(outcome, expected, "{}: got {outcome:#}", path.display());
        }
    }
    assert!(bodies.len() > 50 && (update || bodies.len() == expectations.len()));
}

#[test]
fn any_cut_of_the_bytes_gives_the_same() {
    for path in fixtures() {
        if path
            .extension()
            .is_some_and(|extension| extension == "expected")
        {
            continue;
        }
        let body = fs::read(&path).unwrap();
        for &event_stream in content_types(&path) {
            let whole = read(event_stream, &[&body]);
            for cut in 0..=body.len() {
                let (left, right) = body.split_at(cut);
                assert_eq!(
                    read(event_stream, &[left, right]),
                    whole,
                    "{}: cut at {cut}",
                    path.display()
                );
            }
            let bytes: Vec<&[u8]> = body.chunks(1).collect();
            assert_eq!(
                read(event_stream, &bytes),
                whole,
                "{}: byte by byte",
                path.display()
            );
        }
    }
}

/// What the damage below is done with.
const DAMAGE: &[u8] = b"{}[]\":,\n\r \xff0d";

/// No input may panic, whatever it is cut into.
#[test]
fn damaged_bytes_never_panic() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        // xorshift64: the same run every time.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    for path in fixtures() {
        let body = fs::read(&path).unwrap();
        if body.is_empty() {
            continue;
        }
        for _ in 0..50 {
            let mut body = body.clone();
            for _ in 0..=random(4) {
                let at = random(body.len());
                match random(3) {
                    0 => body[at] = DAMAGE[random(DAMAGE.len())],
                    1 => body.truncate(at.max(1)),
                    _ => body.insert(at, DAMAGE[random(DAMAGE.len())]),
                }
            }
            let _ = read(random(2) == 0, &[&body]);
        }
    }
}
