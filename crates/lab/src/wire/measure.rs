//! Measures the bytes of one client on one transport: connection, isolated messages, heartbeats, and close.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};

use super::{
    tap::{Tap, settle},
    tcp_info::TcpInfo,
};
use crate::{
    load::{
        LoadTarget, Role,
        payload::Stamp,
        websocket::{CLOSE, TEXT, frame_into},
    },
    targets::{ClientOptions, Endpoint, Server, Target, Transport},
    wire_cost::{Bytes, DirectionalBytes, Side, Unit},
};

/// Maximum time of an exchange that counts as in time. Linux delays an ACK by at least 40 ms. If a busy machine
/// answers later than that, a separate ACK precedes the answer. That ACK is an effect of the machine, not of the
/// transport.
const ANSWERED_WITHIN: Duration = Duration::from_millis(35);
/// Maximum number of late exchanges that are repeated, per planned message. Further late exchanges are counted.
const LATE_PER_MESSAGE: u64 = 2;

/// Plan of the measurement on each transport.
#[derive(Clone, Debug)]
pub struct Plan {
    pub channel: String,
    pub payload_bytes: usize,
    /// Number of messages before counting starts, because new connections behave differently.
    pub warm_up: u64,
    pub messages: u64,
    /// Number of heartbeats or empty answers to measure. Heartbeats between messages do not count.
    ///
    /// If messages and heartbeats use the same server, its heartbeat interval must be longer than the time for all
    /// messages. Two servers are better.
    pub silences: u64,
    /// Timeout of each wait.
    pub patience: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            channel: "cars/telemetry".into(),
            payload_bytes: 134,
            warm_up: 2,
            messages: 12,
            silences: 0,
            patience: Duration::from_secs(10),
        }
    }
}

/// Result for one transport.
pub struct Measured {
    pub transport: Transport,
    pub counted: Vec<Counted>,
    /// Both connections, still open, with their traffic. The model reads the size of HTTP heads from it.
    pub subscriber: Tap,
    pub publisher: Tap,
}

/// Total bytes of `count` units.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub side: Side,
    pub unit: Unit,
    pub count: u64,
    pub bytes: DirectionalBytes,
    pub again: u64,
}

impl Plan {
    /// Returns the channel for a transport. Each transport has its own channel, with a name of the same length.
    pub fn channel_of(&self, transport: Transport) -> String {
        format!("{}/{}", self.channel, transport as u8)
    }
}

/// Measures all transports at the same time. The byte counts do not depend on speed.
///
/// Errors: the first error of [`measure`].
pub fn each(
    target: &'static dyn Target,
    server: &Server,
    transports: &[Transport],
    plan: &Plan,
) -> anyhow::Result<Vec<Measured>> {
    thread::scope(|scope| {
        let one = |transport| {
            // Polls are sent on demand, so the timer interval is longer than the measurement.
            let endpoint = Endpoint::new(target, transport, server, Duration::from_secs(86_400));
            measure(transport, &endpoint, plan).with_context(|| format!("{transport}\n{}", server.log_tail()))
        };
        let begun: Vec<_> = transports.iter().map(|transport| scope.spawn(move || one(*transport))).collect();
        begun.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a measurement died"))?).collect()
    })
}

