//! Requests of authenticated clients.

use std::{collections::HashMap, net::SocketAddr};

use ring::hmac;

use super::{
    allocation::{Allocation, Channel, Client, Metrics, NoRelay, RelayId, Relays, Reservation},
    message::{
        CHANNEL_NUMBER, Class, EVEN_PORT, LIFETIME, Message, NONCE, REALM, REQUESTED_ADDRESS_FAMILY,
        REQUESTED_TRANSPORT, RESERVATION_TOKEN, USERNAME, Writer, XOR_MAPPED_ADDRESS, XOR_PEER_ADDRESS,
        XOR_RELAYED_ADDRESS,
    },
    policy::is_unicast,
    request_error::{
        ALLOCATION_MISMATCH, BAD_REQUEST, CAPACITY, FAMILY_MISMATCH, FAMILY_NOT_SUPPORTED, FORBIDDEN, QUOTA_REACHED,
        RequestError, RequestError::Code, TRANSPORT_NOT_SUPPORTED, WRONG_CREDENTIALS, check_attributes,
    },
    server::{Server, Signer},
};

/// Default and minimum lifetime of an allocation; below it, the lifetimes of permissions and channels.
/// Source: RFC 8656, sections 3.2, 9 and 12.
const LIFETIME_S: u32 = 600;
const PERMISSION_MS: u64 = 300_000;
const CHANNEL_MS: u64 = 600_000;
/// Valid channel numbers, from RFC 5766 (section 11). RFC 8656 ends at 0x4fff, but some clients use higher
/// numbers, and no other protocol uses them here.
const CHANNELS: std::ops::RangeInclusive<u16> = 0x4000..=0x7ffe;
/// Lifetime of the reservation of the next port. Source: RFC 8656, section 7.2.
const RESERVATION_MS: u64 = 30_000;
/// Maximum number of permissions of one allocation. A browser needs one for each candidate of the other side.
const PERMISSIONS_MAX: usize = 64;
const CHANNELS_MAX: usize = 64;
/// IP protocol number of UDP.
const UDP: u8 = 17;

impl Server {
    /// Handles an Allocate request. Source: RFC 8656, section 7.2.
    pub(super) fn allocate(
        &mut self,
        now_ms: u64,
        client: Client,
        request: &Message<'_>,
        signer: Signer<'_>,
        relays: &mut dyn Relays,
        answer: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        if let Some(own) = self.allocations.get(&client) {
            return match own.transaction == request.transaction() && *own.username == *signer.username {
                true => {
                    allocated(client, own, request, answer);
                    Ok(())
                }
                false => Err(Code(ALLOCATION_MISMATCH)),
            };
        }
        let asked = [
            REQUESTED_TRANSPORT,
            LIFETIME,
            REQUESTED_ADDRESS_FAMILY,
            EVEN_PORT,
            RESERVATION_TOKEN,
            USERNAME,
            REALM,
            NONCE,
        ];
        check_attributes(request, &asked)?;
        match request.get(REQUESTED_TRANSPORT) {
            Some([UDP, _, _, _]) => {}
            Some([_, _, _, _]) => return Err(Code(TRANSPORT_NOT_SUPPORTED)),
            _ => return Err(Code(BAD_REQUEST)),
        }
        let lifetime_s = self.lifetime(request)?;
        let family = family(request)?;
        let even = match request.get(EVEN_PORT) {
            None => None,
            Some([flags]) => Some(flags & 0x80 != 0),
            Some(_) => return Err(Code(BAD_REQUEST)),
        };
        let token = request.get(RESERVATION_TOKEN);
        if token.is_some() && (even.is_some() || family.is_some()) {
            return Err(Code(BAD_REQUEST));
        }
        let (relay, relayed, next) = match token {
            Some(token) => {
                let token: [u8; 8] = token.try_into().map_err(|_| Code(BAD_REQUEST))?;
                let is_own = |kept: &Reservation| kept.user == signer.user && kept.expires_ms > now_ms;
                if !self.reservations.get(&token).is_some_and(is_own) {
                    return Err(Code(CAPACITY));
                }
                let kept = self.reservations.remove(&token).expect("it was just there");
                // The reserved port already counts toward the quotas.
                (kept.relay, kept.relayed, None)
            }
            None => self.open_relays(now_ms, &signer, family == Some(true), even, relays)?,
        };
        let counters = self.metrics.registry.begin(relay, (signer.user.clone(), client), relayed, now_ms);
        let allocation = Allocation {
            counters,
            relay,
            relayed,
            username: signer.username.into(),
            user: signer.user,
            key: signer.key,
            expires_ms: now_ms + u64::from(lifetime_s) * 1000,
            transaction: request.transaction(),
            lifetime_s,
            token: next,
            permissions: HashMap::new(),
            channels: HashMap::new(),
            peers: HashMap::new(),
        };
        allocated(client, &allocation, request, answer);
        self.relays.insert(relay, client);
        self.allocations.insert(client, allocation);
        Metrics::add(&self.metrics.allocated, 1);
        self.update_metrics();
        Ok(())
    }

