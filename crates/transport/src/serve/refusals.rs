//! Errors to connections that are not admitted.

use std::{cell::Cell, rc::Rc, time::Duration};

use millrace_protocol::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::http::{Body, encode_head, problem};

/// Maximum number of refused connections per shard that receive an error at the same time. Further connections are
/// closed without one.
const SENDING_MAX: usize = 64;
/// Maximum time for sending the error.
const PATIENCE: Duration = Duration::from_secs(1);
/// First byte of a TLS handshake record. A TLS client cannot read a plain-text error. Source: RFC 8446, section 5.1.
const TLS_HANDSHAKE: u8 = 22;

/// Sends the reason of the refusal to connections that are not admitted.
#[derive(Default)]
pub struct Refusals {
    sending: Rc<Cell<usize>>,
}

impl Refusals {
    pub fn send(&self, mut stream: TcpStream, error: &Error) {
        if self.sending.get() >= SENDING_MAX {
            return;
        }
        self.sending.set(self.sending.get() + 1);
        let sending = self.sending.clone();
        let (head, body) = problem(error).into_parts();
        let mut answer = encode_head(&http::Response::from_parts(head, Body::Whole(None)));
        answer.extend(body.into_whole());
        tokio::task::spawn_local(async move {
            let send = async {
                // Read the request first. Closing with unread bytes would reset the connection and lose the error.
                let mut request = [0; 4096];
                if !matches!(stream.read(&mut request).await, Ok(1..)) || request[0] == TLS_HANDSHAKE {
                    return;
                }
                let _ = stream.write_all(&answer).await;
                let _ = stream.shutdown().await;
                while matches!(stream.read(&mut request).await, Ok(1..)) {}
            };
            let _ = tokio::time::timeout(PATIENCE, send).await;
            sending.set(sending.get() - 1);
        });
    }
}
