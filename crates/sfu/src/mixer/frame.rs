use std::time::Duration;

/// Samples per second. A packet has [`FRAME`] samples, which last 20 ms.
pub const CLOCK_HZ: u32 = 48_000;
pub const FRAME: usize = 960;
pub const FRAME_TIME: Duration = Duration::from_millis(20);
