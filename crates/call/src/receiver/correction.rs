use std::collections::VecDeque;

use crate::fec;

/// Packets of forward error correction that may still be needed, and the packets that they protect.
#[derive(Debug, Default)]
pub struct Correction {
    payloads: VecDeque<Vec<u8>>,
    kept: VecDeque<(u16, Vec<u8>)>,
}

const PAYLOADS_MAX: usize = 16;
const KEPT_MAX: usize = 256;

impl Correction {
    /// Adds the payload of a packet of forward error correction.
    pub fn add(&mut self, payload: Vec<u8>) {
        if self.payloads.len() >= PAYLOADS_MAX {
            self.payloads.pop_front();
        }
        self.payloads.push_back(payload);
    }

    /// Keeps a packet that may be needed to restore another one.
    pub fn keep(&mut self, sequence: u16, packet: Vec<u8>) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((sequence, packet));
    }

    /// Returns whether a packet of forward error correction waits for packets that it protects.
    pub fn waits_for_others(&self) -> bool {
        !self.payloads.is_empty()
    }

    /// Restores one packet. A packet of forward error correction is dropped when it is used, or when nothing is missing
    /// that it protects.
    pub fn restore(&mut self, ssrc: u32, is_wanted: impl Fn(u16) -> bool) -> Option<Vec<u8>> {
        let Self { payloads, kept } = self;
        let find = |sequence: u16| kept.iter().rev().find(|(of, _)| *of == sequence).map(|(_, packet)| &packet[..]);
        let mut restored = None;
        payloads.retain(|payload| {
            if restored.is_some() {
                return true;
            }
            let mut absent = fec::protected(payload).filter(|sequence| find(*sequence).is_none());
            match (absent.next(), absent.next()) {
                (Some(missing), None) if is_wanted(missing) => {
                    let others = fec::protected(payload).filter_map(find);
                    restored = fec::restore(payload, missing, ssrc, others);
                    false
                }
                // The missing packet was retransmitted, or is not expected.
                (Some(_), None) | (None, _) => false,
                // More than one is absent: others may still arrive.
                (Some(_), Some(_)) => true,
            }
        });
        restored
    }
}
