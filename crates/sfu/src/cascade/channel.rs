//! Encrypted channel between two nodes: a DTLS handshake, then frames that are sealed with its keys.
//!
//! ```text
//!   handshake ── certificate has the announced fingerprint, keys exported ──► open
//!       └────── other certificate, timeout, or a fatal alert ──► error: the channel must be dropped
//! ```
//!
//! Each node announces its address and the fingerprint of its certificate to the others. A host must pass only
//! datagrams from an announced address: the handshake does not verify the return path.

use std::{collections::VecDeque, time::Instant};

use millrace_rtc::{
    contain,
    crypto::{certificate, provider, take_keying_material},
};
use ring::digest;
use str0m::crypto::dtls::{DtlsInstance, DtlsOutput, DtlsVersion};

use super::{frame::is_frame, seal::LinkKeys};

/// SHA-256 of a certificate in DER.
pub type Fingerprint = [u8; 32];

/// Maximum size of a DTLS record, and of a datagram of the handshake.
const RECORD_BYTES_MAX: usize = 2048;
const HANDSHAKE_MTU: usize = 1200;
/// Maximum number of frames that wait for the end of the handshake; the oldest is dropped.
const WAITING_MAX: usize = 16;

/// Reason why a channel cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    #[error("the handshake failed: the other end sent an alert, or did not answer in time")]
    Failed,
    #[error("the certificate of the other end does not have the fingerprint that its node announces")]
    WrongCertificate,
    #[error("the handshake has agreed on no cipher for frames")]
    NoKeys,
    #[error("the DTLS library panicked")]
    Panicked,
}

/// One end of an encrypted channel.
pub struct Channel {
    dtls: Box<dyn DtlsInstance>,
    expected: Fingerprint,
    is_verified: bool,
    keys: Option<LinkKeys>,
    timeout: Option<Instant>,
    outgoing: VecDeque<Vec<u8>>,
    /// Frames that were given before the end of the handshake.
    waiting: VecDeque<Vec<u8>>,
}

/// Returns the fingerprint of this process, which the other nodes must know.
pub fn fingerprint() -> Fingerprint {
    fingerprint_of(&certificate().certificate)
}

fn fingerprint_of(certificate: &[u8]) -> Fingerprint {
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
    fingerprint
}

impl Channel {
    /// Creates a channel. `is_client`: this end begins the handshake; exactly one of the two ends does. `expected`:
    /// fingerprint of the other node.
    ///
    /// Errors: [`ChannelError::Failed`] if the library cannot be configured.
    pub fn new(is_client: bool, expected: Fingerprint, now: Instant) -> Result<Self, ChannelError> {
        let made = contain(|| {
            let made = provider().dtls_provider.new_dtls(&certificate(), now, DtlsVersion::Dtls12, Some(HANDSHAKE_MTU));
            made.map(|mut dtls| {
                dtls.set_active(is_client);
                dtls
            })
        });
        let dtls = made.ok_or(ChannelError::Panicked)?.map_err(|_| ChannelError::Failed)?;
        let mut channel = Self {
            dtls,
            expected,
            is_verified: false,
            keys: None,
            timeout: None,
            outgoing: VecDeque::new(),
            waiting: VecDeque::new(),
        };
        channel.handle_timeout(now)?;
        Ok(channel)
    }

    /// Returns whether the handshake is complete.
    pub fn is_open(&self) -> bool {
        self.keys.is_some()
    }

    /// Handles a datagram of the other node. Returns the frame if it contained one. A datagram that is not authentic is
    /// ignored.
    ///
    /// Errors: the channel must be dropped.
    pub fn handle_datagram(&mut self, datagram: &[u8], now: Instant) -> Result<Option<Vec<u8>>, ChannelError> {
        if is_frame(datagram) {
            let mut frame = datagram.to_vec();
            let opened = self.keys.as_ref().and_then(|keys| keys.open(&mut frame));
            return Ok(opened.map(|()| frame));
        }
        self.run(|dtls| {
            dtls.handle_timeout(now)?;
            dtls.handle_packet(datagram)
        })?;
        Ok(None)
    }

    /// Encrypts and queues a frame. Before the end of the handshake, the last frames wait.
    pub fn send(&mut self, mut frame: Vec<u8>) {
        let Some(keys) = &self.keys else {
            if self.waiting.len() == WAITING_MAX {
                self.waiting.pop_front();
            }
            self.waiting.push_back(frame);
            return;
        };
        if keys.seal(&mut frame).is_some() {
            self.outgoing.push_back(frame);
        }
    }

    pub fn poll_datagram(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front()
    }

    /// Returns when [`Channel::handle_timeout`] must be called.
    pub fn timeout(&self) -> Option<Instant> {
        self.timeout
    }

