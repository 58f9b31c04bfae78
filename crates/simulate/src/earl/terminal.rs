//! A pseudo terminal in place of the serial device of a module.

use std::{
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStringExt, fs::symlink},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt},
    termios::{OptionalActions, tcgetattr, tcsetattr},
};

/// Longest read at once in bytes.
const READ_BYTES: usize = 4096;

/// Reason why there is no serial connection.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    #[error("cannot create a pseudo terminal: {0}")]
    Open(Errno),
    #[error("{}: cannot create a link to {}: {error}", .link.display(), .path.display())]
    Link { link: PathBuf, path: PathBuf, error: io::Error },
    #[error("{}: a file with this name exists, and it is no link; remove it, or choose another name", .0.display())]
    Exists(PathBuf),
    #[error("the pseudo terminal failed: {0}")]
    Io(Errno),
}

/// The end of a pseudo terminal that belongs to the module. A host opens the other end like a serial device.
///
/// If no host reads, bytes of the module are lost, as on a serial connection.
pub struct Terminal {
    module: OwnedFd,
    /// Keeps the terminal usable while no host has opened it.
    _host: OwnedFd,
    path: PathBuf,
    link: Option<PathBuf>,
}

impl Terminal {
    /// Creates a pseudo terminal, and optionally a symbolic link to it. A link that exists is replaced.
    ///
    /// Errors: the system has no pseudo terminal left, or the link cannot be created.
    pub fn open(link: Option<PathBuf>) -> Result<Self, TerminalError> {
        let open = || {
            let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
            let module = openpt(flags)?;
            grantpt(&module)?;
            unlockpt(&module)?;
            let path = PathBuf::from(std::ffi::OsString::from_vec(ptsname(&module, Vec::new())?.into_bytes()));
            let host = ioctl_tiocgptpeer(&module, flags)?;
            let mut settings = tcgetattr(&host)?;
            // Otherwise the terminal echoes what the module sends.
            settings.make_raw();
            tcsetattr(&host, OptionalActions::Now, &settings)?;
            fcntl_setfl(&module, fcntl_getfl(&module)? | OFlags::NONBLOCK)?;
            Ok((module, host, path))
        };
        let (module, host, path) = open().map_err(TerminalError::Open)?;
        if let Some(link) = &link {
            create_link(&path, link)?;
        }
        Ok(Self { module, _host: host, path, link })
    }

    /// Returns the path for the host: the link if there is one.
    pub fn path(&self) -> &Path {
        self.link.as_ref().unwrap_or(&self.path)
    }

    /// Returns the bytes that the host has sent; none if there are none.
    ///
    /// Errors: the terminal failed.
    pub fn read(&self) -> Result<Vec<u8>, TerminalError> {
        let mut bytes = vec![0; READ_BYTES];
        match rustix::io::read(&self.module, bytes.as_mut_slice()) {
            Ok(count) => bytes.truncate(count),
            Err(Errno::AGAIN | Errno::INTR) => bytes.clear(),
            Err(error) => return Err(TerminalError::Io(error)),
        }
        Ok(bytes)
    }

    /// Sends bytes to the host. Bytes that nothing reads are lost.
    ///
    /// Errors: the terminal failed.
    pub fn write(&self, bytes: &[u8]) -> Result<(), TerminalError> {
        match rustix::io::write(&self.module, bytes) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(TerminalError::Io(error)),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Another module may have replaced the link.
        if let Some(link) = self.link.take().filter(|link| link.read_link().is_ok_and(|path| path == self.path)) {
            let _ = std::fs::remove_file(link);
        }
    }
}

fn create_link(path: &Path, link: &Path) -> Result<(), TerminalError> {
    let failed = |error| TerminalError::Link { link: link.to_owned(), path: path.to_owned(), error };
    match link.symlink_metadata() {
        Ok(existing) if existing.file_type().is_symlink() => std::fs::remove_file(link).map_err(failed)?,
        Ok(_) => return Err(TerminalError::Exists(link.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    symlink(path, link).map_err(failed)
}
