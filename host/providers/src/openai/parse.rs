//! From the bytes of a response to the JSON documents in it.

use belljar_protocol::Json;
use belljar_protocol::model::ModelFailure;
use belljar_protocol::sse;

use super::errors::excerpt;
use crate::failure::{retryable, terminal};

/// The most bytes of one response.
const MAX_RESPONSE: usize = 16 << 20;
/// The most bytes of one event in it.
const MAX_EVENT: usize = 4 << 20;

/// What a response says, piece by piece.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// A chunk, a whole completion or an error.
    Document(Json),
    /// An SSE event named `error`, whatever is in it.
    Error(String),
    /// `[DONE]`.
    Done,
}

/// Reads bytes, cut anywhere.
///
/// Content types are not to be trusted: some servers label a stream as JSON, and an error as a
/// stream. So the first characters decide, the content type only where they could be either.
#[derive(Debug)]
pub(super) struct Parser {
    body: Body,
    event_stream: bool,
    bytes_read: usize,
}

#[derive(Debug)]
enum Body {
    Undecided(Vec<u8>),
    Stream(sse::Reader),
    Document(Vec<u8>),
}

impl Parser {
    pub(super) fn new(event_stream: bool) -> Self {
        Self {
            body: Body::Undecided(Vec::new()),
            event_stream,
            bytes_read: 0,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, ModelFailure> {
        self.bytes_read = self.bytes_read.saturating_add(bytes.len());
        if self.bytes_read > MAX_RESPONSE {
            return Err(terminal(format!(
                "the reply is larger than {MAX_RESPONSE} bytes"
            )));
        }
        match &mut self.body {
            Body::Undecided(held) => {
                held.extend_from_slice(bytes);
                let held = match looks_like(held) {
                    Looks::Unclear => {
                        // White space is not looked at again with every push.
                        if held.trim_ascii_start().is_empty() {
                            held.clear();
                        }
                        return Ok(Vec::new());
                    }
                    Looks::Document => {
                        self.body = Body::Document(std::mem::take(held));
                        return Ok(Vec::new());
                    }
                    Looks::Text if !self.event_stream => {
                        self.body = Body::Document(std::mem::take(held));
                        return Ok(Vec::new());
                    }
                    Looks::Text | Looks::Stream => std::mem::take(held),
                };
                let mut reader = sse::Reader::default();
                let events = read(&mut reader, &held);
                self.body = Body::Stream(reader);
                events
            }
            Body::Stream(reader) => read(reader, bytes),
            Body::Document(held) => {
                held.extend_from_slice(bytes);
                Ok(Vec::new())
            }
        }
    }

    /// The response is over.
    pub(super) fn finish(self) -> Result<Vec<Event>, ModelFailure> {
        match self.body {
            Body::Stream(reader) => match reader.finish() {
                Some(frame) => {
                    let mut events = Vec::new();
                    events_of(&frame, &mut events)?;
                    Ok(events)
                }
                None => Ok(Vec::new()),
            },
            Body::Undecided(held) | Body::Document(held) => {
                let text = String::from_utf8_lossy(&held);
                let text = text.trim_start_matches('\u{feff}').trim();
                if text.is_empty() {
                    return Err(retryable("the response is empty"));
                }
                let mut events = Vec::new();
                documents(text, &mut events)?;
                Ok(events)
            }
        }
    }
}

enum Looks {
    Unclear,
    Stream,
    Document,
    Text,
}

fn looks_like(bytes: &[u8]) -> Looks {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    const FIELDS: [&[u8]; 5] = [b":", b"data:", b"event:", b"id:", b"retry:"];
    if bytes.len() < MARK.len() && MARK.starts_with(bytes) {
        return Looks::Unclear;
    }
    let text = bytes.strip_prefix(MARK).unwrap_or(bytes).trim_ascii_start();
    match text.first() {
        None => Looks::Unclear,
        Some(b'{' | b'[' | b'<') => Looks::Document,
        Some(_) if FIELDS.iter().any(|field| text.starts_with(field)) => Looks::Stream,
        Some(_) if FIELDS.iter().any(|field| field.starts_with(text)) => Looks::Unclear,
        Some(_) => Looks::Text,
    }
}

fn read(reader: &mut sse::Reader, bytes: &[u8]) -> Result<Vec<Event>, ModelFailure> {
    let mut events = Vec::new();
    for frame in reader.push(bytes) {
        check_size(frame.data.len())?;
        events_of(&frame, &mut events)?;
    }
    check_size(reader.pending_bytes())?;
    Ok(events)
}

fn check_size(bytes: usize) -> Result<(), ModelFailure> {
    if bytes > MAX_EVENT {
        return Err(terminal(format!(
            "an event of the stream is larger than {MAX_EVENT} bytes"
        )));
    }
    Ok(())
}

fn events_of(frame: &sse::Frame, events: &mut Vec<Event>) -> Result<(), ModelFailure> {
    if frame.event == "error" {
        events.push(Event::Error(frame.data.clone()));
        return Ok(());
    }
    let data = frame.data.trim();
    let (data, done) = match data.strip_suffix("[DONE]") {
        Some(before) => (before, true),
        None => (data, false),
    };
    documents(data, events)?;
    if done {
        events.push(Event::Done);
    }
    Ok(())
}

/// Reads the documents of a text: one as a rule, several where a proxy glued them together, and
/// those of an array where a server wraps them in one.
fn documents(text: &str, events: &mut Vec<Event>) -> Result<(), ModelFailure> {
    for document in serde_json::Deserializer::from_str(text).into_iter::<Json>() {
        let document = document.map_err(|error| {
            retryable(format!(
                "the response cannot be read ({error}): {}",
                excerpt(text)
            ))
        })?;
        if document.as_str().starts_with('[') {
            // An array was parsed a line ago, so it reads as one.
            let inner: Vec<Json> = document.read().unwrap_or_default();
            events.extend(inner.into_iter().map(Event::Document));
        } else {
            events.push(Event::Document(document));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(event_stream: bool, chunks: &[&[u8]]) -> Result<Vec<Event>, ModelFailure> {
        let mut parser = Parser::new(event_stream);
        let mut events = Vec::new();
        for chunk in chunks {
            events.extend(parser.push(chunk)?);
        }
        events.extend(parser.finish()?);
        Ok(events)
    }

    fn document(text: &str) -> Event {
        Event::Document(Json::parse(text).unwrap())
    }

    #[test]
    fn the_first_characters_decide_what_a_response_is() {
        for (body, events) in [
            ("data: {}\n\n", vec![document("{}")]),
            (": ping\n\ndata: [DONE]\n\n", vec![Event::Done]),
            ("\u{feff}data: {}", vec![document("{}")]),
            ("\n\n data: {}\n\n", vec![]),
            ("{}", vec![document("{}")]),
            ("\u{feff} {}", vec![document("{}")]),
            (
                "[{\"a\":1},{}]",
                vec![document("{\"a\":1}"), document("{}")],
            ),
        ] {
            assert_eq!(
                parse(true, &[body.as_bytes()]).as_ref(),
                Ok(&events),
                "{body:?}"
            );
            assert_eq!(parse(false, &[body.as_bytes()]), Ok(events), "{body:?}");
        }
        assert!(
            parse(false, &[b"upstream gone"])
                .unwrap_err()
                .message
                .contains("upstream gone")
        );
        assert_eq!(parse(true, &[b"upstream gone"]), Ok(vec![]));
    }

    #[test]
    fn a_response_without_end_is_cut_off() {
        let line = vec![b'x'; 1 << 20];
        let mut parser = Parser::new(true);
        parser.push(b"data: ").unwrap();
        let failed = (0..32).find_map(|n| parser.push(&line).err().map(|failure| (n, failure)));
        let (pushes, failure) = failed.unwrap();
        assert_eq!(pushes, 3, "{failure}");
        assert!(!failure.retryable);

        let events = "data: {}\n\n".repeat(1 << 17);
        let mut parser = Parser::new(true);
        let pushes = (0..32)
            .take_while(|_| parser.push(events.as_bytes()).is_ok())
            .count();
        assert_eq!(pushes, MAX_RESPONSE / events.len());

        let mut parser = Parser::new(false);
        parser.push(b"{").unwrap();
        assert_eq!(
            (0..32).take_while(|_| parser.push(&line).is_ok()).count(),
            15
        );
    }
}
