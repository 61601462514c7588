//! `belljar demo`: the main job in one go.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use belljar_server::http;
use bytes::Bytes;
use serde_json::Value;

use crate::DemoArgs;
use crate::chat::Talk;
use crate::client::{Client, segment};
use crate::config::Config;
use crate::push::{describe, short, text};
use crate::running;
use crate::show::{Turn, printable};

const AGENT: &str = "ledger";
const SESSION: &str = "demo";

pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    let first = component(&args.guests, "ledger.wasm")?;
    let second = component(&args.guests, "ledger-v2.wasm")?;
    let data = tempfile::tempdir().context("making a folder for the demo's data")?;
    let running = running::start(
        Config::default(),
        data.path(),
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    )
    .await?;
    let address = running.listener.local_addr()?;
    let scripted = running.default_model.starts_with("script/");
    println!("a host of its own for this demo, on http://{address}");
    match scripted {
        true => println!(
            "model: a scripted stand-in plays the model, since neither OPENAI_API_KEY nor OPENAI_BASE_URL is set"
        ),
        false => println!("model: {}", running.default_model),
    }
    let host = running.host.clone();
    let server = tokio::spawn(http::serve(
        running.listener,
        running.host,
        running.http,
        std::future::pending(),
    ));

    let client = Client::new(&format!("http://{address}"))?;
    heading("upload the agent: a WebAssembly component, built from source");
    let (v1, created) = client.upload(AGENT, first, true).await?;
    println!("{}", describe(AGENT, &v1, created));

    heading("talk to it: each decision runs in a fresh sandbox, tools write to /scratch");
    let mut talk = Talk::open(client, AGENT, SESSION).await?;
    let before = host.counters();
    say(&mut talk, "coffee 3.50").await?;
    let one_turn = host.counters().transactions - before.transactions;
    say(&mut talk, "add lunch 12.25").await?;
    let balance = say(&mut talk, "balance").await?;
    ensure!(
        !scripted || balance.said.contains("15.75"),
        "the balance should be 15.75: {balance:?}"
    );
    let report = say(&mut talk, "report").await?;
    let (path, bytes) = report
        .delivered
        .first()
        .with_context(|| format!("`report` should deliver a file: {report:?}"))?;
    let file = talk
        .client()
        .download(&format!("/v1/sessions/{SESSION}/files/{}", segment(path)))
        .await?;
    ensure!(
        file.len() as u64 == *bytes,
        "{path} should be {bytes} bytes as delivered, {} were downloaded",
        file.len()
    );
    println!("{}, as downloaded:", printable(path));
    for line in String::from_utf8_lossy(&file).lines() {
        println!("    {}", printable(line));
    }

    heading("swap the agent's code, in the middle of the session");
    let (v2, created) = talk.client().upload(AGENT, second, true).await?;
    println!("{}", describe(AGENT, &v2, created));
    println!(
        "swapped: session {SESSION} goes from {} to {}",
        short(text(&v1, "version")),
        short(text(&v2, "version"))
    );
    let balance = say(&mut talk, "balance").await?;
    ensure!(
        !scripted || balance.said.contains("USD 15.75"),
        "version 2 says the balance in USD: {balance:?}"
    );
    let state = talk
        .client()
        .get(&format!("/v1/sessions/{SESSION}/state"))
        .await?;
    ensure!(
        state["version"] == v2["version"] && v1["version"] != v2["version"],
        "{} should have answered after the swap, not {}",
        v2["version"],
        state["version"]
    );
    let undone = say(&mut talk, "undo").await?;
    ensure!(
        !scripted || undone.said.contains("lunch"),
        "version 2 brings a tool that undoes: {undone:?}"
    );
    let balance = say(&mut talk, "balance").await?;
    ensure!(
        !scripted || balance.said.contains("USD 3.50"),
        "the balance should be USD 3.50: {balance:?}"
    );

    heading("what it took");
    let decisions = talk
        .client()
        .get(&format!("/v1/sessions/{SESSION}/decisions?limit=1000"))
        .await?;
    summary(&decisions, one_turn)?;
    if std::io::stdin().is_terminal() {
        heading("go on by yourself; end with Ctrl-D");
        talk.say_lines().await?;
    }
    host.drain(Duration::from_secs(5)).await;
    server.abort();
    Ok(())
}

fn component(guests: &Path, name: &str) -> Result<Bytes> {
    let path = guests.join(name);
    let bytes = std::fs::read(&path)
        .with_context(|| format!("reading {}; `./just guests` builds it", path.display()))?;
    Ok(bytes.into())
}

async fn say(talk: &mut Talk, line: &str) -> Result<Turn> {
    println!("> {line}");
    let turn = talk.say(line).await?;
    ensure!(
        turn.error.is_none(),
        "the turn failed: {}",
        turn.error.unwrap_or_default()
    );
    Ok(turn)
}

fn heading(text: &str) {
    println!("\n== {text}");
}

fn summary(decisions: &Value, syncs: u64) -> Result<()> {
    let runs: Vec<&Value> = decisions["decisions"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|decision| decision["deliveries"].as_array().into_iter().flatten())
        .map(|delivery| &delivery["run"])
        .collect();
    ensure!(!runs.is_empty(), "no decision is on record");
    let column = |key: &str| {
        let mut values: Vec<u64> = runs.iter().filter_map(|run| run[key].as_u64()).collect();
        values.sort_unstable();
        (
            values.get(values.len() / 2).copied().unwrap_or(0),
            values.last().copied().unwrap_or(0),
        )
    };
    let ((wall, longest), (fuel, _), (_, memory)) =
        (column("wall_us"), column("fuel"), column("peak_memory"));
    println!(
        "{} decisions, each in a fresh sandbox: median {wall} µs and {fuel} units of fuel, longest {longest} µs, at most {} KiB of memory",
        runs.len(),
        memory / 1024
    );
    println!(
        "{syncs} syncs made the first turn durable: a session's start, a message, a model, a tool, a model, done"
    );
    Ok(())
}
