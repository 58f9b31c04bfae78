//! Addresses of the servers, and credentials: `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][,HOST[:PORT]]...`, or
//! `tls://`.

use async_nats::ServerAddr;
use percent_encoding::percent_decode_str;

/// A parsed engine URL. The client library does not accept credentials in URLs, so they are extracted here.
pub struct Url {
    pub servers: Vec<ServerAddr>,
    pub is_tls: bool,
    pub credentials: Option<Credentials>,
}

pub enum Credentials {
    Token(String),
    User(String, String),
}

/// Faults of a URL. No message contains any part of the URL, which may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("a URL of NATS has a scheme; {SHAPE}")]
    NoScheme,
    #[error("the scheme is neither nats nor tls; {SHAPE}")]
    Scheme,
    #[error("a server address cannot be parsed; {SHAPE}")]
    Server,
    #[error("a user, password or token is empty or badly escaped; {SHAPE}")]
    Credentials,
}

const SHAPE: &str = "it looks like nats://HOST:4222, nats://USER:PASSWORD@HOST:4222,HOST2:4222 or tls://TOKEN@HOST";

/// Parses an engine URL.
///
/// Errors: the first fault of the URL.
pub fn parse(url: &str) -> Result<Url, UrlError> {
    let (scheme, rest) = url.split_once("://").ok_or(UrlError::NoScheme)?;
    let is_tls = match scheme {
        "nats" => false,
        "tls" => true,
        _ => return Err(UrlError::Scheme),
    };
    let (who, hosts) = match rest.rsplit_once('@') {
        Some((who, hosts)) => (Some(who), hosts),
        None => (None, rest),
    };
    let credentials = who.map(credentials).transpose()?;
    let server = |host: &str| {
        let is_host = !host.is_empty() && !host.contains(['/', '?', '#', '@']);
        let address = is_host.then(|| format!("{scheme}://{host}").parse().ok()).flatten();
        address.ok_or(UrlError::Server)
    };
    let servers = hosts.strip_suffix('/').unwrap_or(hosts).split(',').map(server).collect::<Result<_, _>>()?;
    Ok(Url { servers, is_tls, credentials })
}

fn credentials(who: &str) -> Result<Credentials, UrlError> {
    let decode = |text: &str| match percent_decode_str(text).decode_utf8() {
        Ok(text) if !text.is_empty() => Ok(text.into_owned()),
        _ => Err(UrlError::Credentials),
    };
    match who.split_once(':') {
        Some((user, password)) => Ok(Credentials::User(decode(user)?, decode(password)?)),
        None => Ok(Credentials::Token(decode(who)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_credentials_are_parsed() {
        let url = parse("nats://me:p%40ss@a:1,b").unwrap();
        let servers: Vec<_> = url.servers.iter().map(|server| (server.host(), server.port())).collect();
        assert_eq!(servers, [("a", 1), ("b", 4222)]);
        assert!(
            matches!(url.credentials, Some(Credentials::User(user, password)) if user == "me" && password == "p@ss")
        );
        let url = parse("tls://secret@[::1]:4222/").unwrap();
        assert!(url.is_tls && matches!(url.credentials, Some(Credentials::Token(token)) if token == "secret"));
        assert!(parse("nats://127.0.0.1").unwrap().credentials.is_none());
    }

    #[test]
    fn url_error_names_reason_without_credentials() {
        for bad in [
            "nats:host",
            "http://h",
            "nats://",
            "nats://secret@",
            "nats://:secret@h",
            "nats://me:secret@h,,g",
            "nats://me:secret@h/db",
            "nats://me:secret%ff@h",
            "nats://me:secret@h:port",
        ] {
            let error = parse(bad).err().unwrap_or_else(|| panic!("{bad} is no URL of NATS")).to_string();
            assert!(error.contains("looks like") && !error.contains("secret"), "{bad}: {error}");
        }
    }
}
