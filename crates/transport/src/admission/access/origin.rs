//! Checks the browser origin and the host name of a request. This protects users against foreign pages that make the
//! browser send requests. Clients other than browsers can send any origin, so this check never replaces a token.
//!
//! A page of a refused origin may read its refusal, and nothing else. Without CORS headers a script sees no response at
//! all, and a client cannot tell a refusal from a network failure.
//!
//! Source: RFC 6454; RFC 6455, section 10.2; Fetch Standard, "CORS protocol".

use std::net::IpAddr;

use http::{Version, header, request::Parts, uri::Authority};
use millrace_protocol::{Code, Error};

use super::settings::Access;

/// Maximum length of an origin that a refusal repeats.
const ORIGIN_BYTES_MAX: usize = 256;

/// Headers that proxies add.
const PROXY_HEADERS: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// Origin of the page that sent the request, classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The request has no `Origin`: the client is no browser, or the browser omits the header here.
    Unsaid,
    /// The page comes from this server.
    Same,
    /// The origin is listed in `limits.allowed_origins`.
    Named,
    /// The origin is allowed only by the `*` in `limits.allowed_origins`.
    Any,
    /// The page has a loopback origin, and the request's `Host` is a loopback name, too.
    Loopback,
    Foreign,
}

/// Part of the response that the requesting page may read (CORS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorsAccess {
    /// The response gets no CORS headers.
    Unsaid,
    /// The page may read the whole response. `with_cookies`: also if the request carries cookies.
    Answer { with_cookies: bool },
    /// The page may read only a refusal.
    Refusal,
}

/// Checks that the page's origin is allowed. Browsers send no `Origin` with a `GET` that a page only displays (an
/// image, a link), and none with a `GET` to the page's own origin.
///
/// Errors: [`Code::Forbidden`] for any other page.
pub fn check(parts: &Parts, access: &Access, allowed: &[String]) -> Result<(), Error> {
    match origin(parts, access, allowed) {
        Origin::Foreign => Err(foreign(parts)),
        _ => Ok(()),
    }
}

