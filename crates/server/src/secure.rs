//! Secure by default: a server that other machines can reach starts only with TLS and authentication, or with an
//! explicit waiver of either.

use std::net::SocketAddr;

use crate::Config;

/// Flags that enable TLS or waive it.
const TLS: &str = "traffic would not be encrypted. Choose one:
      --tls-dev                               use a development certificate, for a private network
      --set tls.cert=FILE --set tls.key=FILE  use your own certificate (docs/reference/tls.md)
      --tls-acme DOMAIN                       get a certificate from Let's Encrypt, renewed automatically
      --behind-proxy                          a proxy in front terminates TLS
      --insecure-no-tls                       no TLS: anyone on the network path can read and change the traffic";
/// Flags that enable authentication or waive it.
const AUTHENTICATION: &str = "clients would not be authenticated. Choose one:
      --set auth.keys='[\"FILE\"]'              verify tokens with public keys (docs/reference/tokens.md; `millrace token key` creates a pair)
      MILLRACE_AUTH__SECRET=..                verify tokens with a shared secret, from the environment
      --insecure-no-auth                      no authentication: anyone can read and publish everything";
/// How to serve this machine only.
const LOOPBACK: &str = "Or serve this machine only: --listen 127.0.0.1:8080";

/// Returns whether only this machine can reach the server, and without authentication.
pub fn is_open(config: &Config) -> bool {
    !is_reached(config.server.listen) && !config.server.behind_proxy && !config.authenticates()
}

/// Checks that a server that other machines can reach has TLS and authentication, or waivers.
///
/// Errors: what is missing, and the flags that add or waive it.
pub fn check(config: &Config) -> anyhow::Result<()> {
    let server = &config.server;
    let datagrams = [&server.udp, &config.ingest.nmea_udp].into_iter().filter_map(|address| address.parse().ok());
    let udp = datagrams.into_iter().find(|address| is_reached(*address));
    let listen = Some(server.listen).filter(|address| is_reached(*address));
    let mqtt = config.mqtt_address().filter(|address| is_reached(*address));
    let Some(address) = listen.or(udp).or(mqtt) else { return Ok(()) };
    // UDP datagrams are never encrypted, and a proxy for HTTP does not encrypt MQTT.
    let by_proxy = server.behind_proxy && mqtt.is_none();
    let encrypted = udp.is_none() && (config.tls.is_on() || by_proxy);
    let missing: Vec<&str> = [
        (encrypted || server.insecure_no_tls, TLS),
        (config.authenticates() || server.insecure_no_auth, AUTHENTICATION),
    ]
    .into_iter()
    .filter_map(|(is_good, what)| (!is_good).then_some(what))
    .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let kind = if udp == Some(address) { "datagrams on " } else { "" };
    let list: String = missing.iter().map(|what| format!("\n  - {what}")).collect();
    anyhow::bail!("refusing to start: other machines can reach {kind}{address}, and{list}\n{LOOPBACK}")
}

/// Returns whether other machines can reach this address.
pub fn is_reached(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn refusal(change: impl FnOnce(&mut Config)) -> Option<String> {
        let mut config = Config::default();
        config.server.listen = "0.0.0.0:8080".parse().unwrap();
        change(&mut config);
        check(&config).err().map(|error| error.to_string())
    }

    #[test]
    fn loopback_requires_neither_tls_nor_auth() {
        for address in ["127.0.0.1:0", "[::1]:8080", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(refusal(|config| config.server.listen = address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn other_addresses_require_tls_and_auth_or_waivers() {
        let nothing = refusal(|_| {}).unwrap();
        for word in
            ["0.0.0.0:8080", "--tls-dev", "--behind-proxy", "--insecure-no-tls", "--insecure-no-auth", "127.0.0.1"]
        {
            assert!(nothing.contains(word), "{word} is not in: {nothing}");
        }
        let secret = |config: &mut Config| config.auth.secret = Secret::from("01234567890123456789012345678901");
        let no_tls = refusal(secret).unwrap();
        assert!(no_tls.contains("--insecure-no-tls") && !no_tls.contains("--insecure-no-auth"), "{no_tls}");
        let no_auth = refusal(|config| config.server.behind_proxy = true).unwrap();
        assert!(!no_auth.contains("--insecure-no-tls") && no_auth.contains("--insecure-no-auth"), "{no_auth}");
        let both = |config: &mut Config| {
            secret(config);
            config.server.behind_proxy = true;
        };
        assert_eq!(refusal(both), None);
        let waived = |config: &mut Config| {
            config.server.insecure_no_tls = true;
            config.server.insecure_no_auth = true;
        };
        assert_eq!(refusal(waived), None);
    }

    #[test]
    fn remote_nmea_requires_auth_or_waiver() {
        let refused = refusal(|config| {
            config.server.listen = "127.0.0.1:0".parse().unwrap();
            config.ingest.nmea_udp = "0.0.0.0:5010".into();
        });
        assert!(refused.unwrap().contains("datagrams on 0.0.0.0:5010"));
    }

    #[test]
    fn remote_udp_requires_auth_or_waiver() {
        let local = |config: &mut Config| {
            config.server.listen = "127.0.0.1:0".parse().unwrap();
            config.server.udp = "0.0.0.0:5005".into();
        };
        let refused = refusal(local).unwrap();
        assert!(refused.contains("datagrams on 0.0.0.0:5005") && refused.contains("--insecure-no-auth"), "{refused}");
        let behind = refusal(|config| {
            local(config);
            config.server.behind_proxy = true;
            config.server.insecure_no_auth = true;
        });
        assert!(behind.unwrap().contains("--insecure-no-tls"), "a proxy does not encrypt datagrams");
    }
}
