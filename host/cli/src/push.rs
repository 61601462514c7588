//! `belljar push`.

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::PushArgs;
use crate::client::{Client, segment};

/// When a move of `live` reaches running turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwapArg {
    /// With their next turn.
    Turn,
    /// With their next decision.
    Decision,
}

pub(crate) async fn run(args: PushArgs) -> Result<()> {
    let client = Client::new(&args.server.server)?;
    let component =
        std::fs::read(&args.file).with_context(|| format!("reading {}", args.file.display()))?;
    eprintln!(
        "uploading {} ({} bytes); it is checked and compiled",
        args.file.display(),
        component.len()
    );
    let (version, created) = client.upload(&args.agent, component.into(), false).await?;
    println!("{}", describe(&args.agent, &version, created));
    if args.live {
        let swap = if args.swap == SwapArg::Decision {
            "decision"
        } else {
            "turn"
        };
        let body = json!({ "version": version["version"], "swap": swap });
        let moved = client
            .put(
                &format!("/v1/agents/{}/labels/live", segment(&args.agent)),
                &body,
            )
            .await?;
        match moved["previous"].as_str() {
            Some(previous) => println!(
                "live moved from {} to {}",
                short(previous),
                short(text(&moved, "version"))
            ),
            None => println!("live is {}", short(text(&moved, "version"))),
        }
    }
    Ok(())
}

/// A line about a version.
pub(crate) fn describe(agent: &str, version: &Value, created: bool) -> String {
    let id = short(text(version, "version"));
    if !created {
        return format!("{agent} {id}: these bytes are there already");
    }
    format!(
        "{agent} {id}: world {}, {} bytes, compiled in {} ms",
        text(version, "world"),
        version["size"],
        version["compile_ms"]
    )
}

/// The first digits of a version's digest, as people read it.
pub(crate) fn short(version: &str) -> &str {
    version.get(..19).unwrap_or(version)
}

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}
