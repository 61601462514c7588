//! The binary as a child process, and a client of it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use belljar_protocol::sse::{Frame, Reader};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::story::Agent;

/// The binary that `just test` builds beside this test.
fn binary() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    let path = path.join("belljar");
    assert!(
        path.exists(),
        "{} is missing; run `cargo build -p belljar-cli`, or ./just test",
        path.display()
    );
    path
}

/// Where `just guests` puts components.
pub(crate) fn guest(name: &str) -> Vec<u8> {
    let folder = std::env::var_os("BELLJAR_GUESTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guests"),
        PathBuf::from,
    );
    let path = folder.join(format!("{name}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run ./just guests", path.display()))
}

/// A data folder in which an agent and its next version are uploaded and compiled, copied from
/// one that is made once: compiling is not what these tests are about.
pub(crate) fn prepared(agent: &Agent) -> TempDir {
    static MADE: OnceLock<Mutex<Vec<(String, TempDir)>>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock().unwrap();
    if !made.iter().any(|(name, _)| name == agent.first) {
        let data = tempfile::tempdir().unwrap();
        let server = Server::start(data.path(), &[]);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        // A test's own runtime is running already: this one lives on a thread of its own.
        std::thread::scope(|scope| {
            let server = &server;
            scope
                .spawn(move || {
                    runtime.block_on(async {
                        server.upload(agent.first, true).await;
                        server.upload(agent.next, false).await;
                    });
                })
                .join()
                .unwrap();
        });
        drop(server);
        made.push((agent.first.to_owned(), data));
    }
    let (_, source) = made.iter().find(|(name, _)| name == agent.first).unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_all(source.path(), copy.path());
    copy
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            let mode = entry.metadata().unwrap().permissions();
            copy_all(&entry.path(), &target);
            std::fs::set_permissions(&target, mode).unwrap();
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// A child process that may be killed from two sides.
pub(crate) type Process = Arc<Mutex<Child>>;

/// `kill -9`.
pub(crate) fn kill(process: &Process) {
    let mut child = process.lock().unwrap();
    // It may have ended by itself: the crash hook does that.
    drop(child.kill());
    child.wait().unwrap();
}

/// A running server. Dropping it kills it, as `kill -9` does.
pub(crate) struct Server {
    child: Process,
    base: String,
    http: reqwest::Client,
}

impl Server {
    /// Starts the binary on a data folder and a free port.
    pub(crate) fn start(data: &Path, env: &[(&str, String)]) -> Self {
        // Set once for the process; an error means that it is set.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut command = Command::new(binary());
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .env_remove("OPENAI_API_KEY")
            .env_remove("OPENAI_BASE_URL")
            .envs(env.iter().map(|(key, value)| (*key, value)))
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines
            .next()
            .expect("the server says where it listens")
            .unwrap();
        let base = line
            .strip_prefix("belljar listens on ")
            .unwrap_or_else(|| panic!("said `{line}`"));
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(5))
            .timeout(Duration::from_secs(60))
            .build()
            .unwrap();
        let base = base.to_owned();
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child: Arc::new(Mutex::new(child)),
            base,
            http,
        }
    }

    /// Where it listens.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The process, for whoever kills it from beside.
    pub(crate) fn process(&self) -> Process {
        self.child.clone()
    }

    /// SIGTERM, as Ctrl-C does; gives how the process ended, within its drain.
    pub(crate) fn interrupt(&self) -> std::process::ExitStatus {
        let mut child = self.child.lock().unwrap();
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        for _ in 0..300 {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the server does not drain within 15 s");
    }

    pub(crate) async fn upload(&self, name: &str, live: bool) -> String {
        let response = self
            .http
            .post(format!(
                "{}/v1/agents/ledger/versions?live={live}",
                self.base
            ))
            .header("content-type", "application/wasm")
            .body(guest(name))
            .timeout(Duration::from_secs(300))
            .send()
            .await
            .unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "uploading {name}: {status} {text}");
        serde_json::from_str::<Value>(&text).unwrap()["version"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// One request; none when the server is gone before it answers.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(u16, Value)> {
        let method = method.parse().unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let text = response.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    pub(crate) async fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let response = self
            .http
            .get(format!("{}{path}", self.base))
            .send()
            .await
            .ok()?;
        assert!(
            response.status().is_success(),
            "{path}: {}",
            response.status()
        );
        Some(response.bytes().await.ok()?.to_vec())
    }

    /// The log from after `seq` until a turn's end. What came is given even when the server is
    /// gone in the middle; the flag says whether the end came.
    pub(crate) async fn watch(&self, session: &str, after: u64, turn: &str) -> (Vec<Frame>, bool) {
        let path = format!("{}/v1/sessions/{session}/log?turn_id={turn}", self.base);
        let request = self
            .http
            .get(path)
            .header("accept", "text/event-stream")
            .header("last-event-id", after.to_string());
        let mut frames = Vec::new();
        let Ok(mut response) = request.send().await else {
            return (frames, false);
        };
        if !response.status().is_success() {
            return (frames, false);
        }
        let mut reader = Reader::default();
        while let Ok(Some(chunk)) = response.chunk().await {
            frames.extend(reader.push(&chunk));
            if let Some(last) = frames.last().filter(|frame| frame.event == "turn.ended") {
                let data: Value = serde_json::from_str(&last.data).unwrap();
                if data["event"]["turn_id"] == turn {
                    return (frames, true);
                }
            }
        }
        (frames, false)
    }

    pub(crate) async fn say(&self, session: &str, turn: &str, text: &str) -> Option<(u16, Value)> {
        let input = json!({
            "type": "client.message",
            "agent_id": "ledger",
            "turn_id": turn,
            "message": { "role": "user", "content": text },
        });
        self.ask(
            "POST",
            &format!("/v1/sessions/{session}/input"),
            Some(&input),
        )
        .await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill(&self.child);
    }
}
