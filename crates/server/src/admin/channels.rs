use futures_util::{StreamExt, stream};
use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{ChannelName, Code, Error, Pattern, Since, session::Policy};
use millrace_transport::http::Query;
use serde_json::{Value, json};

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    publications::channel_of,
    requests::limit,
};

/// Period before the request for which rates are computed, in milliseconds.
const WINDOW_MS: u64 = 10_000;
/// Minimum period of a rate of one publication, if history does not reach back further. The period of a rate of
/// several publications may be shorter by as much as there are more of them, divided by [`FEW`].
const WINDOW_MS_MIN: u64 = 1000;
const FEW: u64 = 10;
/// Publications from whose sizes the bytes per second are estimated.
const SAMPLE: PageLimit = PageLimit { count: 100, bytes: 64 * 1024 };
/// Number of channels whose logs are read at the same time.
const AT_ONCE: usize = 32;

impl Admin {
    /// Lists channels with history in order of their names.
    pub async fn channels(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &["pattern", "namespace", "after", "limit"], &[])?;
        let pattern = pattern(query.get("pattern"), query.get("namespace"))?;
        let after = query.get("after").map(ChannelName::parse).transpose()?;
        let limit = limit(&query)?;
        let mut names = self.engine.channels(&pattern, after.as_ref(), limit + 1).await?;
        let more = names.len() > limit;
        names.truncate(limit);
        let question = NodeQuestion::Readers { channels: names.iter().map(ToString::to_string).collect() };
        let (readers, rows) = tokio::join!(self.gather(&question), self.rows(&names));
        let (Gathered { answers, missing, .. }, mut rows) = (readers?, rows?);
        for (_, answer) in answers {
            let counts = answer["readers"].as_array().into_iter().flatten();
            for (row, count) in rows.iter_mut().zip(counts) {
                row["readers"] = (row["readers"].as_u64().unwrap_or(0) + count.as_u64().unwrap_or(0)).into();
            }
        }
        Ok(Gathered::with_missing(missing, json!({ "channels": rows, "more": more })))
    }

    /// Describes one channel. A channel without publications is described, too.
    pub async fn channel(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &["channel"], &[])?;
        let channel = channel_of(&query)?;
        let question = NodeQuestion::Readers { channels: vec![channel.to_string()] };
        let names = [channel.clone()];
        let (readers, rows, oldest, newest) = tokio::join!(
            self.gather(&question),
            self.rows(&names),
            self.engine.page(&channel, Since::Earliest, Policy::Every, PageLimit { count: 1, bytes: 1 }),
            self.engine.newest(&channel),
        );
        let Gathered { answers, missing, .. } = readers?;
        let readers = answers.iter().filter_map(|(_, answer)| answer["readers"][0].as_u64()).sum::<u64>();
        let history = self.config.borrow().config.engine().of(&channel);
        let (oldest, newest) = (oldest?, newest?);
        let mut row = rows?.pop().unwrap_or_default();
        row["readers"] = readers.into();
        row["namespace"] = channel.namespace().into();
        row["kind"] = if history.state { "state" } else { "log" }.into();
        row["roster"] = history.roster.into();
        let mut held = json!({
            "count": 0, "count_max": history.count_max, "bytes_max": history.bytes_max,
            "age_max_ms": history.age_max.as_millis() as u64,
        });
        if let Some(first) = oldest.publications.first() {
            held["count"] = (oldest.top.offset + 1).saturating_sub(first.offset).into();
            held["oldest"] = json!({ "offset": first.offset, "time_ms": first.time_ms });
        }
        row["history"] = held;
        if let Some(newest) = newest.publication {
            row["newest_ms"] = newest.time_ms.into();
        }
        Ok(Gathered::with_missing(missing, row))
    }

    /// Reads the end of each log, and its newest publications for the rates.
    async fn rows(&self, names: &[ChannelName]) -> Result<Vec<Value>, Error> {
        let now_ms = self.engine.now_ms();
        let since = Since::Time(now_ms.saturating_sub(WINDOW_MS));
        let rows = names.iter().map(|name| async move {
            let page = self.engine.page(name, since, Policy::Every, SAMPLE).await?;
            let (publications_per_s, bytes_per_s) = rates(&page, now_ms);
            Ok(json!({
                "channel": name.as_str(), "position": page.top.to_string(), "readers": 0,
                "publications_per_s": publications_per_s, "bytes_per_s": bytes_per_s,
            }))
        });
        stream::iter(rows).buffered(AT_ONCE).collect::<Vec<Result<Value, Error>>>().await.into_iter().collect()
    }
}

