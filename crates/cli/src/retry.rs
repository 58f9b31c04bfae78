//! `--retry-for`: how long a command retries.

use std::time::Duration;

use crate::argument::ArgumentError;

/// The flag of commands that exit when their work is done.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Retry {
    /// Retry for this long if the server does not answer, then exit with code 1; 0s disables retries
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub retry_for: Duration,
}

/// A clap parser for a duration with a unit.
///
/// Errors: the message shows an example.
pub fn duration(text: &str) -> Result<Duration, ArgumentError> {
    humantime::parse_duration(text)
        .map_err(|_| ArgumentError::expected("a duration with a unit, for example 500ms, 10s or 2h"))
}
