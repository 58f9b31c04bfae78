use std::{convert::Infallible, io, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, header, request::Parts};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use millrace_protocol::{Code, Error};
use tokio::{net::TcpListener, sync::Semaphore, task::spawn_local};

use super::BODY_BYTES_MAX;
use crate::{
    accept::cannot_accept,
    admission::limits::Limits,
    http::{Response, problem},
    route::Arrival,
    serve::write_timeout::WriteTimeoutStream,
    tls::Stream,
};

/// Maximum number of concurrent admin connections.
const CONNECTIONS_MAX: usize = 64;
/// Timeout for the head of a request, and for its body.
const PATIENCE: Duration = Duration::from_secs(10);

/// First bytes of the connections that [`serve`] keeps: requests that this thread answers.
const OWN: [&[u8]; 7] = [
    b"GET /admin/",
    b"POST /admin/",
    b"GET /v1/admin/",
    b"POST /v1/admin/",
    b"GET /healthz ",
    b"GET /metrics ",
    b"GET /readyz ",
];

/// Serves admin requests over HTTP/1.1 until the task is dropped. A connection that begins with another request, such
/// as that of a page or a session, is handed over to a shard. A client that reads nothing of an answer for
/// `write_timeout` is disconnected, so that it does not keep one of the few places. Must run inside a `LocalRuntime` or
/// a `LocalSet`.
pub async fn serve<F: Future<Output = Response> + 'static>(
    listener: TcpListener,
    (limits, write_timeout): (Arc<Limits>, Duration),
    answer: impl Fn(Parts, Bytes) -> F + 'static,
    hand_over: impl Fn(Arrival) + 'static,
) {
    let (answer, hand_over) = (Rc::new(answer), Rc::new(hand_over));
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(connection_slot) = room.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                cannot_accept(&error, "an admin connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (answer, hand_over, limits) = (answer.clone(), hand_over.clone(), limits.clone());
        spawn_local(async move {
            let mut stream = Stream::plain(stream);
            match tokio::time::timeout(PATIENCE, is_own(&mut stream)).await {
                Ok(Ok(true)) => serve_connection(WriteTimeoutStream::new(stream, limits, write_timeout), answer).await,
                Ok(Ok(false)) => {
                    let parts = stream.into_parts();
                    if let Ok(stream) = parts.tcp.into_std() {
                        hand_over(Arrival { stream, head: parts.head, address: peer.ip() });
                    }
                }
                Ok(Err(_)) | Err(_) => {}
            }
            drop(connection_slot);
        });
    }
}

/// Returns true if the first request is one of [`OWN`].
async fn is_own(stream: &mut Stream) -> io::Result<bool> {
    for own in OWN {
        if stream.starts_with(own).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn serve_connection<F: Future<Output = Response> + 'static>(
    stream: WriteTimeoutStream<Stream>,
    answer: Rc<impl Fn(Parts, Bytes) -> F + 'static>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            // A browser would send its next request, whatever it is, on this connection.
            let is_browser = parts.headers.contains_key("sec-fetch-site");
            let read = tokio::time::timeout(PATIENCE, Limited::new(body, BODY_BYTES_MAX).collect());
            let body = read.await.ok().and_then(Result::ok);
            let mut response = match body {
                Some(body) => answer(parts, body.to_bytes()).await,
                None => problem(&Error::new(Code::TooLarge, "the body is too large, or arrived too slowly")),
            };
            if is_browser {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "an admin connection broke");
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        task::LocalSet,
    };

    use super::*;
    use crate::{Config, http::text};

    #[tokio::test]
    async fn client_that_reads_nothing_loses_its_connection() {
        const BYTES: usize = 64 << 20;
        let limits = Limits::new(&Config::default(), 1024);
        let refused = || limits.refused().find(|(name, _)| *name == "write_timeout").unwrap().1;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = |_, _| async { text(StatusCode::OK, "text/plain", "x".repeat(BYTES)) };
        let serving = serve(listener, (limits.clone(), Duration::from_millis(200)), answer, |_| {});
        let client = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            while refused() == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let mut read = Vec::new();
            // The end may be a reset.
            _ = stream.read_to_end(&mut read).await;
            assert!(read.len() < BYTES, "the whole answer arrived");
        };
        let both = async {
            tokio::select! { () = serving => {}, () = client => {} }
        };
        tokio::time::timeout(PATIENCE, LocalSet::new().run_until(both)).await.expect("the connection remains open");
    }
}