/// Returns whether the cookies of this request count. Browsers add cookies to the requests of every page, so cookies
/// count only if the page is from this server or its origin is listed. Cookies ignore ports (RFC 6265, section 8.5), so
/// pages of other loopback ports send them, too.
///
/// Errors: [`Code::Forbidden`] for any other page.
pub fn may_use_cookies(parts: &Parts, access: &Access, allowed: &[String]) -> Result<bool, Error> {
    match origin(parts, access, allowed) {
        Origin::Same | Origin::Named => Ok(true),
        Origin::Any | Origin::Loopback | Origin::Foreign => Err(foreign(parts)),
        // Browsers send no `Origin` with a same-origin `GET` but send this header. Source: Fetch Metadata, section 2.3.
        Origin::Unsaid => Ok(parts.headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin")),
    }
}

/// Returns true if a browser says that a page of this server, opened at a loopback address, sent this request.
///
/// The host must be a loopback name, so a foreign name that resolves to this machine (DNS rebinding) does not count. A
/// page of another port is another origin. Browsers send `Origin` with every handshake of a WebSocket and with every
/// POST, and `Sec-Fetch-Site` with every other request to a loopback address; pages can set neither. A request that a
/// proxy forwarded does not count, because its sender may be anywhere.
///
/// Source: RFC 6455, section 10.2; Fetch Metadata, section 2.3; Fetch Standard, "forbidden request-header".
pub fn is_own_page(parts: &Parts) -> bool {
    let is_forwarded = PROXY_HEADERS.iter().any(|name| parts.headers.contains_key(*name));
    let Some(asked) = authority(parts).filter(|asked| is_loopback(asked.host())) else { return false };
    if is_forwarded || parts.version < Version::HTTP_11 {
        return false;
    }
    let header = |name: &str| parts.headers.get(name).map(|value| value.as_bytes());
    match header("origin") {
        Some(origin) => {
            let is_same = |scheme: &[u8]| {
                origin.strip_prefix(scheme).is_some_and(|page| page.eq_ignore_ascii_case(asked.as_str().as_bytes()))
            };
            let is_consistent = header("sec-fetch-site").is_none_or(|site| site == b"same-origin");
            is_consistent && (is_same(b"http://") || is_same(b"https://"))
        }
        None => header("sec-fetch-site") == Some(b"same-origin"),
    }
}

pub fn shown_to(parts: &Parts, access: &Access, allowed: &[String]) -> CorsAccess {
    match origin(parts, access, allowed) {
        Origin::Named => CorsAccess::Answer { with_cookies: true },
        Origin::Any | Origin::Loopback => CorsAccess::Answer { with_cookies: false },
        // Behind a proxy the scheme is unknown, so for the browser this page may have another origin.
        Origin::Same if is_any(allowed) => CorsAccess::Answer { with_cookies: false },
        Origin::Same | Origin::Unsaid => CorsAccess::Unsaid,
        Origin::Foreign => CorsAccess::Refusal,
    }
}

/// Checks that the request names one host. HTTP/1.0 may omit the host; no browser speaks HTTP/1.0.
///
/// Source: RFC 9112, section 3.2; RFC 9113, section 8.3.1.
///
/// Errors: [`Code::BadRequest`] if the host is missing, occurs twice, or cannot be parsed.
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

/// Checks that the request's host name is allowed. Loopback names and names without a dot are always allowed. `hosts`:
/// further allowed names; `None` allows any name.
///
/// Errors: [`Code::Forbidden`] for a foreign name.
pub fn check_host(hosts: Option<&[String]>, parts: &Parts) -> Result<(), Error> {
    let (Some(hosts), Some(asked)) = (hosts, authority(parts)) else { return Ok(()) };
    let host = asked.host().trim_end_matches('.');
    // No public DNS name lacks a dot, so no page on the internet can make such a name resolve to this server.
    let is_local = is_loopback(host) || !host.contains(['.', ':']);
    if is_local || hosts.iter().any(|name| name.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    let detail = "this server accepts only local host names, and the request has another one; if the name is yours, add it to \
        `server.hosts`, or use `--behind-proxy` if a proxy forwards the requests";
    Err(Error::new(Code::Forbidden, detail))
}

fn origin(parts: &Parts, access: &Access, allowed: &[String]) -> Origin {
    let Some(origin) = parts.headers.get(header::ORIGIN) else { return Origin::Unsaid };
    let page = origin.to_str().ok().and_then(|origin| {
        let (scheme, page) = origin.split_once("://")?;
        Some((scheme, page.parse::<Authority>().ok()?))
    });
    if allowed.iter().any(|entry| entry.as_bytes() == origin.as_bytes()) {
        return Origin::Named;
    }
    let asked = authority(parts);
    if let (Some((scheme, page)), Some(asked)) = (&page, &asked) {
        // A missing port means the scheme's default port. Behind a proxy the server cannot know the scheme.
        let default_ports: &[u16] = if access.is_https { &[443] } else { &[80, 443] };
        let port = |of: &Authority| of.port_u16().filter(|port| !default_ports.contains(port));
        let is_same_scheme = !access.is_https || scheme.eq_ignore_ascii_case("https");
        if is_same_scheme && page.host().eq_ignore_ascii_case(asked.host()) && port(page) == port(asked) {
            return Origin::Same;
        }
    }
    if is_any(allowed) {
        return Origin::Any;
    }
    match (&page, &asked) {
        // A configured list replaces this default. A proxy may have replaced `Host`, so the default does not apply
        // behind one.
        (Some(("http" | "https", page)), Some(asked))
            if allowed.is_empty() && !access.behind_proxy && is_loopback(page.host()) && is_loopback(asked.host()) =>
        {
            Origin::Loopback
        }
        _ => Origin::Foreign,
    }
}

fn is_any(allowed: &[String]) -> bool {
    allowed.iter().any(|entry| entry == "*")
}

/// Returns whether browsers resolve this host to their own machine. Source: RFC 6761, section 6.3.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let name = host.to_ascii_lowercase();
    address.is_ok_and(|ip| ip.is_loopback()) || name == "localhost" || name.ends_with(".localhost")
}

/// Returns the host name and port that the request is addressed to.
fn authority(parts: &Parts) -> Option<Authority> {
    let named = || parts.headers.get(header::HOST)?.to_str().ok()?.parse().ok();
    parts.uri.authority().cloned().or_else(named)
}

fn foreign(parts: &Parts) -> Error {
    let origin = parts.headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let origin = origin.filter(|origin| origin.len() <= ORIGIN_BYTES_MAX).unwrap_or("this page");
    let detail = format!("origin not allowed: pages of {origin} may not use this server; set `limits.allowed_origins`");
    Error::new(Code::Forbidden, detail)
}
