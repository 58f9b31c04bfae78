//! Endpoints of subscriptions: only those of permitted push services are called.

use millrace_hooks::HookUrl;

/// Push services of browsers: Chrome and others, Firefox, Edge, Safari.
pub const HOSTS: [&str; 4] =
    ["fcm.googleapis.com", "updates.push.services.mozilla.com", "*.notify.windows.com", "*.push.apple.com"];
/// Maximum length of an endpoint in bytes.
const ENDPOINT_BYTES_MAX: usize = 2048;

/// Permitted push services.
///
/// An entry is a host, a host with `*.` in front for its subdomains, or an origin with scheme and port, such as
/// `http://127.0.0.1:9000`. A host permits https on port 443 only. So a subscription cannot make the server call
/// another machine, for example in a private network.
#[derive(Clone, Debug)]
pub struct Hosts(Vec<String>);

/// Reason why an endpoint is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("`endpoint` is no URL of at most {ENDPOINT_BYTES_MAX} bytes without user and password")]
    Malformed,
    #[error("`endpoint` is not at a push service that this server permits (`push.hosts`)")]
    NotPermitted,
}

/// A permitted endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub url: HookUrl,
    pub origin: String,
}

impl Hosts {
    pub fn new(hosts: Vec<String>) -> Self {
        Self(hosts)
    }

    /// Checks an endpoint.
    pub fn check(&self, text: &str) -> Result<Endpoint, EndpointError> {
        if text.len() > ENDPOINT_BYTES_MAX {
            return Err(EndpointError::Malformed);
        }
        let url = HookUrl::parse(text, true).map_err(|_| EndpointError::Malformed)?;
        let (scheme, rest) = text.split_once("://").ok_or(EndpointError::Malformed)?;
        // The parser accepts and corrects more than the characters that end an authority; only the plain form counts.
        let authority = &rest[..rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len())];
        let (scheme, authority) = (scheme.to_ascii_lowercase(), authority.to_ascii_lowercase());
        let origin = format!("{scheme}://{authority}");
        if url.origin() != origin {
            return Err(EndpointError::Malformed);
        }
        let is_permitted = self.0.iter().any(|host| match host.strip_prefix("*.") {
            _ if host.contains("://") => *host == origin,
            Some(domain) => {
                let sub = authority.strip_suffix(domain).and_then(|sub| sub.strip_suffix('.'));
                scheme == "https" && sub.is_some_and(|sub| !sub.is_empty())
            }
            None => scheme == "https" && *host == authority,
        });
        if is_permitted { Ok(Endpoint { url, origin }) } else { Err(EndpointError::NotPermitted) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permitted_services_are_called() {
        let mut hosts: Vec<_> = HOSTS.map(str::to_owned).into();
        hosts.push("http://127.0.0.1:9000".into());
        let hosts = Hosts::new(hosts);
        for good in [
            "https://fcm.googleapis.com/fcm/send/abc:def",
            "https://updates.push.services.mozilla.com/wpush/v2/x",
            "https://wns2-par02p.notify.windows.com/w/?token=x",
            "https://web.push.apple.com/x",
            "http://127.0.0.1:9000/x",
        ] {
            assert!(hosts.check(good).is_ok(), "{good}");
        }
        for bad in [
            "http://fcm.googleapis.com/x",
            "https://fcm.googleapis.com:8443/x",
            "https://fcm.googleapis.com.evil.example/x",
            "https://evil.example/?fcm.googleapis.com",
            "https://evil.example\\@fcm.googleapis.com/x",
            "https://evilpush.apple.com/x",
            "https://.push.apple.com/x",
            "https://10.0.0.1/x",
            "https://[::1]/x",
            "http://127.0.0.1:9001/x",
            "http://127.1:9000/x",
            "https://user@fcm.googleapis.com/x",
            "file:///etc/passwd",
            "",
        ] {
            assert!(hosts.check(bad).is_err(), "{bad}");
        }
    }
}
