use std::sync::Arc;

use super::authority::{AllowAll, Authority};

/// Access settings of all requests, besides [`crate::Config`].
pub struct Access {
    pub authority: Arc<dyn Authority>,
    /// Name of the cookie that carries a token; empty disables token cookies. A token cookie counts only on requests
    /// from pages of this server and of allowed origins.
    pub cookie: String,
    /// True if the URL may carry the token, as `token=`.
    pub query: bool,
    /// Host names that requests may use, besides those of loopback; `None` allows any name. This protects an open
    /// server on loopback against DNS rebinding: a foreign page whose name resolves to loopback.
    pub hosts: Option<Vec<String>>,
    /// True if pages of this server, opened at a loopback address, are those of an operator without a token: on an open
    /// server that only this machine reaches.
    pub trusts_own_pages: bool,
    /// True if a proxy stands in front of this server. The proxy may replace `Host`, so a loopback name proves nothing.
    pub behind_proxy: bool,
    /// True if this server terminates TLS itself, without a proxy in front of it. Its own pages then always use
    /// `https`, so an `http` page with the same host name is foreign.
    pub is_https: bool,
    /// Namespaces in which a key `SUBJECT/ID` belongs to the client with this subject.
    pub own_keys: Vec<String>,
}

impl From<AllowAll> for Access {
    fn from(everyone: AllowAll) -> Self {
        Self {
            authority: Arc::new(everyone),
            cookie: String::new(),
            query: false,
            hosts: None,
            trusts_own_pages: false,
            behind_proxy: false,
            is_https: false,
            own_keys: Vec::new(),
        }
    }
}
