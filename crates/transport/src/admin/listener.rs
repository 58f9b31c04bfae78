use std::{convert::Infallible, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, request::Parts};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use millrace_protocol::{Code, Error};
use tokio::{net::TcpListener, sync::Semaphore, task::spawn_local};

use super::BODY_BYTES_MAX;
use crate::{
    accept::cannot_accept,
    http::{Response, problem},
};

/// Maximum number of concurrent admin connections.
const CONNECTIONS_MAX: usize = 64;
/// Timeout for the head of a request, and for its body.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves admin requests over HTTP/1.1 until the task is dropped. Must run inside a `LocalRuntime` or a `LocalSet`.
pub async fn serve<F: Future<Output = Response> + 'static>(
    listener: TcpListener,
    answer: impl Fn(Parts, Bytes) -> F + 'static,
) {
    let answer = Rc::new(answer);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(connection_slot) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                cannot_accept(&error, "an admin connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let answer = answer.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer.clone();
            async move {
                let (parts, body) = request.into_parts();
                let read = tokio::time::timeout(PATIENCE, Limited::new(body, BODY_BYTES_MAX).collect());
                let body = read.await.ok().and_then(Result::ok);
                Ok::<_, Infallible>(match body {
                    Some(body) => answer(parts, body.to_bytes()).await,
                    None => problem(&Error::new(Code::TooLarge, "the body is too large, or arrived too slowly")),
                })
            }
        });
        spawn_local(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "an admin connection broke");
            }
            drop(connection_slot);
        });
    }
}
