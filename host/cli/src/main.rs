//! `belljar`: a host for AI agents that nobody has to trust.
//!
//! This is the only place that names concrete adapters: which store, which sandbox, which model
//! APIs. It holds no rules.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it talks to a person"
)]

mod chat;
mod client;
mod config;
mod demo;
mod push;
mod running;
mod serve;
mod show;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Runs AI agents that nobody has to trust: WebAssembly components that answer one question at a
/// time, in a sandbox, over sessions that are durable logs.
#[derive(Parser)]
#[command(name = "belljar", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  belljar serve --data ./data
  belljar push ledger.wasm --agent ledger --live
  belljar chat ledger
  echo 'coffee 3.50' | belljar chat ledger --session my-session
  belljar demo";

const SERVE_HELP: &str = "\
Examples:
  belljar serve
  belljar serve --data /var/lib/belljar --listen 127.0.0.1:7700 --config belljar.toml

Environment:
  OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_MODEL
                               a model API `openai`, beside those of the configuration
  RUST_LOG                     what is logged to stderr [default: warn,belljar=info]
  BELLJAR_CRASH_AFTER_COMMIT   for kill tests: abort right after this many appends are on disk";

#[derive(Subcommand)]
enum Command {
    /// Serve sessions over HTTP until Ctrl-C, which drains; a second one ends at once.
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArgs),
    /// Upload a component as a version of an agent.
    #[command(
        after_help = "Examples:\n  belljar push ledger.wasm --agent ledger --live\n  belljar push next.wasm --agent ledger --live --swap decision"
    )]
    Push(PushArgs),
    /// Talk to an agent, a line at a time.
    #[command(
        after_help = "Examples:\n  belljar chat ledger\n  belljar chat ledger --session my-session\n  echo 'balance' | belljar chat ledger --session my-session"
    )]
    Chat(ChatArgs),
    /// Show the main job: a conversation, a tool, a file, a swap of versions in mid-session.
    #[command(
        after_help = "Examples:\n  belljar demo --guests target/guests\n  OPENAI_API_KEY=... belljar demo"
    )]
    Demo(DemoArgs),
    /// Say which version this is.
    #[command(after_help = "Example:\n  belljar version")]
    Version,
}

/// What `serve` is told.
#[derive(Args)]
struct ServeArgs {
    /// The folder of everything the host keeps [default: belljar-data]
    #[arg(long)]
    data: Option<PathBuf>,
    /// Where to listen; loopback only, until keys exist [default: 127.0.0.1:7700]
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// A configuration file; see belljar.example.toml
    #[arg(long)]
    config: Option<PathBuf>,
}

/// Where a server is.
#[derive(Args, Clone)]
struct ServerArg {
    /// The server
    #[arg(long, env = "BELLJAR_SERVER", default_value = "http://127.0.0.1:7700")]
    server: String,
}

/// What `push` is told.
#[derive(Args)]
struct PushArgs {
    /// The component
    file: PathBuf,
    /// The agent it is a version of
    #[arg(long)]
    agent: String,
    /// Point `live` at it when all checks pass
    #[arg(long)]
    live: bool,
    /// When the move of `live` reaches running turns
    #[arg(long, value_enum, default_value = "turn", requires = "live")]
    swap: push::SwapArg,
    #[command(flatten)]
    server: ServerArg,
}

/// What `chat` is told.
#[derive(Args)]
struct ChatArgs {
    /// The agent
    agent: String,
    /// The session to go on with, or to begin under this id [default: a new one]
    #[arg(long)]
    session: Option<String>,
    #[command(flatten)]
    server: ServerArg,
}

/// What `demo` is told.
#[derive(Args)]
struct DemoArgs {
    /// Where the example agents are, as `just guests` builds them
    #[arg(long, default_value = "target/guests")]
    guests: PathBuf,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,belljar=info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    // Set once, before anything speaks TLS; an error means that it is set already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("belljar: error: the runtime could not be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args).await,
            Command::Push(args) => push::run(args).await,
            Command::Chat(args) => chat::run(args).await,
            Command::Demo(args) => demo::run(args).await,
            Command::Version => version(),
        }
    });
    // A blocked read of standard input must not keep the process.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("belljar: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn version() -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "belljar {}", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn commands_are_well_formed_and_their_help_shows_examples() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands_mut() {
            let help = command.render_help().to_string();
            assert!(help.contains("Example"), "{help}");
        }
    }

    #[test]
    fn a_swap_is_of_a_move_of_live() {
        let push = ["belljar", "push", "a.wasm", "--agent", "a"];
        let parse = |more: &[&str]| Cli::try_parse_from([&push[..], more].concat()).is_ok();
        assert!(parse(&[]) && parse(&["--live", "--swap", "decision"]));
        assert!(!parse(&["--swap", "decision"]) && !parse(&["--live", "--swap", "now"]));
    }
}
