//! Browser origins, host names, cookies, and tokens in the URL.

use super::{ALL, open, start, start_with, token};
use crate::{
    client::raw::Raw,
    server::{Answer, Server, client, secure, within},
};

#[tokio::test]
async fn foreign_page_is_refused() {
    let server = start_with(|config| {
        config.limits.allowed_origins = vec!["https://app.example".into()];
        config.auth.cookie = "token".into();
    });
    let good = token("ann", ALL, "#", 60);
    let own = format!("http://{}", server.address);
    let offers = ["millrace.v1+json".to_owned(), format!("bearer.{good}")];
    for (origin, status) in [(Some("https://evil.example"), Some(403)), (Some("null"), Some(403))] {
        assert_eq!(open(&server, "/v1/connect", &offers, origin).await.err(), status, "{origin:?}");
    }
    for origin in [None, Some("https://app.example"), Some(own.as_str())] {
        assert!(open(&server, "/v1/connect", &offers, origin).await.is_ok(), "{origin:?}");
    }
    let cookie = format!("theme=dark; token={good}");
    let ask = async |headers: &[(&str, &str)]| {
        let headers: Vec<_> = headers.iter().copied().chain([("cookie", cookie.as_str())]).collect();
        server.get_with("/v1/channels/a", &headers).await.status.as_u16()
    };
    assert_eq!(ask(&[]).await, 401, "a cookie does not tell which page sent it");
    assert_eq!(ask(&[("origin", "https://evil.example")]).await, 403);
    assert_eq!(ask(&[("origin", "https://app.example")]).await, 204);
    assert_eq!(ask(&[("origin", &own)]).await, 204);
    assert_eq!(ask(&[("sec-fetch-site", "same-origin")]).await, 204);
    assert_eq!(ask(&[("sec-fetch-site", "cross-site")]).await, 401);
    let bearer = format!("Bearer {good}");
    let posted = [("authorization", bearer.as_str()), ("origin", "https://evil.example")];
    server.post("/v1/channels/a", &posted, "1").await.assert_problem(403, "forbidden");
    let listed = server.get_with("/v1/channels/a", &[("origin", "https://app.example"), ("cookie", &cookie)]).await;
    assert_eq!(listed.header("access-control-allow-credentials"), "true");
}

#[tokio::test]
async fn http_page_is_foreign_to_https_server() {
    let start = |behind_proxy: bool| {
        start_with(|config| {
            secure(config);
            config.auth.cookie = "token".into();
            config.server.behind_proxy = behind_proxy;
        })
    };
    let cookie = format!("token={}", token("ann", ALL, "#", 60));
    let direct = start(false);
    let proxied = start(true);
    for (server, scheme, status) in
        [(&direct, "https", 204), (&direct, "http", 403), (&proxied, "https", 204), (&proxied, "http", 204)]
    {
        let origin = format!("{scheme}://{}", server.address);
        let headers = [("cookie", cookie.as_str()), ("origin", origin.as_str())];
        let read = server.get_with("/v1/channels/a", &headers).await;
        assert_eq!(read.status.as_u16(), status, "{origin}: {}", read.text());
        let posted = server.post("/v1/channels/b", &headers, "1").await;
        assert_eq!(posted.status == 403, status == 403, "{origin}: {}", posted.text());
    }
}

#[tokio::test]
async fn request_must_name_exactly_one_host() {
    let server = Server::start();
    for host in [
        "",
        "Host: \r\n",
        "Host: a%\r\n",
        "Host: a b\r\n",
        "Host: user@localhost\r\n",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(format!("GET /v1/channels/a HTTP/1.1\r\n{host}Connection: close\r\n\r\n")).await;
        let answer = String::from_utf8(raw.read_to_end().await).expect("text");
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("ost"), "{host:?}: {answer}");
    }
    // HTTP/1.0 had no `Host` header, and the health check of a load balancer may omit it.
    for request in ["GET /v1/channels/a HTTP/1.0\r\n\r\n", "GET /readyz HTTP/1.1\r\nConnection: close\r\n\r\n"] {
        let mut raw = Raw::connect(&server).await;
        raw.send(request).await;
        let answer = String::from_utf8(raw.read_to_end().await).expect("text");
        assert!(answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')), "{request}: {answer}");
    }
    let two = client(true).get(server.url("/v1/channels/a")).header("host", "evil.example");
    let refused = Answer::read(within(two.send()).await.expect("an answer")).await;
    assert!(refused.assert_problem(400, "bad_request").contains(":authority"), "{}", refused.text());
}

#[tokio::test]
async fn wildcard_origin_admits_no_cookies() {
    let server = start_with(|config| {
        config.limits.allowed_origins = vec!["*".into()];
        config.auth.cookie = "token".into();
    });
    let cookie = format!("token={}", token("ann", ALL, "#", 60));
    let headers = [("cookie", cookie.as_str()), ("origin", "https://any.example")];
    let refused = server.get_with("/v1/channels/a", &headers).await;
    refused.assert_problem(403, "forbidden");
    assert!(refused.headers.get("access-control-allow-credentials").is_none());
}

#[tokio::test]
async fn loopback_page_of_another_port_sends_no_cookies() {
    let server = start_with(|config| config.auth.cookie = "token".into());
    let good = token("ann", ALL, "#", 60);
    let (cookie, bearer) = (format!("token={good}"), format!("Bearer {good}"));
    let origin = ("origin", "http://127.0.0.1:5173");
    for (shown, status) in [(("cookie", cookie.as_str()), 403), (("authorization", bearer.as_str()), 204)] {
        let answer = server.get_with("/v1/channels/a", &[origin, shown]).await;
        assert_eq!(answer.status.as_u16(), status, "{shown:?}: {}", answer.text());
        assert!(answer.headers.get("access-control-allow-credentials").is_none(), "{answer:?}");
    }
}

#[tokio::test]
async fn open_loopback_server_accepts_only_local_hosts() {
    let server = Server::with(|config| config.server.hosts = vec!["millrace.test".into()]);
    for host in
        ["127.0.0.1", "localhost:8080", "lane1.localhost", "[::1]:8080", "millrace.test", "127.8.9.1:1", "mybox:8080"]
    {
        assert_eq!(server.get_with("/v1/channels/a", &[("host", host)]).await.status, 204, "{host}");
    }
    for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "192.168.1.1", "[::2]:8080"] {
        let refused = server.get_with("/v1/channels/a", &[("host", host)]).await;
        assert!(refused.assert_problem(403, "forbidden").contains("server.hosts"), "{host}");
    }
    let behind = Server::with(|config| config.server.behind_proxy = true);
    assert_eq!(behind.get_with("/v1/channels/a", &[("host", "shop.example")]).await.status, 204);
}

#[tokio::test]
async fn url_token_requires_the_setting() {
    let good = token("ann", ALL, "#", 60);
    let path = format!("/v1/channels/a?token={good}");
    let refused = start().get(&path).await;
    refused.assert_problem(400, "bad_request");
    assert!(!refused.text().contains(&good));
    assert_eq!(start_with(|config| config.auth.query = true).get(&path).await.status, 204);
}
