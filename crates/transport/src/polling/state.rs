//! Pages of the state of a keyed channel: `GET /v1/channels/{channel}?state`.
//!
//! Source: docs/reference/protocol.md, "State".

use http::StatusCode;
use millrace_delivery::{PageLimit, Part};
use millrace_node::{Metrics, Shard, Sockets};
use millrace_protocol::{
    Error, Since, Transport,
    encoding::{Envelope, StatePage, xml},
};

use super::{ANSWER_BYTES_MAX, LIMIT, range};
use crate::{
    SocketMetrics,
    http::{ReadRequest, Response, ResponseFormat, json, no_cache, position_header, text},
};

/// Answers with one page of the state. A page with `next` is followed by another one. After the last page, the changes
/// begin at its `position`.
///
/// Errors: `bad_request` if the channel is no state; those of the engine.
pub async fn answer<S: Sockets<Metrics = SocketMetrics>>(
    shard: &Shard<S>,
    request: &ReadRequest,
    wanted: ResponseFormat,
) -> Result<Response, Error> {
    let [(channel, since)] = request.channels.as_slice() else { return Err(millrace_delivery::no_state()) };
    let limit = PageLimit { count: request.limit.unwrap_or(LIMIT), bytes: ANSWER_BYTES_MAX };
    shard.socket_metrics.opened(Transport::Polling, 1);
    let page = range::page(&*shard.engine, channel, since.unwrap_or(Since::State), None, request.policy, limit).await;
    shard.socket_metrics.opened(Transport::Polling, -1);
    let page = page?;
    if page.gap.is_some() {
        Metrics::add(&shard.metrics.gaps, 1);
    }
    let part = StatePage {
        position: page.end,
        next: matches!(page.part, Part::State { .. }).then(|| page.next()),
        restart: page.gap.is_some(),
        publications: &page.publications,
    };
    let mut response = match wanted {
        ResponseFormat::Xml => {
            let mut response = text(StatusCode::OK, "application/xml", xml::state(&part));
            no_cache(&mut response);
            response
        }
        _ => json(Envelope::state(&part)),
    };
    position_header(&mut response, &page.end.to_string());
    Ok(response)
}
