//! Parses and validates read requests.

use std::{borrow::Cow, time::Duration};

use http::{HeaderMap, header, request::Parts};
use millrace_protocol::{ChannelName, Code, Error, Since, session::Policy};

/// Maximum number of channels of one `/v1/stream` request.
const CHANNELS_MAX: usize = 100;

/// Response format, from content negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFormat {
    Json,
    Xml,
    Sse,
    Ndjson,
}

/// A validated read request.
#[derive(Debug)]
pub struct ReadRequest {
    /// Channels with their starts. `None` selects the default of the transport.
    pub channels: Vec<(ChannelName, Option<Since>)>,
    /// True for `/v1/stream`: responses then name the channel of each publication.
    pub many: bool,
    /// End of the range. A request with an end never waits for new publications.
    pub until: Option<Since>,
    pub policy: Policy,
    /// Maximum number of publications. `None`: the server's default for a response, no limit for a range.
    pub limit: Option<usize>,
    pub wait: Option<Duration>,
    /// Requested heartbeat interval; `None`: the server's default.
    pub heartbeat: Option<Duration>,
    /// False for `subscribe=no`: this WebSocket only publishes.
    pub subscribe: bool,
    /// True for `?state`: one page of the state of a keyed channel.
    pub is_state_page: bool,
}

/// Parameters of a query. Each is known and occurs at most once, unless it may be repeated.
pub struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    /// Parses the query of a request. Errors: [`Code::BadRequest`] for a parameter that is not in `known`, or occurs
    /// twice.
    pub fn parse(parts: &'a Parts, known: &[&str]) -> Result<Self, Error> {
        Self::parse_text(parts.uri.query().unwrap_or_default(), known, &[])
    }

    /// Parses the text of a query, like [`Query::parse`]. The parameters in `repeated` may occur more than once.
    pub fn parse_text(query: &'a str, known: &[&str], repeated: &[&str]) -> Result<Self, Error> {
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        for (i, (name, _)) in pairs.iter().enumerate() {
            // `token` is handled elsewhere. `_` is ignored: it only bypasses caches.
            if !["_", "token"].contains(&name.as_ref()) && !known.contains(&name.as_ref()) {
                let allowed = match known {
                    [] => "this URL has no parameters".to_owned(),
                    _ => format!("the parameters of this URL are {}", known.join(", ")),
                };
                return Err(Error::new(Code::BadRequest, format!("unknown parameter `{name}`; {allowed}")));
            }
            if !repeated.contains(&name.as_ref()) && pairs[..i].iter().any(|(other, _)| other == name) {
                return Err(Error::new(Code::BadRequest, format!("`{name}` is given twice")));
            }
        }
        Ok(Self(pairs))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_ref())
    }

    /// Returns a parameter in seconds, or as a duration such as `30s` or `500ms`.
    ///
    /// Errors: [`Code::BadRequest`].
    pub fn duration(&self, name: &str) -> Result<Option<Duration>, Error> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let seconds = text.parse::<f64>().ok().filter(|s| s.is_finite() && (0.0..=86_400.0).contains(s));
        let duration = seconds.map(Duration::from_secs_f64).or_else(|| humantime::parse_duration(text).ok());
        let detail = || format!("`{name}` must be a number of seconds, or a duration such as `30s`");
        duration.map(Some).ok_or_else(|| Error::new(Code::BadRequest, detail()))
    }

    fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_ref())
    }
}

impl ReadRequest {
    /// Parses a request for `/v1/channels/{channel}`.
    ///
    /// Errors: `bad_request`, `bad_position`.
    pub fn one(parts: &Parts, channel: ChannelName) -> Result<Self, Error> {
        let known = ["since", "until", "limit", "policy", "wait", "heartbeat", "subscribe", "state", "after"];
        let query = Query::parse(parts, &known)?;
        if query.get("state").is_some() || query.get("after").is_some() {
            return Self::state_page(&query, channel);
        }
        let asked = query.get("since").map(str::parse).transpose()?;
        let known = last_event_id(&parts.headers)?.map(str::parse).transpose()?;
        Self::with(&query, vec![(channel, resume(asked, known))], false)
    }

