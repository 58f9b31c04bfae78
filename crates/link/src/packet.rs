/// Connection to which a packet belongs, the same number in both directions. For IPv4: addresses, ports and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow(pub u128);

/// A unit on a link: an IP packet, a datagram, or a segment of a byte stream.
pub trait Packet: Clone {
    /// Size on the link in bytes, headers included.
    fn bytes(&self) -> usize;

    /// Returns the connection, or `None` if a NAT does not track this packet.
    fn flow(&self) -> Option<Flow>;

    /// True for the first packet of a connection, such as a TCP segment with SYN. A NAT makes an entry for it.
    fn is_opening(&self) -> bool;

    /// Inverts one bit. `bit` is below 8 x [`Packet::bytes`].
    fn corrupt(&mut self, bit: usize);

    /// Returns the packet with which a NAT ends the connection, such as a TCP segment with RST. `None` for a protocol
    /// without resets.
    fn reset(&self) -> Option<Self>;
}
