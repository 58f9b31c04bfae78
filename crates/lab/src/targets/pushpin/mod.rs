//! Pushpin: a proxy that holds connections and subscribes them to channels, as its back end instructs it by GRIP.
//!
//! The only transport is server-sent events. Pushpin's WebSocket over HTTP lost deliveries in our tests, its streams
//! did not (1.36.0). Long polling would need a back end that stores the messages published between two polls, which
//! is not a property of Pushpin. Publishers use ZeroMQ: Pushpin's HTTP port closes the connection after each
//! publication.

mod back_end;
mod zmtp;

use std::{fs, path::PathBuf};

use crate::{
    load::{Dialect, http::EventSource},
    targets::{
        ClientOptions, Options, Server, Target, Transport, install,
        process::{Ready, free_address},
    },
};

use back_end::BackEnd;

/// The proxy, its components, and the libraries that a small Debian lacks.
const PACKAGES: &[&str] = &[
    "pushpin",
    "condure",
    "zurl",
    "libqt5core5a",
    "libqt5network5",
    "libqt5dbus5",
    "libicu72",
    "libdouble-conversion3",
    "libpcre2-16-0",
    "libzmq5",
    "libnorm1",
    "libpgm-5.3-0",
    "libsodium23",
];

pub struct Pushpin;

impl Target for Pushpin {
    fn name(&self) -> &'static str {
        "pushpin"
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let output = install::run(install::unpacked(&installed(options)?, "usr/bin/pushpin")?.arg("--version"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Sse]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let installed = installed(options)?;
        let (folder, address, publish, http) =
            (tempfile::tempdir()?, free_address()?, free_address()?, free_address()?);
        let back_end = BackEnd::start()?;
        // Pushpin's own templates with two changes: zurl runs as its child process instead of a service, and may
        // connect to loopback.
        let own = installed.join("usr/lib/pushpin");
        fs::create_dir(folder.path().join("runner"))?;
        for file in ["internal.conf", "runner/zurl.conf.template"] {
            let text = fs::read_to_string(own.join(file))?;
            let text = text.replace("ipc:///var/run/zurl/zurl-", "ipc://{rundir}/{ipc_prefix}zurl-");
            let lines = text.lines().map(|line| if line.starts_with("deny=") { "deny=" } else { line });
            fs::write(folder.path().join(file), lines.collect::<Vec<_>>().join("\n"))?;
        }
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20);
        let config = folder.path().join("pushpin.conf");
        let text = include_str!("pushpin.conf")
            .replace("{folder}", &folder.path().display().to_string())
            .replace("{programs}", &installed.join("usr/bin").display().to_string())
            .replace("{address}", &address.to_string())
            .replace("{publish}", &publish.to_string())
            .replace("{http_port}", &http.port().to_string())
            .replace("{connections}", &descriptors.saturating_sub(1000).to_string());
        fs::write(&config, text)?;
        fs::write(folder.path().join("routes"), format!("* {}\n", back_end.address))?;
        let mut pushpin = install::unpacked(&installed, "usr/bin/pushpin")?;
        let path = std::env::var("PATH").unwrap_or_default();
        pushpin.env("PATH", format!("{}:{path}", installed.join("usr/bin").display()));
        pushpin.arg("--config").arg(config).arg("--merge-output");
        // Pushpin listens before its components are connected to each other, and closes connections until then.
        let server = Server::start(pushpin, Ready::Answers(address, publish), folder, options)?;
        Ok(server.with_children().with_back_end(back_end))
    }

    fn dialect(&self, _: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        match ask.role.publishes() {
            true => Box::new(zmtp::Push::new(ask.channel)),
            false => Box::new(EventSource::new(&format!("/{}", ask.channel))),
        }
    }
}

/// Returns the root folder of Debian's files: `/` if Pushpin is installed on the machine.
fn installed(options: &Options) -> anyhow::Result<PathBuf> {
    let is_here = install::on_path("pushpin").is_some_and(|file| file.starts_with("/usr/bin"));
    if is_here { Ok("/".into()) } else { install::debian(&options.cache, "pushpin", PACKAGES) }
}
