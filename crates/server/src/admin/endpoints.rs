use std::{pin::Pin, rc::Rc};

use millrace_protocol::{Code, Error};
use millrace_transport::route::Endpoint;
use serde_json::{Map, Value};

use super::Admin;

/// Folder of operator requests on both doors.
pub const FOLDER: &str = "/v1/admin/";

/// Operator requests. The admin listener also serves them below `/admin/`.
pub const ENDPOINTS: &[&AdminEndpoint] = &[
    &OVERVIEW,
    &SAMPLES,
    &EVENTS,
    &THREADS,
    &NODES,
    &DRAIN,
    &CHANNELS,
    &CHANNEL,
    &TAIL,
    &PAGE,
    &CONNECTIONS,
    &SLOW,
    &ROOMS,
    &RELAYS,
    &HOOKS,
    &DISCONNECT,
    &UNSUBSCRIBE,
    &REVOKE,
    &REFRESH,
    &CONFIG,
    &WEBHOOKS,
    &DEAD_LETTERS,
    &REPLAY,
    &LAB,
    &LAB_SCENARIOS,
    &LAB_START,
    &LAB_STOP,
    &LAB_REPORT,
    &LAB_EVENTS,
    &LAB_COMPARE,
    &LAB_DELETE,
    &FOLLOW,
];

const OVERVIEW: AdminEndpoint =
    view(Endpoint::new("/v1/admin/overview", "GET"), Rows::of("nodes", &["node"]), |admin, query| {
        Box::pin(admin.overview(query))
    });
const SAMPLES: AdminEndpoint =
    view(Endpoint::new("/v1/admin/samples", "GET"), Rows::NONE, |admin, query| Box::pin(admin.samples(query)));
const EVENTS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/events", "GET"), Rows::of("events", &["id"]), |admin, query| {
        Box::pin(admin.events(query))
    });
const THREADS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/threads", "GET"), Rows::of("threads", &["node", "thread"]), |admin, query| {
        Box::pin(admin.threads(query))
    });
const NODES: AdminEndpoint =
    view(Endpoint::new("/v1/admin/nodes", "GET"), Rows::of("nodes", &["node"]), |admin, query| {
        Box::pin(admin.nodes(query))
    });
const DRAIN: AdminEndpoint =
    change(Endpoint::new("/v1/admin/drain", "POST"), |admin, body| Box::pin(admin.drain(body)));
const CHANNELS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/channels", "GET"), Rows::of("channels", &["channel"]), |admin, query| {
        Box::pin(admin.channels(query))
    });
const CHANNEL: AdminEndpoint =
    view(Endpoint::new("/v1/admin/channel", "GET"), Rows::NONE, |admin, query| Box::pin(admin.channel(query)));
const TAIL: AdminEndpoint =
    view(Endpoint::new("/v1/admin/tail", "GET"), Rows::of("publications", &["offset"]), |admin, query| {
        Box::pin(admin.tail(query))
    });
const PAGE: AdminEndpoint =
    view(Endpoint::new("/v1/admin/page", "GET"), Rows::of("publications", &["offset"]), |admin, query| {
        Box::pin(admin.page(query))
    });
const CONNECTIONS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/connections", "GET"), Rows::of("connections", &["id"]), |admin, query| {
        Box::pin(admin.connections(query))
    });
const SLOW: AdminEndpoint =
    view(Endpoint::new("/v1/admin/slow", "GET"), Rows::of("readers", &["id"]), |admin, query| {
        Box::pin(admin.slow(query))
    });
const ROOMS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/rooms", "GET"), Rows::of("rooms", &["room", "node"]), |admin, query| {
        Box::pin(admin.rooms(query))
    });
const RELAYS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/relays", "GET"), Rows::of("relays", &["node", "id"]), |admin, query| {
        Box::pin(admin.relays(query))
    });
const HOOKS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/hooks", "GET"), Rows::of("hooks", &["node", "hook", "url"]), |admin, query| {
        Box::pin(admin.hooks_of_nodes(query))
    });
const DISCONNECT: AdminEndpoint =
    change(Endpoint::new("/v1/admin/disconnect", "POST"), |admin, body| Box::pin(admin.disconnect(body)));
const UNSUBSCRIBE: AdminEndpoint =
    change(Endpoint::new("/v1/admin/unsubscribe", "POST"), |admin, body| Box::pin(admin.unsubscribe(body)));
const REVOKE: AdminEndpoint =
    change(Endpoint::new("/v1/admin/revoke", "POST"), |admin, body| Box::pin(admin.revoke(body)));
