//! Model APIs: request builders, stream parsers, and the scripted stand-in.
#![forbid(unsafe_code)]
