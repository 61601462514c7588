//! Short ways to write a [`ModelFailure`].

use belljar_protocol::call::ErrorCode;
use belljar_protocol::model::ModelFailure;

/// A failure of the provider that another try may not meet.
pub(crate) fn retryable(message: impl Into<String>) -> ModelFailure {
    ModelFailure {
        retryable: true,
        ..terminal(message)
    }
}

/// A failure that another try would meet again.
pub(crate) fn terminal(message: impl Into<String>) -> ModelFailure {
    ModelFailure {
        message: message.into(),
        retryable: false,
        code: ErrorCode::ProviderError,
        retry_after_secs: None,
        detail: None,
    }
}

/// The model, or a filter before or behind it, will not answer this.
pub(crate) fn refused(message: impl Into<String>) -> ModelFailure {
    ModelFailure {
        code: ErrorCode::Refused,
        ..terminal(message)
    }
}
