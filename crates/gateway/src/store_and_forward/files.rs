//! The files of a buffer in its directory: `lock`, `journal`, `journal.new` during a rewrite, and `refused.ndjson`
//! with `refused.old.ndjson`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use millrace_buffer::Disk;
use rustix::fs::{FlockOperation, flock};

/// Size of `refused.ndjson` from which it becomes `refused.old.ndjson`.
const REFUSED_BYTES_MAX: u64 = 4 << 20;
/// Only the user of the gateway can read messages.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Reason why the files of a buffer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("--buffer {}: another gateway uses this directory; each gateway needs a directory of its own", .0.display())]
    InUse(PathBuf),
    #[error("--buffer {}: the directory cannot be used: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
}

/// The open files of a buffer. The lock is held as long as this value lives.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    _lock: File,
    journal: File,
    length: u64,
}

impl Files {
    /// Opens the files in a directory, and creates what is missing.
    pub fn open(directory: &Path) -> Result<Self, FilesError> {
        let failed = |error| FilesError::Io(directory.to_owned(), error);
        fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory).map_err(failed)?;
        let lock = open(&directory.join("lock")).map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(FilesError::InUse(directory.to_owned()));
        }
        let journal = open(&directory.join("journal")).map_err(failed)?;
        let length = journal.metadata().map_err(failed)?.len();
        let files = Self { directory: directory.to_owned(), _lock: lock, journal, length };
        files.sync_directory().map_err(failed)?;
        Ok(files)
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(path)
}

impl Disk for Files {
    type Journal<'a> = &'a File;

    fn journal(&mut self) -> io::Result<&File> {
        Ok(&self.journal)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.journal.seek(SeekFrom::Start(self.length))?;
        match self.journal.write_all(bytes) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.journal.set_len(self.length)?;
                Err(error)
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.journal.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        if length != self.length {
            self.journal.set_len(length)?;
            self.length = length;
        }
        Ok(())
    }

    fn rewrite(&mut self, head: &[u8], areas: &mut dyn Iterator<Item = (u64, u32)>) -> io::Result<()> {
        let path = self.directory.join("journal.new");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(FILE_MODE).open(&path)?;
        let mut writer = BufWriter::new(&file);
        let (mut length, mut frame) = (head.len() as u64, Vec::new());
        writer.write_all(head)?;
        for (place, bytes) in areas {
            frame.resize(bytes as usize, 0);
            self.journal.seek(SeekFrom::Start(place))?;
            self.journal.read_exact(&mut frame)?;
            writer.write_all(&frame)?;
            length += u64::from(bytes);
        }
        writer.flush()?;
        drop(writer);
        file.sync_all()?;
        fs::rename(&path, self.directory.join("journal"))?;
        (self.journal, self.length) = (file, length);
        self.sync_directory()
    }

    fn set_aside(&mut self, line: &str) -> io::Result<()> {
        let path = self.directory.join("refused.ndjson");
        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() >= REFUSED_BYTES_MAX) {
            fs::rename(&path, self.directory.join("refused.old.ndjson"))?;
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(&path)?;
        file.write_all(line.as_bytes())?;
        file.sync_data()
    }
}
