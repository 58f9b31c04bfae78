//! A disk in memory that can lose what was not synced, and that can be full.

use std::io::{self, Cursor};

use millrace_buffer::Disk;
use rand_pcg::{Pcg64Mcg, rand_core::Rng};

#[derive(Debug, Default)]
pub struct MemoryDisk {
    bytes: Vec<u8>,
    synced: usize,
    pub set_aside: Vec<String>,
    /// Maximum length of the journal; `None`: unlimited.
    pub capacity: Option<usize>,
    /// Number of operations until the process is killed; `None`: never.
    pub killed_in: Option<u32>,
}

impl MemoryDisk {
    fn step(&mut self) -> io::Result<()> {
        match &mut self.killed_in {
            Some(0) => return Err(io::Error::other("killed")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    pub fn journal_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_killed(&self) -> bool {
        self.killed_in == Some(0)
    }

    /// The machine loses power: a part of what was not synced is missing, or is noise.
    pub fn lose_power(&mut self, random: &mut Pcg64Mcg) {
        let unsynced = self.bytes.len() - self.synced;
        let kept = if unsynced == 0 { 0 } else { random.next_u64() as usize % (unsynced + 1) };
        self.bytes.truncate(self.synced + kept);
        for byte in &mut self.bytes[self.synced..] {
            if random.next_u64().is_multiple_of(64) {
                *byte = random.next_u64() as u8;
            }
        }
        if random.next_u64().is_multiple_of(2) {
            self.bytes.extend(std::iter::repeat_n(0, random.next_u64() as usize % 5000));
        }
    }

    pub fn restart(&mut self) {
        self.killed_in = None;
        self.synced = self.bytes.len();
    }
}

impl Disk for MemoryDisk {
    type Journal<'a> = Cursor<&'a Vec<u8>>;

    fn journal(&mut self) -> io::Result<Cursor<&Vec<u8>>> {
        Ok(Cursor::new(&self.bytes))
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(killed) = self.step() {
            // The kill leaves a part of the write.
            self.bytes.extend(&bytes[..bytes.len() / 2]);
            return Err(killed);
        }
        if self.capacity.is_some_and(|capacity| self.bytes.len() + bytes.len() > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.step()?;
        self.synced = self.bytes.len();
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.bytes.truncate(length as usize);
        self.synced = self.synced.min(self.bytes.len());
        Ok(())
    }

    fn rewrite(&mut self, head: &[u8], areas: &mut dyn Iterator<Item = (u64, u32)>) -> io::Result<()> {
        self.step()?;
        let mut bytes = head.to_vec();
        areas.for_each(|(place, length)| bytes.extend(&self.bytes[place as usize..][..length as usize]));
        if self.capacity.is_some_and(|capacity| self.bytes.len() + bytes.len() > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        (self.synced, self.bytes) = (bytes.len(), bytes);
        Ok(())
    }

    fn set_aside(&mut self, line: &str) -> io::Result<()> {
        self.set_aside.push(line.to_owned());
        Ok(())
    }
}
