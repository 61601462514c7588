//! The whole way from the bytes of a response to the reply, without IO.

use belljar_protocol::Json;
use belljar_protocol::model::{LlmResponse, ModelFailure, StreamDelta};

use super::errors;
use super::merge::Merge;
use super::parse::{Event, Parser};
use crate::failure::retryable;

/// Reads the body of a successful response: a stream of chunks, one whole completion, or an
/// error that the status did not tell.
///
/// Bytes may be cut anywhere; the same bytes give the same reply.
#[derive(Debug)]
pub struct ReplyReader {
    parser: Parser,
    merge: Merge,
    show_reasoning: bool,
    done: bool,
}

impl ReplyReader {
    /// A reader for a body. `event_stream`: whether the content type is `text/event-stream`.
    pub fn new(event_stream: bool) -> Self {
        Self {
            parser: Parser::new(event_stream),
            merge: Merge::default(),
            show_reasoning: true,
            done: false,
        }
    }

    /// The same, but without the model's reasoning in what [`ReplyReader::push`] gives.
    #[must_use]
    pub fn without_reasoning(mut self) -> Self {
        self.show_reasoning = false;
        self
    }

    /// Takes the next bytes; gives what they add to the reply.
    ///
    /// # Errors
    /// The provider reports an error, sends what cannot be read, or sends too much.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<StreamDelta>, ModelFailure> {
        if self.done {
            return Ok(Vec::new());
        }
        let events = self.parser.push(bytes)?;
        self.take(events)
    }

    /// Whether the provider has said that nothing more comes.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the model has said that it stopped: only token counts may follow.
    pub fn has_stopped(&self) -> bool {
        self.merge.has_stopped()
    }

    /// The response is over: gives what its last bytes added, and the reply. `asked` is the model's name when
    /// the response does not say which one answered.
    ///
    /// # Errors
    /// The reply is not whole, or it is a refusal.
    pub fn finish(mut self, asked: &str) -> Result<(Vec<StreamDelta>, LlmResponse), ModelFailure> {
        let parser = std::mem::replace(&mut self.parser, Parser::new(true));
        let deltas = match self.done {
            true => Vec::new(),
            false => {
                let events = parser.finish()?;
                self.take(events)?
            }
        };
        Ok((deltas, self.merge.finish(asked)?))
    }

    fn take(&mut self, events: Vec<Event>) -> Result<Vec<StreamDelta>, ModelFailure> {
        let mut deltas = Vec::new();
        for event in events {
            if self.done {
                break;
            }
            match event {
                Event::Document(document) => {
                    let mut delta = self.merge.take(&document)?;
                    if !self.show_reasoning {
                        delta.reasoning = None;
                    }
                    if delta != StreamDelta::default() {
                        deltas.push(delta);
                    }
                }
                Event::Error(data) => {
                    return Err(match Json::parse(&data) {
                        Ok(document) => errors::of_document(&document, None),
                        Err(_) => retryable(errors::excerpt(&data)),
                    });
                }
                Event::Done => self.done = true,
            }
        }
        Ok(deltas)
    }
}
