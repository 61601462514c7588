//! A process that is killed loses nothing it acknowledged.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use belljar_protocol::ports::{Append, Blobs, Store};
use belljar_protocol::scratch::Digest;
use belljar_store::SqliteStore;

use crate::support::{SqliteBed, append, noise, tenant};

/// Says to `appends_until_it_is_killed` where to write.
const DIR: &str = "BELLJAR_STORE_CRASH_DIR";
const SESSIONS: u64 = 4;

/// The process that is killed: appends for ever and prints what was acknowledged.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_killed_process_loses_nothing_it_acknowledged"]
async fn appends_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    let store = std::sync::Arc::new(SqliteStore::open(&dir).unwrap());
    let tasks: Vec<_> = (0..SESSIONS)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                for seq in 0.. {
                    let blobs = if seq % 8 == 0 {
                        vec![blob(n, seq)]
                    } else {
                        vec![]
                    };
                    let append = Append {
                        blobs,
                        ..append(&format!("s{n}"), seq, 1)
                    };
                    store.append(append).await.unwrap();
                    let line = format!("acknowledged {n} {}\n", seq + 1);
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Large enough for a file.
fn blob(session: u64, seq: u64) -> (Digest, bytes::Bytes) {
    let body = noise(session * 1_000_003 + seq * 2 + 1, 70_000);
    (Digest::of(&body), body)
}

#[tokio::test]
async fn a_killed_process_loses_nothing_it_acknowledged() {
    let bed = SqliteBed::new();
    let mut acknowledged = [0; SESSIONS as usize];
    for lives in 1..=2 {
        // The second life is killed too, on a database that the first one left as it was.
        let dir = bed.dir().join(lives.to_string());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "crash::appends_until_it_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env(DIR, &dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        acknowledged = [0; SESSIONS as usize];
        let mut left = 60 * lives;
        for line in out.lines() {
            let line = line.unwrap();
            // The harness prints, too, and may do so on the same line.
            let Some((_, said)) = line.split_once("acknowledged ") else {
                continue;
            };
            let (session, seq) = said.split_once(' ').unwrap();
            acknowledged[session.parse::<usize>().unwrap()] = seq.parse().unwrap();
            left -= 1;
            if left == 0 {
                // Lines already in the pipe count as well.
                child.kill().unwrap();
            }
        }
        assert!(left <= 0, "the child ended by itself");
        child.wait().unwrap();
        let store = SqliteStore::open(&dir).unwrap();
        for (n, last) in acknowledged.iter().enumerate() {
            let read = store
                .read(&tenant(), &format!("s{n}").into(), 0, 10_000)
                .await
                .unwrap();
            let head = read.last().map_or(0, |commit| commit.last_seq());
            assert!(
                head >= *last,
                "session s{n} ends at {head}, {last} was acknowledged"
            );
            for seq in (0..head).step_by(8) {
                let (digest, body) = blob(n as u64, seq);
                assert_eq!(store.blob(&tenant(), &digest).await.unwrap(), Some(body));
            }
        }
    }
    assert!(acknowledged.iter().sum::<u64>() > 0);
}
