//! Entries in the engine: the keyed state `requests/{device}`.

use millrace_delivery::PageLimit;
use millrace_protocol::{ChannelName, Code, Error, NewPublication, Position, Publication, Since, session::Policy};
use millrace_transport::Context;

use crate::entry::Entry;

/// Publications read at once.
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 4 << 20 };
/// Maximum number of publications read to find a request that is no longer in the state.
const PAST_MAX: usize = 20_000;

/// An entry and the position of its newest publication.
pub struct Found {
    pub position: Position,
    pub entry: Entry,
}

/// Returns the requests that are not expired, oldest change first, at most `max`.
///
/// Cost: O(keys of the state). Errors: those of the engine.
pub async fn open_requests(context: &Context, channel: &ChannelName, max: usize) -> Result<Vec<Found>, Error> {
    let now_ms = context.shard.engine.now_ms();
    let mut all = Vec::new();
    read_state(context, channel, |position, publication| {
        if all.len() < max
            && let Some(entry) = decode(publication).map(|entry| entry.at(now_ms))
        {
            all.extend(entry.is_open().then_some(Found { position, entry }));
        }
        all.len() < max
    })
    .await?;
    Ok(all)
}

/// Returns a request, also one that has expired, as long as history shows it.
///
/// Errors: `not_found`, and those of the engine.
pub async fn find(context: &Context, channel: &ChannelName, id: &str) -> Result<Found, Error> {
    let now_ms = context.shard.engine.now_ms();
    let mut found = None;
    read_state(context, channel, |position, publication| {
        if publication.key.as_deref() == Some(id) {
            found = decode(publication).map(|entry| Found { position, entry });
        }
        found.is_none()
    })
    .await?;
    if found.is_none() {
        found = find_past(context, channel, id).await?;
    }
    let missing = || Error::new(Code::NotFound, format!("{channel} has no request `{id}`, or history has left it"));
    found.map(|found| Found { entry: found.entry.at(now_ms), ..found }).ok_or_else(missing)
}

/// Calls `handle` with each publication of the state, until it returns false.
async fn read_state(
    context: &Context,
    channel: &ChannelName,
    mut handle: impl FnMut(Position, &Publication) -> bool,
) -> Result<(), Error> {
    let mut since = Since::State;
    loop {
        let page = context.shard.engine.page(channel, since, Policy::Every, PAGE).await?;
        let epoch = page.end.epoch;
        for publication in page.publications.iter().filter(|publication| !publication.is_deletion) {
            if !handle(Position { epoch, offset: publication.offset }, publication) {
                return Ok(());
            }
        }
        match page.next() {
            next @ Since::StateAfter { .. } if next != since => since = next,
            _ => return Ok(()),
        }
    }
}

/// Returns the newest publication of a key that the log still has.
async fn find_past(context: &Context, channel: &ChannelName, id: &str) -> Result<Option<Found>, Error> {
    let (mut since, mut found, mut read) = (Since::Earliest, None, 0);
    loop {
        let page = context.shard.engine.page(channel, since, Policy::Every, PAGE).await?;
        let epoch = page.end.epoch;
        for publication in page.publications.iter().filter(|publication| publication.key.as_deref() == Some(id)) {
            if let Some(entry) = decode(publication) {
                found = Some(Found { position: Position { epoch, offset: publication.offset }, entry });
            }
        }
        read += page.publications.len();
        if page.publications.is_empty() || !page.has_more() || read > PAST_MAX {
            return Ok(found);
        }
        since = page.next();
    }
}

/// Decodes an entry. A publication that is none, for example of a client that publishes something else into the
/// channel, is ignored.
fn decode(publication: &Publication) -> Option<Entry> {
    let entry: Entry = serde_json::from_slice(publication.data()).ok()?;
    (publication.key.as_deref() == Some(&*entry.id)).then_some(entry)
}

/// Returns the publication of an entry.
pub fn publication(entry: &Entry, now_ms: u64) -> NewPublication {
    let json = serde_json::to_vec(entry).expect("an entry has no map with other keys than text");
    let mut publication = NewPublication::new(millrace_protocol::Kind::Json, json);
    publication.key = Some(entry.id.as_str().into());
    publication.ttl_ms = Some(entry.ttl_ms(now_ms));
    publication
}
