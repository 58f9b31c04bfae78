//! TCP congestion control of the connections over a link.

use std::net::Ipv4Addr;

use anyhow::{Context, ensure};

use crate::{host::proc, nearest::nearest, wire::namespace::ip};

const DEFAULT: &str = "net.ipv4.tcp_congestion_control";
const AVAILABLE: &str = "net.ipv4.tcp_available_congestion_control";

/// Returns the name of the algorithm that connections use: the wanted one, or the default of this machine.
///
/// Errors: the kernel does not have this algorithm. The error lists those that it has.
pub fn congestion_control(wanted: &str) -> anyhow::Result<String> {
    if wanted.is_empty() {
        return proc::sysctl(DEFAULT).with_context(|| format!("this kernel has no {DEFAULT}"));
    }
    check(wanted, &proc::sysctl(AVAILABLE).unwrap_or_default())?;
    Ok(wanted.to_owned())
}

fn check(wanted: &str, available: &str) -> anyhow::Result<()> {
    let names = || available.split_whitespace();
    ensure!(
        names().any(|name| name == wanted),
        "congestion = {wanted:?}: this kernel has {}{}",
        names().collect::<Vec<_>>().join(", "),
        nearest(wanted, names())
    );
    Ok(())
}

/// Lets all connections from an address, through a device to a network, use an algorithm. Applies to the network
/// namespace of this thread.
///
/// The route selects the algorithm, for both ends of a connection. The setting of a namespace cannot: it only accepts
/// the algorithms of `net.ipv4.tcp_allowed_congestion_control`.
pub(super) fn route(network: &str, device: &str, source: Ipv4Addr, algorithm: &str) -> anyhow::Result<()> {
    ip(&["route", "replace", network, "dev", device, "src", &source.to_string(), "congctl", algorithm])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_algorithm_names_those_of_the_kernel() {
        assert!(check("cubic", "reno bbr cubic").is_ok());
        let error = check("cubik", "reno bbr cubic").unwrap_err().to_string();
        assert_eq!(error, r#"congestion = "cubik": this kernel has reno, bbr, cubic: did you mean cubic?"#);
        assert!(check("cub", "cubic").is_err() && check("", "cubic").is_err());
    }
}
