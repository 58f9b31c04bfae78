//! Requests that are answered once, from history.
//!
//! - this file: polling returns the publications that are available now
//! - [`long_polling`]: the response is held until there is a publication
//! - [`state`]: pages of the state of a keyed channel
//! - [`members`]: pages of the roster of a channel
//! - [`range`]: where a range of history begins and ends

mod long_polling;
pub mod members;
pub mod range;
pub mod state;

use http::StatusCode;
use millrace_delivery::{Page, PageLimit, Part};
use millrace_engine::Newest;
use millrace_node::{Metrics, Shard, Sockets};
use millrace_protocol::{
    ChannelName, Epoch, Error, Gap, Publication, Since, Transport,
    encoding::{Envelope, xml},
};

pub use long_polling::{Poll, PollStart, begin};

use crate::{
    SocketMetrics,
    http::{ReadRequest, Response, ResponseFormat, json, no_cache, no_content, position_header, text},
};

/// Default maximum number of publications in one response.
const LIMIT: usize = 100;
/// Maximum payload bytes of one response. A single publication may be larger.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Result of a read for one response: one entry per channel.
pub struct Read(Vec<Found>);

struct Found {
    channel: ChannelName,
    /// Place from which the client continues.
    end: Since,
    epoch: Epoch,
    more: bool,
    gap: Option<Gap>,
    publications: Vec<Publication>,
}

/// Answers with the available publications: without `since` the newest one, otherwise all after `since`.
pub async fn answer<S: Sockets<Metrics = SocketMetrics>>(
    shard: &Shard<S>,
    request: &ReadRequest,
    wanted: ResponseFormat,
) -> Result<Response, Error> {
    shard.socket_metrics.opened(Transport::Polling, 1);
    let read = read(shard, request, &request.channels).await;
    shard.socket_metrics.opened(Transport::Polling, -1);
    Ok(read?.into_response(request, wanted))
}

/// Reads every channel after its start; a start of `None` returns the newest publication.
pub async fn read<S: Sockets>(
    shard: &Shard<S>,
    request: &ReadRequest,
    starts: &[(ChannelName, Option<Since>)],
) -> Result<Read, Error> {
    let mut all = Vec::with_capacity(starts.len());
    let mut limit = PageLimit { count: request.limit.unwrap_or(LIMIT), bytes: ANSWER_BYTES_MAX };
    for (channel, since) in starts {
        let found = match since {
            None => {
                let Newest { top, publication } = shard.engine.newest(channel).await?;
                let publications = publication.into_iter().collect();
                let (channel, end, epoch) = (channel.clone(), Since::Position(top), top.epoch);
                Found { channel, end, epoch, more: false, gap: None, publications }
            }
            Some(since) if limit.count > 0 => {
                let page = range::page(&*shard.engine, channel, *since, request.until, request.policy, limit).await?;
                let (more, next, epoch) = (page.has_more(), page.next(), page.end.epoch);
                let Page { gap, publications, .. } = page;
                Found { channel: channel.clone(), end: next, epoch, more, gap, publications }
            }
            // The response is full. The client reads this channel with its next request, from the position returned
            // here.
            Some(since) => {
                let none = PageLimit { count: 0, bytes: 0 };
                let page = range::page(&*shard.engine, channel, *since, request.until, request.policy, none).await?;
                let (end, more) = match page.part {
                    Part::Log => (Since::Position(page.start()), page.start() != page.top),
                    Part::State { .. } | Part::StateEnd { .. } => (page.next(), page.has_more()),
                };
                let (channel, epoch) = (channel.clone(), page.end.epoch);
                Found { channel, end, epoch, more, gap: page.gap, publications: Vec::new() }
            }
        };
        if found.gap.is_some() {
            Metrics::add(&shard.metrics.gaps, 1);
        }
        limit.count = limit.count.saturating_sub(found.publications.len());
        let bytes: usize = found.publications.iter().map(|publication| publication.cost_bytes()).sum();
        limit.bytes = limit.bytes.saturating_sub(bytes);
        all.push(found);
    }
    Ok(Read(all))
}

impl Read {
    /// Creates an empty result at these positions.
    pub fn nothing(starts: &[(ChannelName, Option<Since>)]) -> Self {
        let found = starts.iter().filter_map(|(channel, since)| {
            let end = match (*since)? {
                Since::StateOr(at) => Since::Position(at),
                since => since,
            };
            let (channel, epoch) = (channel.clone(), Epoch(0));
            Some(Found { channel, end, epoch, more: false, gap: None, publications: Vec::new() })
        });
        Self(found.collect())
    }

    /// Returns true if there is neither a publication nor a gap.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|found| found.publications.is_empty() && found.gap.is_none())
    }

    /// Returns the positions from which the client continues, per channel.
    pub fn ends(&self) -> Vec<(ChannelName, Option<Since>)> {
        self.0.iter().map(|found| (found.channel.clone(), Some(found.end))).collect()
    }

    pub fn newest(&self) -> Option<&Publication> {
        self.0.first()?.publications.last()
    }

    /// Encodes the response; `204` if there is neither a publication nor a gap.
    pub fn into_response(self, request: &ReadRequest, wanted: ResponseFormat) -> Response {
        let mut position = Vec::with_capacity(32);
        for (i, found) in self.0.iter().enumerate() {
            if request.many {
                position.extend_from_slice(if i > 0 { b"," } else { b"" });
                position.extend_from_slice(found.channel.as_str().as_bytes());
                position.push(b'@');
            }
            found.end.write(&mut position);
        }
        let mut response = if self.is_empty() { no_content() } else { self.body(request, wanted) };
        position_header(&mut response, &position);
        response
    }

    fn body(self, request: &ReadRequest, wanted: ResponseFormat) -> Response {
        if request.many {
            let messages = self
                .0
                .iter()
                .flat_map(|found| found.publications.iter().map(|message| (&found.channel, found.epoch, message)));
            let gaps = self.0.iter().filter_map(|found| Some((&found.channel, found.gap?)));
            let positions = self.0.iter().map(|found| (&found.channel, found.end));
            let more = self.0.iter().any(|found| found.more);
            return json(Envelope::many(positions).finish(more, gaps, messages));
        }
        let [Found { end, epoch, more, gap, publications, .. }] = self.0.as_slice() else { return no_content() };
        if wanted == ResponseFormat::Xml {
            let mut response =
                text(StatusCode::OK, "application/xml", xml::answer(*end, *more, *gap, *epoch, publications));
            no_cache(&mut response);
            return response;
        }
        json(Envelope::answer(*end, *more, *gap, *epoch, publications))
    }
}
