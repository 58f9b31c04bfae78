//! Where admission asks the back end: after the permissions of the token, and before anything is allocated.

use std::{net::IpAddr, sync::Arc};

use futures_util::future::try_join_all;
use http::{HeaderMap, HeaderName, Method, header, request::Parts};
use millrace_protocol::{
    ChannelName, Code, Error, Grant, Holder, Permission, RpcCall, Transport,
    session::{SUBPROTOCOL, Subscription, Target},
};

use super::{ConnectQuestion, Credential, Hook, HookClient, Hooks};
use crate::{
    admission::{
        Admission,
        access::{Caller, expired, unix_s},
        limits::{ForwardedFor, RequestConnection},
    },
    http::{CONNECT, ReadRequest, ResponseFormat, is_upgrade, offered},
};

/// Prefix of API keys, which this server verifies itself.
const API_KEY: &str = "mrk_";

impl Admission {
    /// Returns the hooks if the back end is asked this question. Cost without hooks: one branch.
    #[inline]
    pub fn hooks(&self, hook: Hook, name: &str) -> Option<&Arc<dyn Hooks>> {
        self.hooks.as_ref().filter(|hooks| hooks.asks(hook, name))
    }

    /// Returns true if any hook is configured.
    pub(crate) fn has_hooks(&self) -> bool {
        self.hooks.is_some()
    }

    /// Authenticates the request and returns its caller.
    ///
    /// Errors: those of [`super::super::access::Access::identify`]; those of the back end.
    pub async fn caller(&self, parts: &Parts) -> Result<Caller, Error> {
        let credential = self.access.credential(parts, &self.config().allowed_origins)?;
        let address = address_of(parts);
        let caller = match self.hooks(Hook::Connect, "") {
            None => self.access.identify(parts, credential.as_deref()).await?,
            Some(hooks) => {
                let client = HookClient { transport: transport_of(parts), address, ..HookClient::default() };
                let headers = hooks.headers().iter().filter_map(|name| forwarded(&parts.headers, name)).collect();
                self.ask_connect(hooks, client, credential.as_deref(), headers).await?
            }
        };
        Ok(Caller { holder: self.limits.holder(caller.grant.subject.as_ref(), address), ..caller })
    }

    /// Verifies the new token of an open connection and returns its caller, without a holder.
    ///
    /// Errors: as [`Admission::caller`].
    pub(crate) async fn refreshed(&self, client: HookClient, token: &str) -> Result<Caller, Error> {
        self.caller_with(client, Some(token)).await
    }

    /// Authenticates a client without a request and returns its caller, without a holder.
    ///
    /// Errors: as [`Admission::caller`].
    pub(crate) async fn caller_with(&self, client: HookClient, credential: Option<&str>) -> Result<Caller, Error> {
        match self.hooks(Hook::Connect, "") {
            None => self.access.verify(credential).await,
            Some(hooks) => self.ask_connect(hooks, client, credential, Vec::new()).await,
        }
    }

    async fn ask_connect(
        &self,
        hooks: &Arc<dyn Hooks>,
        client: HookClient,
        credential: Option<&str>,
        headers: Vec<(HeaderName, String)>,
    ) -> Result<Caller, Error> {
        let opaque = credential
            .filter(|token| hooks.takes_opaque_tokens() && !token.contains('.') && !token.starts_with(API_KEY));
        let (caller, credential) = match (opaque, credential) {
            (Some(token), _) => {
                let grant = self.access.authority.anonymous();
                (Caller { grant, holder: Holder::NONE, anonymous: false }, Credential::Opaque(token.to_owned()))
            }
            (None, Some(token)) => (self.access.verify(Some(token)).await?, Credential::Verified(token.to_owned())),
            (None, None) => (self.access.verify(None).await?, Credential::None),
        };
        let client = HookClient { subject: caller.grant.subject.clone(), ..client };
        let answer = hooks.connect(ConnectQuestion { client, credential, headers }).await?;
        let grant: Grant = answer.apply(&caller.grant);
        if grant.expires_s.is_some_and(|expires_s| expires_s <= unix_s()) {
            return Err(expired());
        }
        // A client that the back end has named is not anonymous.
        let anonymous = caller.anonymous && grant.subject.is_none();
        Ok(Caller { grant: grant.into(), anonymous, ..caller })
    }

    /// Checks the permissions of a read, and asks the back end.
    ///
    /// Errors: those of the permissions; those of the back end.
    pub async fn may_read(&self, caller: &Caller, parts: &Parts, request: &ReadRequest) -> Result<(), Error> {
        caller.may_read(request)?;
        self.ask_each(caller, parts, request.channels.iter().map(|(channel, _)| channel)).await
    }

    /// Checks the permission to read one channel, and asks the back end; see [`Admission::may_read`].
    pub async fn may_read_channel(&self, caller: &Caller, parts: &Parts, channel: &ChannelName) -> Result<(), Error> {
        caller.may(Permission::Subscribe, channel)?;
        self.ask_each(caller, parts, std::iter::once(channel)).await
    }