    /// Opens the requested relay sockets within the quotas. Returns the first relay and its address, and a token if
    /// the next port was reserved.
    fn open_relays(
        &mut self,
        now_ms: u64,
        signer: &Signer<'_>,
        is_ipv6: bool,
        even: Option<bool>,
        relays: &mut dyn Relays,
    ) -> Result<(RelayId, SocketAddr, Option<[u8; 8]>), RequestError> {
        let count = if even == Some(true) { 2 } else { 1 };
        let has = self.users.get(&signer.user).map_or(0, |user| user.allocations);
        if has + count > self.limits.allocations_per_user_max {
            return Err(Code(QUOTA_REACHED));
        }
        if self.allocations.len() + self.reservations.len() + count > self.limits.allocations_max {
            return Err(Code(CAPACITY));
        }
        let ids = [RelayId(self.last_relay + 1), RelayId(self.last_relay + 2)];
        let opened = relays.open(&ids[..count], is_ipv6, even.is_some());
        let relayed = opened.map_err(|no| match no {
            NoRelay::Family => Code(FAMILY_NOT_SUPPORTED),
            NoRelay::Full => Code(CAPACITY),
        })?;
        self.last_relay += count as u64;
        self.users.entry(signer.user.clone()).or_default().allocations += count;
        if count == 1 {
            return Ok((ids[0], relayed, None));
        }
        let mac = hmac::sign(&self.tokens, &ids[1].0.to_be_bytes());
        let token = std::array::from_fn(|i| mac.as_ref()[i]);
        let next = SocketAddr::new(relayed.ip(), relayed.port() + 1);
        let expires_ms = now_ms + RESERVATION_MS;
        let reservation = Reservation { relay: ids[1], relayed: next, user: signer.user.clone(), expires_ms };
        self.reservations.insert(token, reservation);
        Ok((ids[0], relayed, Some(token)))
    }

    /// Handles a Refresh request. Source: RFC 8656, section 8.2.
    pub(super) fn refresh(
        &mut self,
        now_ms: u64,
        client: Client,
        request: &Message<'_>,
        signer: &Signer<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        let is_ipv6 = self.allocation_of(client, signer)?.relayed.is_ipv6();
        check_attributes(request, &[LIFETIME, REQUESTED_ADDRESS_FAMILY, USERNAME, REALM, NONCE])?;
        if family(request)?.is_some_and(|asked| asked != is_ipv6) {
            return Err(Code(FAMILY_MISMATCH));
        }
        let lifetime_s = match request.get(LIFETIME) {
            Some([0, 0, 0, 0]) => 0,
            _ => self.lifetime(request)?,
        };
        let writer = Writer::answer(answer, Class::Success, request);
        writer.attribute(LIFETIME, &lifetime_s.to_be_bytes()).sign(&signer.key).end();
        match lifetime_s {
            0 => self.end(client),
            _ => self.allocation_of(client, signer)?.expires_ms = now_ms + u64::from(lifetime_s) * 1000,
        }
        Ok(())
    }

    /// Handles a CreatePermission request, which permits all of its addresses or none. Source: RFC 8656, section 10.2.
    pub(super) fn permit(
        &mut self,
        now_ms: u64,
        client: Client,
        request: &Message<'_>,
        signer: &Signer<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        let is_ipv6 = self.allocation_of(client, signer)?.relayed.is_ipv6();
        check_attributes(request, &[XOR_PEER_ADDRESS, USERNAME, REALM, NONCE])?;
        let mut ips = Vec::new();
        for (_, value) in request.attributes().filter(|(kind, _)| *kind == XOR_PEER_ADDRESS) {
            ips.push(self.peer(request, value, is_ipv6)?.ip());
        }
        if ips.is_empty() {
            return Err(Code(BAD_REQUEST));
        }
        let own = self.allocation_of(client, signer)?;
        let new = ips.iter().filter(|ip| !own.permissions.contains_key(ip)).count();
        if own.permissions.len() + new > PERMISSIONS_MAX {
            return Err(Code(CAPACITY));
        }
        own.permissions.extend(ips.into_iter().map(|ip| (ip, now_ms + PERMISSION_MS)));
        Writer::answer(answer, Class::Success, request).sign(&signer.key).end();
        Ok(())
    }

