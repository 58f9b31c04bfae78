//! Messages between the two processes before and after the engine is handed over: a length of four bytes (little
//! endian), then JSON.

use std::{
    fmt,
    io::{self, Read, Write},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Maximum size of a message in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Random secret of a server without `server.secret`. Other secrets are derived from it, so that the next process
/// accepts the signatures of this one.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed([u8; 32]);

impl Seed {
    /// Errors: the system has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        Ok(Self(seed))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(hidden)")
    }
}

/// First message of the old process. The sockets follow.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`millrace_engine::hand_over::PROTOCOL`] of the old process.
    pub protocol: u32,
    pub version: String,
    pub engine: String,
    pub shards: usize,
    /// Names of the sockets.
    pub sockets: Vec<String>,
    pub seed: Seed,
    /// Name of the old node.
    pub node: String,
}

/// Message of the new process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Everything that can fail before the engine is handed over has succeeded.
    Ready {
        version: String,
    },
    Failed {
        why: String,
    },
    Serving {
        node: String,
    },
}

pub fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&text);
    stream.write_all(&bytes)
}

/// Reads the next message, and no byte after it.
///
/// Errors: the other process has ended, or the message is malformed.
pub fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::other("the message is too long"));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_one_by_one() {
        let mut stream = Vec::new();
        let ready = Reply::Ready { version: "1.2.3".into() };
        send(&mut stream, &ready).unwrap();
        let serving = Reply::Serving { node: "ab".into() };
        send(&mut stream, &serving).unwrap();
        let mut stream = &stream[..];
        assert_eq!((receive::<Reply>(&mut stream).unwrap(), receive::<Reply>(&mut stream).unwrap()), (ready, serving));
        assert!(receive::<Reply>(&mut stream).is_err() && receive::<Reply>(&mut &[0xff; 9][..]).is_err());
    }

    #[test]
    fn seed_is_not_shown() {
        assert_eq!(format!("{:?}", Seed::random().unwrap()), "Seed(hidden)");
    }
}
