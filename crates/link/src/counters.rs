use std::time::Duration;

/// Reason why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Lost on the channel.
    Channel,
    /// The queue was full.
    QueueFull,
    /// CoDel dropped it, because packets stayed in the queue for too long.
    QueueDelay,
    /// The link was interrupted.
    Outage,
    /// A NAT had no entry for it, or the address has changed since its connection was opened.
    Nat,
}

impl Cause {
    pub const ALL: [Cause; 5] = [Cause::Channel, Cause::QueueFull, Cause::QueueDelay, Cause::Outage, Cause::Nat];

    pub fn name(self) -> &'static str {
        match self {
            Cause::Channel => "channel",
            Cause::QueueFull => "queue full",
            Cause::QueueDelay => "queue delay",
            Cause::Outage => "outage",
            Cause::Nat => "NAT",
        }
    }
}

/// Packet counters of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that were handed to the link, and their bytes.
    pub received: u64,
    pub received_bytes: u64,
    /// Packets that left the link, duplicates included, and their bytes.
    pub delivered: u64,
    pub delivered_bytes: u64,
    /// Packets that were not delivered, in the order of [`Cause::ALL`].
    dropped: [u64; 5],
    pub duplicated: u64,
    pub corrupted: u64,
    /// Largest number of packets and bytes in the queue, and the longest time in it.
    pub queue_packets_max: u64,
    pub queue_bytes_max: u64,
    pub queue_delay_max: Duration,
}

impl Counters {
    pub(crate) fn drop(&mut self, cause: Cause) {
        self.dropped[cause as usize] += 1;
    }

    pub fn dropped(&self, cause: Cause) -> u64 {
        self.dropped[cause as usize]
    }

    /// Returns the packets that are still on the link.
    pub fn in_flight(&self) -> u64 {
        self.received + self.duplicated - self.delivered - self.dropped.iter().sum::<u64>()
    }
}
