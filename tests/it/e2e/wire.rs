//! The binary asks a model server that is not ours, over the real wire.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::server::{self, Server};
use super::story::RUST;

#[tokio::test(flavor = "multi_thread")]
async fn a_third_partys_model_server_is_asked_and_its_tool_calls_are_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("wire");
    assert!(
        folder.join("node_modules").exists(),
        "the model server is not installed; run ./just setup-wire"
    );
    // It ends when its standard input does, so with this test.
    let mut mock = Command::new("node")
        .arg("aimock.mjs")
        .current_dir(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(mock.stdout.take().unwrap())
        .read_line(&mut url)
        .unwrap();
    let env = [
        ("OPENAI_BASE_URL", url.trim().to_owned()),
        ("OPENAI_API_KEY", "sk-test".to_owned()),
        ("OPENAI_MODEL", "gpt-test".to_owned()),
    ];
    let data = server::prepared(&RUST);
    let server = Server::start(data.path(), &env);
    server
        .say("s", "t", "put coffee in the book")
        .await
        .unwrap();
    let (frames, ended) = server.watch("s", 0, "t").await;
    assert!(ended);
    assert!(
        frames.iter().any(|frame| frame.event == "llm.token.delta"),
        "tokens are streamed"
    );
    let (_, state) = server
        .ask("GET", "/v1/sessions/s/state", None)
        .await
        .unwrap();
    assert_eq!(state["last_turn"]["data"], "It is in the book.");
    assert_eq!(
        state["messages"][2]["content"],
        "added \"coffee\" 3.50, balance 3.50"
    );
    drop(mock.stdin.take());
    mock.wait().unwrap();
}
