//! Assembles messages of several CAN frames.
//!
//! ```text
//!   0LDD..  single frame, L bytes
//!   1LLLDD..  first frame of LLL bytes ─► 2NDD.. consecutive frames N = 1, 2, .. 15, 0, 1, .. ─► message
//!   3..  flow control: no data
//! ```
//!
//! Source: ISO 15765-2.

/// Maximum number of control units whose messages are assembled at the same time. There are 8 in a vehicle.
const SENDERS_MAX: usize = 16;

/// A message that is not complete yet.
struct Partial {
    id: u32,
    length: usize,
    /// Number that the next frame must have.
    next: u8,
    data: Vec<u8>,
}

/// Messages of all control units. The memory is bounded: 16 messages of at most 4,095 bytes.
#[derive(Default)]
pub struct Assembler {
    partials: Vec<Partial>,
}

impl Assembler {
    /// Adds a frame. Returns the message that it completes. A frame out of order ends its message.
    pub fn receive(&mut self, id: u32, frame: &[u8]) -> Option<Vec<u8>> {
        let (&control, rest) = frame.split_first()?;
        match control >> 4 {
            0 => {
                let length = usize::from(control & 0x0f);
                self.partials.retain(|partial| partial.id != id);
                rest.get(..length).filter(|message| !message.is_empty()).map(<[u8]>::to_vec)
            }
            1 => {
                let (&low, data) = rest.split_first()?;
                let length = usize::from(control & 0x0f) << 8 | usize::from(low);
                self.partials.retain(|partial| partial.id != id);
                if length <= data.len() {
                    return None;
                }
                if self.partials.len() == SENDERS_MAX {
                    self.partials.remove(0);
                }
                self.partials.push(Partial { id, length, next: 1, data: data.to_vec() });
                None
            }
            2 => {
                let place = self.partials.iter().position(|partial| partial.id == id)?;
                let partial = &mut self.partials[place];
                if partial.next != control & 0x0f {
                    self.partials.remove(place);
                    return None;
                }
                partial.next = (partial.next + 1) & 0x0f;
                partial.data.extend_from_slice(rest);
                if partial.data.len() < partial.length {
                    return None;
                }
                let Partial { mut data, length, .. } = self.partials.remove(place);
                data.truncate(length);
                Some(data)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_two_senders_are_assembled() {
        let mut frames = Assembler::default();
        assert_eq!(frames.receive(1, &[0x10, 0x09, 1, 2, 3, 4, 5, 6]), None);
        assert_eq!(frames.receive(2, &[0x10, 0x08, 9, 9, 9, 9, 9, 9]), None);
        assert_eq!(frames.receive(2, &[0x30, 0, 0]), None);
        assert_eq!(frames.receive(1, &[0x21, 7, 8, 9, 0, 0, 0, 0]), Some(vec![1, 2, 3, 4, 5, 6, 7, 8, 9]));
        assert_eq!(frames.receive(2, &[0x21, 8, 8]), Some(vec![9, 9, 9, 9, 9, 9, 8, 8]));
        assert_eq!(frames.receive(1, &[0x02, 0x41, 0x0d, 0, 0]), Some(vec![0x41, 0x0d]));
    }

    #[test]
    fn broken_messages_are_dropped() {
        let mut frames = Assembler::default();
        frames.receive(1, &[0x10, 0x14, 1, 2, 3, 4, 5, 6]);
        assert_eq!(frames.receive(1, &[0x22, 7]), None, "frame 1 is missing");
        assert_eq!(frames.receive(1, &[0x21, 7]), None, "nothing has begun");
        for bad in [&[][..], &[0x00], &[0x07, 1], &[0x10], &[0x10, 0x02, 1, 2, 3], &[0x40, 1], &[0xff]] {
            assert_eq!(frames.receive(1, bad), None, "{bad:?}");
        }
        for id in 0..1000 {
            frames.receive(id, &[0x1f, 0xff, 1, 2, 3, 4, 5, 6]);
        }
        assert_eq!(frames.partials.len(), SENDERS_MAX);
    }

    #[test]
    fn frame_numbers_wrap() {
        let mut frames = Assembler::default();
        frames.receive(1, &[0x10, 0x80, 0, 0, 0, 0, 0, 0]);
        let complete = (1..=18u8).find_map(|n| frames.receive(1, &[0x20 | n & 0x0f, n, n, n, n, n, n, n]));
        assert_eq!(complete.map(|message| message.len()), Some(128));
    }
}
