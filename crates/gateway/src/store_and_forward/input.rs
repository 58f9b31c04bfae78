//! Lines of local publishers, for example standard input: one message per line, as in a batch.

use std::time::Duration;

use millrace_buffer::Message;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use super::{
    http::parse,
    store::{Store, StoreError, StorePutError},
};

/// Maximum length of a line in bytes.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of lines stored with one sync of the disk.
const LINES_MAX: usize = 1000;
/// Pause before the next attempt to store lines. The input waits meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// Reason why the input cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("cannot read the input: {0}")]
    Io(#[from] std::io::Error),
    #[error("line {0} of the input is longer than {LINE_BYTES_MAX} bytes")]
    TooLong(u64),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Stores each line of the input until it ends. Malformed lines are reported and skipped.
///
/// The input is read only as fast as the disk takes it.
pub async fn read(
    input: impl AsyncRead + Unpin,
    store: &Store,
    note: fn(&dyn std::fmt::Display),
) -> Result<(), InputError> {
    let mut input = BufReader::with_capacity(64 * 1024, input);
    let (mut number, mut line, mut messages): (u64, Vec<u8>, Vec<Message<'static>>) = (0, Vec::new(), Vec::new());
    loop {
        line.clear();
        number += 1;
        let length = (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line).await?;
        if length > LINE_BYTES_MAX {
            return Err(InputError::TooLong(number));
        }
        if !line.trim_ascii().is_empty() {
            match parse(&line) {
                Ok(message) => messages.push(message),
                Err(error) => note(&format_args!("line {number} of the input is skipped: {error}")),
            }
        }
        // Lines that have arrived together share a sync of the disk.
        let has_more = input.buffer().contains(&b'\n');
        if !messages.is_empty() && (!has_more || messages.len() >= LINES_MAX) {
            put(store, std::mem::take(&mut messages), note).await?;
        }
        if length == 0 {
            return Ok(());
        }
    }
}

/// Stores messages, and repeats this until the disk has room.
async fn put(
    store: &Store,
    messages: Vec<Message<'static>>,
    note: fn(&dyn std::fmt::Display),
) -> Result<(), StoreError> {
    let mut noted = String::new();
    loop {
        match store.put(messages.clone()).await {
            Ok(_) => return Ok(()),
            Err(StorePutError::Store(error)) => return Err(error),
            Err(error) => {
                let line = format!("{error}; the input waits");
                if line != noted {
                    note(&line);
                    noted = line;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
