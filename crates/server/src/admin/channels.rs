use futures_util::{StreamExt, stream};
use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{ChannelName, Code, Error, Pattern, Since, session::Policy};
use millrace_transport::http::Query;
use serde_json::{Value, json};

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    requests::limit,
};

/// Period before the request for which rates are computed, in milliseconds.
const WINDOW_MS: u64 = 10_000;
/// Minimum period, if history does not reach back further.
const WINDOW_MS_MIN: u64 = 1000;
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
        let (Gathered { answers, missing }, mut rows) = (readers?, rows?);
        for (_, answer) in answers {
            let counts = answer["readers"].as_array().into_iter().flatten();
            for (row, count) in rows.iter_mut().zip(counts) {
                row["readers"] = (row["readers"].as_u64().unwrap_or(0) + count.as_u64().unwrap_or(0)).into();
            }
        }
        Ok(Gathered::with_missing(missing, json!({ "channels": rows, "more": more })))
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
        Some(_) => now_ms.saturating_sub(first.time_ms).clamp(WINDOW_MS_MIN, WINDOW_MS),
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