const REFRESH: AdminEndpoint =
    change(Endpoint::new("/v1/admin/refresh", "POST"), |admin, body| Box::pin(admin.refresh(body)));
const CONFIG: AdminEndpoint =
    view(Endpoint::new("/v1/admin/config", "GET"), Rows::of("settings", &["key"]), |admin, query| {
        Box::pin(admin.show_config(query))
    });
const WEBHOOKS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/webhooks", "GET"), Rows::of("nodes", &["node"]), |admin, query| {
        Box::pin(admin.webhooks_of_nodes(query))
    });
const DEAD_LETTERS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/webhooks/dead", "GET"), Rows::of("letters", &["id"]), |admin, query| {
        Box::pin(admin.dead_letters(query))
    });
const REPLAY: AdminEndpoint =
    change(Endpoint::new("/v1/admin/webhooks/replay", "POST"), |admin, body| Box::pin(admin.replay(body)));
const LAB: AdminEndpoint = view(Endpoint::new("/v1/admin/lab", "GET"), Rows::of("reports", &["id"]), |admin, query| {
    Box::pin(admin.lab_status(query))
});
const LAB_SCENARIOS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/lab/scenarios", "GET"), Rows::NONE, |admin, query| {
        Box::pin(admin.lab_scenarios(query))
    });
const LAB_START: AdminEndpoint =
    change(Endpoint::new("/v1/admin/lab/start", "POST"), |admin, body| Box::pin(admin.lab_start(body)));
const LAB_STOP: AdminEndpoint =
    change(Endpoint::new("/v1/admin/lab/stop", "POST"), |admin, body| Box::pin(admin.lab_stop(body)));
const LAB_REPORT: AdminEndpoint =
    view(Endpoint::new("/v1/admin/lab/report", "GET"), Rows::NONE, |admin, query| Box::pin(admin.lab_report(query)));
const LAB_EVENTS: AdminEndpoint =
    view(Endpoint::new("/v1/admin/lab/events", "GET"), Rows::NONE, |admin, query| Box::pin(admin.lab_events(query)));
const LAB_COMPARE: AdminEndpoint =
    view(Endpoint::new("/v1/admin/lab/compare", "GET"), Rows::NONE, |admin, query| Box::pin(admin.lab_compare(query)));
const LAB_DELETE: AdminEndpoint =
    change(Endpoint::new("/v1/admin/lab/delete", "POST"), |admin, body| Box::pin(admin.lab_delete(body)));
const FOLLOW: AdminEndpoint =
    change(Endpoint::new("/v1/admin/follow", "POST"), |admin, body| Box::pin(admin.follow(body)));

/// Future of the answer to an operator request.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Value, Error>> + 'a>>;

/// Function that answers a request by its query.
pub type View = for<'a> fn(&'a Admin, &'a str) -> Answering<'a>;

/// Function that executes a request with a JSON object as its body.
pub type Change = for<'a> fn(&'a Rc<Admin>, Map<String, Value>) -> Answering<'a>;

/// Operator request: its path and method, and the function that answers it.
pub struct AdminEndpoint {
    pub endpoint: Endpoint,
    pub action: Action,
}

pub enum Action {
    /// A GET that changes nothing. Its answer can be followed.
    View { rows: Rows, answer: View },
    /// A POST.
    Change(Change),
}

/// Where the answer of a view has its rows, and what identifies a row.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Name of the array; empty if the answer has no rows.
    pub array: &'static str,
    /// Fields of a row that together are its identity.
    pub key: &'static [&'static str],
}

impl Rows {
    pub const NONE: Self = Self { array: "", key: &[] };

    pub const fn of(array: &'static str, key: &'static [&'static str]) -> Self {
        Self { array, key }
    }
}

const fn view(endpoint: Endpoint, rows: Rows, answer: View) -> AdminEndpoint {
    AdminEndpoint { endpoint, action: Action::View { rows, answer } }
}

const fn change(endpoint: Endpoint, change: Change) -> AdminEndpoint {
    AdminEndpoint { endpoint, action: Action::Change(change) }
}

/// Finds the request of a path on the client port.
///
/// Errors: [`Code::NotFound`].
pub fn find(path: &str) -> Result<&'static AdminEndpoint, Error> {
    let found = ENDPOINTS.iter().copied().find(|one| one.endpoint.path == path);
    found.ok_or_else(|| Error::new(Code::NotFound, "unknown path; docs/reference/admin.md lists the requests"))
}