    /// Handles a ChannelBind request. Source: RFC 8656, section 12.2.
    pub(super) fn bind(
        &mut self,
        now_ms: u64,
        client: Client,
        request: &Message<'_>,
        signer: &Signer<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        let is_ipv6 = self.allocation_of(client, signer)?.relayed.is_ipv6();
        check_attributes(request, &[CHANNEL_NUMBER, XOR_PEER_ADDRESS, USERNAME, REALM, NONCE])?;
        let (Some([high, low, ..]), Some(peer)) = (request.get(CHANNEL_NUMBER), request.get(XOR_PEER_ADDRESS)) else {
            return Err(Code(BAD_REQUEST));
        };
        let number = u16::from_be_bytes([*high, *low]);
        let peer = self.peer(request, peer, is_ipv6)?;
        let own = self.allocation_of(client, signer)?;
        own.sweep(now_ms);
        let is_other = own.channels.get(&number).is_some_and(|channel| channel.peer != peer)
            || own.peers.get(&peer).is_some_and(|bound| *bound != number);
        if !CHANNELS.contains(&number) || is_other {
            return Err(Code(BAD_REQUEST));
        }
        let is_full = |has: bool, count: usize, max: usize| !has && count >= max;
        if is_full(own.channels.contains_key(&number), own.channels.len(), CHANNELS_MAX)
            || is_full(own.permissions.contains_key(&peer.ip()), own.permissions.len(), PERMISSIONS_MAX)
        {
            return Err(Code(CAPACITY));
        }
        own.channels.insert(number, Channel { peer, expires_ms: now_ms + CHANNEL_MS });
        own.peers.insert(peer, number);
        own.permissions.insert(peer.ip(), now_ms + PERMISSION_MS);
        Writer::answer(answer, Class::Success, request).sign(&signer.key).end();
        Ok(())
    }

    fn allocation_of(&mut self, client: Client, signer: &Signer<'_>) -> Result<&mut Allocation, RequestError> {
        let own = self.allocations.get_mut(&client).ok_or(Code(ALLOCATION_MISMATCH))?;
        if *own.username == *signer.username { Ok(own) } else { Err(Code(WRONG_CREDENTIALS)) }
    }

    fn peer(&self, request: &Message<'_>, value: &[u8], is_ipv6: bool) -> Result<SocketAddr, RequestError> {
        let peer = request.address(value).ok_or(Code(BAD_REQUEST))?;
        if peer.is_ipv6() != is_ipv6 {
            return Err(Code(FAMILY_MISMATCH));
        }
        if !is_unicast(peer.ip()) || !(self.limits.may_reach)(peer.ip()) {
            return Err(Code(FORBIDDEN));
        }
        Ok(peer)
    }

    fn lifetime(&self, request: &Message<'_>) -> Result<u32, RequestError> {
        let max = self.limits.lifetime_max_s.max(1);
        let asked_s = match request.get(LIFETIME) {
            None => LIFETIME_S,
            Some(value) => u32::from_be_bytes(value.try_into().map_err(|_| Code(BAD_REQUEST))?),
        };
        Ok(asked_s.max(LIFETIME_S).min(max))
    }
}

fn allocated(client: Client, own: &Allocation, request: &Message<'_>, answer: &mut Vec<u8>) {
    let writer = Writer::answer(answer, Class::Success, request);
    let mut writer =
        writer.address(XOR_RELAYED_ADDRESS, own.relayed).attribute(LIFETIME, &own.lifetime_s.to_be_bytes());
    if let Some(token) = own.token {
        writer = writer.attribute(RESERVATION_TOKEN, &token);
    }
    writer.address(XOR_MAPPED_ADDRESS, client.address()).sign(&own.key).end();
}

/// Returns whether the request asks for IPv6, or `None` if it names no address family.
fn family(request: &Message<'_>) -> Result<Option<bool>, RequestError> {
    match request.get(REQUESTED_ADDRESS_FAMILY) {
        None => Ok(None),
        Some([1, _, _, _]) => Ok(Some(false)),
        Some([2, _, _, _]) => Ok(Some(true)),
        Some([_, _, _, _]) => Err(Code(FAMILY_NOT_SUPPORTED)),
        Some(_) => Err(Code(BAD_REQUEST)),
    }
}
