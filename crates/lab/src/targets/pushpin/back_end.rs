//! The back end that Pushpin queries for each new connection. It responds that the path is the channel.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    thread::JoinHandle,
    time::Duration,
};

use memchr::memmem;

/// Read timeout of a request.
const PATIENCE: Duration = Duration::from_secs(1);
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// A back end thread. Dropping this value ends the thread.
pub struct BackEnd {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BackEnd {
    pub fn start() -> anyhow::Result<BackEnd> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || {
            for stream in listener.incoming().take_while(|_| !stopped.load(Acquire)) {
                // An invalid request gets no response.
                let _ = stream.and_then(answer);
            }
        };
        let thread = Some(std::thread::Builder::new().name("lab-back-end".into()).spawn(body)?);
        Ok(BackEnd { address, stop, thread })
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        // Wakes the thread from `accept`.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    while memmem::find(&request, b"\r\n\r\n").is_none() {
        let length = stream.read(&mut piece)?;
        if length == 0 || request.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
        request.extend_from_slice(&piece[..length]);
    }
    let path = request.split(|byte| *byte == b' ').nth(1).and_then(|path| path.strip_prefix(b"/")).unwrap_or_default();
    let hold = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\nGrip-Hold: stream\r\nGrip-Channel: {}\r\n\
         Content-Length: 0\r\n\r\n",
        String::from_utf8_lossy(path)
    );
    stream.write_all(hold.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_is_read_from_the_path() {
        let back_end = BackEnd::start().unwrap();
        let mut stream = TcpStream::connect(back_end.address).unwrap();
        stream.write_all(b"GET /lab/all HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("Grip-Hold: stream\r\nGrip-Channel: lab/all\r\n"), "{answer}");
    }
}
