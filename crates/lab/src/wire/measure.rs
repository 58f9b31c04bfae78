//! What one client on one transport costs, counted: connection, messages that stand alone, silence, close.

use std::{net::SocketAddr, time::Duration};

use super::{
    Both, Side, Unit,
    tap::{Tap, settle},
    tcp_info::TcpInfo,
};
use crate::{
    load::{
        Role, Wire,
        payload::Stamp,
        websocket::{CLOSE, frame_into},
    },
    targets::Transport,
};

/// What is done on each transport.
#[derive(Clone, Debug)]
pub struct Plan {
    pub channel: String,
    pub payload_bytes: usize,
    /// Before anything is counted: connections behave differently while they are young.
    pub warm_up: u64,
    pub messages: u64,
    /// Heartbeats, or empty answers. The server must send them far apart: every two seconds, say.
    pub silences: u64,
    /// For each wait.
    pub patience: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            channel: "cars/1/telemetry".into(),
            payload_bytes: 134,
            warm_up: 3,
            messages: 12,
            silences: 2,
            patience: Duration::from_secs(10),
        }
    }
}

/// One transport's figures.
pub struct Measured {
    pub transport: Transport,
    pub counted: Vec<Counted>,
    /// What went over both connections, for the model to see what heads look like.
    pub subscriber: Conversation,
    pub publisher: Conversation,
}

/// Bytes of so many units together.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub side: Side,
    pub unit: Unit,
    pub count: u64,
    pub bytes: Both,
    pub again: u64,
}

/// A connection's bytes without packets, and its counters at the end.
pub struct Conversation {
    pub said: Vec<u8>,
    pub answered: Vec<u8>,
    pub local: SocketAddr,
    pub total: TcpInfo,
}

/// Measures a transport of Millrace (or of another target that answers polls on demand). Lasts about a third of a second a message.
///
/// Errors: the server does not do what the transport promises.
pub fn measure(transport: Transport, wire: &dyn Wire, plan: &Plan) -> anyhow::Result<Measured> {
    let patience = plan.patience;
    let channel = format!("{}/{transport}", plan.channel);
    let mut counted = Vec::new();
    let mut count = |side, unit, count, info: TcpInfo, payload_out, payload_in| {
        counted.push(Counted {
            side,
            unit,
            count,
            bytes: info.bytes(payload_out, payload_in),
            again: info.bytes_again,
        });
    };

    let mut subscriber = Tap::open(wire.address(), wire.dialect(Role::Subscriber, &channel), patience)?;
    subscriber.until(patience, "ready to read", |heard| heard.is_ready)?;
    let mut publisher = Tap::open(wire.address(), wire.dialect(Role::Publisher, &channel), patience)?;
    publisher.until(patience, "ready to publish", |heard| heard.is_ready)?;
    let [read, published] = settle([&mut subscriber, &mut publisher], patience)?;
    count(Side::Deliver, Unit::Connection, 1, read, 0, 0);
    count(Side::Publish, Unit::Connection, 1, published, 0, 0);

    let exchange = |subscriber: &mut Tap, publisher: &mut Tap, sequence: u64| {
        let mut payload = Vec::new();
        Stamp { stream: 0, sequence, due_ns: 0 }.write(plan.payload_bytes, &mut payload);
        let messages = subscriber.heard.messages + 1;
        publisher.publish(&payload)?;
        if transport != Transport::WebSocket {
            publisher.until(patience, "accepted", |heard| heard.accepted > sequence)?;
        }
        if transport == Transport::Polling {
            subscriber.poll()?;
        }
        subscriber.until(patience, "delivered", |heard| heard.messages >= messages)?;
        settle([subscriber, publisher], patience)
    };
    let [mut read, mut published] = [TcpInfo::default(); 2];
    for sequence in 0..plan.warm_up {
        [read, published] = exchange(&mut subscriber, &mut publisher, sequence)?;
    }
    let [before_read, before_published] = [read, published];
    for sequence in plan.warm_up..plan.warm_up + plan.messages {
        [read, published] = exchange(&mut subscriber, &mut publisher, sequence)?;
    }
    let payload = plan.messages * plan.payload_bytes as u64;
    count(Side::Deliver, Unit::Message, plan.messages, read.since(&before_read), 0, payload);
    count(Side::Publish, Unit::Message, plan.messages, published.since(&before_published), payload, 0);

    let before = subscriber.heard.reads;
    for n in 1..=plan.silences {
        if transport == Transport::Polling {
            settle([&mut subscriber], patience)?;
            subscriber.poll()?;
        }
        subscriber.until(patience, "a heartbeat or an empty answer", |heard| heard.reads >= before + n)?;
    }
    let [silent] = settle([&mut subscriber], patience)?;
    count(Side::Deliver, Unit::Silence, subscriber.heard.reads - before, silent.since(&read), 0, 0);

    if matches!(transport, Transport::WebSocket | Transport::Session) {
        let mut close = Vec::new();
        frame_into(CLOSE, &1000_u16.to_be_bytes(), &mut close);
        subscriber.say(&close)?;
        subscriber.until(patience, "closed", |heard| heard.is_closed)?;
        subscriber.shut()?;
        let [closed] = settle([&mut subscriber], patience)?;
        count(Side::Deliver, Unit::Close, 1, closed.since(&silent), 0, 0);
    }

    let converse = |tap: Tap| -> anyhow::Result<Conversation> {
        Ok(Conversation { local: tap.local()?, total: tap.info()?, said: tap.said, answered: tap.answered })
    };
    Ok(Measured { transport, counted, subscriber: converse(subscriber)?, publisher: converse(publisher)? })
}
