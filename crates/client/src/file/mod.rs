//! Files over a channel, in chunks, from a device to an application or the other way: a manifest with the SHA-256 of
//! the file, then its chunks.
//!
//! - this file: the format, and the receiver as a state machine without I/O
//! - [`send`]: publishes a file
//! - [`receive`]: reads a channel until a file is complete
//!
//! Source: docs/how-to/send-files.md, "The format".

mod receive;
mod send;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use receive::{ReceiveError, receive};
pub use send::{SendError, send, send_from};

use crate::subscription::Message;

/// Size of a chunk in bytes. As base64 it stays far below the limit of a message.
pub const CHUNK_BYTES: usize = 256 * 1024;
/// Maximum size of a file that is received, in bytes, unless the caller sets another one.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// Description of a file. Its message has the SHA-256 of the file as key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name without a folder.
    pub name: String,
    pub bytes: u64,
    /// In hexadecimal.
    pub sha256: String,
    pub chunk_bytes: u64,
}

/// Content of the first message of a file.
#[derive(Debug, Serialize, Deserialize)]
struct First {
    file: Manifest,
}

/// Reason why a file cannot be received.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("chunk {missing} of {name} is missing; does the history of the channel hold the whole file?")]
    Missing { name: String, missing: u64 },
    #[error("{name} has {bytes} bytes, more than {max}; raise the limit to receive it")]
    TooLarge { name: String, bytes: u64, max: u64 },
    #[error("{0} is damaged: its SHA-256 is not that of its manifest")]
    Damaged(String),
}

/// Result of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// A file begins.
    Begin(Manifest),
    /// The next bytes of the file.
    Data(Vec<u8>),
    /// The last bytes of the file, whose SHA-256 is right.
    Last(Vec<u8>),
    /// The message is no part of this file, or was received before.
    Ignored,
}

/// Assembles the first file of a channel.
#[derive(Debug)]
pub struct Assembler {
    bytes_max: u64,
    /// SHA-256 of the file to assemble. `None`: the first file of the channel.
    wanted: Option<String>,
    manifest: Option<Manifest>,
    next: u64,
    bytes: u64,
    hash: Sha256,
}

impl Manifest {
    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.bytes.div_ceil(self.chunk_bytes.max(1))
    }
}

