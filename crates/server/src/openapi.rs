//! The OpenAPI document of the HTTP API, and the endpoints that it describes.
//!
//! `crates/transport/tests/it/openapi.rs` compares both, and both with a running server. docs/reference/api.md is made
//! from the document by `scripts/docs/api.mjs`.

use millrace_transport::route::{self, Endpoint};

use crate::{admin, pages};

pub use pages::DOCUMENT;

/// Returns every endpoint of the client port, except the web pages.
pub fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    let own = admin::ENDPOINTS.iter().map(|request| &request.endpoint).chain(pages::ENDPOINTS);
    let added = millrace_conference::endpoints().chain(millrace_carcare::ENDPOINTS.iter().copied());
    let added = added.chain(millrace_ingest::ENDPOINTS.iter().copied());
    let added = added.chain(millrace_push::ENDPOINTS.iter().copied());
    let added = added.chain(millrace_requests::ENDPOINTS.iter().copied());
    let added = added.chain(millrace_race::ENDPOINTS.iter().copied());
    route::ENDPOINTS.iter().copied().chain(added).chain(own)
}
