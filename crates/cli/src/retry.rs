//! How long the commands try again.

use std::time::Duration;

/// For commands that end by themselves.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Retry {
    /// Try again for so long when the server does not answer, then end with exit code 1; 0s: never try again
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub retry_for: Duration,
}

/// For clap: a duration.
///
/// Errors: show what one looks like.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "expected a duration with a unit, for example 500ms, 10s or 2h".into())
}
