//! The programs in `examples/` do what they say.

use std::path::Path;
use std::process::Command;

use super::server::{self, Server};
use super::story::RUST;

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_chats_and_fetches_files() {
    let data = server::prepared(&RUST);
    let server = Server::start(data.path(), &[]);
    let downloads = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/chat.py");
    let say = |agent: &str, line: &str| {
        let output = Command::new("python3")
            .arg(script.canonicalize().unwrap())
            .args(["--server", server.base(), "--session", "py", agent, line])
            .current_dir(downloads.path())
            .env_remove("http_proxy")
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (ok, said, error) = say("ledger", "coffee 3.50");
    assert!(
        ok && said.contains("-> add_entry") && said.contains("balance 3.50"),
        "{said}{error}"
    );
    let (ok, said, error) = say("ledger", "report");
    assert!(ok && said.contains("delivered report.md"), "{said}{error}");
    let report = std::fs::read_to_string(downloads.path().join("report.md")).unwrap();
    assert!(report.contains("coffee"), "{report}");
    let (ok, _, error) = say("nobody", "hello");
    assert!(
        !ok && error.contains("belongs to agent `ledger`"),
        "{error}"
    );
}
