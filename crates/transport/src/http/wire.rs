//! Parses and encodes HTTP/1.1 for connections that hyper does not serve.
//!
//! Source: RFC 9112; RFC 9110.

use std::io::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};

use super::{CHANNEL, Response, STREAM};

/// Maximum number of headers of a request. hyper has the same limit.
const HEADERS_MAX: usize = 100;

/// A complete request head without a body, an upgrade or an expectation.
pub(crate) struct SimpleRequest {
    pub(crate) request: Request<()>,
    /// Length of the head in bytes. No body follows.
    pub(crate) head_bytes: usize,
    /// True if the client asks to close the connection after the response.
    pub(crate) closes: bool,
}

impl SimpleRequest {
    /// Parses the head at the start of `bytes`.
    ///
    /// Returns `None` for everything that hyper must handle: an incomplete or malformed head, a version other than
    /// 1.1, a method other than GET, a body, an upgrade, or an expectation.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(head_bytes)) = parsed.parse(bytes) else { return None };
        if parsed.method != Some("GET") || parsed.version != Some(1) {
            return None;
        }
        // One allocation for all values: each value is a slice of `head`.
        let head = Bytes::copy_from_slice(&bytes[..head_bytes]);
        let part = |text: &[u8]| head.slice_ref(&head[offset_in(bytes, text)..][..text.len()]);
        let mut request = Request::new(());
        *request.uri_mut() = Uri::from_maybe_shared(part(parsed.path?.as_bytes())).ok()?;
        let mut closes = false;
        request.headers_mut().reserve(parsed.headers.len());
        for parsed in parsed.headers.iter() {
            let name = HeaderName::from_bytes(parsed.name.as_bytes()).ok()?;
            match name {
                header::CONTENT_LENGTH | header::TRANSFER_ENCODING | header::UPGRADE | header::EXPECT => return None,
                header::CONNECTION if parsed.value.eq_ignore_ascii_case(b"close") => closes = true,
                header::CONNECTION if !parsed.value.eq_ignore_ascii_case(b"keep-alive") => return None,
                _ => {}
            }
            let value = HeaderValue::from_maybe_shared(part(parsed.value)).ok()?;
            request.headers_mut().append(name, value);
        }
        Some(Self { request, head_bytes, closes })
    }
}

/// Returns the offset of `part` in `whole`. `part` must be a subslice of `whole`.
fn offset_in(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

/// Encodes the head of the last HTTP response of a connection. Its body ends with the connection, or another
/// protocol follows.
///
/// Source: RFC 9112, sections 4 (status line), 6.3 (a body without a length), 9.6 (`close`); RFC 9110, section 7.8
/// (`Upgrade`).
pub fn encode_head(head: &Response) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    write_status(&mut out, head.status());
    write_headers(&mut out, head.headers());
    write_date(&mut out);
    if !head.headers().contains_key(header::CONNECTION) {
        write_header(&mut out, "connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// Encodes a response with a complete body. `more` are headers that other parts of the server add.
///
/// Source: RFC 9112, sections 6.3 (no length for 204) and 9.3 (the connection persists unless `closes`).
pub(crate) fn encode_answer(response: Response, more: Option<&HeaderMap>, closes: bool) -> Vec<u8> {
    let (head, body) = response.into_parts();
    let body = body.into_whole();
    let mut out = Vec::with_capacity(512 + body.len());
    write_status(&mut out, head.status);
    write_headers(&mut out, &head.headers);
    more.into_iter().for_each(|more| write_headers(&mut out, more));
    if head.status != StatusCode::NO_CONTENT {
        let _ = write!(out, "content-length: {}\r\n", body.len());
    }
    write_date(&mut out);
    if closes {
        write_header(&mut out, "connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&body);
    out
}

fn write_status(out: &mut Vec<u8>, status: StatusCode) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn write_headers(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        write_header(out, name.as_str(), value.as_bytes());
    }
}

fn write_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn write_date(out: &mut Vec<u8>) {
    write_header(out, "date", httpdate::fmt_http_date(std::time::SystemTime::now()).as_bytes());
}

/// Returns true if a GET of this path reads channels. The event loop can answer such a request without a body or an
/// upgrade.
pub(crate) fn is_read(method: &Method, path: &str) -> bool {
    *method == Method::GET && (CHANNEL.capture(path).is_some() || path == STREAM.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_get_requests_are_parsed() {
        let bytes = b"GET /v1/channels/a?wait=30 HTTP/1.1\r\nHost: h\r\nX: 1\r\nx: 2\r\n\r\nGET /next";
        let SimpleRequest { request, head_bytes, closes } = SimpleRequest::parse(bytes).unwrap();
        assert_eq!((&bytes[head_bytes..], closes), (&b"GET /next"[..], false));
        assert_eq!(request.uri().query(), Some("wait=30"));
        let (one, two) = (HeaderValue::from_static("1"), HeaderValue::from_static("2"));
        let values: Vec<_> = request.headers().get_all("x").iter().collect();
        assert_eq!((&request.headers()["host"], values), (&HeaderValue::from_static("h"), vec![&one, &two]));
        let closing = SimpleRequest::parse(b"GET /v1/stream HTTP/1.1\r\nConnection: Close\r\n\r\n").unwrap();
        assert!(closing.closes);
    }

    #[test]
    fn other_requests_are_left_to_hyper() {
        for other in [
            "GET /v1/channels/a HTTP/1.1\r\nHost: h\r\n",
            "GET /v1/channels/a HTTP/1.0\r\n\r\n",
            "POST /v1/channels/a HTTP/1.1\r\nContent-Length: 1\r\n\r\n1",
            "GET /v1/channels/a HTTP/1.1\r\nContent-Length: 1\r\n\r\n1",
            "GET /v1/channels/a HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            "GET /v1/channels/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET /v1/channels/a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            "GET /v1/channels/a HTTP/1.1\r\nConnection: keep-alive, upgrade\r\n\r\n",
            "GET /v1/channels/a HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
            "GET /v1/channels/a HTTP/1.1\r\nNo colon\r\n\r\n",
            "GET /v1/channels/a HTTP/1.1\r\n folded: 1\r\n\r\n",
            "\u{0}",
            "",
        ] {
            assert!(SimpleRequest::parse(other.as_bytes()).is_none(), "{other:?}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: 1\r\n".repeat(HEADERS_MAX + 1));
        assert!(SimpleRequest::parse(many.as_bytes()).is_none());
    }

    #[test]
    fn response_has_length_date_and_close() {
        let text = |closes, response| {
            let mut more = HeaderMap::new();
            more.insert(header::VARY, HeaderValue::from_static("origin"));
            String::from_utf8(encode_answer(response, Some(&more), closes)).unwrap()
        };
        let answer = text(false, crate::http::json("{}"));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"), "{answer}");
        assert!(answer.contains("\r\nvary: origin\r\n") && answer.contains("\r\ndate: "), "{answer}");
        assert!(answer.contains("\r\ncontent-length: 2\r\n") && answer.ends_with("\r\n\r\n{}"), "{answer}");
        assert!(!answer.contains("connection"), "{answer}");
        let nothing = text(true, crate::http::no_content());
        assert!(!nothing.contains("content-length") && nothing.contains("\r\nconnection: close\r\n"), "{nothing}");
    }
}
