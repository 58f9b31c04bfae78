//! Records of the journal. Each record is a frame: magic number, length, CRC-32 of the content, content.
//!
//! A crash can leave an incomplete frame at the end: recovery cuts it off. A damaged frame before the end is skipped:
//! recovery looks for the next valid frame.

use std::io::{self, Read, Seek, SeekFrom};

use serde::{Deserialize, Serialize};

use crate::{Message, queue::Counters};

/// Length of the head of a frame in bytes.
pub const FRAME_BYTES: usize = 12;
/// Maximum length of the content of a frame in bytes: a message of 1 MiB, as in the server, with its names.
pub const RECORD_BYTES_MAX: usize = (1 << 20) + 4096;
const MAGIC: [u8; 4] = *b"MRb1";
/// Bytes read at once while recovery looks for a frame.
const WINDOW_BYTES: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record<'a> {
    /// The first record of a journal.
    Header(Header),
    /// A message is stored.
    #[serde(borrow)]
    Put(Put<'a>),
    /// Messages have left the buffer.
    Done(End, Vec<u64>),
    /// Messages are about to be sent for the first time. The time is in milliseconds since 1970.
    Attempt(u64, Vec<u64>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Random number of the buffer, a part of its idempotency keys.
    pub id: u64,
    pub next_seq: u64,
    pub counters: Counters,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put<'a> {
    pub seq: u64,
    /// Time of storing in milliseconds since 1970.
    pub time_ms: u64,
    #[serde(borrow)]
    pub message: Message<'a>,
}

/// Reason why a message left the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The server has answered with its position.
    Sent,
    /// The buffer was full.
    Dropped,
    /// The message was older than the limit, or than its time to live.
    Expired,
    /// The server refuses the message permanently.
    Refused,
    /// The frame of the message cannot be read.
    Damaged,
}

/// Returns the frame of a record. The content must have at most [`RECORD_BYTES_MAX`] bytes.
pub fn encode(record: &Record<'_>) -> Vec<u8> {
    let mut frame = vec![0; FRAME_BYTES];
    frame = postcard::to_extend(record, frame).expect("a vector takes any number of bytes");
    let (head, content) = frame.split_at_mut(FRAME_BYTES);
    head[..4].copy_from_slice(&MAGIC);
    head[4..8].copy_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
    head[8..].copy_from_slice(&crc32fast::hash(content).to_le_bytes());
    frame
}

/// Returns the record of a whole frame, or `None` if the frame is damaged.
pub fn decode(frame: &[u8]) -> Option<Record<'_>> {
    let (head, content) = frame.split_at_checked(FRAME_BYTES)?;
    let (length, crc) = parse_head(head)?;
    let is_valid = length == content.len() && crc == crc32fast::hash(content);
    is_valid.then(|| postcard::from_bytes(content).ok()).flatten()
}

fn parse_head(head: &[u8]) -> Option<(usize, u32)> {
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let length = number(4) as usize;
    (head[..4] == MAGIC && length <= RECORD_BYTES_MAX).then(|| (length, number(8)))
}

/// Result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Length of the journal up to its last valid frame. The rest must be cut off.
    pub end: u64,
    /// Length of the rest in bytes.
    pub torn_bytes: u64,
    /// Number of damaged areas between valid frames.
    pub damaged: u64,
}

