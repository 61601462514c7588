//! `belljar serve`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use belljar_server::http;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::ServeArgs;
use crate::config::Config;
use crate::running;

/// Longest drain: what is not on disk by then is recovered at the next start.
const DRAIN: Duration = Duration::from_secs(10);
/// How long clients may take, once drained, to send the rest of a request or read an answer.
const GOODBYE: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: ServeArgs) -> Result<()> {
    let config = Config::read(args.config.as_deref())?;
    let listen = args
        .listen
        .or(config.listen)
        .unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 7700)));
    let data = args
        .data
        .or_else(|| config.data.clone())
        .unwrap_or_else(|| PathBuf::from("belljar-data"));
    let running = running::start(config, &data, listen).await?;
    println!(
        "belljar listens on http://{}",
        running.listener.local_addr()?
    );
    println!(
        "data in {}, model `default` is {}",
        data.display(),
        running.default_model
    );
    println!("no keys are configured: everybody on this machine may use it");
    let host = running.host.clone();
    let (tell, told) = oneshot::channel();
    let drained = async move {
        interrupted().await;
        eprintln!("belljar: draining; press Ctrl-C again to end at once");
        tokio::spawn(async {
            interrupted().await;
            std::process::exit(130);
        });
        host.drain(DRAIN).await;
        // Nobody listens when the server is gone already.
        let _ = tell.send(());
    };
    tokio::select! {
        served = http::serve(running.listener, running.host, running.http, drained) => served?,
        () = late(told) => eprintln!("belljar: ended while clients were still connected"),
    }
    Ok(())
}

/// Resolves when clients had their time after the drain.
async fn late(drained: oneshot::Receiver<()>) {
    match drained.await {
        Ok(()) => tokio::time::sleep(GOODBYE).await,
        // The server failed before any drain, and says so itself.
        Err(_) => std::future::pending().await,
    }
}

/// Resolves at Ctrl-C or SIGTERM.
async fn interrupted() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        // An error means that the signal cannot be caught; then it ends the process by itself.
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}
