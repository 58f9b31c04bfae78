//! Which pages of a browser may ask, and under which names. This guards people whose browser is told by a foreign page what to ask; a client
//! that is no browser says what it likes here, so it is no replacement for a token.
//!
//! Source: RFC 6454; RFC 6455, section 10.2; Fetch Standard, "CORS protocol".

use std::net::IpAddr;

use http::{HeaderMap, Method, Version, header, request::Parts, uri::Authority};
use millrace_protocol::{Code, Error};

use crate::websocket::is_upgrade;

/// Where the page lives that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// No browser, or one that finds no reason to say.
    Unsaid,
    /// This server.
    Same,
    /// Named in `limits.allowed_origins`.
    Named,
    /// Only its `*` lets it in.
    Any,
    Foreign,
}

/// Source: Fetch Standard, "CORS protocol": others may be asked to show, but browsers keep the answer from the page; what changes something
/// has happened by then, and a WebSocket asks nobody.
pub fn check(parts: &Parts, is_https: bool, allowed: &[String]) -> Result<(), Error> {
    let reads = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) && !is_upgrade(parts);
    match origin(parts, is_https, allowed) {
        Origin::Foreign if !reads => Err(foreign()),
        _ => Ok(()),
    }
}

/// A browser adds cookies to whatever any page asks for, so they count only if the page is ours or named one by one.
///
/// Errors: [`Code::Forbidden`] for any other page.
pub fn may_use_cookies(parts: &Parts, is_https: bool, allowed: &[String]) -> Result<bool, Error> {
    match origin(parts, is_https, allowed) {
        Origin::Same | Origin::Named => Ok(true),
        Origin::Any | Origin::Foreign => Err(foreign()),
        // Browsers leave the origin of a page's own reads out, and say so here. Source: Fetch Metadata, section 2.3.
        Origin::Unsaid => Ok(parts.headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin")),
    }
}

/// May a page of this origin see the answer? And may it send cookies to get it?
pub fn shown_to(headers: &HeaderMap, allowed: &[String]) -> (bool, bool) {
    let Some(origin) = headers.get(header::ORIGIN) else { return (false, false) };
    let named = allowed.iter().any(|entry| entry.as_bytes() == origin.as_bytes());
    (named || allowed.iter().any(|entry| entry == "*"), named)
}

/// Checks that the request names one host. HTTP/1.0 may leave the host out: no browser speaks it.
///
/// Source: RFC 9112, section 3.2; RFC 9113, section 8.3.1.
///
/// Errors: [`Code::BadRequest`] if the host is missing, is there twice, or cannot be parsed.
pub fn check_names_host(parts: &Parts) -> Result<(), Error> {
    let bad = |detail| Err(Error::new(Code::BadRequest, detail));
    let mut named = parts.headers.get_all(header::HOST).into_iter();
    let (host, target) = (named.next(), parts.uri.authority());
    if named.next().is_some() {
        return bad("the request has several `Host` headers; send one");
    }
    let Some(host) = host else {
        return match target.is_some() || parts.version < Version::HTTP_11 {
            true => Ok(()),
            false => bad("the request has no `Host` header; send one, for example `Host: example.org`"),
        };
    };
    match Authority::try_from(host.as_bytes()) {
        Err(_) => bad("the `Host` header cannot be parsed; expected HOST or HOST:PORT"),
        Ok(host) if host.as_str().contains('@') => bad("the `Host` header has a user name; expected HOST or HOST:PORT"),
        // In HTTP/1.1 a target with an authority takes precedence, whatever `Host` says.
        Ok(host) if parts.version == Version::HTTP_2 && target.is_some_and(|target| *target != host) => {
            bad("`Host` and `:authority` name different hosts; send the same one, or only `:authority`")
        }
        Ok(_) => Ok(()),
    }
}

/// `hosts`: names besides those of loopback and those without a dot; `None`: any.
///
/// Errors: [`Code::Forbidden`] for a foreign name.
pub fn check_host(hosts: Option<&[String]>, parts: &Parts) -> Result<(), Error> {
    let (Some(hosts), Some(asked)) = (hosts, authority(parts)) else { return Ok(()) };
    let host = asked.host().trim_end_matches('.');
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    // A name without a dot is nobody's on the internet, so no page from there can point it here.
    let is_local = address.is_ok_and(|ip| ip.is_loopback())
        || !host.contains(['.', ':'])
        || host.to_ascii_lowercase().ends_with(".localhost");
    if is_local || hosts.iter().any(|name| name.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    let detail = "this server is open to its own machine only, and was asked under a foreign name; if the name is yours, add it to \
        `server.hosts`, or say `--behind-proxy` if a proxy stands in front";
    Err(Error::new(Code::Forbidden, detail))
}

/// `is_https`: as [`Access::is_https`](super::Access::is_https).
fn origin(parts: &Parts, is_https: bool, allowed: &[String]) -> Origin {
    let Some(origin) = parts.headers.get(header::ORIGIN) else { return Origin::Unsaid };
    let is_same = || {
        let (scheme, page) = origin.to_str().ok()?.split_once("://")?;
        let (page, asked) = (page.parse::<Authority>().ok()?, authority(parts)?);
        // A port that is not written is the scheme's default. Behind a proxy the server cannot know the scheme.
        let default_ports: &[u16] = if is_https { &[443] } else { &[80, 443] };
        let port = |of: &Authority| of.port_u16().filter(|port| !default_ports.contains(port));
        let is_same_scheme = !is_https || scheme.eq_ignore_ascii_case("https");
        Some(is_same_scheme && page.host().eq_ignore_ascii_case(asked.host()) && port(&page) == port(&asked))
    };
    if is_same().unwrap_or(false) {
        return Origin::Same;
    }
    match shown_to(&parts.headers, allowed) {
        (_, true) => Origin::Named,
        (true, _) => Origin::Any,
        _ => Origin::Foreign,
    }
}

/// Under which name, and on which port, this server was asked.
fn authority(parts: &Parts) -> Option<Authority> {
    let named = || parts.headers.get(header::HOST)?.to_str().ok()?.parse().ok();
    parts.uri.authority().cloned().or_else(named)
}

fn foreign() -> Error {
    let detail = "pages of this origin may not use this server; `limits.allowed_origins` names those that may";
    Error::new(Code::Forbidden, detail)
}
