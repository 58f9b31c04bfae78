use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use ring::hmac;

use super::{
    allocation::{Allocation, Client, Limits, Metrics, RelayId, Relays, Reservation, User},
    credentials::Credentials,
    message::{
        ALLOCATE, BINDING, CHANNEL_BIND, CREATE_PERMISSION, Class, DATA, DATA_INDICATION, HEAD_BYTES, Message, NONCE,
        REALM, REFRESH, SEND, UNKNOWN_ATTRIBUTES, USERNAME, Writer, XOR_MAPPED_ADDRESS, XOR_PEER_ADDRESS,
    },
    nonce::Nonces,
    request_error::{
        BAD_REQUEST, FORBIDDEN, RequestError, STALE_NONCE, UNAUTHORIZED, UNKNOWN_ATTRIBUTE, check_attributes, reason,
    },
};

/// Maximum payload that is relayed, in bytes. The message that carries it must fit the 16-bit length field.
pub const PAYLOAD_BYTES_MAX: usize = 65_000;

/// Minimum size of an Allocate request, in bytes. A smaller unsigned request gets no challenge, because that
/// answer would be several times as large as the request.
const ALLOCATE_BYTES_MIN: usize = HEAD_BYTES + 8;

/// Action for the caller after a message was handled.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<'a> {
    Nothing,
    /// Send the answer to the client.
    Answer,
    /// Send the payload to the peer from this relay.
    Relay {
        relay: RelayId,
        peer: SocketAddr,
        payload: &'a [u8],
    },
}

/// TURN server with all of its clients.
///
/// ```text
///            Allocate            Refresh, repeatedly
///   (none) ───────────► allocation ◄──────────────────┐
///     ▲   signed, and      │  │  └─────────────────────┘
///     │   within quotas    │  └─ CreatePermission (5 min), ChannelBind (10 min): permitted peers and their channels
///     └────────────────────┘
///       Refresh with 0, expiry, or end of the connection
/// ```
pub struct Server {
    pub(super) limits: Limits,
    pub(super) credentials: Arc<Credentials>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) nonces: Nonces,
    pub(super) tokens: hmac::Key,
    pub(super) allocations: HashMap<Client, Allocation>,
    pub(super) relays: HashMap<RelayId, Client>,
    pub(super) reservations: HashMap<[u8; 8], Reservation>,
    pub(super) users: HashMap<Arc<str>, User>,
    pub(super) closed: VecDeque<RelayId>,
    pub(super) last_relay: u64,
}

/// Authenticated sender of a request.
pub(super) struct Signer<'a> {
    pub(super) username: &'a str,
    pub(super) user: Arc<str>,
    pub(super) key: [u8; 16],
}

impl Server {
    pub fn new(limits: Limits, credentials: Arc<Credentials>, metrics: Arc<Metrics>, seed: [u8; 32]) -> Self {
        let tokens = hmac::Key::new(hmac::HMAC_SHA256, &[&seed[..], b"tokens"].concat());
        Self {
            limits,
            credentials,
            metrics,
            nonces: Nonces::new(&seed),
            tokens,
            allocations: HashMap::new(),
            relays: HashMap::new(),
            reservations: HashMap::new(),
            users: HashMap::new(),
            closed: VecDeque::new(),
            last_relay: 0,
        }
    }

    /// Returns true if this client has an allocation. Such a client has authenticated itself.
    pub fn is_known(&self, client: Client) -> bool {
        self.allocations.contains_key(&client)
    }

