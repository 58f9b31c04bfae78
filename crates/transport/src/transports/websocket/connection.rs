//! WebSocket connections on the event loop: decodes frames and handles messages.

use std::{os::fd::OwnedFd, rc::Rc};

use bytes::Bytes;
use millrace_delivery::ConnId;
use millrace_engine::Answer;
use millrace_node::Metrics;
use millrace_protocol::{
    Code, Kind, NewPublication, Transport,
    session::encode_reply,
    websocket::{self, CloseFrame, DecoderLimits, Message},
};

use super::{Upgrade, publish_queue};
use crate::{
    admission::{
        self, PublishTarget, Publishing,
        limits::{ConnectionQuotas, ConnectionSlot, Direction},
    },
    connection::{BarePublisher, ConnectionProtocol, EventLoop, Queued, encode_text},
    http::{Response, encode_head},
    session,
    tls::Session,
};

/// Returns the reason to close the connection of a client that sends a payload without the permission to publish.
fn forbidden() -> CloseFrame {
    CloseFrame { code: websocket::CLOSE_FORBIDDEN, reason: Code::Forbidden.name() }
}

/// Takes over a connection after its WebSocket upgrade. `rest` are the bytes received after the handshake, and
/// `head` is the response to it. A bare WebSocket that reads a channel gets the head only when it is a reader.
/// So the client receives every publication after the handshake.
pub async fn adopt(
    event_loop: &Rc<EventLoop>,
    fd: OwnedFd,
    tls: Option<Box<Session>>,
    rest: Bytes,
    upgrade: Upgrade,
    head: &Response,
    connection_slot: ConnectionSlot,
) {
    let shard = event_loop.shard();
    let encoding = upgrade.encoding();
    let Upgrade { caller, reader_slot, request, session, position, ticket, heartbeat, deflate } = upgrade;
    let heartbeat_s = event_loop.admission().config().heartbeat_s(heartbeat);
    let protocol = match (&request, session) {
        (Some(request), false) => {
            let target = caller.may_publish(request.channels[0].0.clone()).ok();
            ConnectionProtocol::Bare { target: target.map(|target| target.repeated(shard)) }
        }
        _ => ConnectionProtocol::Session,
    };
    let id = shard.with(|hub, sockets| {
        let id = hub.connect_with(encoding, heartbeat_s);
        sockets.add_socket(
            id,
            fd,
            tls,
            protocol,
            deflate.is_some(),
            ConnectionQuotas::new(connection_slot, reader_slot),
        );
        sockets.set_caller(id, caller.clone(), if session { Transport::Session } else { Transport::WebSocket });
        id
    });
    let request = request.filter(|request| request.subscribe);
    let mut head = encode_head(head);
    if session || request.is_none() {
        shard.with(|hub, sockets| hub.send(id, &std::mem::take(&mut head), sockets));
    }
    if session {
        session::begin(event_loop, id, &caller, ticket.as_deref(), heartbeat_s).await;
    }
    if let Some(request) = request {
        let now_ms = shard.engine.now_ms();
        let preamble = |starts: &[millrace_node::Start]| match session {
            true => encode_text(shard, id, &session::subscribed(0, &starts[0], now_ms)),
            false => {
                let mut bytes = std::mem::take(&mut head);
                if position {
                    bytes.extend(encode_text(shard, id, &starts[0].position.to_string()));
                }
                bytes
            }
        };
        if let Err(error) = shard.subscribe(id, &request.starts(), request.policy, preamble).await {
            if session {
                event_loop.send_text(id, &encode_reply(0, &Err(error)));
            } else {
                shard.with(|hub, sockets| hub.send(id, &head, sockets));
                event_loop.close(id, CloseFrame { code: websocket::CLOSE_TRY_LATER, reason: error.code.name() });
            }
        }
    }
    if !rest.is_empty() {
        received(event_loop, id, &mut rest.to_vec());
    }
    event_loop.watch(id);
    shard.turn();
}