/// Measures one transport of Millrace, or of another target that answers polls on demand. Takes about a third of a
/// second per message.
///
/// Errors: the server does not behave as the transport requires.
pub fn measure(transport: Transport, target: &dyn LoadTarget, plan: &Plan) -> anyhow::Result<Measured> {
    let patience = plan.patience;
    let channel = plan.channel_of(transport);
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

    let mut subscriber = Tap::open(target.address(), target.dialect(Role::Subscriber, &channel), patience)?;
    subscriber.until(patience, "ready to read", |received| received.is_ready)?;
    let mut publisher = Tap::open(target.address(), target.dialect(Role::Publisher, &channel), patience)?;
    publisher.until(patience, "ready to publish", |received| received.is_ready)?;
    let [read, published] = settle([&mut subscriber, &mut publisher], patience)?;
    count(Side::Deliver, Unit::Connection, 1, read, 0, 0);
    count(Side::Publish, Unit::Connection, 1, published, 0, 0);

    // Returns the counters of both ends after they are idle again, and whether the exchange was in time.
    let exchange = |subscriber: &mut Tap, publisher: &mut Tap, sequence: u64| {
        let began = Instant::now();
        let mut payload = Vec::new();
        Stamp { stream: 0, sequence, due_ns: 0 }.write(plan.payload_bytes, &mut payload);
        let messages = subscriber.received.messages + 1;
        publisher.publish(&payload)?;
        if transport != Transport::WebSocket {
            publisher.until(patience, "accepted", |received| received.accepted > sequence)?;
        }
        if transport == Transport::Polling {
            subscriber.poll()?;
        }
        subscriber.until(patience, "delivered", |received| received.messages >= messages)?;
        let in_time = began.elapsed() < ANSWERED_WITHIN;
        anyhow::Ok((settle([subscriber, publisher], patience)?, in_time))
    };
    let mut last = [read, published];
    for sequence in 0..plan.warm_up {
        (last, _) = exchange(&mut subscriber, &mut publisher, sequence)?;
    }
    let (mut sums, mut exchanged, mut late_left) = ([TcpInfo::default(); 2], 0, plan.messages * LATE_PER_MESSAGE);
    let mut sequence = plan.warm_up;
    while exchanged < plan.messages {
        let (now, in_time) = exchange(&mut subscriber, &mut publisher, sequence)?;
        sequence += 1;
        if in_time || late_left == 0 {
            exchanged += 1;
            for (sum, (now, last)) in sums.iter_mut().zip(now.iter().zip(&last)) {
                sum.add(&now.since(last));
            }
        } else {
            late_left -= 1;
        }
        last = now;
    }
    let payload = plan.messages * plan.payload_bytes as u64;
    if plan.messages > 0 {
        count(Side::Deliver, Unit::Message, plan.messages, sums[0], 0, payload);
        count(Side::Publish, Unit::Message, plan.messages, sums[1], payload, 0);
    }

    let silence = |subscriber: &mut Tap, times: u64| {
        let before = subscriber.received.reads;
        for n in 1..=times {
            if transport == Transport::Polling {
                settle([subscriber], patience)?;
                subscriber.poll()?;
            }
            subscriber.until(patience, "a heartbeat or an empty answer", |received| received.reads >= before + n)?;
        }
        let [info] = settle([subscriber], patience)?;
        anyhow::Ok((info, subscriber.received.reads - before))
    };
    if plan.silences > 0 {
        // The first heartbeat shows the kernel that this end answers. After it, pongs carry the ACKs of pings.
        let (before, _) = silence(&mut subscriber, 1)?;
        let (after, times) = silence(&mut subscriber, plan.silences)?;
        count(Side::Deliver, Unit::Silence, times, after.since(&before), 0, 0);
    }

    let [before] = settle([&mut subscriber], patience)?;
    if matches!(transport, Transport::WebSocket | Transport::Session) {
        let mut close = Vec::new();
        frame_into(CLOSE, &1000_u16.to_be_bytes(), &mut close);
        subscriber.send_plain(&close)?;
        subscriber.until(patience, "closed", |received| received.is_closed)?;
        subscriber.shut()?;
        let [closed] = settle([&mut subscriber], patience)?;
        count(Side::Deliver, Unit::Close, 1, closed.since(&before), 0, 0);
    }

    Ok(Measured { transport, counted, subscriber, publisher })
}

/// Bytes of small messages on a plain WebSocket, sent one by one and in one write.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Bytes from the publisher when each message was sent alone.
    pub single: Bytes,
    /// Bytes to the reader when all messages were sent at once.
    pub together: Bytes,
}

/// Measures a [`Batch`] of `messages` messages.
///
/// Errors: the messages do not arrive.
pub fn batch(target: &dyn Target, server: &Server, messages: u64, payload_bytes: usize) -> anyhow::Result<Batch> {
    let patience = Plan::default().patience;
    let open = |role| -> anyhow::Result<Tap> {
        let ask = ClientOptions { role, channel: "batch", poll_every: Duration::ZERO };
        let mut tap = Tap::open(server.address, target.dialect(Transport::WebSocket, &ask), patience)?;
        tap.until(patience, "ready", |received| received.is_ready)?;
        Ok(tap)
    };
    let (mut subscriber, mut publisher) = (open(Role::Subscriber)?, open(Role::Publisher)?);
    let payload = vec![b'x'; payload_bytes];
    let bytes = messages * payload_bytes as u64;
    let [_, before] = settle([&mut subscriber, &mut publisher], patience)?;
    for n in 1..=messages {
        publisher.publish(&payload)?;
        subscriber.until(patience, "delivered", |received| received.messages == n)?;
    }
    let [read, said] = settle([&mut subscriber, &mut publisher], patience)?;
    let mut frames = Vec::new();
    (0..messages).for_each(|_| frame_into(TEXT, &payload, &mut frames));
    publisher.send_plain(&frames)?;
    subscriber.until(patience, "delivered together", |received| received.messages == 2 * messages)?;
    let [together] = settle([&mut subscriber], patience)?;
    Ok(Batch { single: said.since(&before).bytes(bytes, 0).up, together: together.since(&read).bytes(0, bytes).down })
}
