//! Standard output and standard error of the commands. Nothing else in this crate prints.
//!
//! A reader such as `head` may close standard output early. The command then ends quietly, as `cat` does.

use std::{
    fmt::Display,
    io::{self, BufWriter, StdoutLock, Write as _},
};

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct OutputError(#[from] io::Error);

/// Writes text to standard output.
///
/// Errors: [`OutputError`]; [`is_closed_pipe`] recognizes a reader that has closed its end.
pub fn text(text: impl Display) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Writes one line to standard output. Errors: as [`text`].
pub fn line(line: impl Display) -> Result<(), OutputError> {
    text(format_args!("{line}\n"))
}

/// Returns standard output with a buffer, for many lines. The caller must flush it.
pub fn buffer() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// Writes one line to standard error. A closed standard error is ignored, because there is nowhere else to report to.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Returns true if a command failed only because the reader of its output has closed the pipe.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<OutputError>().is_some_and(|OutputError(error)| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_closed_stdout_ends_quietly() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&OutputError(closed()).into()));
        assert!(!is_closed_pipe(&OutputError(io::ErrorKind::StorageFull.into()).into()));
        assert!(!is_closed_pipe(&closed().into()), "this may be a connection");
    }
}