/// Calls `handle` with the place, the length and the record of each valid frame.
///
/// Memory: one frame. Errors: the journal cannot be read.
pub fn recover(
    journal: &mut (impl Read + Seek),
    mut handle: impl FnMut(u64, usize, Record<'_>),
) -> io::Result<Recovered> {
    let length = journal.seek(SeekFrom::End(0))?;
    let mut recovered = Recovered::default();
    let mut at = 0;
    let mut frame = Vec::new();
    while at < length {
        if read_frame(journal, at, length, &mut frame)?
            && let Some(record) = decode(&frame)
        {
            recovered.damaged += u64::from(at > recovered.end);
            handle(at, frame.len(), record);
            at += frame.len() as u64;
            recovered.end = at;
            continue;
        }
        match find_magic(journal, at + 1, length)? {
            Some(next) => at = next,
            None => break,
        }
    }
    recovered.torn_bytes = length - recovered.end;
    Ok(recovered)
}

/// Reads a frame. Returns false if no whole frame begins there.
fn read_frame(journal: &mut (impl Read + Seek), at: u64, end: u64, frame: &mut Vec<u8>) -> io::Result<bool> {
    frame.clear();
    if end - at < FRAME_BYTES as u64 {
        return Ok(false);
    }
    journal.seek(SeekFrom::Start(at))?;
    frame.resize(FRAME_BYTES, 0);
    journal.read_exact(frame)?;
    match parse_head(frame) {
        Some((length, _)) if (FRAME_BYTES + length) as u64 <= end - at => {
            frame.resize(FRAME_BYTES + length, 0);
            journal.read_exact(&mut frame[FRAME_BYTES..])?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Returns the next place of the magic number.
fn find_magic(journal: &mut (impl Read + Seek), from: u64, end: u64) -> io::Result<Option<u64>> {
    let mut window = vec![0; WINDOW_BYTES];
    let mut at = from;
    while at < end {
        let length = (end - at).min(WINDOW_BYTES as u64) as usize;
        journal.seek(SeekFrom::Start(at))?;
        journal.read_exact(&mut window[..length])?;
        if let Some(found) = window[..length].windows(MAGIC.len()).position(|bytes| bytes == MAGIC) {
            return Ok(Some(at + found as u64));
        }
        if length < WINDOW_BYTES {
            break;
        }
        // The magic number can lie on the border of two windows.
        at += (length - (MAGIC.len() - 1)) as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn journal() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for seq in 0..5 {
            bytes.extend(encode(&Record::Done(End::Sent, vec![seq; 3 + seq as usize])));
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn seqs(bytes: &[u8]) -> (Vec<u64>, Recovered) {
        let mut seqs = Vec::new();
        let recovered = recover(&mut Cursor::new(bytes), |_, _, record| match record {
            Record::Done(_, done) => seqs.push(done[0]),
            other => panic!("{other:?}"),
        });
        (seqs, recovered.unwrap())
    }

    #[test]
    fn torn_tail_is_cut_at_every_byte() {
        let (bytes, ends) = journal();
        for length in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= length).count();
            let (seqs, recovered) = seqs(&bytes[..length]);
            let end = if whole == 0 { 0 } else { ends[whole - 1] as u64 };
            assert_eq!(seqs, (0..whole as u64).collect::<Vec<_>>(), "{length}");
            assert_eq!((recovered.end, recovered.torn_bytes), (end, length as u64 - end), "{length}");
        }
    }

    #[test]
    fn any_damaged_byte_loses_one_record() {
        let (bytes, ends) = journal();
        for at in 0..ends[3] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            let lost = ends.iter().position(|end| at < *end).unwrap() as u64;
            let (seqs, recovered) = seqs(&damaged);
            assert_eq!(seqs, (0..5).filter(|seq| *seq != lost).collect::<Vec<_>>(), "{at}");
            assert_eq!((recovered.damaged, recovered.torn_bytes), (1, 0), "{at}");
        }
    }

    #[test]
    fn zeros_and_noise_after_the_end_are_cut() {
        let (bytes, _) = journal();
        for tail in [vec![0; 3 * WINDOW_BYTES], MAGIC.repeat(1000), [&MAGIC[..], &[255; 9]].concat()] {
            let (seqs, recovered) = seqs(&[&bytes[..], &tail].concat());
            assert_eq!((seqs.len(), recovered.torn_bytes, recovered.damaged), (5, tail.len() as u64, 0));
        }
    }
}