impl Assembler {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, wanted: None, manifest: None, next: 0, bytes: 0, hash: Sha256::new() }
    }

    /// Assembles the file with this SHA-256, and ignores all others.
    pub fn only(self, sha256: Option<String>) -> Self {
        Self { wanted: sha256, ..self }
    }

    /// Handles the next message of the channel.
    ///
    /// A sender that was interrupted begins anew: chunks that were received before are ignored.
    /// Errors: a chunk is missing, the file is too large or damaged.
    pub fn handle(&mut self, message: &Message) -> Result<Piece, FileError> {
        let key = message.key.as_deref().unwrap_or_default();
        let Some(manifest) = &self.manifest else {
            return match serde_json::from_str::<First>(message.data.get()) {
                Ok(First { file }) if file.sha256 == key && self.wants(key) => self.begin(file),
                _ => Ok(Piece::Ignored),
            };
        };
        let index = key.strip_prefix(&manifest.sha256).and_then(|rest| rest.strip_prefix('/')?.parse::<u64>().ok());
        let Some(index) = index.filter(|index| *index >= self.next) else { return Ok(Piece::Ignored) };
        if index > self.next {
            return Err(FileError::Missing { name: manifest.name.clone(), missing: self.next });
        }
        let text: String = serde_json::from_str(message.data.get()).unwrap_or_default();
        let data = BASE64_STANDARD.decode(text).unwrap_or_default();
        self.bytes += data.len() as u64;
        self.next += 1;
        self.hash.update(&data);
        if self.next < manifest.chunks() {
            return Ok(Piece::Data(data));
        }
        match self.bytes == manifest.bytes && hex(&self.hash.clone().finalize()) == manifest.sha256 {
            true => Ok(Piece::Last(data)),
            false => Err(FileError::Damaged(manifest.name.clone())),
        }
    }

    fn wants(&self, sha256: &str) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted == sha256)
    }

    fn begin(&mut self, manifest: Manifest) -> Result<Piece, FileError> {
        if manifest.bytes > self.bytes_max {
            let (name, bytes, max) = (manifest.name, manifest.bytes, self.bytes_max);
            return Err(FileError::TooLarge { name, bytes, max });
        }
        if manifest.chunk_bytes == 0 && manifest.bytes > 0 {
            return Err(FileError::Damaged(manifest.name));
        }
        self.manifest = Some(manifest.clone());
        Ok(Piece::Begin(manifest))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::to_raw_value};

    use super::*;

    fn message(key: &str, data: &serde_json::Value) -> Message {
        let data = to_raw_value(data).expect("JSON");
        let (position, channel) = ("e:1".into(), "files/a".into());
        let (key, encoding, trace) = (Some(key.into()), None, None);
        Message { channel, position, time: 0, key, trace, data, deleted: false, encoding }
    }

    fn file() -> (Vec<u8>, String, Vec<Message>) {
        let content: Vec<u8> = (0..25).collect();
        let sha256 = hex(&Sha256::digest(&content));
        let manifest = json!({"file": {"name": "a.bin", "bytes": 25, "sha256": sha256, "chunk_bytes": 10}});
        let mut messages = vec![message(&sha256, &manifest)];
        for (index, chunk) in content.chunks(10).enumerate() {
            messages.push(message(&format!("{sha256}/{index}"), &json!(BASE64_STANDARD.encode(chunk))));
        }
        (content, sha256, messages)
    }

    #[test]
    fn interrupted_and_repeated_chunks_give_the_file() {
        let (content, _, messages) = file();
        let other = message("x", &json!({"speed": 3}));
        let order = [&other, &messages[1], &messages[0], &messages[1], &messages[2], &messages[0], &messages[1]];
        let mut assembler = Assembler::new(100);
        let mut received = Vec::new();
        for message in order.into_iter().chain(&messages[2..]) {
            match assembler.handle(message).expect("no error") {
                Piece::Data(data) => received.extend(data),
                Piece::Last(data) => {
                    received.extend(data);
                    assert_eq!(received, content);
                    return;
                }
                Piece::Begin(_) | Piece::Ignored => {}
            }
        }
        panic!("the file is not complete");
    }

    #[test]
    fn only_the_wanted_file_is_assembled() {
        let (_, sha256, messages) = file();
        let other = message(
            &"0".repeat(64),
            &json!({"file": {"name": "b", "bytes": 1, "sha256": "0".repeat(64), "chunk_bytes": 1}}),
        );
        let mut assembler = Assembler::new(100).only(Some(sha256));
        assert_eq!(assembler.handle(&other), Ok(Piece::Ignored));
        assert!(matches!(assembler.handle(&messages[0]), Ok(Piece::Begin(_))));
    }

    #[test]
    fn missing_damaged_and_large_files_are_errors() {
        let (_, sha256, messages) = file();
        let run = |messages: &[&Message], max| {
            let mut assembler = Assembler::new(max);
            messages.iter().find_map(|message| assembler.handle(message).err())
        };
        let missing = FileError::Missing { name: "a.bin".into(), missing: 1 };
        assert_eq!(run(&[&messages[0], &messages[1], &messages[3]], 100), Some(missing));
        let wrong = message(&format!("{sha256}/2"), &json!(BASE64_STANDARD.encode([1; 5])));
        let damaged = Some(FileError::Damaged("a.bin".into()));
        assert_eq!(run(&[&messages[0], &messages[1], &messages[2], &wrong], 100), damaged);
        let large = FileError::TooLarge { name: "a.bin".into(), bytes: 25, max: 24 };
        assert_eq!(run(&[&messages[0]], 24), Some(large));
    }
}
