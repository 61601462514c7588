//! Model APIs: request builders, stream parsers, and the scripted stand-in.
//!
//! One module per API. Inside it the request builder, the byte-stream parser and the mapper are
//! pure; one thin part does the IO. Nothing here knows sessions or retries: a model is asked
//! once, and a failure says whether asking again may help.
//!
//! [`Providers`] is built from a [`ProvidersConfig`] and finds the model for a name.
#![forbid(unsafe_code)]

mod config;
mod failure;
pub mod openai;
mod price;
mod registry;
pub mod script;

pub use config::{ConfigError, ProviderConfig, ProviderKind, ProvidersConfig, Secret};
pub use price::Price;
pub use registry::Providers;
