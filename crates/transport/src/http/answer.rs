use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body::Frame;
use millrace_protocol::Error;

pub type Response = http::Response<Body>;

/// Header with the granted heartbeat interval in seconds, if the client has requested one.
pub const HEARTBEAT: header::HeaderName = header::HeaderName::from_static("millrace-heartbeat");
/// Header with the position from which the client continues.
pub const POSITION: header::HeaderName = header::HeaderName::from_static("millrace-position");

/// Response body: complete, or a stream that produces its bytes while they are sent.
pub enum Body {
    Whole(Option<Bytes>),
    Stream(Pin<Box<dyn http_body::Body<Data = Bytes, Error = Infallible>>>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Stream(stream) => stream.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Body::Whole(bytes) => http_body::SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Body::Stream(_) => http_body::SizeHint::default(),
        }
    }
}

impl Body {
    /// Returns the bytes of a complete body; nothing for other bodies.
    pub fn into_whole(self) -> Bytes {
        match self {
            Body::Whole(bytes) => bytes.unwrap_or_default(),
            Body::Stream(_) => Bytes::new(),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body::Whole(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

/// Creates a response with a complete body.
pub fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = http::Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub fn json(body: impl Into<Bytes>) -> Response {
    let mut response = text(StatusCode::OK, "application/json", body);
    no_cache(&mut response);
    response
}

/// Creates a `204` response: there is nothing new.
pub fn no_content() -> Response {
    let mut response = http::Response::new(Body::Whole(None));
    *response.status_mut() = StatusCode::NO_CONTENT;
    no_cache(&mut response);
    response
}

/// Creates an error response with problem details (RFC 9457).
pub fn problem(error: &Error) -> Response {
    let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = text(status, "application/problem+json", error.to_problem().to_string());
    if error.code.may_retry() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(error.retry_s.unwrap_or(1)));
    }
    // Source: RFC 6750, section 3.
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    no_cache(&mut response);
    response
}

/// Forbids caching. Source: docs/reference/protocol.md, "Reading". The thesis found proxies that ignore these headers;
/// for them the SDK adds a cache-busting parameter.
pub fn no_cache(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-store, must-revalidate"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    headers.insert(header::EXPIRES, HeaderValue::from_static("0"));
}

pub fn position_header(response: &mut Response, position: &(impl AsRef<[u8]> + ?Sized)) {
    if let Ok(value) = HeaderValue::from_bytes(position.as_ref()) {
        response.headers_mut().insert(POSITION, value);
    }
}
