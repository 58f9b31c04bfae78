//! A serial device with 9600 baud, 8 data bits, no parity and 1 stop bit.

use std::{fs::File, io::ErrorKind, path::Path};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
    termios::{ControlModes, OptionalActions, QueueSelector, isatty, tcflush, tcgetattr, tcsetattr},
};
use tokio::net::unix::pipe;

const BAUD: u32 = 9600;
/// Longest read at once in bytes.
const READ_BYTES: usize = 1024;

/// Reason why a serial device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("the serial device cannot be opened: {0}")]
    Open(std::io::Error),
    #[error("the serial device is used by another program")]
    InUse,
    #[error("the path is no serial device")]
    NotSerial,
    #[error("the serial device was disconnected; the gateway opens it again")]
    Disconnected,
}

impl From<Errno> for DeviceError {
    fn from(error: Errno) -> Self {
        Self::Open(error.into())
    }
}

/// An open serial device.
///
/// Tokio has no type for serial devices. Its ends of pipes read and write every file with readiness events, so they
/// serve for terminals, too.
pub struct Device {
    receiver: pipe::Receiver,
    sender: pipe::Sender,
}

impl Device {
    /// Opens a serial device, sets its speed and format, and discards bytes that were received before.
    ///
    /// Errors: the device is missing, is no serial device, or another gateway uses it.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty())?;
        if !isatty(&fd) {
            return Err(DeviceError::NotSerial);
        }
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(DeviceError::InUse),
            locked => locked?,
        }
        let mut settings = tcgetattr(&fd)?;
        settings.make_raw();
        settings.set_speed(BAUD)?;
        settings.control_modes &= !(ControlModes::CSTOPB | ControlModes::CRTSCTS);
        settings.control_modes |= ControlModes::CREAD | ControlModes::CLOCAL;
        tcsetattr(&fd, OptionalActions::Now, &settings)?;
        tcflush(&fd, QueueSelector::IOFlush)?;
        let file = File::from(fd);
        let copy = file.try_clone().map_err(DeviceError::Open)?;
        let receiver = pipe::Receiver::from_file_unchecked(file).map_err(DeviceError::Open)?;
        let sender = pipe::Sender::from_file_unchecked(copy).map_err(DeviceError::Open)?;
        Ok(Self { receiver, sender })
    }

    /// Returns the next received bytes.
    ///
    /// Errors: the device was disconnected.
    pub async fn read(&self) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            self.receiver.readable().await.map_err(|_| DeviceError::Disconnected)?;
            match self.receiver.try_read(&mut bytes) {
                Ok(count @ 1..) => {
                    bytes.truncate(count);
                    return Ok(bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => return Err(DeviceError::Disconnected),
            }
        }
    }

    /// Sends all bytes.
    ///
    /// Errors: the device was disconnected.
    pub async fn write(&self, mut bytes: &[u8]) -> Result<(), DeviceError> {
        while !bytes.is_empty() {
            self.sender.writable().await.map_err(|_| DeviceError::Disconnected)?;
            match self.sender.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(DeviceError::Disconnected),
            }
        }
        Ok(())
    }
}
