//! The newest publications of a channel, and pages of its history.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use millrace_delivery::PageLimit;
use millrace_protocol::{
    ChannelName, Code, Epoch, Error, Kind, Position, Publication, Since, is_internal, session::Policy,
};
use millrace_transport::http::Query;
use serde_json::{Value, json};

use super::Admin;

/// Number of publications in one answer, by default and at most.
const COUNT: usize = 50;
const COUNT_MAX: usize = 200;
/// Bytes of a payload that an answer shows, at most. If an answer has many publications, it shows fewer.
const SHOWN_BYTES_MAX: usize = 4096;
/// Bytes of all payloads in one answer.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Size of one read of history, in bytes.
const READ_BYTES: usize = 1 << 20;
/// Period before the first request for which publications are counted, in milliseconds.
const FIRST_MS: u64 = 1000;
/// Time after which a request does not continue an earlier one, in milliseconds.
const FORGET_MS: u64 = 10_000;
/// Maximum number of requests whose ends are kept.
const TAILS_MAX: usize = 256;
/// Limit of a page that shows where history begins.
const ONE: PageLimit = PageLimit { count: 1, bytes: 1 };

/// Ends of the last requests for the newest publications. A request with the same parameters counts the publications
/// since then.
#[derive(Debug, Default)]
pub struct Tails(HashMap<String, Tail>);

#[derive(Clone, Copy, Debug)]
struct Tail {
    at_ms: u64,
    top: Position,
}

impl Tails {
    /// Records the end of a request, and returns that of the previous one with the same parameters, unless it is too
    /// old.
    fn replace(&mut self, parameters: &str, tail: Tail) -> Option<Tail> {
        self.0.retain(|_, known| tail.at_ms.saturating_sub(known.at_ms) < FORGET_MS);
        if self.0.len() >= TAILS_MAX && !self.0.contains_key(parameters) {
            let oldest = self.0.iter().min_by_key(|(_, known)| known.at_ms).map(|(parameters, _)| parameters.clone());
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        self.0.insert(parameters.to_owned(), tail).filter(|known| known.top.epoch == tail.top.epoch)
    }
}

impl Admin {
    /// Shows the newest publications of a channel, and the number of publications since the previous request with the
    /// same parameters.
    pub async fn tail(&self, query: &str) -> Result<Value, Error> {
        let parsed = Query::parse_text(query, &["channel", "count"], &[])?;
        let (channel, count) = (channel_of(&parsed)?, count(&parsed)?);
        let top = self.engine.newest(&channel).await?.top;
        let now_ms = self.engine.now_ms();
        let rows = self.rows_between(&channel, top.epoch, top.offset.saturating_sub(count as u64), top.offset).await?;
        let before = self.tails.borrow_mut().replace(query, Tail { at_ms: now_ms, top });
        let (since_last, period_ms) = match before {
            Some(before) => (top.offset.saturating_sub(before.top.offset), now_ms.saturating_sub(before.at_ms)),
            None => {
                let since = Since::Time(now_ms.saturating_sub(FIRST_MS));
                let page = self.engine.page(&channel, since, Policy::Every, ONE).await?;
                let first = page.publications.first().map_or(top.offset + 1, |first| first.offset);
                ((top.offset + 1).saturating_sub(first), FIRST_MS)
            }
        };
        let shown = rows.len();
        Ok(json!({
            "channel": channel.as_str(), "position": top.to_string(), "publications": rows, "since_last": since_last,
            "since_last_ms": period_ms, "shown": shown, "sampled": since_last > shown as u64,
        }))
    }

    /// Shows the publications before an offset.
    pub async fn page(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &["channel", "before", "count"], &[])?;
        let (channel, count) = (channel_of(&query)?, count(&query)?);
        let before = query.get("before").map(|before| {
            let detail = "`before` is an offset: a whole number, 1 or more";
            before.parse().ok().filter(|before| *before >= 1).ok_or_else(|| Error::new(Code::BadRequest, detail))
        });
        let before: Option<u64> = before.transpose()?;
        let first = self.engine.page(&channel, Since::Earliest, Policy::Every, ONE).await?;
        let (top, oldest) = (first.top, first.publications.first().map(|oldest| oldest.offset));
        let end = before.unwrap_or(u64::MAX).min(top.offset.saturating_add(1));
        let begin = end.saturating_sub(count as u64).max(oldest.unwrap_or(end)).max(1);
        let rows = match begin < end {
            true => self.rows_between(&channel, top.epoch, begin - 1, end - 1).await?,
            false => Vec::new(),
        };
        let mut answer = json!({
            "channel": channel.as_str(), "position": top.to_string(), "publications": rows,
            "more": oldest.is_some_and(|oldest| oldest < begin),
        });
        if let Some(oldest) = oldest {
            answer["oldest"] = oldest.into();
        }
        Ok(answer)
    }

