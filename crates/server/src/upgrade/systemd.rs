//! Messages to systemd, which follows the new process after an upgrade. Source: sd_notify(3).

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    path::Path,
};

/// Variable with the address of the service manager's socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Reports that this process serves, as the main process of its service. Does nothing outside of a service that waits
/// for it (`Type=notify`).
pub fn notify_serving() {
    let pid = std::process::id();
    if let Err(error) = send(&format!("MAINPID={pid}\nREADY=1\n")) {
        tracing::warn!(%error, "systemd cannot be notified");
    }
}

fn send(message: &str) -> io::Result<()> {
    let Some(address) = env::var_os(VARIABLE).filter(|address| !address.is_empty()) else { return Ok(()) };
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(Path::new(&address))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}
