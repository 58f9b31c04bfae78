//! Tokens in the places where apps can put them.

use std::borrow::Cow;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderValue, Method, header, request::Parts};
use millrace_protocol::{Code, Error};

use crate::format::{Parameters, get};

/// Returns the request with its token as a bearer token, which admission reads: the password of Basic authentication,
/// or the query parameter `token` if the app has only a URL (`is_url_only`). An empty password is no token.
///
/// Errors: [`Code::Unauthorized`] for a password that cannot be a token.
pub fn with_bearer<'a>(parts: &'a Parts, query: &Parameters<'_>, is_url_only: bool) -> Result<Cow<'a, Parts>, Error> {
    let Some(value) = parts.headers.get(header::AUTHORIZATION) else {
        return match get(query, "token").filter(|_| is_url_only) {
            Some(token) => bearer(parts, token),
            None => Ok(Cow::Borrowed(parts)),
        };
    };
    let basic = value.to_str().ok().and_then(|text| {
        let (scheme, encoded) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("basic").then_some(encoded.trim())
    });
    let Some(encoded) = basic else { return Ok(Cow::Borrowed(parts)) };
    let decoded = BASE64_STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    match decoded.as_deref().and_then(|decoded| decoded.split_once(':')) {
        Some((_, "")) => {
            let mut parts = parts.clone();
            parts.headers.remove(header::AUTHORIZATION);
            Ok(Cow::Owned(parts))
        }
        Some((_, password)) => bearer(parts, password),
        None => Err(Error::new(
            Code::Unauthorized,
            "the credentials of Basic authentication cannot be decoded; the password must be the token of the device",
        )),
    }
}

fn bearer<'a>(parts: &Parts, token: &str) -> Result<Cow<'a, Parts>, Error> {
    let wrong = |_| Error::new(Code::Unauthorized, "the token has characters that no token has");
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(wrong)?;
    value.set_sensitive(true);
    let mut parts = parts.clone();
    parts.headers.insert(header::AUTHORIZATION, value);
    Ok(Cow::Owned(parts))
}

/// Refuses a GET that a page of another site makes a browser send, for example as the address of an image. Such a
/// request has no `Origin`, and would publish. Apps do not send `Sec-Fetch-Site`.
///
/// Errors: [`Code::Forbidden`]. Source: Fetch Metadata, section 2.3.
pub fn check_site(parts: &Parts) -> Result<(), Error> {
    let site = parts.headers.get("sec-fetch-site").map(|site| site.as_bytes());
    match site {
        Some(site) if parts.method == Method::GET && site != b"same-origin" && site != b"none" => {
            Err(Error::new(Code::Forbidden, "a page of another site may not publish positions"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::parameters;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::get("/v1/ingest/osmand");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn found(headers: &[(&str, &str)], query: &str, is_url_only: bool) -> Option<String> {
        let (parts, query) = (parts(headers), parameters(query.as_bytes()));
        let parts = with_bearer(&parts, &query, is_url_only).expect("credentials");
        parts.headers.get(header::AUTHORIZATION).map(|value| value.to_str().expect("ASCII").to_owned())
    }

    #[test]
    fn token_is_found_in_password_or_url() {
        let basic = |credentials: &str| format!("Basic {}", BASE64_STANDARD.encode(credentials));
        assert_eq!(found(&[("authorization", &basic("jane:a.b.c"))], "", false).as_deref(), Some("Bearer a.b.c"));
        assert_eq!(found(&[("authorization", &basic("jane:"))], "", false), None, "an open server");
        assert_eq!(found(&[("authorization", "Bearer x")], "token=y", true).as_deref(), Some("Bearer x"));
        assert_eq!(found(&[], "id=7&token=a.b.c", true).as_deref(), Some("Bearer a.b.c"));
        assert_eq!(found(&[], "token=a.b.c", false), None, "admission decides about tokens in URLs");
    }

    #[test]
    fn credentials_that_cannot_be_decoded_are_refused() {
        for bad in ["Basic ?", "Basic amFuZQ==", "Basic /w=="] {
            let parts = parts(&[("authorization", bad)]);
            assert_eq!(with_bearer(&parts, &[], true).expect_err("refused").code, Code::Unauthorized, "{bad}");
        }
        let query = parameters(b"token=a%0Ab");
        assert_eq!(with_bearer(&parts(&[]), &query, true).expect_err("refused").code, Code::Unauthorized);
    }

    #[test]
    fn pages_of_other_sites_cannot_publish() {
        for (site, is_good) in [("cross-site", false), ("same-site", false), ("none", true), ("same-origin", true)] {
            assert_eq!(check_site(&parts(&[("sec-fetch-site", site)])).is_ok(), is_good, "{site}");
        }
        assert!(check_site(&parts(&[])).is_ok());
    }
}
