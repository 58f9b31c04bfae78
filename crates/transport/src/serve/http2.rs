//! HTTP/2 connections.

use std::{convert::Infallible, rc::Rc};

use http::Request;
use hyper::{body::Incoming, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::spawn_local;

use super::{http1::HEAD_BYTES_MAX, write_timeout::WriteTimeoutStream};
use crate::{
    connection::HttpClient,
    http::Response,
    route::{Context, Handover, route},
    tls,
};

/// Maximum number of streams per HTTP/2 connection. It is enough for the tabs of one browser, and low enough that
/// one client cannot take all capacity.
const STREAMS_MAX: u32 = 256;
/// Flow-control window of an HTTP/2 connection and of each of its streams, in bytes. It limits how far the client
/// can send ahead of the server's reads.
const WINDOW_BYTES: u32 = 256 * 1024;
/// Maximum bytes buffered per HTTP/2 response before the server produces more of it.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of streams that a client may open and reset before the server has accepted them ("rapid reset").
/// Above it, the connection is closed. Source: CVE-2023-44487; RFC 9113, section 10.5.
const RESETS_MAX: usize = 64;

/// Serves an HTTP/2 connection until it ends.
pub(super) async fn serve_http2(
    context: Rc<Context>,
    stream: tls::Stream,
    client: Rc<HttpClient>,
) -> hyper::Result<()> {
    let service = {
        let (context, client) = (context.clone(), client.clone());
        service_fn(move |mut request: Request<Incoming>| {
            let context = context.clone();
            client.take(&mut request, &context.admission.limits);
            async move {
                let (response, handover) = route(context.clone(), request).await;
                let response = match handover {
                    Some(Handover::Stream(stream)) => {
                        stream.respond(&context.shard, &context.admission, response).await
                    }
                    Some(Handover::WebSocket(_) | Handover::Mqtt | Handover::LongPoll(_)) | None => response,
                };
                Ok::<Response, Infallible>(response)
            }
        })
    };
    let (config, limits) = (context.admission.config(), context.admission.limits.clone());
    let mut connection = http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .max_send_buf_size(SEND_BYTES_MAX)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .keep_alive_interval(config.heartbeat)
        .keep_alive_timeout(config.grace)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream, limits, config.write_timeout)), service);
    let drains = context.admission.drains();
    tokio::pin!(drains);
    let mut is_shutting_down = false;
    loop {
        tokio::select! {
            ended = std::future::poll_fn(|cx| {
                let ended = Pin::new(&mut connection).poll(cx);
                if client.is_spent() && !is_shutting_down {
                    is_shutting_down = true;
                    Pin::new(&mut connection).graceful_shutdown();
                    return Pin::new(&mut connection).poll(cx);
                }
                ended
            }) => return ended,
            _ = &mut drains, if !is_shutting_down => {
                is_shutting_down = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    }
}

/// Executor that spawns tasks on the current thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}
