//! Invalid values of flags.

use std::borrow::Cow;

/// Reasons why the value of a flag is invalid. clap shows the value before the reason.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ArgumentError {
    #[error("expected {0}")]
    Expected(Cow<'static, str>),
    #[error("{error}; for example {example}")]
    Duration { error: humantime::DurationError, example: &'static str },
    #[error(transparent)]
    Seconds(#[from] std::time::TryFromFloatSecsError),
}

impl ArgumentError {
    /// `what` completes the sentence "expected …".
    pub fn expected(what: impl Into<Cow<'static, str>>) -> Self {
        Self::Expected(what.into())
    }
}
