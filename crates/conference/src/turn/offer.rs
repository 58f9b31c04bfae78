//! `POST /v1/turn`: returns the `iceServers` for an `RTCPeerConnection`. Source: docs/reference/protocol.md, "A relay".

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http::{HeaderValue, header, request::Parts};
use millrace_protocol::{Code, Error, Grant};
use millrace_turn::Credentials;
use serde::Serialize;

use millrace_transport::{
    access::{Caller, unix_s},
    http::{Query, Response, json},
};

/// TURN URLs and short-lived credentials, if a relay is configured. All shards share one offer.
pub struct Offer {
    pub credentials: Arc<Credentials>,
    /// URLs such as `turn:192.0.2.1:3478?transport=udp`.
    pub urls: Vec<String>,
    /// Lifetime of credentials, unless the caller's token expires sooner.
    pub ttl: Duration,
}

/// Response to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IceServers {
    pub ice_servers: Vec<IceServer>,
    /// Lifetime of the credentials in seconds. Existing allocations may outlive them.
    pub ttl_s: u64,
}

/// One ICE server. Source: WebRTC 1.0, section 4.2.4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IceServer {
    pub urls: Vec<String>,
    pub username: String,
    pub credential: String,
}

impl Offer {
    /// Returns the servers, and credentials for the grant's subject that expire with its token at the latest. `now_s`:
    /// since 1970.
    ///
    /// The caller must check first that the grant allows anything at all.
    pub fn ice_servers(&self, grant: &Grant, now_s: u64) -> IceServers {
        let ttl_s =
            grant.expires_s.map_or(u64::MAX, |expires_s| expires_s.saturating_sub(now_s)).min(self.ttl.as_secs());
        let login = self.credentials.login(grant.subject.as_deref().unwrap_or_default(), now_s + ttl_s);
        let server = IceServer { urls: self.urls.clone(), username: login.username, credential: login.password };
        IceServers { ice_servers: vec![server], ttl_s }
    }

    /// Returns the URLs of the built-in server: by host name, or by its addresses if `host` is empty.
    pub fn urls(host: &str, advertised: &[IpAddr], port: u16, is_tls: bool) -> Vec<String> {
        let hosts: Vec<String> = match host {
            "" => advertised.iter().map(|ip| SocketAddr::new(*ip, port).to_string()).collect(),
            host => vec![format!("{host}:{port}")],
        };
        let transports = [("turn", "udp"), ("turn", "tcp"), ("turns", "tcp")];
        let transports = transports.iter().filter(|(scheme, _)| is_tls || *scheme == "turn");
        transports
            .flat_map(|(scheme, transport)| {
                hosts.iter().map(move |host| format!("{scheme}:{host}?transport={transport}"))
            })
            .collect()
    }
}

/// Answers `POST /v1/turn`.
///
/// Errors: `not_found` if no relay is configured.
pub(crate) fn answer(offer: Option<&Offer>, parts: &Parts, caller: &Caller) -> Result<Response, Error> {
    Query::parse(parts, &[])?;
    let Some(offer) = offer else {
        return Err(Error::new(Code::NotFound, "this server has no TURN server (`turn.listen` is empty)"));
    };
    let servers = offer.ice_servers(&caller.grant, unix_s());
    let body = serde_json::to_string(&servers)
        .map_err(|_| Error::new(Code::Internal, "the response cannot be encoded as JSON"))?;
    let mut response = json(body);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_belong_to_subject_and_expire_with_token() {
        let credentials = Arc::new(Credentials::new(b"a secret", "millrace"));
        let offer = Offer { credentials, urls: vec!["turn:h:1".into()], ttl: Duration::from_secs(600) };
        let grant = |expires_s| Grant { subject: Some("alice".into()), expires_s, ..Grant::everything() };
        let long = offer.ice_servers(&grant(None), 1000);
        assert_eq!((long.ttl_s, &long.ice_servers[0].username[..]), (600, "1600:alice"));
        let short = offer.ice_servers(&grant(Some(1060)), 1000);
        assert_eq!((short.ttl_s, &short.ice_servers[0].username[..]), (60, "1060:alice"));
        assert_eq!(offer.ice_servers(&Grant::everything(), 1000).ice_servers[0].username, "1600:");
        let shown = serde_json::to_value(&long).unwrap();
        assert!(shown["ice_servers"][0]["credential"].is_string() && shown["ttl_s"] == 600, "{shown}");
    }

    #[test]
    fn urls_use_host_name_or_addresses() {
        let advertised = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(
            Offer::urls("", &advertised, 3478, false),
            [
                "turn:192.0.2.1:3478?transport=udp",
                "turn:[2001:db8::1]:3478?transport=udp",
                "turn:192.0.2.1:3478?transport=tcp",
                "turn:[2001:db8::1]:3478?transport=tcp"
            ]
        );
        assert_eq!(Offer::urls("app.example", &advertised, 443, true)[2], "turns:app.example:443?transport=tcp");
    }
}
