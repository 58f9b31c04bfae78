//! One connection through a middlebox.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::*},
    },
    time::{Duration, Instant},
};

const READ_BYTES: usize = 16 * 1024;

/// ```text
///   known ──idle for longer than `idle`, or `forget`──► forgotten: all bytes are discarded, neither end is notified
/// ```
pub struct Flow {
    pub client: TcpStream,
    pub server: TcpStream,
    idle: Duration,
    last: Mutex<Instant>,
    is_forgotten: AtomicBool,
}

impl Flow {
    pub fn new(client: TcpStream, server: TcpStream, idle: Duration, now: Instant) -> Self {
        Self { client, server, idle, last: Mutex::new(now), is_forgotten: AtomicBool::new(false) }
    }

    pub fn forget(&self) {
        self.is_forgotten.store(true, Release);
    }

    /// Records traffic and returns whether it may pass. Forgets the connection if it was idle for too long.
    fn may_pass(&self, now: Instant) -> bool {
        let mut last = lock(&self.last);
        if now.saturating_duration_since(*last) > self.idle {
            self.forget();
        }
        *last = now;
        !self.is_forgotten.load(Acquire)
    }

    /// Copies one direction until it ends. The end of the stream is forwarded or discarded like data.
    pub fn pass(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let length = from.read(&mut bytes).unwrap_or(0);
            let passes = self.may_pass(Instant::now());
            if length == 0 {
                if passes {
                    let _ = to.shutdown(Shutdown::Write);
                }
                return;
            }
            if passes && to.write_all(&bytes[..length]).is_err() {
                return;
            }
        }
    }
}

/// Locks a value that the threads of a middlebox share.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn idle_time_counts_from_last_packet() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let end = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let start = Instant::now();
        let flow = Flow::new(end(), end(), Duration::from_secs(10), start);
        let at = |seconds| flow.may_pass(start + Duration::from_secs(seconds));
        assert!(at(9) && at(18) && at(28));
        assert!(!at(39) && !at(40), "once forgotten, for ever");
    }
}
