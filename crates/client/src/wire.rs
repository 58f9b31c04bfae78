//! Parts shared by all clients of the server: address, bounded bodies and problem details.

use serde::Deserialize;

/// Maximum size of a response body in bytes: far more than 1,000 publications of 1 KiB.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Server address, `http://HOST:PORT` or `https://HOST:PORT`, without a slash at the end, and the credentials for
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    url: String,
    token: Option<Token>,
}

/// Token or API key as sent in `Authorization`. `Debug` hides it, so that it never appears in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Parses a token.
    ///
    /// Errors: describes the format of a token without repeating the given text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(format!("Bearer {text}"))),
            false => Err("this is no token: one has letters, digits and signs, without a space".into()),
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Server {
    /// Parses an address.
    ///
    /// Errors: describes the format of an address.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_end_matches('/');
        match reqwest::Url::parse(text) {
            Ok(url) if ["http", "https"].contains(&url.scheme()) && url.host_str().is_some() => {
                Ok(Self { url: text.to_owned(), token: None })
            }
            _ => Err(format!("`{text}` is no address of a server; one looks like http://127.0.0.1:8080")),
        }
    }

    /// Returns the address for display, without user and password.
    pub fn shown(&self) -> String {
        let Some((scheme, rest)) = self.url.split_once("://") else { return String::new() };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        format!("{scheme}://{}{path}", authority.rsplit_once('@').map_or(authority, |(_, host)| host))
    }

    pub fn is_tls(&self) -> bool {
        self.url.starts_with("https:")
    }

    pub fn http(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token, ..self }
    }

    /// Returns the `Authorization` header, if there is a token.
    pub fn authorization(&self) -> Option<(&'static str, &str)> {
        self.token.as_ref().map(|Token(bearer)| ("Authorization", bearer.as_str()))
    }

    pub fn get(&self, client: &reqwest::Client, path: &str) -> reqwest::RequestBuilder {
        let request = client.get(self.http(path));
        match self.authorization() {
            Some((name, bearer)) => request.header(name, bearer),
            None => request,
        }
    }

    pub fn websocket(&self, path: &str) -> String {
        format!("ws{}{path}", &self.url["http".len()..])
    }
}

/// Error reported by the server (RFC 9457, or the error of a session).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Problem {
    pub code: String,
    #[serde(default)]
    pub detail: String,
    /// True if the same request may succeed later.
    #[serde(default)]
    pub retry: bool,
}

impl Problem {
    /// Decodes the problem of an unsuccessful response. A response without problem details is classified by its
    /// status.
    pub fn of(status: u16, body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_else(|_| Self {
            code: format!("status {status}"),
            detail: String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned(),
            retry: matches!(status, 408 | 429 | 500..),
        })
    }
}

/// Reads a whole body, up to [`BODY_BYTES_MAX`].
pub async fn body(mut response: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| cause(&error))? {
        if bytes.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(format!("the answer is longer than {BODY_BYTES_MAX} bytes"));
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

/// Returns the current time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
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
    fn an_address_is_checked_and_spelled_for_both_schemes() {
        let server = Server::parse("http://127.0.0.1:8080/").expect("an address");
        assert_eq!(server.http("/v1/stream"), "http://127.0.0.1:8080/v1/stream");
        assert_eq!(server.websocket("/v1/connect"), "ws://127.0.0.1:8080/v1/connect");
        let secured = Server::parse("https://cars.example").expect("an address");
        assert_eq!(secured.websocket("/v1/connect"), "wss://cars.example/v1/connect");
        let server = Server::parse("https://ann:p@ss@cars.example:1/base").expect("an address");
        assert_eq!(server.shown(), "https://cars.example:1/base");
        for wrong in ["127.0.0.1:8080", "ftp://a", "", "http://"] {
            assert!(Server::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_problem_is_read_or_judged_by_its_status() {
        let body = br#"{"type":"urn:millrace:error:unavailable","title":"x","status":503,"detail":"drains","code":"unavailable","retry":true}"#;
        let problem = Problem::of(503, body);
        assert_eq!((problem.to_string().as_str(), problem.retry), ("unavailable: drains", true));
        assert!(Problem::of(502, b"<html>").retry);
        assert!(!Problem::of(404, b"").retry);
    }

    #[test]
    fn a_query_value_keeps_channels_readable() {
        assert_eq!(query_value("cars/1/telemetry@5f0c12ab:57"), "cars/1/telemetry@5f0c12ab:57");
        assert_eq!(query_value("a&b=+ü"), "a%26b%3D%2B%C3%BC");
    }
}
