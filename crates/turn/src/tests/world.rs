//! TURN server on a virtual clock, and a client that sends STUN to it.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::super::{
    message::{
        ALLOCATE, CHANNEL_BIND, CHANNEL_NUMBER, CREATE_PERMISSION, Class, ERROR_CODE, LIFETIME, Message, NONCE, REALM,
        REQUESTED_TRANSPORT, USERNAME, Writer, XOR_PEER_ADDRESS,
    },
    *,
};

pub const START_MS: u64 = 1_795_208_191_000;
pub const UDP: (u16, &[u8]) = (REQUESTED_TRANSPORT, &[17, 0, 0, 0]);
pub const PEER: &str = "192.0.2.50:9000";
pub const EMPTY: [u8; 0] = [];

pub type Attribute<'a> = (u16, &'a [u8]);

/// Relay ports, opened in ascending order.
#[derive(Default)]
pub struct Ports {
    pub open: HashMap<RelayId, u16>,
    pub last: u16,
}

impl Relays for Ports {
    fn open(&mut self, ids: &[RelayId], is_ipv6: bool, even: bool) -> Result<SocketAddr, NoRelay> {
        if is_ipv6 {
            return Err(NoRelay::Family);
        }
        let first = (self.last + 1).next_multiple_of(if even { 2 } else { 1 });
        if first > 50_010 {
            return Err(NoRelay::Full);
        }
        self.last = first + ids.len() as u16 - 1;
        self.open.extend(ids.iter().copied().zip(first..));
        Ok(SocketAddr::new("198.51.100.1".parse().unwrap(), first))
    }
}

pub struct World {
    pub now_ms: u64,
    pub server: Server,
    pub ports: Ports,
    pub credentials: Arc<Credentials>,
    pub metrics: Arc<Metrics>,
}

pub fn limits() -> Limits {
    let private: IpAddr = "10.0.0.1".parse().unwrap();
    Limits {
        allocations_max: 10,
        allocations_per_user_max: 3,
        lifetime_max_s: 3600,
        bytes_per_s_max: 0,
        may_reach: Box::new(move |ip| ip != private),
    }
}

/// Client with or without credentials.
pub struct Guest {
    pub client: Client,
    pub login: Option<Login>,
    pub nonce: String,
    pub requests: u8,
}

