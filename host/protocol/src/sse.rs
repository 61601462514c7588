//! Server-sent events: writing frames, and reading them from bytes split anywhere.
//!
//! The reader works on bytes, so a UTF-8 character or a line end may be cut by the network.
//! It takes LF, CRLF and CR, `data:` with and without a space, several `data:` lines, comments,
//! a byte-order mark, and a last event without the blank line.

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The `event:` field; empty: `message`.
    pub event: String,
    /// The `data:` lines, joined by a line feed.
    pub data: String,
    /// The `id:` field.
    pub id: Option<String>,
}

/// Writes one frame. `data` may hold line feeds.
pub fn write(event: &str, id: Option<u64>, data: &str) -> String {
    let mut out = String::with_capacity(data.len() + 48);
    if let Some(id) = id {
        out.push_str(&format!("id: {id}\n"));
    }
    if !event.is_empty() {
        out.push_str(&format!("event: {event}\n"));
    }
    for line in data.split('\n') {
        out.push_str("data: ");
        out.push_str(line);
        out.push('\n');
    }
    out.push('\n');
    out
}

/// Reads frames from a stream of bytes.
#[derive(Debug, Default)]
pub struct Reader {
    line: Vec<u8>,
    started: bool,
    after_cr: bool,
    event: String,
    data: Option<String>,
    id: Option<String>,
}

impl Reader {
    /// Takes the next bytes; gives the frames they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => frames.extend(self.end_line()),
                _ => self.line.push(byte),
            }
        }
        frames
    }

    /// The stream is over; gives the last frame when it lacked its blank line.
    pub fn finish(mut self) -> Option<Frame> {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.end_frame()
    }

    /// Bytes held back for the line that is not complete yet.
    pub fn pending_bytes(&self) -> usize {
        self.line.len() + self.data.as_ref().map_or(0, String::len)
    }

    fn end_line(&mut self) -> Option<Frame> {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.started, true) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.is_empty() {
            return self.end_frame();
        }
        let line = String::from_utf8_lossy(&line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event = value.to_owned(),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "id" => self.id = Some(value.to_owned()),
            // Comments have an empty field name; `retry` and unknown fields say nothing to us.
            _ => {}
        }
        None
    }

    fn end_frame(&mut self) -> Option<Frame> {
        let event = std::mem::take(&mut self.event);
        let id = self.id.take();
        self.data.take().map(|data| Frame { event, data, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}: hello\r\nevent: a\r\nid: 7\r\ndata: grüß\r\ndata:gott\r\n\r\ndata: x\n\ndata: last";

    fn frames(chunks: &[&[u8]]) -> Vec<Frame> {
        let mut reader = Reader::default();
        let mut out: Vec<_> = chunks.iter().flat_map(|chunk| reader.push(chunk)).collect();
        out.extend(reader.finish());
        out
    }

    #[test]
    fn any_split_of_the_bytes_gives_the_same_frames() {
        let bytes = STREAM.as_bytes();
        let whole = frames(&[bytes]);
        assert_eq!(whole.len(), 3);
        assert_eq!(
            whole[0],
            Frame {
                event: "a".into(),
                data: "grüß\ngott".into(),
                id: Some("7".into())
            }
        );
        assert_eq!(whole[2].data, "last");
        for cut in 0..=bytes.len() {
            assert_eq!(
                frames(&[&bytes[..cut], &bytes[cut..]]),
                whole,
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let text = write("log", Some(3), "one\ntwo");
        let read = frames(&[text.as_bytes()]);
        assert_eq!(
            read,
            [Frame {
                event: "log".into(),
                data: "one\ntwo".into(),
                id: Some("3".into())
            }]
        );
    }
}
