//! A kit between its channels and a serial device.
//!
//! - [`channels`]: reads the commands of a kit from its channel, and publishes its reports
//! - [`device`]: opens a serial device
//! - [`operate`]: connects the driver of a kit with a serial device, again and again

mod channels;
mod device;
mod operate;

pub use channels::{ChannelError, Channels, Reports};
pub use device::{Device, DeviceError};
pub use operate::operate;