    /// Returns the publications after the offset `after` up to `until`, oldest first, without those that history has
    /// lost. Reads at most [`READ_BYTES`] at once.
    async fn rows_between(
        &self,
        channel: &ChannelName,
        epoch: Epoch,
        after: u64,
        until: u64,
    ) -> Result<Vec<Value>, Error> {
        let shown_max = (ANSWER_BYTES_MAX / (until - after).max(1) as usize).min(SHOWN_BYTES_MAX);
        let (mut at, mut rows) = (Position { epoch, offset: after }, Vec::new());
        while at.offset < until {
            let limit = PageLimit { count: (until - at.offset) as usize, bytes: READ_BYTES };
            let page = self.engine.page(channel, Since::Position(at), Policy::Every, limit).await?;
            let wanted = page.publications.iter().filter(|publication| publication.offset <= until);
            rows.extend(wanted.map(|publication| row(publication, shown_max)));
            // The epoch has ended, or the rest has expired.
            if page.end.epoch != epoch || page.end.offset <= at.offset {
                break;
            }
            at = page.end;
        }
        Ok(rows)
    }
}

/// Returns the channel that the parameter `channel` names.
///
/// Errors: `bad_request` without the parameter, `bad_channel`, `forbidden` for a channel of the server itself.
pub(super) fn channel_of(query: &Query<'_>) -> Result<ChannelName, Error> {
    let missing = || Error::new(Code::BadRequest, "name the channel, for example `channel=cars/1`");
    let channel = ChannelName::parse(query.get("channel").ok_or_else(missing)?)?;
    match is_internal(channel.as_str()) {
        true => Err(Error::new(Code::Forbidden, "this channel belongs to the server itself")),
        false => Ok(channel),
    }
}

fn count(query: &Query<'_>) -> Result<usize, Error> {
    let Some(text) = query.get("count") else { return Ok(COUNT) };
    let count = text.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
    count.ok_or_else(|| Error::new(Code::BadRequest, format!("`count` is 1 to {COUNT_MAX}")))
}

/// Returns a publication with at most `shown_max` bytes of its payload.
fn row(publication: &Publication, shown_max: usize) -> Value {
    let data = publication.data();
    let cut = &data[..data.len().min(shown_max)];
    let mut row = json!({
        "offset": publication.offset, "time_ms": publication.time_ms, "bytes": data.len(),
        "truncated": cut.len() < data.len(),
    });
    if let Some(key) = &publication.key {
        row["key"] = (**key).into();
    }
    if publication.is_deletion {
        row["deleted"] = true.into();
        return row;
    }
    let text = match publication.kind {
        Kind::Binary => None,
        _ => match std::str::from_utf8(cut) {
            Ok(text) => Some(text),
            // The cut is inside of a character.
            Err(error) if error.error_len().is_none() && cut.len() < data.len() => {
                std::str::from_utf8(&cut[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        },
    };
    match text {
        Some(text) => row["text"] = text.into(),
        None => row["base64"] = BASE64_STANDARD.encode(cut).into(),
    }
    row
}

#[cfg(test)]
mod tests {
    use millrace_protocol::PublicationHead;

    use super::*;

    fn publication(kind: Kind, data: &[u8]) -> Publication {
        let head = PublicationHead {
            offset: 7,
            time_ms: 9,
            key: None,
            expires_ms: None,
            kind,
            is_deletion: false,
            is_traced: false,
        };
        Publication::new(head, data)
    }

    #[test]
    fn payload_is_cut_between_characters() {
        let shown = |kind, data: &[u8], max| row(&publication(kind, data), max);
        let whole = shown(Kind::Text, "<b>grün".as_bytes(), 100);
        assert_eq!(whole, json!({ "offset": 7, "time_ms": 9, "bytes": 8, "truncated": false, "text": "<b>grün" }));
        let cut = shown(Kind::Text, "grün".as_bytes(), 3);
        assert_eq!((&cut["text"], &cut["truncated"], &cut["bytes"]), (&json!("gr"), &json!(true), &json!(5)));
        let binary = shown(Kind::Binary, &[255, 0, 1, 2], 3);
        assert_eq!((&binary["base64"], &binary["truncated"]), (&json!("/wAB"), &json!(true)));
        // A payload whose kind is wrong is shown, too.
        assert_eq!(shown(Kind::Json, &[255], 9)["base64"], "/w==");
    }

    #[test]
    fn tails_are_kept_for_a_while_and_bounded() {
        let tail = |at_ms, offset| Tail { at_ms, top: Position { epoch: Epoch(1), offset } };
        let mut tails = Tails::default();
        assert!(tails.replace("channel=a", tail(1000, 5)).is_none());
        assert_eq!(tails.replace("channel=a", tail(2000, 8)).map(|before| before.top.offset), Some(5));
        assert!(tails.replace("channel=b", tail(2000, 8)).is_none());
        assert!(tails.replace("channel=a", tail(2000 + FORGET_MS, 9)).is_none(), "too long ago");
        let other = Tail { top: Position { epoch: Epoch(2), offset: 1 }, ..tail(2001 + FORGET_MS, 0) };
        assert!(tails.replace("channel=a", other).is_none(), "another epoch");
        for n in 0..2 * TAILS_MAX {
            tails.replace(&format!("channel={n}"), tail(20_000 + n as u64, 1));
        }
        assert!(tails.0.len() <= TAILS_MAX, "{}", tails.0.len());
        let last = format!("channel={}", 2 * TAILS_MAX - 1);
        assert!(tails.replace(&last, tail(21_000, 2)).is_some(), "the newest are kept");
    }
}