/// Returns the pattern that the parameters select.
fn pattern(pattern: Option<&str>, namespace: Option<&str>) -> Result<Pattern, Error> {
    match (pattern, namespace) {
        (None, None) => Pattern::parse("#"),
        (Some(pattern), None) => Pattern::parse(pattern),
        (None, Some(namespace)) if !namespace.contains(['/', '+', '#']) => Pattern::parse(&format!("{namespace}/#")),
        (None, Some(_)) => Err(Error::new(Code::BadRequest, "`namespace` is the first level of a channel name")),
        (Some(_), Some(_)) => Err(Error::new(Code::BadRequest, "give `pattern` or `namespace`, not both")),
    }
}

/// Returns publications and bytes per second before `now_ms`, rounded to tenths. The log itself is the counter: offsets
/// increase by one, so the first offset of the period determines the number. The bytes are estimated from the first
/// publications of the period.
fn rates(page: &Page, now_ms: u64) -> (f64, f64) {
    let Some(first) = page.publications.first() else { return (0.0, 0.0) };
    let count = (page.top.offset + 1).saturating_sub(first.offset) as f64;
    let period_ms = match page.gap {
        Some(_) => {
            // History of a busy channel holds less than a second.
            let least_ms = WINDOW_MS_MIN / (count as u64 / FEW).clamp(1, WINDOW_MS_MIN);
            now_ms.saturating_sub(first.time_ms).clamp(least_ms, WINDOW_MS)
        }
        None => WINDOW_MS,
    };
    let sample: usize = page.publications.iter().map(|publication| publication.cost_bytes()).sum();
    let bytes = sample as f64 / page.publications.len() as f64;
    let per_s = count * 1000.0 / period_ms as f64;
    let round = |number: f64| (number * 10.0).round() / 10.0;
    (round(per_s), round(per_s * bytes))
}

#[cfg(test)]
mod tests {
    use millrace_delivery::Part;
    use millrace_protocol::{Epoch, Gap, Kind, Position, Publication, PublicationHead};

    use super::*;

    fn page(first: u64, count: u64, top: u64, time_ms: u64, is_cut: bool) -> Page {
        let at = |offset| Position { epoch: Epoch(1), offset };
        let publication = |offset| {
            let kind = Kind::Text;
            let head = PublicationHead {
                offset,
                time_ms,
                key: None,
                expires_ms: None,
                is_traced: false,
                kind,
                is_deletion: false,
            };
            Publication::new(head, &[b'x'; 50])
        };
        let publications = (first..first + count).map(publication).collect();
        let gap = is_cut.then(|| Gap { from: at(0), to: at(first - 1) });
        Page { gap, publications, end: at(first + count), top: at(top), part: Part::Log }
    }

    #[test]
    fn rates_are_offsets_per_period() {
        let now_ms = 1_000_000;
        assert_eq!(rates(&page(1, 0, 0, 0, false), now_ms), (0.0, 0.0));
        assert_eq!(rates(&page(11, 100, 1010, now_ms - 9000, false), now_ms), (100.0, 5000.0));
        // History holds the last two seconds only.
        assert_eq!(rates(&page(11, 100, 1010, now_ms - 2000, true), now_ms), (500.0, 25_000.0));
        // One publication in history, from just now: the rate is at least one per second, not a thousand.
        assert_eq!(rates(&page(11, 1, 11, now_ms - 1, true), now_ms), (1.0, 50.0));
        // History holds the last tenth of a second only: 10,000 publications.
        assert_eq!(rates(&page(11, 100, 10_010, now_ms - 100, true), now_ms), (100_000.0, 5_000_000.0));
    }

    #[test]
    fn namespace_is_one_level() {
        let selects = |namespace: &str, name: &str| pattern(None, Some(namespace)).unwrap().matches(name);
        assert!(selects("cars", "cars/1") && selects("cars", "cars") && !selects("cars", "carsick"));
        for bad in ["a/b", "+", "#", "", "<b>"] {
            assert!(pattern(None, Some(bad)).is_err(), "{bad}");
        }
        assert!(pattern(Some("a"), Some("a")).is_err() && pattern(Some("a/#/b"), None).is_err());
    }
}
