//! Identifiers: opaque strings, each kind a type of its own so that two cannot be confused.

use std::fmt;
use std::sync::Arc;

macro_rules! id {
    ($( $(#[$meta:meta])* $name:ident, )+) => { $(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a string as it is; where a form is required, the edge that reads it checks it.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self { Self(text.into()) }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self { Self(text.into()) }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{:?}", &*self.0) }
        }
    )+ };
}

id! {
    /// A tenant: the outermost boundary of who sees what. One built-in tenant is `default`.
    TenantId,
    /// One conversation with one agent.
    SessionId,
    /// One turn of a session; the client's idempotency key.
    TurnId,
    /// One question to the agent.
    DecisionId,
    /// One unit of outside work: a model call, a tool call, a sub-agent.
    CallId,
    /// One recorded message, a node of the message tree.
    MessageId,
    /// A named agent of a tenant.
    AgentId,
    /// One uploaded component of an agent: `sha256:<hex>`.
    VersionId,
}

impl TenantId {
    /// The tenant every object belongs to until keys exist.
    pub fn built_in() -> Self {
        Self::from("default")
    }
}

impl SessionId {
    /// Whether the id has the form clients may choose: `[A-Za-z0-9_-]{1,64}`.
    pub fn is_well_formed(&self) -> bool {
        (1..=64).contains(&self.as_str().len())
            && self
                .as_str()
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    }
}

impl AgentId {
    /// Whether the name may be uploaded under: `[A-Za-z0-9_.-]{1,64}`, not starting with a dot.
    pub fn is_well_formed(&self) -> bool {
        (1..=64).contains(&self.as_str().len())
            && !self.as_str().starts_with('.')
            && self
                .as_str()
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
    }
}
