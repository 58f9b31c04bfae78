//! Address of a server, and the credentials for it.

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

/// The text is not a token. The message does not repeat the text, which may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token: expected letters, digits and signs, without a space")]
pub struct InvalidToken;

/// The text is not the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the address of a server: expected a URL, for example http://127.0.0.1:8080")]
pub struct InvalidAddress(pub String);

impl Token {
    /// Parses a token.
    pub fn parse(text: &str) -> Result<Self, InvalidToken> {
        let text = text.trim();
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(format!("Bearer {text}"))),
            false => Err(InvalidToken),
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
    pub fn parse(text: &str) -> Result<Self, InvalidAddress> {
        let text = text.trim_end_matches('/');
        match reqwest::Url::parse(text) {
            Ok(url) if ["http", "https"].contains(&url.scheme()) && url.host_str().is_some() => {
                Ok(Self { url: text.to_owned(), token: None })
            }
            _ => Err(InvalidAddress(text.to_owned())),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_checked_and_formatted_for_both_schemes() {
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
}
