//! Parses listen addresses.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Deserializer, de::Error};

/// Parses `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080` or `8080`. `localhost` and a port alone mean 127.0.0.1.
/// Other names are refused: their addresses may change between two starts.
///
/// Errors: the message shows the format.
pub fn parse(text: &str) -> Result<SocketAddr, &'static str> {
    let local = |port: &str| port.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let address = text.parse().ok().or_else(|| local(text.strip_prefix("localhost:").unwrap_or(text)));
    address.ok_or(
        "expected HOST:PORT, where HOST is an IP address or localhost, for example 127.0.0.1:8080; \
         PORT alone listens on 127.0.0.1",
    )
}

/// Deserializes an address for serde.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    parse(&written(deserializer)?).map_err(D::Error::custom)
}

/// As [`deserialize`], but the address may be empty.
pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = written(deserializer)?;
    match text.is_empty() {
        true => Ok(text),
        false => parse(&text).map(|address| address.to_string()).map_err(D::Error::custom),
    }
}

/// Reads a string, or a number: a file may contain a port alone.
fn written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Port(u64),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::Text(text) => text,
        Written::Port(port) => port.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_alone_and_localhost_mean_loopback() {
        for (text, address) in [
            ("8080", "127.0.0.1:8080"),
            ("localhost:9097", "127.0.0.1:9097"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:2", "[::1]:2"),
        ] {
            assert_eq!(parse(text).map(|address| address.to_string()).as_deref(), Ok(address), "{text}");
        }
        for bad in ["", ":8080", "localhost", "65536", "localhost:x", "example.org:80", "127.0.0.1"] {
            assert!(parse(bad).is_err_and(|what| what.contains("127.0.0.1:8080")), "{bad}");
        }
    }
}