    /// Parses `?state` and `?state&after=..`.
    ///
    /// Errors: `bad_request`, `bad_position`.
    fn state_page(query: &Query<'_>, channel: ChannelName) -> Result<Self, Error> {
        let bad = |detail: &str| Err(Error::new(Code::BadRequest, detail));
        if query.get("state") != Some("") {
            return bad("a page of a state is `?state`, the next one `?state&after=TOKEN`; `state` has no value");
        }
        if query.0.iter().any(|(name, _)| !["state", "after", "limit", "token", "_"].contains(&name.as_ref())) {
            return bad("`state` goes only with `after` and `limit`; for a stream, use `since=state`");
        }
        let since = match query.get("after").map(str::parse).transpose()? {
            None => Since::State,
            Some(place @ Since::StateAfter { .. }) => place,
            Some(_) => {
                let detail = "`after` is the `next` of the previous page, such as `state:5f0c12ab:57:90`";
                return Err(Error::new(Code::BadPosition, detail));
            }
        };
        let request = Self::with(query, vec![(channel, Some(since))], false)?;
        Ok(Self { is_state_page: true, ..request })
    }

    /// Parses a request for `/v1/stream?channel=..&channel=..`.
    ///
    /// Errors: `bad_request`, `bad_channel`, `bad_position`, `too_many`.
    pub fn many(parts: &Parts) -> Result<Self, Error> {
        let known = ["channel", "since", "until", "limit", "policy", "wait", "heartbeat"];
        let query = Query::parse_text(parts.uri.query().unwrap_or_default(), &known, &["channel"])?;
        let default: Option<Since> = query.get("since").map(str::parse).transpose()?;
        let named = query.all("channel").count();
        // Check the number first, because each channel is compared with all others.
        if named == 0 || named > CHANNELS_MAX {
            let detail = format!("give 1 to {CHANNELS_MAX} channels, as `channel=a/b` or `channel=a/b@5f0c12ab:57`");
            return Err(Error::new(if named == 0 { Code::BadRequest } else { Code::TooMany }, detail));
        }
        let mut channels: Vec<(ChannelName, Option<Since>)> = Vec::with_capacity(named);
        for text in query.all("channel") {
            let (name, since) = split_position(text, default)?;
            if channels.iter().any(|(other, _)| *other == name) {
                return Err(Error::new(Code::BadRequest, format!("channel {name} is given twice")));
            }
            channels.push((name, since));
        }
        for text in last_event_id(&parts.headers)?.into_iter().flat_map(|list| list.split(',')) {
            let (name, since) = split_position(text, None)?;
            if let Some((_, start)) = channels.iter_mut().find(|(other, _)| *other == name) {
                *start = resume(*start, since);
            }
        }
        Self::with(&query, channels, true)
    }

    fn with(query: &Query<'_>, mut channels: Vec<(ChannelName, Option<Since>)>, many: bool) -> Result<Self, Error> {
        let bad = |detail: &str| Error::new(Code::BadRequest, detail);
        let limit = query.get("limit").map(|text| {
            let limit = text.parse().ok().filter(|limit| (1..=1000).contains(limit));
            limit.ok_or_else(|| bad("`limit` is 1 to 1000"))
        });
        let limit = limit.transpose()?;
        let subscribe = match query.get("subscribe") {
            None | Some("yes") => true,
            Some("no") => false,
            Some(_) => return Err(bad("`subscribe` must be `yes` or `no`")),
        };
        let policy = query.get("policy").map_or(Ok(Policy::Every), Policy::parse)?;
        let wait = query.duration("wait")?;
        let heartbeat = query.duration("heartbeat")?;
        let until: Option<Since> = query.get("until").map(str::parse).transpose()?;
        if let Some(until) = until {
            if wait.is_some() {
                return Err(bad("`until` ends the response, and `wait` waits for more; omit one of the two"));
            }
            if policy == Policy::Latest {
                return Err(bad(
                    "`until` requires `policy=every`, because later publications change the newest one of a key",
                ));
            }
            if many && matches!(until, Since::Position(_)) {
                return Err(bad(
                    "for several channels, `until` must be a time or `now`, because a position belongs to one channel",
                ));
            }
            for (_, since) in &mut channels {
                since.get_or_insert(Since::Earliest).check_until(until)?;
            }
        }
        let is_state_page = false;
        Ok(Self { channels, many, until, policy, limit, wait, heartbeat, subscribe, is_state_page })
    }

    /// Returns the start of each channel; the default is `now`.
    pub fn starts(&self) -> Vec<(ChannelName, Since)> {
        self.channels.iter().map(|(name, since)| (name.clone(), since.unwrap_or(Since::Now))).collect()
    }
}

fn split_position(text: &str, default: Option<Since>) -> Result<(ChannelName, Option<Since>), Error> {
    match text.split_once('@') {
        None => Ok((ChannelName::parse(text)?, default)),
        Some((name, place)) => match place.parse::<Since>() {
            Ok(since) if since.is_state() => Ok((ChannelName::parse(name)?, Some(since))),
            _ => Ok((ChannelName::parse(name)?, Some(Since::Position(place.parse()?)))),
        },
    }
}

