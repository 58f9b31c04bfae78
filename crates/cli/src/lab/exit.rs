//! Exit codes of `millrace lab`, for scripts.

use std::process::ExitCode;

use millrace_lab::sweep::Verdict;

pub const EXIT_MISSED: u8 = 1;
pub const EXIT_INVALID: u8 = 2;
pub const EXIT_ERROR: u8 = 3;
/// Source: the convention of shells, 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Returns the exit code of a verdict. An invalid run cannot judge a service level, so it takes precedence.
pub fn of(verdict: &Verdict) -> ExitCode {
    match verdict {
        Verdict { invalid: 1.., .. } => ExitCode::from(EXIT_INVALID),
        Verdict { missed: 1.., .. } => ExitCode::from(EXIT_MISSED),
        _ => ExitCode::SUCCESS,
    }
}
