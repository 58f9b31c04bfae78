use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// Timer with a fixed interval. It uses a kernel timer that is set once. With a timer of the runtime, each sleep of
/// the thread would set a kernel timer and each wake-up would cancel it, which costs 4 % with thousands of small
/// messages (docs/explanation/performance.md).
pub struct Ticks(AsyncFd<OwnedFd>);

impl Ticks {
    /// Creates a timer whose first tick is due at once. Must run inside a runtime.
    ///
    /// Errors: the process has no file descriptor left, or the runtime cannot watch the timer.
    pub fn every(interval: Duration) -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let it_interval = Timespec::try_from(interval).map_err(io::Error::other)?;
        let it_value = Timespec { tv_sec: 0, tv_nsec: 1 };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
        // SAFETY: an `OwnedFd` is open, and refers to the same descriptor, for its whole lifetime.
        Ok(Self(unsafe { AsyncFd::register(timer) }?))
    }

    /// Waits for the next tick. Missed ticks are merged into one. Returns the number of ticks that it stands for.
    ///
    /// Errors: the runtime is shutting down.
    pub async fn next(&self) -> io::Result<u64> {
        let read = |timer: &OwnedFd| {
            let mut ticks = [0; 8];
            rustix::io::read(timer, &mut ticks)?;
            Ok(u64::from_ne_bytes(ticks))
        };
        self.0.async_io(tokio::io::Interest::READABLE, read).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn missed_ticks_are_merged() {
        const INTERVAL: Duration = Duration::from_millis(20);
        let began = Instant::now();
        let ticks = Ticks::every(INTERVAL).unwrap();
        for _ in 0..4 {
            ticks.next().await.unwrap();
        }
        assert!(began.elapsed() >= 3 * INTERVAL, "the first came at once");
        std::thread::sleep(4 * INTERVAL);
        for _ in 0..3 {
            ticks.next().await.unwrap();
        }
        assert!(began.elapsed() >= 9 * INTERVAL, "of four that were missed, three never came");
    }
}
