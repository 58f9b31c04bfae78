//! A minimal HTTP server for tests, which the nodes call: a back end or a push service.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
};

/// A request of a node.
pub struct Received {
    pub path: String,
    pub body: Vec<u8>,
}

/// Serves on a free port until the process ends, and returns the port. `answer` returns the status line and the headers
/// of each answer, for example `204 No Content`; an answer has no body.
pub fn serve(answer: impl Fn(Received) -> String + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || drop(receive(stream, &*answer)));
        }
    });
    port
}

/// Answers the requests of one connection.
fn receive(mut stream: TcpStream, answer: &dyn Fn(Received) -> String) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let (mut line, mut path, mut length) = (String::new(), String::new(), 0);
        while reader.read_line(&mut line)? > 0 && line != "\r\n" {
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().expect("a length");
                }
                _ if path.is_empty() => path = line.split(' ').nth(1).unwrap_or_default().to_owned(),
                _ => {}
            }
            line.clear();
        }
        if line.is_empty() {
            return Ok(());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let head = answer(Received { path, body });
        write!(stream, "HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n")?;
    }
}