/// Returns the start of a reader that has requested `asked` and, if it was connected before, resumes at `known`. A
/// reader of a state that has received all of it resumes with the changes, or with the whole state if they are gone.
fn resume(asked: Option<Since>, known: Option<Since>) -> Option<Since> {
    match (asked, known) {
        (Some(asked), Some(Since::Position(at))) if asked.is_state() => Some(Since::StateOr(at)),
        (asked, known) => known.or(asked),
    }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let text = headers.get("last-event-id").map(|value| value.to_str()).transpose();
    text.map(|text| text.filter(|text| !text.is_empty()))
        .map_err(|_| Error::new(Code::BadPosition, "`Last-Event-ID` is a position such as `5f0c12ab:57`"))
}

impl ResponseFormat {
    /// Returns the best supported format of the `Accept` header; JSON if the header is missing or empty. Source: RFC
    /// 9110, section 12.5.1.
    ///
    /// Errors: [`Code::NotAcceptable`].
    pub fn negotiate(headers: &HeaderMap) -> Result<Self, Error> {
        let mut best: Option<(f32, ResponseFormat)> = None;
        let mut named = false;
        for value in headers.get_all(header::ACCEPT) {
            for range in value.to_str().unwrap_or_default().split(',').filter(|range| !range.trim().is_empty()) {
                named = true;
                let mut parameters = range.split(';').map(str::trim);
                let wanted = match parameters.next().unwrap_or_default().to_ascii_lowercase().as_str() {
                    "application/json" | "application/*" | "*/*" => ResponseFormat::Json,
                    "application/x-ndjson" => ResponseFormat::Ndjson,
                    "text/event-stream" | "text/*" => ResponseFormat::Sse,
                    "application/xml" | "text/xml" => ResponseFormat::Xml,
                    _ => continue,
                };
                let quality = parameters.find_map(|p| p.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
                if quality > 0.0 && best.is_none_or(|(other, _)| quality > other) {
                    best = Some((quality, wanted));
                }
            }
        }
        match best {
            Some((_, wanted)) => Ok(wanted),
            None if !named => Ok(ResponseFormat::Json),
            None => {
                let spoken = "application/json, application/xml, text/event-stream and application/x-ndjson";
                Err(Error::new(Code::NotAcceptable, format!("this URL offers {spoken}, and WebSocket")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &str) -> Result<ResponseFormat, Code> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, value.parse().unwrap());
        ResponseFormat::negotiate(&headers).map_err(|error| error.code)
    }

    #[test]
    fn accept_is_negotiated() {
        assert_eq!(ResponseFormat::negotiate(&HeaderMap::new()).unwrap(), ResponseFormat::Json);
        assert_eq!(accept("*/*"), Ok(ResponseFormat::Json));
        assert_eq!(accept("text/event-stream"), Ok(ResponseFormat::Sse));
        assert_eq!(accept("text/html, application/xml;q=0.8, application/x-ndjson;q=0.9"), Ok(ResponseFormat::Ndjson));
        assert_eq!(accept("text/html"), Err(Code::NotAcceptable));
        assert_eq!(accept("application/json;q=0"), Err(Code::NotAcceptable));
    }

    fn parts(uri: &str) -> Parts {
        http::Request::builder().uri(uri).body(()).unwrap().into_parts().0
    }

    #[test]
    fn invalid_read_requests_are_refused() {
        let channel = || ChannelName::parse("a").unwrap();
        let request =
            ReadRequest::one(&parts("/x?since=earliest&wait=1.5&limit=7&policy=latest&_=9"), channel()).unwrap();
        assert_eq!(
            (request.limit, request.wait, request.policy),
            (Some(7), Some(Duration::from_millis(1500)), Policy::Latest)
        );
        for (uri, code) in [
            ("/x?sinze=now", Code::BadRequest),
            ("/x?since=now&since=now", Code::BadRequest),
            ("/x?since=yesterday", Code::BadPosition),
            ("/x?limit=0", Code::BadRequest),
            ("/x?limit=1001", Code::BadRequest),
            ("/x?until=later", Code::BadPosition),
            ("/x?until=earliest", Code::BadRequest),
            ("/x?since=now&until=now", Code::BadRequest),
            ("/x?since=1:5&until=1:4", Code::BadRequest),
            ("/x?since=2026-11-20T10:00:01Z&until=2026-11-20T11:00:00%2B01:00", Code::BadRequest),
            ("/x?until=now&wait=5", Code::BadRequest),
            ("/x?until=now&policy=latest", Code::BadRequest),
            ("/x?wait=-1", Code::BadRequest),
            ("/x?policy=some", Code::BadRequest),
        ] {
            assert_eq!(ReadRequest::one(&parts(uri), channel()).unwrap_err().code, code, "{uri}");
        }
    }

    #[test]
    fn state_pages_are_parsed() {
        let channel = || ChannelName::parse("a").unwrap();
        let request = ReadRequest::one(&parts("/x?state&limit=7&_=9"), channel()).unwrap();
        assert_eq!((request.channels[0].1, request.limit, request.is_state_page), (Some(Since::State), Some(7), true));
        let next = ReadRequest::one(&parts("/x?state=&after=state:1:2:3"), channel()).unwrap();
        assert!(
            next.is_state_page && matches!(next.channels[0].1, Some(Since::StateAfter { offset: 2, began: 3, .. }))
        );
        for (uri, code) in [
            ("/x?after=state:1:2:3", Code::BadRequest),
            ("/x?state=yes", Code::BadRequest),
            ("/x?state&since=now", Code::BadRequest),
            ("/x?state&wait=1", Code::BadRequest),
            ("/x?state&policy=latest", Code::BadRequest),
            ("/x?state&limit=0", Code::BadRequest),
            ("/x?state&after=1:2", Code::BadPosition),
            ("/x?state&after=state:1:2", Code::BadPosition),
            ("/x?state&after=state:1:2:x", Code::BadPosition),
            ("/x?since=state&until=now", Code::BadRequest),
            ("/x?since=state:x", Code::BadPosition),
        ] {
            assert_eq!(ReadRequest::one(&parts(uri), channel()).unwrap_err().code, code, "{uri}");
        }
    }

    #[test]
    fn event_id_resumes_a_state() {
        let start = |id: &str| {
            let mut parts = parts("/x?since=state");
            parts.headers.insert("last-event-id", id.parse().unwrap());
            ReadRequest::one(&parts, ChannelName::parse("a").unwrap()).unwrap().channels[0].1.unwrap().to_string()
        };
        let ids = ["state", "00000001:5", "state:00000001:5:9"];
        assert_eq!(ids.map(start), ["state", "state:00000001:5", "state:00000001:5:9"]);
        let mut many = parts("/v1/stream?channel=a@state&channel=b&channel=c&since=state");
        many.headers.insert("last-event-id", "a@1:5,b@state:1:2:3".parse().unwrap());
        let starts = ReadRequest::many(&many).unwrap().channels;
        let starts: Vec<_> = starts.iter().map(|(_, since)| since.unwrap().to_string()).collect();
        assert_eq!(starts, ["state:00000001:5", "state:00000001:2:3", "state"]);
    }

    #[test]
    fn unknown_parameter_is_named() {
        let detail = |known: &[&str]| Query::parse(&parts("/x?sinze=now"), known).err().unwrap().detail;
        assert!(
            detail(&["since", "limit"]).contains("unknown parameter `sinze`; the parameters of this URL are since")
        );
        assert!(detail(&[]).contains("this URL has no parameters"));
    }

    #[test]
    fn range_starts_at_history_by_default() {
        let start = |uri: &str| ReadRequest::one(&parts(uri), ChannelName::parse("a").unwrap()).unwrap().channels[0].1;
        assert_eq!(start("/x?until=now"), Some(Since::Earliest));
        assert_eq!(start("/x?since=5&until=9"), Some(Since::Time(5)));
        assert_eq!(start("/x"), None);
        let many = ReadRequest::many(&parts("/v1/stream?channel=a&channel=b@1:5&until=2026-11-20T10:00:00Z")).unwrap();
        assert_eq!(many.channels[0].1, Some(Since::Earliest));
        assert!(ReadRequest::many(&parts("/v1/stream?channel=a&until=1:5")).is_err());
    }

    #[test]
    fn each_channel_has_its_own_position() {
        let request = ReadRequest::many(&parts("/v1/stream?channel=a/b@1:5&channel=c&since=earliest")).unwrap();
        assert!(matches!(request.channels[0].1, Some(Since::Position(at)) if at.offset == 5));
        assert_eq!(request.channels[1].1, Some(Since::Earliest));
        for (uri, code) in [
            ("/v1/stream", Code::BadRequest),
            ("/v1/stream?channel=a&channel=a", Code::BadRequest),
            ("/v1/stream?channel=a%2B", Code::BadChannel),
            ("/v1/stream?channel=a@x", Code::BadPosition),
        ] {
            assert_eq!(ReadRequest::many(&parts(uri)).unwrap_err().code, code, "{uri}");
        }
    }
}
