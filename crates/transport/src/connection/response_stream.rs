//! Streams over HTTP/2: the body of a response without an end is a connection of the hub.

use std::{
    cell::RefCell,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http_body::Frame;
use millrace_delivery::ConnId;
use millrace_protocol::Transport;

use super::VirtualConnection;
use crate::{Shard, admission::limits::ReaderSlot};

/// Maximum bytes buffered in the body of a stream. When the buffer is full, the connection is blocked.
const PIPE_BYTES_MAX: usize = 16 * 1024;

struct Pipe {
    state: RefCell<State>,
    transport: Transport,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    blocked: bool,
    closed: bool,
    waker: Option<Waker>,
}

impl VirtualConnection for Pipe {
    fn write(&self, bytes: &[u8]) -> usize {
        let mut state = self.state.borrow_mut();
        let taken = bytes.len().min(PIPE_BYTES_MAX.saturating_sub(state.bytes.len()));
        state.bytes.extend_from_slice(&bytes[..taken]);
        state.blocked |= taken < bytes.len();
        state.wake();
        taken
    }

    fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        state.wake();
    }

    fn bytes(&self) -> usize {
        self.state.borrow().bytes.capacity()
    }

    fn carrier(&self) -> Option<Transport> {
        Some(self.transport)
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Body of a response without an end. It contains the bytes that the hub writes to its connection.
pub struct PipeBody {
    pipe: Rc<Pipe>,
    shard: Rc<Shard>,
    conn: ConnId,
    _reader_slot: Option<ReaderSlot>,
}

impl PipeBody {
    /// Registers the endpoint of a connection. Dropping the body removes the connection.
    pub(crate) fn new(shard: &Rc<Shard>, conn: ConnId, transport: Transport, reader_slot: Option<ReaderSlot>) -> Self {
        let pipe = Rc::new(Pipe { state: RefCell::default(), transport });
        shard.sockets().add_virtual(conn, pipe.clone(), None);
        shard.socket_metrics.opened(transport, 1);
        Self { pipe, shard: shard.clone(), conn, _reader_slot: reader_slot }
    }
}

impl http_body::Body for PipeBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let (bytes, blocked) = {
            let mut pipe = self.pipe.state.borrow_mut();
            if pipe.bytes.is_empty() {
                if pipe.closed {
                    return Poll::Ready(None);
                }
                pipe.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            (std::mem::take(&mut pipe.bytes), std::mem::take(&mut pipe.blocked))
        };
        if blocked {
            self.shard.with(|hub, sockets| hub.writable(self.conn, sockets));
        }
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }
}

impl Drop for PipeBody {
    fn drop(&mut self) {
        self.shard.socket_metrics.opened(self.pipe.transport, -1);
        self.shard.with(|hub, sockets| {
            hub.disconnect(self.conn);
            sockets.remove(self.conn);
        });
    }
}
