/// Returns the URL without user and password, for logs and messages.
pub fn shown_url(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, rest)| rest)),
        None => url.into(),
    }
}
