use http::{HeaderValue, header};
use millrace_protocol::{Code, Error};

use super::{Response, problem};

/// A path of the HTTP API, with the methods that it allows. A router recognizes its paths by these values only, and the
/// OpenAPI document is compared with them.
#[derive(Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Path with at most one parameter in braces that [`Endpoint::capture`] finds, such as `/v1/channels/{channel}`.
    pub path: &'static str,
    /// Allowed methods, as in the header `Allow`.
    pub allow: &'static str,
    /// Part of the path before its first parameter.
    before: &'static str,
    /// Part of the path after its first parameter.
    after: &'static str,
}

impl Endpoint {
    pub const fn new(path: &'static str, allow: &'static str) -> Self {
        let (mut start, mut end) = (0, 0);
        while start < path.len() && path.as_bytes()[start] != b'{' {
            start += 1;
        }
        while end < path.len() && path.as_bytes()[end] != b'}' {
            end += 1;
        }
        let (before, rest) = path.split_at(start);
        let after = if rest.is_empty() { rest } else { rest.split_at(end + 1 - start).1 };
        Self { path, allow, before, after }
    }

    /// Returns the value of the parameter of a path with one parameter. The value may contain slashes.
    pub fn capture<'p>(&self, path: &'p str) -> Option<&'p str> {
        path.strip_prefix(self.before)?.strip_suffix(self.after)
    }

    pub fn methods(&self) -> impl Iterator<Item = &'static str> {
        self.allow.split(", ")
    }

    /// Returns the response to a request with another method than those that the path allows.
    pub fn refuse_method(&self) -> Response {
        method_not_allowed(self.allow)
    }
}

/// Returns the response to a request with another method than those that the path allows.
pub fn method_not_allowed(allow: &'static str) -> Response {
    let mut response = problem(&Error::new(Code::MethodNotAllowed, format!("allowed here: {allow}")));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

/// Endpoints of this crate.
pub const ENDPOINTS: &[&Endpoint] = &[&CHANNEL, &STREAM, &PUBLISH, &PRESENCE, &RPC, &CONNECT, &MQTT];

pub(crate) const CHANNEL: Endpoint = Endpoint::new("/v1/channels/{channel}", "GET, POST, DELETE");
/// WebSocket of MQTT clients. Libraries use this path by default.
pub(crate) const MQTT: Endpoint = Endpoint::new("/mqtt", "GET");
pub(crate) const STREAM: Endpoint = Endpoint::new("/v1/stream", "GET");
pub(crate) const PUBLISH: Endpoint = Endpoint::new("/v1/publish", "POST");
pub(crate) const PRESENCE: Endpoint = Endpoint::new("/v1/presence/{channel}", "GET");
pub(crate) const RPC: Endpoint = Endpoint::new("/v1/rpc/{method}", "POST");
pub(crate) const CONNECT: Endpoint = Endpoint::new("/v1/connect", "GET, POST");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_is_captured_between_constant_parts() {
        assert_eq!(CHANNEL.capture("/v1/channels/a/b"), Some("a/b"));
        assert_eq!(CHANNEL.capture("/v1/channel/a"), None);
        let middle = Endpoint::new("/rest/{id}/data", "GET");
        assert_eq!((middle.capture("/rest/7/data"), middle.capture("/rest/7/dat")), (Some("7"), None));
        assert_eq!((STREAM.before, STREAM.after), ("/v1/stream", ""));
        assert_eq!(CHANNEL.methods().collect::<Vec<_>>(), ["GET", "POST", "DELETE"]);
    }
}