/// Decodes received bytes and handles the messages. Returns false if the connection is not a WebSocket.
pub fn received(event_loop: &Rc<EventLoop>, id: ConnId, bytes: &mut [u8]) -> bool {
    let shard = event_loop.shard();
    let Some((mut decoder, mut protocol, deflate)) = shard.with(|hub, sockets| {
        let socket = sockets.socket(id)?;
        // Notify the hub only once per second: the hub's entry of this connection is usually not in the cache.
        if socket.is_first_of_second(hub.now_s()) {
            hub.heard(id);
        }
        if let ConnectionProtocol::Stream(_) | ConnectionProtocol::Http(_) | ConnectionProtocol::Mqtt(_) =
            socket.protocol
        {
            return None;
        }
        // Moved, not copied, because the channel name is usually not in the cache either.
        let protocol = std::mem::replace(&mut socket.protocol, ConnectionProtocol::Session);
        Some((std::mem::take(&mut socket.decoder), protocol, socket.deflate))
    }) else {
        return false;
    };
    let max = event_loop.admission().config().message_bytes_max.max(1);
    // The envelope of a session message needs room beside the largest payload, which may be base64.
    let message_bytes_max = if matches!(protocol, ConnectionProtocol::Session) { max.saturating_mul(2) } else { max };
    let config = event_loop.admission().config();
    let (fragments_max, inflate_ratio_max) = (config.fragments_max, config.inflate_ratio_max);
    let decoder_limits = DecoderLimits { message_bytes_max, fragments_max, inflate_ratio_max, deflate };
    let held = decoder.buffered_bytes();
    let mut messages = 0;
    let decoded = decoder.decode(bytes, decoder_limits, |message| {
        messages += 1;
        handle_message(event_loop, id, &mut protocol, message)
    });
    event_loop.send_pongs(id);
    let holds = decoder.buffered_bytes();
    let is_session = matches!(protocol, ConnectionProtocol::Session);
    let may_send = !matches!(protocol, ConnectionProtocol::Bare { target: None });
    if let Some(socket) = shard.sockets().socket(id) {
        (socket.decoder, socket.protocol) = (decoder, protocol);
    }
    if held != holds {
        event_loop.update_pending_bytes(id, Direction::In);
    }
    // Only a session has replies. For other connections this skips the hub entry, which is usually not in the
    // cache.
    if is_session {
        event_loop.update_pending_bytes(id, Direction::Out);
    }
    event_loop.pace(id, messages);
    if let Err(close) = decoded {
        // The permission comes before the size, as on every other path.
        let close = if may_send { close } else { forbidden() };
        event_loop.admission().limits.count_close(close);
        // Deliver the publications before the invalid frame, also to this reader.
        shard.turn();
        event_loop.close(id, close);
    }
    true
}

/// Handles a message. Returns false if no further messages may be decoded.
fn handle_message(
    event_loop: &Rc<EventLoop>,
    id: ConnId,
    protocol: &mut ConnectionProtocol,
    message: Message<'_>,
) -> bool {
    if !matches!(message, Message::Ping(_)) {
        event_loop.send_pongs(id);
    }
    match (message, protocol) {
        (Message::Text(text), ConnectionProtocol::Session) => session::handle(event_loop, id, text),
        (Message::Binary(_), ConnectionProtocol::Session) => {
            event_loop.close(
                id,
                CloseFrame { code: websocket::CLOSE_UNSUPPORTED, reason: "a session accepts text messages only" },
            );
            return false;
        }
        (Message::Text(_) | Message::Binary(_), ConnectionProtocol::Bare { target: None }) => {
            event_loop.close(id, forbidden());
            return false;
        }
        (Message::Text(text), ConnectionProtocol::Bare { target: Some(target) }) => {
            publish(event_loop, id, target, NewPublication::new(Kind::Utf8, text));
        }
        (Message::Binary(data), ConnectionProtocol::Bare { target: Some(target) }) => {
            publish(event_loop, id, target, NewPublication::new(Kind::Binary, data));
        }
        (
            Message::Text(_) | Message::Binary(_),
            ConnectionProtocol::Stream(_) | ConnectionProtocol::Http(_) | ConnectionProtocol::Mqtt(_),
        ) => return false,
        (Message::Ping(payload), _) => {
            Metrics::add(&event_loop.shard().socket_metrics.pings, 1);
            websocket::encode(&mut event_loop.pongs.borrow_mut(), websocket::PONG, payload);
        }
        (Message::Pong, _) => {}
        (Message::Close(code), protocol) => {
            let code = code.unwrap_or(websocket::CLOSE_NORMAL);
            // Publications that wait for the back end come first.
            let is_queued = matches!(protocol, ConnectionProtocol::Bare { .. })
                && publish_queue::push_behind(event_loop, id, Queued::Close(code)).is_ok();
            if !is_queued {
                event_loop.close(id, CloseFrame { code, reason: "" });
            }
            return false;
        }
    }
    true
}

/// Publishes a message of a bare WebSocket. The protocol cannot report a refused publication, so the connection is
/// closed instead.
fn publish(event_loop: &Rc<EventLoop>, id: ConnId, target: &mut PublishTarget, publication: NewPublication) {
    let admission = event_loop.admission();
    if admission.may_delay(target.channel()) {
        return publish_queue::push(event_loop, id, target, publication);
    }
    let bytes_max = admission.config().message_bytes_max.max(1);
    let publisher = BarePublisher { event_loop, id };
    match admission::publish(event_loop.shard(), &publisher, bytes_max, target, publication) {
        Publishing::Decided(Answer::Now(Some(Ok(_)))) => {}
        Publishing::Decided(Answer::Now(Some(Err(error)))) => publish_queue::close(event_loop, id, &error),
        Publishing::Decided(answer) => {
            let event_loop = event_loop.clone();
            tokio::task::spawn_local(async move {
                if let Err(error) = answer.await {
                    publish_queue::close(&event_loop, id, &error);
                }
            });
        }
        // Unreachable: such a publication was queued above.
        Publishing::Asked(_) => {}
    }
}
