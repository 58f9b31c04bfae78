use percent_encoding::percent_decode_str;

use crate::OpenError;

/// Address and settings of Redis. The password is stored here and nowhere else.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    pub kind: Kind,
    pub hosts: Vec<(String, u16)>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub database: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Single,
    /// Contains the name of the service.
    Sentinel(String),
    Cluster,
}

impl Url {
    /// Parses `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`,
    /// `redis+sentinel://[..@]HOST[:PORT],HOST[:PORT],../SERVICE[/DATABASE]` or `redis+cluster://[..@]HOST[:PORT],..`.
    /// Returns `None` if the URL is not one of Redis.
    ///
    /// Errors: [`OpenError::Setting`] describes the fault without showing the URL.
    pub fn parse(url: &str) -> Option<Result<Self, OpenError>> {
        let (scheme, rest) = url.split_once("://")?;
        let (kind, port) = match scheme {
            "redis" => (Kind::Single, 6379),
            "redis+sentinel" => (Kind::Sentinel(String::new()), 26379),
            "redis+cluster" => (Kind::Cluster, 6379),
            "rediss" | "rediss+sentinel" | "rediss+cluster" => {
                return Some(Err(OpenError::Setting(
                    "TLS to Redis is not supported yet: use redis:// through a tunnel or a private network".into(),
                )));
            }
            _ => return None,
        };
        Some(Self::parse_rest(kind, port, rest).map_err(|what| OpenError::Setting(what.into())))
    }

    fn parse_rest(kind: Kind, port: u16, rest: &str) -> Result<Self, &'static str> {
        if rest.contains(['?', '#']) {
            return Err("a URL of Redis has no `?` or `#` (write them %3F and %23 in a password)");
        }
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => (decode(user)?, decode(password)?),
            None => (None, None),
        };
        let mut path = rest.split('/');
        let hosts = path.next().unwrap_or_default().split(',').map(|host| host_and_port(host, port));
        let hosts: Vec<_> = hosts.collect::<Option<_>>().ok_or("a host looks like `redis.example:6379`")?;
        let mut path = path.filter(|part| !part.is_empty());
        let kind = match kind {
            Kind::Single if hosts.len() > 1 => {
                return Err("redis:// names one host; several are redis+cluster:// or redis+sentinel://");
            }
            Kind::Sentinel(_) => {
                let service =
                    path.next().ok_or("redis+sentinel:// needs the service: redis+sentinel://HOSTS/mymaster")?;
                Kind::Sentinel(decode(service)?.unwrap_or_default())
            }
            kind => kind,
        };
        let database = path.next().map_or(Ok(0), |number| number.parse().map_err(|_| "a database is a number"))?;
        if path.next().is_some() || (database != 0 && kind == Kind::Cluster) {
            return Err("the path of the URL has more parts than a database number");
        }
        Ok(Self { kind, hosts, user, password, database })
    }
}

fn decode(part: &str) -> Result<Option<String>, &'static str> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| "what is %-encoded in the URL is not UTF-8")?;
    Ok((!text.is_empty()).then(|| text.into_owned()))
}

fn host_and_port(text: &str, port: u16) -> Option<(String, u16)> {
    let (host, after) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(host, after)| (host, after.strip_prefix(':')))?,
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = after.map_or(Some(port), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Url {
        Url::parse(url).unwrap().unwrap()
    }

    #[test]
    fn redis_urls_are_parsed() {
        let url = parse("redis://h");
        assert_eq!((url.kind, url.hosts, url.database), (Kind::Single, vec![("h".into(), 6379)], 0));
        let url = parse("redis://me:p%40ss%2F@[::1]:7000/3");
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("me"), Some("p@ss/")));
        assert_eq!((url.hosts, url.database), (vec![("::1".into(), 7000)], 3));
        let url = parse("redis+sentinel://:secret@a,b:5/main/2");
        assert_eq!((url.kind, url.user), (Kind::Sentinel("main".into()), None));
        assert_eq!((url.hosts, url.database), (vec![("a".into(), 26379), ("b".into(), 5)], 2));
        assert_eq!(parse("redis+cluster://a:1,b:2,c:3").hosts.len(), 3);
    }

    #[test]
    fn url_error_names_reason_without_secret() {
        for bad in [
            "redis://",
            "redis://h:port",
            "redis://a,b",
            "redis+sentinel://a",
            "redis+cluster://a/1",
            "redis://h/x",
            "redis://h?a=b",
            "rediss://h",
            "redis://h/1/2",
        ] {
            let url = bad.replace("://", "://user:secret@");
            let error = Url::parse(&url).unwrap().err().unwrap_or_else(|| panic!("{bad}")).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(Url::parse("memory").is_none() && Url::parse("nats://h").is_none());
    }
}