/// Parsed answer.
#[derive(Debug)]
pub struct Response {
    pub class: Class,
    pub code: u16,
    pub attributes: HashMap<u16, Vec<u8>>,
    pub bytes: Vec<u8>,
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Limits)) -> Self {
        let credentials = Arc::new(Credentials::new(b"a secret", "millrace"));
        let mut limits = limits();
        change(&mut limits);
        let metrics = Arc::<Metrics>::default();
        let server = Server::new(limits, credentials.clone(), metrics.clone(), [7; 32]);
        Self { now_ms: START_MS, server, ports: Ports { last: 50_000, ..Ports::default() }, credentials, metrics }
    }

    pub fn guest(&self, address: &str, subject: &str) -> Guest {
        let login = self.credentials.login(subject, START_MS / 1000 + 3600);
        Guest {
            client: Client::Datagram(address.parse().unwrap()),
            login: Some(login),
            nonce: String::new(),
            requests: 0,
        }
    }

    /// Returns a client that has an allocation.
    pub fn allocated(&mut self, address: &str, subject: &str) -> Guest {
        let mut guest = self.guest(address, subject);
        let answer = self.request_signed(&mut guest, ALLOCATE, &[UDP]);
        assert_eq!(answer.class, Class::Success, "{answer:?}");
        guest
    }

    pub fn wait(&mut self, seconds: u64) {
        self.now_ms += seconds * 1000;
        self.server.handle_timeout(self.now_ms);
        while let Some(relay) = self.server.poll_closed() {
            self.ports.open.remove(&relay).expect("only what is open is closed, and once");
        }
    }

    pub fn handle<'a>(&mut self, client: Client, bytes: &'a [u8]) -> (Action<'a>, Vec<u8>) {
        let mut answer = Vec::new();
        (self.server.handle(self.now_ms, client, bytes, &mut self.ports, &mut answer), answer)
    }

    /// Sends a request as clients do: first without a nonce, then with the nonce from the answer.
    pub fn request_signed(&mut self, guest: &mut Guest, method: u16, attributes: &[(u16, &[u8])]) -> Response {
        let answer = self.request_once(guest, method, attributes);
        match answer.code {
            401 | 438 if !guest.nonce.is_empty() => self.request_once(guest, method, attributes),
            _ => answer,
        }
    }

    pub fn request_once(&mut self, guest: &mut Guest, method: u16, attributes: &[(u16, &[u8])]) -> Response {
        let request = guest.request(self.credentials.realm(), method, attributes);
        let (step, answer) = self.handle(guest.client, &request);
        assert_eq!(step, Action::Answer);
        let answer = Response::of(&answer, &request);
        guest.nonce = answer
            .attributes
            .get(&NONCE)
            .map_or(guest.nonce.clone(), |nonce| String::from_utf8(nonce.clone()).unwrap());
        answer
    }

    pub fn permit(&mut self, guest: &mut Guest, peers: &[&str]) -> Response {
        let addresses: Vec<Vec<u8>> = peers.iter().map(|peer| guest.xor_address(peer.parse().unwrap())).collect();
        let attributes: Vec<(u16, &[u8])> = addresses.iter().map(|value| (XOR_PEER_ADDRESS, &value[..])).collect();
        self.request_signed(guest, CREATE_PERMISSION, &attributes)
    }

    pub fn bind(&mut self, guest: &mut Guest, number: u16, peer: &str) -> Response {
        let (number, peer) = ([number.to_be_bytes(), [0; 2]].concat(), guest.xor_address(peer.parse().unwrap()));
        self.request_signed(guest, CHANNEL_BIND, &[(CHANNEL_NUMBER, &number), (XOR_PEER_ADDRESS, &peer)])
    }

    pub fn relay_of(&self, port: u16) -> RelayId {
        *self.ports.open.iter().find(|(_, open)| **open == port).expect("it is open").0
    }

    pub fn receive_from_peer(&mut self, port: u16, peer: &str, payload: &[u8]) -> Option<(Client, Vec<u8>)> {
        let (relay, mut out) = (self.relay_of(port), Vec::new());
        let client = self.server.handle_peer(self.now_ms, relay, peer.parse().unwrap(), payload, &mut out)?;
        Some((client, out))
    }
}

impl Guest {
    /// Returns the current transaction id. It is predictable, so an address can be XOR-encoded before its message
    /// is written.
    pub fn transaction(&self) -> [u8; 12] {
        [self.requests; 12]
    }

    pub fn xor_address(&self, address: SocketAddr) -> Vec<u8> {
        let mut out = Vec::new();
        Writer::new(&mut out, Class::Request, 0, self.transaction()).address(XOR_PEER_ADDRESS, address).end();
        out[HEAD_BYTES + 4..].to_vec()
    }

    pub fn next(&mut self) {
        self.requests += 1;
    }

    pub fn request(&self, realm: &str, method: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, Class::Request, method, self.transaction());
        for (kind, value) in attributes {
            writer = writer.attribute(*kind, value);
        }
        match &self.login {
            Some(login) if !self.nonce.is_empty() => {
                writer = writer.attribute(USERNAME, login.username.as_bytes()).attribute(REALM, realm.as_bytes());
                let key = credentials::long_term_key(&login.username, realm, &login.password);
                writer.attribute(NONCE, self.nonce.as_bytes()).sign(&key).end();
            }
            _ => writer.end(),
        }
        out
    }
}

impl Response {
    pub fn of(bytes: &[u8], request: &[u8]) -> Self {
        let message = Message::parse(bytes).expect("answers are messages");
        assert_eq!(message.transaction(), request[8..20]);
        let attributes: HashMap<u16, Vec<u8>> =
            message.attributes().map(|(kind, value)| (kind, value.to_vec())).collect();
        let code = attributes.get(&ERROR_CODE).map_or(0, |value| u16::from(value[2]) * 100 + u16::from(value[3]));
        Self { class: message.class, code, attributes, bytes: bytes.to_vec() }
    }

    pub fn address(&self, kind: u16) -> SocketAddr {
        Message::parse(&self.bytes).unwrap().address(&self.attributes[&kind]).unwrap()
    }

    pub fn lifetime_s(&self) -> u32 {
        u32::from_be_bytes(self.attributes[&LIFETIME][..].try_into().unwrap())
    }
}
