//! HTTP/1.1 connections in hyper. A connection leaves hyper for the event loop when it becomes a reader, or when its
//! long poll waits.

use std::{cell::RefCell, convert::Infallible, os::fd::OwnedFd, rc::Rc, task::Poll, time::Duration};

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Request, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{io::AsyncWriteExt, task::spawn_local};

use super::{server::Server, write_timeout::WriteTimeoutStream};
use crate::{
    admission::limits::{ConnectionSlot, Limit},
    connection::{Http1Connection, HttpClient},
    http::{Response, encode_head},
    route::{Context, Handover, route},
    tls,
    transports::{stream, websocket},
};

/// Maximum size of a request head in bytes. The names of a hundred channels with their positions fit, twice, even if
/// the names have the maximum length.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How a connection continues after it has left hyper.
struct Next {
    handover: Handover,
    /// Head of the response, as far as it is known.
    head: Response,
    /// True if the connection closes after the response, if the response has an end.
    closes: bool,
}

/// Serves an HTTP/1.1 connection until it ends or the event loop takes it over.
pub(super) async fn serve_http1(
    server: Rc<Server>,
    stream: tls::Stream,
    client: Rc<HttpClient>,
    connection_slot: ConnectionSlot,
) {
    let admission = &server.context.admission;
    let (limits, header_timeout) = (admission.limits.clone(), admission.config().header_timeout);
    if let Err(error) = http1(server, stream, header_timeout, client.clone(), connection_slot).await {
        // Count only a client that has sent no request at all. After a request a client may be idle for this long.
        if error.is_timeout() && client.requests.get() == 0 {
            limits.count(Limit::HeaderTimeout);
        }
        tracing::debug!(%error, "an HTTP/1.1 connection failed");
    }
}

async fn http1(
    server: Rc<Server>,
    stream: tls::Stream,
    header_timeout: Duration,
    client: Rc<HttpClient>,
    connection_slot: ConnectionSlot,
) -> hyper::Result<()> {
    let next = Rc::new(RefCell::new(None::<Next>));
    let (unsent, is_tls) = (stream.unsent(), stream.is_tls());
    let service = {
        let (context, next, client) = (server.context.clone(), next.clone(), client.clone());
        service_fn(move |mut request: Request<Incoming>| {
            let is_last = client.take(&mut request, &context.admission.limits) || context.admission.is_draining();
            let closes = is_last || asks_to_close(request.headers());
            // Boxed, so that the memory for a request is held only while the request is answered, not for the whole
            // connection.
            Box::pin(answer(context.clone(), request, is_last, closes, next.clone()))
        })
    };
    let context = server.context.clone();
    let (limits, write_timeout) = (context.admission.limits.clone(), context.admission.config().write_timeout);
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may close its sending side after its last request and still gets the response. Streams and
        // WebSockets have left hyper by then; they end when the client closes its side.
        .half_close(true)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream, limits, write_timeout)), service);
    // During a drain the client gets a response to its next request, and connects again after it. A connection that is
    // closed at once may lose a request that is on its way.
    let drained = async {
        let drain = context.admission.drains().await;
        tokio::time::sleep(drain.window).await;
    };
    tokio::pin!(drained);
    let mut is_shutting_down = false;
    loop {
        tokio::select! {
            ended = std::future::poll_fn(|cx| match connection.poll_without_shutdown(cx) {
                // All earlier responses have been sent, so the socket can leave hyper.
                Poll::Pending if next.borrow().is_some() && !unsent.get() => Poll::Ready(Ok(())),
                ended => ended,
            }) => {
                ended?;
                break;
            }
            () = &mut drained, if !is_shutting_down => {
                is_shutting_down = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    }
    let next = next.borrow_mut().take();
    if let Some(next) = next {
        // Free all state of hyper: its buffers need more memory than the rest of the connection.
        let parts = connection.into_parts();
        let tls::Parts { tcp, tls, head: unread } = parts.io.into_inner().into_inner().into_parts();
        let mut rest = BytesMut::with_capacity(parts.read_buf.len() + unread.len());
        rest.extend_from_slice(&parts.read_buf);
        rest.extend_from_slice(&unread);
        drop((parts.read_buf, unread, parts.service));
        if let Ok(stream) = tcp.into_std() {
            spawn_local(hand_over(server, next, client, stream.into(), tls, rest, connection_slot));
        }
    } else if is_tls {
        // End the TLS session explicitly (`close_notify`). Otherwise the client cannot distinguish a regular end from a
        // truncation by an attacker.
        let mut stream = connection.into_parts().io.into_inner();
        let _ = tokio::time::timeout(header_timeout, stream.shutdown()).await;
    }
    Ok(())
}

/// Answers a request. If the connection leaves hyper with it, this stores how in `next`, and never returns.
async fn answer(
    context: Rc<Context>,
    request: Request<Incoming>,
    is_last: bool,
    closes: bool,
    next: Rc<RefCell<Option<Next>>>,
) -> Result<Response, Infallible> {
    let (mut response, handover) = route(context, request).await;
    if let Some(handover) = handover {
        *next.borrow_mut() = Some(Next { handover, head: response, closes });
        // Keep hyper from sending this response. The event loop sends the head, and only after the connection is a
        // reader.
        return std::future::pending().await;
    }
    if is_last {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Passes a connection that has left hyper to the event loop. `rest`: the bytes that were received and not used.
async fn hand_over(
    server: Rc<Server>,
    next: Next,
    client: Rc<HttpClient>,
    fd: OwnedFd,
    tls: Option<Box<tls::Session>>,
    rest: BytesMut,
    connection_slot: ConnectionSlot,
) {
    let Next { handover, head, closes } = next;
    match handover {
        Handover::WebSocket(upgrade) => {
            websocket::adopt(&server.event_loop, fd, tls, rest.into(), upgrade, &head, connection_slot).await;
        }
        Handover::Mqtt => {
            if let Some(mqtt) = &server.mqtt {
                mqtt.adopt(fd, tls, &encode_head(&head), &mut rest.to_vec(), true, connection_slot);
            }
        }
        Handover::Stream(wanted) => {
            stream::adopt(&server.event_loop, fd, tls, wanted, head, connection_slot).await;
        }
        Handover::LongPoll(poll) => {
            let http = Http1Connection::new(client, head, &rest, closes);
            server.adopt_poll(fd, tls, http, poll, connection_slot).await;
        }
    }
}

/// Returns true if the request has `Connection: close`. Source: RFC 9112, section 9.6.
fn asks_to_close(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}
