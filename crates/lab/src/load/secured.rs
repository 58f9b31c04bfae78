//! TLS for any dialect: passes its bytes through a rustls session. Neither the dialect nor the link notices the
//! difference.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use rustls::{ClientConfig, ClientConnection, pki_types::ServerName};

use super::dialect::{Dialect, Event};

pub struct Secured {
    inner: Box<dyn Dialect>,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// Session of the current connection.
    tls: Option<Box<ClientConnection>>,
    /// True if the inner dialect is ready as soon as the TLS handshake is complete.
    ready_at_once: bool,
    /// Received plaintext that the inner dialect has not consumed yet.
    plain_in: Vec<u8>,
    /// Plaintext that the inner dialect wants to send.
    plain_out: Vec<u8>,
}

impl Secured {
    /// `name`: server name as in its certificate.
    pub fn new(inner: Box<dyn Dialect>, config: Arc<ClientConfig>, name: ServerName<'static>) -> Self {
        Self { inner, config, name, tls: None, ready_at_once: false, plain_in: Vec::new(), plain_out: Vec::new() }
    }

    /// Encrypts the pending plaintext and appends all output of the TLS session.
    fn encrypt(&mut self, out: &mut Vec<u8>) {
        let Some(tls) = &mut self.tls else { return };
        // Without a buffer limit, rustls accepts all bytes. It buffers them until the handshake is complete.
        tls.writer().write_all(&self.plain_out).expect("memory takes it");
        self.plain_out.clear();
        while tls.wants_write() {
            tls.write_tls(out).expect("memory takes it");
        }
    }
}

impl Dialect for Secured {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        let mut tls = ClientConnection::new(self.config.clone(), self.name.clone()).expect("what rustls supports");
        tls.set_buffer_limit(None);
        (self.tls, self.plain_in, self.plain_out) = (Some(Box::new(tls)), Vec::new(), Vec::new());
        self.ready_at_once = self.inner.open(&mut self.plain_out);
        self.encrypt(out);
        false
    }

    fn feed(
        &mut self,
        mut bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let all = bytes.len();
        let Some(tls) = &mut self.tls else { return Ok(all) };
        let mut ended = false;
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes)?;
            let state = tls.process_new_packets()?;
            let at = self.plain_in.len();
            self.plain_in.resize(at + state.plaintext_bytes_to_read(), 0);
            tls.reader().read_exact(&mut self.plain_in[at..])?;
            if state.peer_has_closed() {
                ended = true;
                break;
            }
        }
        if self.ready_at_once && !tls.is_handshaking() {
            self.ready_at_once = false;
            emit(Event::Ready);
        }
        if !self.plain_in.is_empty() {
            let used = self.inner.feed(&self.plain_in, now_ns, &mut self.plain_out, emit)?;
            self.plain_in.drain(..used);
        }
        if ended {
            emit(Event::Closed);
        }
        self.encrypt(out);
        Ok(all)
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.inner.publish(payload, &mut self.plain_out);
        self.encrypt(out);
    }

    fn can_publish(&self) -> bool {
        self.inner.can_publish()
    }

    fn wake_at_ns(&self) -> Option<u64> {
        self.inner.wake_at_ns()
    }

    fn wake(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        self.inner.wake(now_ns, &mut self.plain_out);
        self.encrypt(out);
    }

    fn wrap(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        self.plain_out.extend_from_slice(plain);
        self.encrypt(out);
    }
}
