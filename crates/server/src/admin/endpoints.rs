use millrace_protocol::{Code, Error};
use millrace_transport::route::Endpoint;

/// Folder of operator requests on both doors.
pub const FOLDER: &str = "/v1/admin/";

/// Endpoints of operator requests. The admin listener also serves them below `/admin/`.
pub const ENDPOINTS: [&Endpoint; 16] = [
    &CHANNELS,
    &CHANNEL,
    &TAIL,
    &PAGE,
    &CONNECTIONS,
    &SLOW,
    &ROOMS,
    &HOOKS,
    &DISCONNECT,
    &UNSUBSCRIBE,
    &REVOKE,
    &REFRESH,
    &CONFIG,
    &WEBHOOKS,
    &DEAD_LETTERS,
    &REPLAY,
];

pub const CHANNELS: Endpoint = Endpoint::new("/v1/admin/channels", "GET");
pub const CHANNEL: Endpoint = Endpoint::new("/v1/admin/channel", "GET");
pub const TAIL: Endpoint = Endpoint::new("/v1/admin/tail", "GET");
pub const PAGE: Endpoint = Endpoint::new("/v1/admin/page", "GET");
pub const SLOW: Endpoint = Endpoint::new("/v1/admin/slow", "GET");
pub const ROOMS: Endpoint = Endpoint::new("/v1/admin/rooms", "GET");
pub const HOOKS: Endpoint = Endpoint::new("/v1/admin/hooks", "GET");
pub const CONNECTIONS: Endpoint = Endpoint::new("/v1/admin/connections", "GET");
pub const DISCONNECT: Endpoint = Endpoint::new("/v1/admin/disconnect", "POST");
pub const UNSUBSCRIBE: Endpoint = Endpoint::new("/v1/admin/unsubscribe", "POST");
pub const REVOKE: Endpoint = Endpoint::new("/v1/admin/revoke", "POST");
pub const REFRESH: Endpoint = Endpoint::new("/v1/admin/refresh", "POST");
pub const CONFIG: Endpoint = Endpoint::new("/v1/admin/config", "GET");
pub const WEBHOOKS: Endpoint = Endpoint::new("/v1/admin/webhooks", "GET");
pub const DEAD_LETTERS: Endpoint = Endpoint::new("/v1/admin/webhooks/dead", "GET");
pub const REPLAY: Endpoint = Endpoint::new("/v1/admin/webhooks/replay", "POST");

/// Finds the endpoint of a path on the client port.
///
/// Errors: [`Code::NotFound`].
pub fn find(path: &str) -> Result<&'static Endpoint, Error> {
    let found = ENDPOINTS.into_iter().find(|endpoint| endpoint.path == path);
    found.ok_or_else(|| Error::new(Code::NotFound, "unknown path; docs/reference/admin.md lists the requests"))
}
