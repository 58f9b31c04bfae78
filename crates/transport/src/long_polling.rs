//! Long polling: an answer that waits until there is something to say.

use std::time::Duration;

use millrace_node::Transport;
use millrace_protocol::Error;

use crate::{
    access::{Caller, unix_s},
    http::{Ask, Context, Response, Wanted},
    polling::{self, Read},
};

/// Holds the request until one of its channels has something after its start, or `wait` (at most the server's limit) is over: `204`.
pub async fn answer(
    context: &Context,
    caller: &Caller,
    ask: &Ask,
    wanted: Wanted,
    wait: Duration,
) -> Result<Response, Error> {
    Ok(hold(context, caller, ask, wait).await?.into_response(ask, wanted))
}

/// As [`answer`], not yet an HTTP response.
pub async fn hold(context: &Context, caller: &Caller, ask: &Ask, wait: Duration) -> Result<Read, Error> {
    let shard = &context.shard;
    shard.metrics.opened(Transport::LongPolling, 1);
    let _open = Open(context);
    // It is answered when its token runs out; the next one needs another.
    let granted =
        caller.grant.expires_s.map_or(Duration::MAX, |end_s| Duration::from_secs(end_s.saturating_sub(unix_s())));
    let deadline = tokio::time::Instant::now() + wait.min(context.config().hold_max).min(granted);
    let mut starts: Vec<_> = ask.starts().into_iter().map(|(name, since)| (name, Some(since))).collect();
    let mut waiting = None;
    loop {
        let read = polling::read(shard, ask, &starts).await?;
        if !read.is_empty() || context.is_draining() {
            return Ok(read);
        }
        // `now` and times have become positions; policy `latest` may have moved on without anything to say.
        starts = read.ends();
        match waiting.take() {
            // Only who finds nothing begins to wait, and reads once more: what came in between is seen by the one or the other.
            None => waiting = Some(shard.wait(&read.channels())),
            Some(waiting) => {
                if tokio::time::timeout_at(deadline, waiting.woken()).await.is_err() {
                    return Ok(read);
                }
                // Woken by a publication, or because something was revoked.
                context.access.check_lasts(caller)?;
            }
        }
    }
}

struct Open<'a>(&'a Context);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.shard.metrics.opened(Transport::LongPolling, -1);
    }
}
