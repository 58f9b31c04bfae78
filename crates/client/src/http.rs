//! Parts of HTTP that all clients of the server share: bounded bodies, causes of errors, encoded queries.

/// Maximum size of a response body in bytes: far more than 1,000 publications of 1 KiB.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Reason why a body was not received completely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The connection failed.
    #[error("{0}")]
    Interrupted(String),
    #[error("the answer is longer than {BODY_BYTES_MAX} bytes")]
    TooLong,
}

/// Reads a whole body, up to [`BODY_BYTES_MAX`].
pub async fn body(mut response: reqwest::Response) -> Result<Vec<u8>, BodyError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| BodyError::Interrupted(cause(&error)))? {
        if bytes.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(BodyError::TooLong);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Returns the root cause of an error on one line: "connection refused" rather than "error sending request".
pub fn cause(error: &dyn std::error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

/// Percent-encodes characters that are special in a query (RFC 3986, section 3.4).
pub fn query_value(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/@".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_value_keeps_channels_readable() {
        assert_eq!(query_value("cars/1/telemetry@5f0c12ab:57"), "cars/1/telemetry@5f0c12ab:57");
        assert_eq!(query_value("a&b=+ü"), "a%26b%3D%2B%C3%BC");
    }
}
