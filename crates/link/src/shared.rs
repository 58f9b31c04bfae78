use crate::{
    Cause, Config, Direction, Packet, Time,
    nat_table::{NatTable, Verdict},
    radio::RadioState,
};

/// State that both directions of a link share: outages, the NAT and the radio.
pub struct Shared {
    nat: NatTable,
    radio: RadioState,
}

/// Decision about a packet in front of its pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The packet enters its pipe at this time.
    At(Time),
    Dropped(Cause),
    /// The packet is dropped, and its sender gets a reset.
    Reset,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self { nat: NatTable::default(), radio: RadioState::new() }
    }

    pub(crate) fn enter(&mut self, config: &Config, packet: &impl Packet, direction: Direction, now: Time) -> Entry {
        if config.outage.is_some_and(|outage| outage.contains(now)) {
            return Entry::Dropped(Cause::Outage);
        }
        if config.nat.is_some() || !config.address_changes.is_empty() {
            match self.nat.check(config, packet.flow(), packet.is_opening(), direction, now) {
                Verdict::Pass => {}
                Verdict::Swallow => return Entry::Dropped(Cause::Nat),
                Verdict::Reset => return Entry::Reset,
            }
        }
        match &config.radio {
            Some(radio) => Entry::At(self.radio.enter(radio, packet.bytes(), now)),
            None => Entry::At(now),
        }
    }

    /// Number of times that the radio had to become active.
    pub fn promotions(&self) -> u64 {
        self.radio.promotions
    }
}