    /// Handles bytes from a client: a datagram, or one message of a stream.
    pub fn handle<'a>(
        &mut self,
        now_ms: u64,
        client: Client,
        bytes: &'a [u8],
        relays: &mut dyn Relays,
        answer: &mut Vec<u8>,
    ) -> Action<'a> {
        let action = match bytes.first() {
            Some(0..=0x3f) => self.message(now_ms, client, bytes, relays, answer),
            Some(0x40..=0x7f) => self.channel_data(now_ms, client, bytes),
            _ => None,
        };
        action.unwrap_or_else(|| {
            Metrics::add(&self.metrics.dropped, 1);
            Action::Nothing
        })
    }

    /// Handles a payload that a peer has sent to a relay. Writes the message for the client to `out`, and returns
    /// the client; `None` if the payload is dropped.
    pub fn handle_peer(
        &mut self,
        now_ms: u64,
        relay: RelayId,
        peer: SocketAddr,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Client> {
        let passed = self.relay_to_client(now_ms, relay, peer, payload, out);
        if passed.is_none() {
            Metrics::add(&self.metrics.dropped, 1);
        }
        passed.flatten()
    }

    /// Ends the allocation of a connection that has closed.
    pub fn disconnect(&mut self, client: Client) {
        self.end(client);
    }

    /// Ends expired allocations, reservations, permissions and channels. Must be called once a second.
    ///
    /// Cost: O(allocations and their entries).
    pub fn handle_timeout(&mut self, now_ms: u64) {
        let over = self.allocations.iter().filter(|(_, allocation)| allocation.expires_ms <= now_ms);
        let over: Vec<Client> = over.map(|(client, _)| *client).collect();
        over.into_iter().for_each(|client| self.end(client));
        self.allocations.values_mut().for_each(|allocation| allocation.sweep(now_ms));
        let (users, closed) = (&mut self.users, &mut self.closed);
        self.reservations.retain(|_, reservation| {
            let stays = reservation.expires_ms > now_ms;
            if !stays {
                closed.push_back(reservation.relay);
                users.entry(reservation.user.clone()).and_modify(|user| user.allocations -= 1);
            }
            stays
        });
        self.users.retain(|_, user| !user.is_idle(now_ms));
        self.update_metrics();
    }

    /// Returns the next relay whose socket must be closed.
    pub fn poll_closed(&mut self) -> Option<RelayId> {
        self.closed.pop_front()
    }

    pub(super) fn end(&mut self, client: Client) {
        if let Some(allocation) = self.allocations.remove(&client) {
            self.relays.remove(&allocation.relay);
            self.metrics.registry.end(allocation.relay);
            self.closed.push_back(allocation.relay);
            self.users.entry(allocation.user).and_modify(|user| user.allocations -= 1);
            self.update_metrics();
        }
    }

    pub(super) fn update_metrics(&self) {
        self.metrics.allocations.store(self.allocations.len() as u64, Relaxed);
    }

    fn relay_to_client(
        &mut self,
        now_ms: u64,
        relay: RelayId,
        peer: SocketAddr,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Option<Client>> {
        let client = *self.relays.get(&relay)?;
        let allocation = self.allocations.get(&client)?;
        if !allocation.may_send(peer.ip(), now_ms) || payload.len() > PAYLOAD_BYTES_MAX {
            return None;
        }
        if !take_quota(&mut self.users, allocation, payload.len(), &self.limits, &self.metrics, now_ms) {
            return Some(None);
        }
        for counter in [&self.metrics.datagrams_to_clients, &allocation.counters.datagrams_to_clients] {
            Metrics::add(counter, 1);
        }
        for counter in [&self.metrics.bytes_to_clients, &allocation.counters.bytes_to_clients] {
            Metrics::add(counter, payload.len() as u64);
        }
        let channel = allocation
            .peers
            .get(&peer)
            .filter(|number| allocation.channels.get(number).is_some_and(|channel| channel.expires_ms > now_ms));
        match channel {
            Some(number) => {
                out.clear();
                out.extend(number.to_be_bytes());
                out.extend((payload.len() as u16).to_be_bytes());
                out.extend_from_slice(payload);
                if let Client::Stream(..) = client {
                    out.resize(out.len().next_multiple_of(4), 0);
                }
            }
            None => {
                // An indication gets no answer, so its transaction id need not be random.
                let writer = Writer::new(out, Class::Indication, DATA_INDICATION, [0; 12]);
                writer.address(XOR_PEER_ADDRESS, peer).attribute(DATA, payload).end();
            }
        }
        Some(Some(client))
    }

    fn channel_data<'a>(&mut self, now_ms: u64, client: Client, bytes: &'a [u8]) -> Option<Action<'a>> {
        let head: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
        let (number, length) = (u16::from_be_bytes([head[0], head[1]]), u16::from_be_bytes([head[2], head[3]]));
        let payload = bytes.get(4..4 + usize::from(length))?;
        let allocation = self.allocations.get(&client)?;
        let channel = allocation.channels.get(&number).filter(|channel| channel.expires_ms > now_ms)?;
        self.relay_to_peer(now_ms, client, channel.peer, payload)
    }

    fn relay_to_peer<'a>(
        &mut self,
        now_ms: u64,
        client: Client,
        peer: SocketAddr,
        payload: &'a [u8],
    ) -> Option<Action<'a>> {
        let allocation = self.allocations.get(&client).filter(|allocation| allocation.expires_ms > now_ms)?;
        if payload.len() > PAYLOAD_BYTES_MAX {
            return None;
        }
        if !take_quota(&mut self.users, allocation, payload.len(), &self.limits, &self.metrics, now_ms) {
            return Some(Action::Nothing);
        }
        for counter in [&self.metrics.datagrams_to_peers, &allocation.counters.datagrams_to_peers] {
            Metrics::add(counter, 1);
        }
        for counter in [&self.metrics.bytes_to_peers, &allocation.counters.bytes_to_peers] {
            Metrics::add(counter, payload.len() as u64);
        }
        Some(Action::Relay { relay: allocation.relay, peer, payload })
    }

    fn message<'a>(
        &mut self,
        now_ms: u64,
        client: Client,
        bytes: &'a [u8],
        relays: &mut dyn Relays,
        answer: &mut Vec<u8>,
    ) -> Option<Action<'a>> {
        let message = Message::parse(bytes)?;
        match (message.class, message.method) {
            (Class::Indication, SEND) => return self.send(now_ms, client, &message),
            // This keepalive keeps a NAT binding open.
            (Class::Indication, BINDING) => return Some(Action::Nothing),
            (Class::Request, BINDING) => match check_attributes(&message, &[USERNAME, REALM, NONCE]) {
                Ok(()) => {
                    let writer = Writer::answer(answer, Class::Success, &message);
                    writer.address(XOR_MAPPED_ADDRESS, client.address()).end();
                }
                Err(request_error) => self.write_error(&message, request_error, None, answer),
            },
            (Class::Request, ALLOCATE | REFRESH | CREATE_PERMISSION | CHANNEL_BIND) => {
                if self.allocations.get(&client).is_some_and(|allocation| allocation.expires_ms <= now_ms) {
                    self.end(client);
                }
                let signer = self.authenticate(now_ms, client, &message);
                let signer = match signer {
                    Ok(signer) => signer,
                    Err(code) => {
                        self.write_challenge(now_ms, client, &message, code, answer);
                        return Some(Action::Answer);
                    }
                };
                let key = signer.key;
                let done = match message.method {
                    ALLOCATE => self.allocate(now_ms, client, &message, signer, relays, answer),
                    REFRESH => self.refresh(now_ms, client, &message, &signer, answer),
                    CREATE_PERMISSION => self.permit(now_ms, client, &message, &signer, answer),
                    _ => self.bind(now_ms, client, &message, &signer, answer),
                };
                if let Err(request_error) = done {
                    self.write_error(&message, request_error, Some(&key), answer);
                }
            }
            _ => return None,
        }
        Some(Action::Answer)
    }

    /// Authenticates the sender of a request. Source: RFC 8489, section 9.2.4.
    ///
    /// Errors: the error code of the missing or wrong part.
    fn authenticate<'a>(&self, now_ms: u64, client: Client, message: &Message<'a>) -> Result<Signer<'a>, u16> {
        if !message.is_signed() {
            return Err(if message.len() < ALLOCATE_BYTES_MIN { BAD_REQUEST } else { UNAUTHORIZED });
        }
        let parts = (message.get(USERNAME), message.get(REALM), message.get(NONCE));
        let (Some(username), Some(realm), Some(nonce)) = parts else { return Err(BAD_REQUEST) };
        if !self.nonces.is_good(nonce, client, now_ms) {
            return Err(STALE_NONCE);
        }
        if realm != self.credentials.realm().as_bytes() {
            return Err(UNAUTHORIZED);
        }
        // A client keeps its allocation as long as it refreshes it. The expiry of a username limits only new
        // allocations.
        if let Some(own) = self.allocations.get(&client).filter(|own| own.username.as_bytes() == username) {
            let username = std::str::from_utf8(username).map_err(|_| BAD_REQUEST)?;
            let signer = Signer { username, user: own.user.clone(), key: own.key };
            return if message.verify(&own.key) { Ok(signer) } else { Err(UNAUTHORIZED) };
        }
        let (username, named, key) = self.credentials.key(username).ok_or(UNAUTHORIZED)?;
        if !message.verify(&key) || named.expires_s <= now_ms / 1000 {
            return Err(UNAUTHORIZED);
        }
        let user = match named.subject {
            "" => network(client.address().ip()).into(),
            subject => subject.into(),
        };
        Ok(Signer { username, user, key })
    }

    /// Writes the smallest answer that tells an unauthenticated client which credentials it needs.
    fn write_challenge(&self, now_ms: u64, client: Client, request: &Message<'_>, code: u16, answer: &mut Vec<u8>) {
        Metrics::add(&self.metrics.unauthorized, 1);
        let mut writer = Writer::answer(answer, Class::Error, request).error(code, "");
        if code != BAD_REQUEST {
            let nonce = self.nonces.make(client, now_ms);
            writer = writer.attribute(REALM, self.credentials.realm().as_bytes()).attribute(NONCE, nonce.as_bytes());
        }
        writer.end();
    }

    fn write_error(
        &self,
        request: &Message<'_>,
        request_error: RequestError,
        key: Option<&[u8]>,
        answer: &mut Vec<u8>,
    ) {
        let (code, unknown) = match request_error {
            RequestError::Code(code) => (code, Vec::new()),
            RequestError::UnknownAttributes(kinds) => (UNKNOWN_ATTRIBUTE, kinds),
        };
        Metrics::add(if code == FORBIDDEN { &self.metrics.forbidden } else { &self.metrics.refused }, 1);
        let reason = if key.is_some() { reason(code) } else { "" };
        let mut writer = Writer::answer(answer, Class::Error, request).error(code, reason);
        if !unknown.is_empty() {
            let kinds: Vec<u8> = unknown.iter().flat_map(|kind| kind.to_be_bytes()).collect();
            writer = writer.attribute(UNKNOWN_ATTRIBUTES, &kinds);
        }
        match key {
            Some(key) => writer.sign(key).end(),
            None => writer.end(),
        }
    }

    /// Handles a Send indication. Source: RFC 8656, section 11.2.
    fn send<'a>(&mut self, now_ms: u64, client: Client, message: &Message<'a>) -> Option<Action<'a>> {
        check_attributes(message, &[XOR_PEER_ADDRESS, DATA]).ok()?;
        let (peer, payload) = (message.address(message.get(XOR_PEER_ADDRESS)?)?, message.get(DATA)?);
        let allocation = self.allocations.get(&client)?;
        // A permission exists only for an address that the policy allows.
        if peer.port() == 0 || !allocation.may_send(peer.ip(), now_ms) {
            return None;
        }
        self.relay_to_peer(now_ms, client, peer, payload)
    }
}

/// Takes the bytes from the rate limit of the allocation's user. Returns false if the limit does not allow them now.
fn take_quota(
    users: &mut HashMap<Arc<str>, User>,
    allocation: &Allocation,
    bytes: usize,
    limits: &Limits,
    metrics: &Metrics,
    now_ms: u64,
) -> bool {
    let user = users.get_mut(&allocation.user);
    let is_taken = user.is_none_or(|user| user.take(bytes, limits.bytes_per_s_max, now_ms));
    if !is_taken {
        Metrics::add(&metrics.over_quota, 1);
        Metrics::add(&allocation.counters.over_quota, 1);
    }
    is_taken
}

/// Returns the name under which a client without a subject is counted: its IPv4 address, or its IPv6 /64 network.
fn network(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => std::net::Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).to_string(),
    }
}
