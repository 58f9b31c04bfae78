use std::{
    rc::Rc,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use http::{Method, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{Code, Error, Transport};
use millrace_transport::{
    Context, Routes,
    access::Caller,
    admission::read_body,
    http::{Query, Response, json},
    route::{Answering, Endpoint, plain},
};
use serde::Deserialize;
use serde_json::Value;

use crate::{Control, Impairment, Lane, Race};

/// Endpoints of this crate.
pub const ENDPOINTS: &[&Endpoint] = &[&LANES, &LANE];

const LANES: Endpoint = Endpoint::new("/v1/race", "GET");
const LANE: Endpoint = Endpoint::new("/v1/race/{transport}", "POST");

const BODY_BYTES_MAX: usize = 1024;

/// Routes of the race. `None`: this server has no lanes.
pub struct RaceRoutes(pub Option<Arc<Race>>);

/// Body of `POST /v1/race/{transport}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct Change {
    cut: bool,
    delay_ms: u64,
    rate_kbit_s: u64,
    reset: bool,
}

impl Routes for RaceRoutes {
    fn answer<'a>(
        &'a self,
        context: &'a Rc<Context>,
        parts: &'a Parts,
        body: &'a mut Incoming,
    ) -> Option<Answering<'a>> {
        let path = parts.uri.path();
        if path == LANES.path {
            return Some(Box::pin(async move {
                match parts.method {
                    Method::GET => self.show(context, parts).await.map(plain),
                    _ => Ok(plain(LANES.refuse_method())),
                }
            }));
        }
        let name = LANE.capture(path)?;
        Some(Box::pin(async move {
            match parts.method {
                Method::POST => self.change(context, parts, body, name).await.map(plain),
                _ => Ok(plain(LANE.refuse_method())),
            }
        }))
    }
}

impl RaceRoutes {
    /// Handles `GET /v1/race`: the lanes with their ports, impairments and counters.
    ///
    /// Errors: `unauthorized`; `not_found` without lanes; `unavailable` if no port is free.
    async fn show(&self, context: &Context, parts: &Parts) -> Result<Response, Error> {
        let caller = context.admission.caller(parts).await?;
        caller.may_anything()?;
        Query::parse(parts, &[])?;
        let race = self.race()?;
        let lanes: Vec<Value> = race.lanes()?.iter().map(|lane| lane.to_json()).collect();
        let may_control = may_control(race, &caller).is_ok();
        Ok(json(serde_json::json!({ "time_ms": unix_ms(), "may_control": may_control, "lanes": lanes }).to_string()))
    }

    /// Handles `POST /v1/race/{transport}`: impairs one lane. A field that is missing has its default.
    ///
    /// Errors: as for `GET`; `forbidden` if the caller may not impair lanes; `bad_json`, `bad_request`.
    async fn change(
        &self,
        context: &Context,
        parts: &Parts,
        body: &mut Incoming,
        name: &str,
    ) -> Result<Response, Error> {
        let caller = context.admission.caller(parts).await?;
        let race = self.race()?;
        may_control(race, &caller)?;
        Query::parse(parts, &[])?;
        let lane = find(&race.lanes()?, name)?;
        let body = read_body(&context.admission, &parts.headers, body, BODY_BYTES_MAX).await?;
        let change: Change =
            serde_json::from_slice(&body).map_err(|error| Error::new(Code::BadJson, error.to_string()))?;
        let Change { cut, delay_ms, rate_kbit_s, reset } = change;
        let impairment = Impairment { cut, delay_ms, rate_kbit_s };
        impairment.check()?;
        lane.impair(impairment, reset);
        Ok(json(lane.to_json().to_string()))
    }

    fn race(&self) -> Result<&Race, Error> {
        let detail = "this server has no lanes: start it with `--race` (docs/reference/race.md)";
        self.0.as_deref().ok_or_else(|| Error::new(Code::NotFound, detail))
    }
}

fn may_control(race: &Race, caller: &Caller) -> Result<(), Error> {
    match race.control {
        Control::Everyone => Ok(()),
        Control::Operators => caller.may_administer(),
    }
}

/// Errors: `not_found` for a name that is no transport.
fn find(lanes: &[Arc<Lane>], name: &str) -> Result<Arc<Lane>, Error> {
    let transport = name.parse::<Transport>().map_err(|error| Error::new(Code::NotFound, error.to_string()))?;
    let lane = lanes.iter().find(|lane| lane.transport == transport).cloned();
    lane.ok_or_else(|| Error::new(Code::NotFound, format!("{transport} has no lane")))
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