    async fn ask_each(
        &self,
        caller: &Caller,
        parts: &Parts,
        channels: impl Iterator<Item = &ChannelName>,
    ) -> Result<(), Error> {
        if self.hooks.is_none() {
            return Ok(());
        }
        let ask = |channel: &ChannelName| {
            let hooks = self.hooks(Hook::Subscribe, channel.as_str())?;
            Some(hooks.subscribe(client_of(parts, caller), Target::Channel(channel.clone())))
        };
        try_join_all(channels.filter_map(ask)).await.map(drop)
    }

    /// Checks the permissions of a subscription, and asks the back end. `client` is called only if it is asked.
    ///
    /// Errors: as [`Admission::may_read`].
    pub(crate) async fn may_subscribe(
        &self,
        caller: &Caller,
        client: impl FnOnce() -> HookClient,
        asked: &Subscription,
    ) -> Result<(), Error> {
        caller.may_subscribe(asked)?;
        self.ask_subscribe(client, &asked.target).await
    }

    /// Asks the back end whether a client may read a channel or a pattern.
    ///
    /// Errors: those of the back end.
    pub(crate) async fn ask_subscribe(
        &self,
        client: impl FnOnce() -> HookClient,
        target: &Target,
    ) -> Result<(), Error> {
        match self.hooks(Hook::Subscribe, target.as_str()) {
            Some(hooks) => hooks.subscribe(client(), target.clone()).await,
            None => Ok(()),
        }
    }

    /// Passes a call to the back end and returns its result as JSON.
    ///
    /// Errors: [`Code::NotFound`] if no back end answers this method; [`Code::TooLarge`]; those of [`Hooks::rpc`].
    pub(crate) async fn rpc(&self, client: HookClient, call: RpcCall) -> Result<String, Error> {
        let bytes_max = self.config().message_bytes_max;
        if call.params.as_ref().is_some_and(|params| params.len() > bytes_max) {
            return Err(Error::new(Code::TooLarge, format!("`params` has at most {bytes_max} bytes")));
        }
        match self.hooks(Hook::Rpc, call.method.as_str()) {
            Some(hooks) => hooks.rpc(client, call).await,
            None => {
                let detail = format!("no back end answers `{}`; `hooks.rpc` sets its URL", call.method);
                Err(Error::new(Code::NotFound, detail))
            }
        }
    }
}

/// Returns a header for the back end; several lines are joined. HTTP/2 clients may send each cookie as its own line.
///
/// Source: RFC 9110, section 5.3; RFC 9113, section 8.2.3.
fn forwarded(headers: &HeaderMap, name: &HeaderName) -> Option<(HeaderName, String)> {
    let lines: Vec<&str> = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok()).collect();
    let separator = if *name == header::COOKIE { "; " } else { ", " };
    (!lines.is_empty()).then(|| (name.clone(), lines.join(separator)))
}

/// Returns the client of a request.
pub(crate) fn client_of(parts: &Parts, caller: &Caller) -> HookClient {
    let (transport, address) = (transport_of(parts), address_of(parts));
    HookClient { subject: caller.grant.subject.clone(), connection: None, transport, address }
}

/// Returns the address of the client, as a trusted proxy or the connection reports it.
fn address_of(parts: &Parts) -> Option<IpAddr> {
    let forwarded = parts.extensions.get().map(|ForwardedFor(address)| *address);
    forwarded.or_else(|| Some(parts.extensions.get::<Arc<RequestConnection>>()?.address))
}

/// Returns the name of the transport that a request selects, or `http` for a request that does not read.
fn transport_of(parts: &Parts) -> &'static str {
    if is_upgrade(parts) {
        let is_session = offered(&parts.headers).any(|name| name == SUBPROTOCOL);
        return if is_session { Transport::Session.name() } else { Transport::WebSocket.name() };
    }
    if parts.method == Method::POST && parts.uri.path() == CONNECT.path {
        return Transport::DataChannel.name();
    }
    let query = parts.uri.query().unwrap_or_default();
    let waits = || form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "wait");
    match ResponseFormat::negotiate(&parts.headers) {
        _ if parts.method != Method::GET => "http",
        Ok(ResponseFormat::Sse) => Transport::Sse.name(),
        Ok(ResponseFormat::Ndjson) => Transport::Stream.name(),
        _ if waits() => Transport::LongPolling.name(),
        _ => Transport::Polling.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_forwarded_header_are_joined() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [(header::COOKIE, "a=1"), (header::COOKIE, "b=2"), (header::ACCEPT, "x"), (header::ACCEPT, "y")]
        {
            headers.append(name, value.parse().expect("a value"));
        }
        let value = |name| forwarded(&headers, &name).map(|(_, value)| value);
        assert_eq!(value(header::COOKIE).as_deref(), Some("a=1; b=2"));
        assert_eq!(value(header::ACCEPT).as_deref(), Some("x, y"));
        assert_eq!(value(header::ORIGIN), None);
    }
}
