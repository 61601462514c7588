//! What a guest says: stdout, stderr and `log`, one line at a time, capped and cleaned.

use std::sync::{Arc, Mutex, PoisonError};

use belljar_protocol::run::{LogLevel, LogLine};
use bytes::Bytes;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// What one line costs beside its bytes, so that empty lines are not free.
const PER_LINE: usize = 16;

/// The log of one decision, shared by the ways into it.
#[derive(Clone)]
pub(crate) struct Journal(Arc<Mutex<Pages>>);

struct Pages {
    room: usize,
    lines: Vec<LogLine>,
    dropped: u64,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Journal {
    /// A log of at most `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Pages {
            room: bytes,
            lines: Vec::new(),
            dropped: 0,
            out: Vec::new(),
            err: Vec::new(),
        })))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Pages) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One entry of `log.write`; line breaks inside make several lines.
    pub(crate) fn write(&self, level: LogLevel, text: &str) {
        self.with(|pages| {
            text.lines()
                .for_each(|line| pages.line(level, line.as_bytes()));
        });
    }

    fn stream(&self, level: LogLevel, bytes: &[u8]) {
        self.with(|pages| {
            for piece in bytes.split_inclusive(|&b| b == b'\n') {
                let (text, ends) = match piece.strip_suffix(b"\n") {
                    Some(text) => (text, true),
                    None => (piece, false),
                };
                let room = pages.room;
                let partial = pages.partial(level);
                // A guest that never ends its line gets no more of it than the log has room for.
                let fits = room.saturating_sub(partial.len()).min(text.len());
                partial.extend_from_slice(&text[..fits]);
                let line = ends.then(|| std::mem::take(partial));
                pages.dropped += (text.len() - fits) as u64;
                if let Some(line) = line {
                    pages.line(level, &line);
                }
            }
        });
    }

    /// What was said, and how many bytes did not fit.
    pub(crate) fn finish(&self) -> (Vec<LogLine>, u64) {
        self.with(|pages| {
            let (out, err) = (
                std::mem::take(&mut pages.out),
                std::mem::take(&mut pages.err),
            );
            for (level, rest) in [(LogLevel::Info, out), (LogLevel::Warn, err)] {
                if !rest.is_empty() {
                    pages.line(level, &rest);
                }
            }
            (std::mem::take(&mut pages.lines), pages.dropped)
        })
    }

    /// The stream behind stdout (`info`) or stderr (`warn`).
    pub(crate) fn sink(&self, level: LogLevel) -> Sink {
        Sink {
            journal: self.clone(),
            level,
        }
    }
}

impl Pages {
    /// The line a stream is in the middle of.
    fn partial(&mut self, level: LogLevel) -> &mut Vec<u8> {
        if level == LogLevel::Warn {
            &mut self.err
        } else {
            &mut self.out
        }
    }

    fn line(&mut self, level: LogLevel, bytes: &[u8]) {
        let Some(room) = self.room.checked_sub(PER_LINE).filter(|room| *room > 0) else {
            self.dropped += bytes.len() as u64;
            return;
        };
        let mut line = cleaned(&String::from_utf8_lossy(bytes));
        if line.is_empty() && !bytes.is_empty() {
            return;
        }
        if line.len() > room {
            let cut = (0..=room)
                .rev()
                .find(|&at| line.is_char_boundary(at))
                .unwrap_or(0);
            self.dropped += (line.len() - cut) as u64;
            line.truncate(cut);
        }
        self.room = room - line.len();
        self.lines.push(LogLine { level, line });
    }
}

/// Text without what a terminal or a page would obey: escape sequences, control characters,
/// and marks that turn the direction of text around.
pub(crate) fn cleaned(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => match rest.next() {
                // CSI: parameters up to a letter.
                Some('[') => while rest.next().is_some_and(|c| !('\x40'..='\x7e').contains(&c)) {},
                // OSC and its kin: text up to BEL or ESC \.
                Some(']' | 'P' | 'X' | '^' | '_') => {
                    while let Some(c) = rest.next() {
                        if c == '\x07' || (c == '\x1b' && rest.next_if_eq(&'\\').is_some()) {
                            break;
                        }
                    }
                }
                _ => {}
            },
            '\t' => clean.push('\t'),
            c if c.is_control() => {}
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            c => clean.push(c),
        }
    }
    clean
}

/// A stream that never blocks, never fails and never holds more than its journal has room for.
#[derive(Clone)]
pub(crate) struct Sink {
    journal: Journal,
    level: LogLevel,
}

impl IsTerminal for Sink {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Sink {
    // Only the second preview asks for streams here, and it asks `p2_stream`.
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }
    // The default one buffers without bound in this version.
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for Sink {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.journal.stream(self.level, &bytes);
        Ok(())
    }
    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }
    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Sink {
    async fn ready(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_gone() {
        assert_eq!(
            cleaned("\x1b[2J\x1b]0;owned\x07\rred\u{202e}\x1b[31m\ttext\0"),
            "red\ttext"
        );
        assert_eq!(cleaned("\x1b]8;;http://x\x1b\\link"), "link");
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let journal = Journal::new(100);
        journal.stream(LogLevel::Info, b"ab");
        journal.stream(LogLevel::Info, b"cd\nrest");
        journal.write(LogLevel::Error, "one\ntwo");
        for _ in 0..1_000 {
            journal.stream(LogLevel::Warn, &[b'x'; 1_000]);
            journal.write(LogLevel::Debug, "");
        }
        let (lines, dropped) = journal.finish();
        let bytes: usize = lines.iter().map(|line| line.line.len() + PER_LINE).sum();
        assert_eq!(
            lines[0],
            LogLine {
                level: LogLevel::Info,
                line: "abcd".into()
            }
        );
        assert_eq!(
            lines[1],
            LogLine {
                level: LogLevel::Error,
                line: "one".into()
            }
        );
        assert!(bytes <= 100 && dropped > 900_000, "{bytes} {dropped}");
    }
}