    /// Errors: the channel must be dropped.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ChannelError> {
        self.run(|dtls| dtls.handle_timeout(now))
    }

    /// Calls the library, then takes everything that it has to send or to report.
    fn run<E>(&mut self, work: impl FnOnce(&mut dyn DtlsInstance) -> Result<(), E>) -> Result<(), ChannelError> {
        let done = contain(|| {
            work(&mut *self.dtls).map_err(|_| ChannelError::Failed)?;
            self.take_outputs()
        });
        done.unwrap_or(Err(ChannelError::Panicked))
    }

    fn take_outputs(&mut self) -> Result<(), ChannelError> {
        let mut buffer = vec![0; RECORD_BYTES_MAX];
        let mut material = None;
        loop {
            match self.dtls.poll_output(&mut buffer) {
                DtlsOutput::Packet(datagram) => self.outgoing.push_back(datagram.to_vec()),
                DtlsOutput::BufferTooSmall { needed } => buffer.resize(needed.min(u16::MAX.into()), 0),
                DtlsOutput::PeerCert(certificate) => {
                    if fingerprint_of(certificate) != self.expected {
                        return Err(ChannelError::WrongCertificate);
                    }
                    self.is_verified = true;
                }
                DtlsOutput::KeyingMaterial(..) => material = take_keying_material(),
                DtlsOutput::CloseNotify => return Err(ChannelError::Failed),
                DtlsOutput::Timeout(at) => {
                    self.timeout = Some(at);
                    break;
                }
                _ => {}
            }
        }
        if let Some(material) = material {
            if !self.is_verified {
                return Err(ChannelError::WrongCertificate);
            }
            self.keys = Some(LinkKeys::new(&material).ok_or(ChannelError::NoKeys)?);
            std::mem::take(&mut self.waiting).into_iter().for_each(|frame| self.send(frame));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cascade::frame::{Head, padding};

    const HEAD: Head = Head { epoch: 1, sequence: 7 };

    struct Pair {
        ends: [Channel; 2],
        frames: [Vec<Vec<u8>>; 2],
        now: Instant,
        lose: usize,
        sent: usize,
    }

    impl Pair {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
        fn new(expected: [Fingerprint; 2], lose: usize) -> Self {
            let now = Instant::now();
            let ends = [0, 1].map(|at| Channel::new(at == 0, expected[at], now).unwrap());
            Self { ends, frames: [Vec::new(), Vec::new()], now, lose, sent: 0 }
        }

        fn run(&mut self, span: Duration) -> Result<(), ChannelError> {
            let end = self.now + span;
            while self.now < end {
                for from in [0, 1] {
                    while let Some(datagram) = self.ends[from].poll_datagram() {
                        self.sent += 1;
                        if self.lose == 0 || !self.sent.is_multiple_of(self.lose) {
                            let frame = self.ends[1 - from].handle_datagram(&datagram, self.now)?;
                            self.frames[1 - from].extend(frame);
                        }
                    }
                }
                self.now += Duration::from_millis(10);
                for end in &mut self.ends {
                    if end.timeout().is_some_and(|at| at <= self.now) {
                        end.handle_timeout(self.now)?;
                    }
                }
            }
            Ok(())
        }
    }

    #[test]
    fn frames_cross_after_handshake() {
        for lose in [0, 3] {
            let mut pair = Pair::new([fingerprint(); 2], lose);
            let frame = padding(HEAD, 200);
            pair.ends[0].send(frame.clone());
            pair.run(Duration::from_secs(10)).unwrap();
            assert!(pair.ends.iter().all(Channel::is_open), "every {lose}th datagram is lost");
            pair.lose = 0;
            pair.ends[1].send(frame.clone());
            let sealed = pair.ends[1].poll_datagram().unwrap();
            assert_ne!(sealed[..frame.len()], frame, "it is encrypted");
            let other = padding(Head { sequence: 8, ..HEAD }, 300);
            pair.ends[1].send(other.clone());
            pair.run(Duration::from_millis(50)).unwrap();
            assert_eq!(pair.frames[0], [other]);
            assert!(lose > 0 || pair.frames[1] == [frame], "it waited for the handshake");
        }
    }

    #[test]
    fn other_certificate_is_refused_by_either_end() {
        for wrong in [0, 1] {
            let mut expected = [fingerprint(); 2];
            expected[wrong][31] ^= 1;
            let mut pair = Pair::new(expected, 0);
            assert_eq!(pair.run(Duration::from_secs(5)), Err(ChannelError::WrongCertificate));
            assert!(!pair.ends[wrong].is_open());
        }
    }

    #[test]
    fn noise_changes_nothing() {
        let mut pair = Pair::new([fingerprint(); 2], 0);
        pair.run(Duration::from_secs(2)).unwrap();
        let mut frame = padding(HEAD, 100);
        for at in 0..frame.len() {
            frame[at] ^= 0x55;
            assert_eq!(pair.ends[0].handle_datagram(&frame, pair.now), Ok(None));
        }
        assert_eq!(pair.ends[0].handle_datagram(&[], pair.now), Ok(None));
        assert_eq!(pair.ends[0].handle_datagram(&[22, 254, 253, 0, 0], pair.now), Ok(None));
        pair.ends[1].send(padding(HEAD, 100));
        pair.run(Duration::from_millis(50)).unwrap();
        assert_eq!(pair.frames[0].len(), 1);
    }
}
