//! Finds the token of a request. The places are searched in a fixed order, and the first token found counts.
//!
//! Source: RFC 6750, section 2; docs/reference/protocol.md, "Credentials".

use std::borrow::Cow;

use http::{HeaderMap, header, request::Parts};
use millrace_protocol::{Code, Error};

use super::{origin, settings::Access};
use crate::http::{is_upgrade, offered};

/// Prefix of the `Sec-WebSocket-Protocol` item that carries a token.
const BEARER: &str = "bearer.";
/// Name of the query parameter that carries a token.
const QUERY: &str = "token";

/// Returns the token of a request, or `None` if the request has none. The token is not verified here.
///
/// Errors: [`Code::Unauthorized`] for an `Authorization` header that is not a bearer token. [`Code::BadRequest`] for a
/// token in the URL where that is not allowed. [`Code::Forbidden`] for a token cookie on a request from a foreign page.
pub fn find<'a>(access: &Access, parts: &'a Parts, allowed_origins: &[String]) -> Result<Option<Cow<'a, str>>, Error> {
    if let Some(token) = bearer(&parts.headers)? {
        return Ok(Some(token.into()));
    }
    if is_upgrade(parts)
        && let Some(token) = offered(&parts.headers).find_map(|item| item.strip_prefix(BEARER))
    {
        return Ok(Some(token.into()));
    }
    if let Some(token) = in_query(parts) {
        // The refused token must not be repeated: the logs of every proxy on the path already hold it.
        let detail = "a token in a URL appears in logs of proxies and is refused here: send it as `Authorization: Bearer ..`, or beside a \
            WebSocket's subprotocol (docs/reference/protocol.md, \"Credentials\")";
        return if access.query { Ok(Some(token)) } else { Err(Error::new(Code::BadRequest, detail)) };
    }
    match cookie(&parts.headers, &access.cookie) {
        Some(token) if origin::may_use_cookies(parts, access, allowed_origins)? => Ok(Some(token.into())),
        _ => Ok(None),
    }
}

/// Returns the token of the `Authorization` header.
///
/// Errors: [`Code::Unauthorized`] if the scheme is not `Bearer`, the token is empty, or the header is not visible
/// ASCII.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let other =
        || Error::new(Code::Unauthorized, "the authorization scheme must be `Bearer`: `Authorization: Bearer ..`");
    token.filter(|token| !token.is_empty()).map(Some).ok_or_else(other)
}

fn in_query(parts: &Parts) -> Option<Cow<'_, str>> {
    let mut pairs = form_urlencoded::parse(parts.uri.query()?.as_bytes());
    pairs.find_map(|(name, token)| (name == QUERY).then_some(token))
}

/// Returns the value of the named cookie. An empty `name` disables cookies.
///
/// Source: RFC 6265, section 4.2.1.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    if name.is_empty() {
        return None;
    }
    let values = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(other, token)| (other == name).then_some(token))
}
