//! Replay: a stream that ends. It reads history page by page and never waits for new publications. It reads a page
//! only after the previous one has been sent.

use std::{convert::Infallible, rc::Rc, sync::Arc};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body::Frame;
use http_body_util::StreamBody;
use millrace_delivery::PageLimit;
use millrace_node::{Metrics, Start};
use millrace_protocol::{ChannelName, Code, Encoding, Error, Position, Since, Transport, session::Policy};
use serde_json::{Map, json};

use super::stream::{Stream, list};
use crate::{
    Shard,
    admission::{
        Admission,
        access::{Access, Caller},
        limits::Limits,
    },
    http::{Body, Response, no_content, position_header},
    polling::range,
};

/// Maximum size of a page. One page is read at once, and stays in memory while the reader is slow.
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 64 * 1024 };

/// Ranges of one or several channels, read one after the other.
struct Replay {
    shard: Rc<Shard>,
    limits: Arc<Limits>,
    transport: Transport,
    encoding: Encoding,
    ranges: Vec<Range>,
    /// Index of the range that is being read.
    current: usize,
    /// Maximum number of publications that may still be sent.
    left: usize,
    ended: bool,
    access: Arc<Access>,
    caller: Caller,
}

struct Range {
    channel: ChannelName,
    /// Position up to which the reader has received everything.
    at: Position,
    until: Position,
}

/// Returns the response to a read request with `until`. An empty range is `204`, which stops an `EventSource`.
///
/// Errors: those of the engine, until the first bytes are sent. After that, the stream breaks off without its end
/// marker, and the client can resume.
pub async fn answer(shard: &Rc<Shard>, admission: &Admission, stream: Stream, until: Since) -> Result<Response, Error> {
    let mut head = stream.head();
    let mut replay = Replay::open(shard, admission, &stream, until).await?;
    let start = replay.stand();
    let first = replay.next().await?;
    if first.is_none() {
        let mut nothing = no_content();
        position_header(&mut nothing, &list(&replay.stand(), stream.request.many));
        return Ok(nothing);
    }
    let listed = list(&start, stream.request.many);
    position_header(&mut head, &listed);
    let mut bytes = (stream.preamble)(&start, &listed);
    bytes.extend(first.into_iter().flatten());
    let rest = stream::unfold(replay, |mut replay| async {
        let bytes = replay.next_or_end().await?;
        Some((bytes, replay))
    });
    let first = admission.limits.charge(bytes.into())?;
    let frames = stream::once(async { first }).chain(rest).map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
    Ok(head.map(|_| Body::Stream(Box::pin(StreamBody::new(frames)))))
}

impl Replay {
    async fn open(shard: &Rc<Shard>, admission: &Admission, stream: &Stream, until: Since) -> Result<Self, Error> {
        let shard = shard.clone();
        let mut ranges = Vec::with_capacity(stream.request.channels.len());
        for (channel, since) in stream.request.starts() {
            let until = range::end_of(&*shard.engine, &channel, until).await?;
            let at = range::start_of(&*shard.engine, &channel, since).await?;
            ranges.push(Range { channel, at, until });
        }
        shard.socket_metrics.opened(stream.transport, 1);
        let left = stream.request.limit.unwrap_or(usize::MAX);
        let (access, caller, limits) = (admission.access.clone(), stream.caller.clone(), admission.limits.clone());
        let (transport, encoding) = (stream.transport, stream.encoding);
        Ok(Self { shard, limits, transport, encoding, ranges, current: 0, left, ended: false, access, caller })
    }

    /// Returns the next frames; `None` if there are no more.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        self.access.check_lasts(&self.caller)?;
        while self.current < self.ranges.len() && self.left > 0 {
            let Range { channel, at, until } = &self.ranges[self.current];
            let (since, limit) = (Since::Position(*at), PageLimit { count: PAGE.count.min(self.left), ..PAGE });
            let page = self.shard.engine.page(channel, since, Policy::Every, limit).await?.cut(since, *until);
            if page.end == *at && page.has_more() {
                return Err(Error::new(Code::Internal, "a page of history is empty although more was announced"));
            }
            let mut bytes = Vec::new();
            if let Some(gap) = page.gap {
                Metrics::add(&self.shard.metrics.gaps, 1);
                self.reach(gap.to, &mut bytes);
                self.encoding.encode_gap(&mut bytes, &self.ranges[self.current].channel, gap);
            }
            for publication in &page.publications {
                let epoch = page.end.epoch;
                self.reach(Position { epoch, offset: publication.offset }, &mut bytes);
                self.encoding.encode(&mut bytes, &self.ranges[self.current].channel, epoch, publication);
            }
            self.left -= page.publications.len();
            self.ranges[self.current].at = page.end;
            self.current += usize::from(!page.has_more());
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Returns the next frames like [`Replay::next`], and finally the end marker.
    async fn next_or_end(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        match self.next().await {
            // The stream breaks off if too many bytes are queued on this node. The client can resume.
            Ok(Some(bytes)) => self.limits.charge(bytes.into()).ok(),
            Ok(None) => {
                self.ended = true;
                Some(self.end().into())
            }
            Err(error) => {
                self.ended = true;
                if error.code == Code::Unauthorized {
                    let mut last = Vec::new();
                    self.encoding.encode_denied(&mut last, 0, &error);
                    return Some(last.into());
                }
                tracing::debug!(%error, "a replay ended early");
                None
            }
        }
    }

    /// Advances the position in the current range. If the encoding needs a prefix per reader in every frame, appends
    /// the prefix.
    fn reach(&mut self, at: Position, out: &mut Vec<u8>) {
        self.ranges[self.current].at = at;
        if self.encoding.has_reader_head() {
            out.extend_from_slice(format!("id: {}\n", list(&self.stand(), true)).as_bytes());
        }
    }

    /// Returns the end marker. It contains the positions, and `more` if the ranges were not read completely.
    fn end(&self) -> Vec<u8> {
        let (starts, many) = (self.stand(), matches!(self.encoding, Encoding::SseMany | Encoding::NdjsonMany));
        let mut place = json!({ "position": list(&starts, false) });
        if many {
            let all = starts.iter().map(|start| (start.channel.to_string(), start.position.to_string().into()));
            place = json!({ "positions": all.collect::<Map<_, _>>() });
        }
        if self.current < self.ranges.len() {
            place["more"] = true.into();
        }
        match self.encoding {
            Encoding::Sse | Encoding::SseState | Encoding::SseMany => {
                format!("event: end\nid: {}\ndata: {place}\n\n", list(&starts, many)).into_bytes()
            }
            _ => format!("{{\"end\":{place}}}\n").into_bytes(),
        }
    }

    /// Returns the current position of each channel.
    fn stand(&self) -> Vec<Start> {
        let start = |range: &Range| Start {
            channel: range.channel.clone(),
            position: Since::Position(range.at),
            recovered: true,
        };
        self.ranges.iter().map(start).collect()
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.shard.socket_metrics.opened(self.transport, -1);
    }
}
