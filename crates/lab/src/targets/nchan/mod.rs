//! Nchan: publish and subscribe inside nginx, over WebSocket, server-sent events and long polling. Uses the installed
//! nginx, or Debian's package.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::{
    load::{
        Dialect, Event,
        http::{Answer, EventSource, Poster, get},
        websocket::Bare,
    },
    targets::{
        ClientOptions, Options, Server, Target, TlsTarget, Transport, install,
        process::{Ready, free_address},
    },
};

const PACKAGES: &[&str] = &["nginx", "libnginx-mod-nchan"];
const MODULE: &str = "usr/lib/nginx/modules/ngx_nchan_module.so";

pub struct Nchan;

impl Target for Nchan {
    fn name(&self) -> &'static str {
        "nchan"
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let (nginx, module) = programs(options)?;
        let output = install::run(Command::new(nginx).arg("-v"))?;
        let version = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok(format!("{version}, {}", module.display()))
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket, Transport::Sse, Transport::LongPolling]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        start("", options)
    }

    /// Creates a client. A publisher of the other transports uses `POST`.
    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        match transport {
            Transport::WebSocket if ask.role.publishes() && ask.role.subscribes() => {
                Box::new(Bare::new(format!("/both/{}", ask.channel)))
            }
            _ if ask.role.publishes() => {
                Box::new(Poster::new(&format!("/pub/{}", ask.channel), "Content-Type: text/plain\r\n"))
            }
            Transport::Sse => Box::new(EventSource::new(&format!("/sub/{}", ask.channel))),
            Transport::LongPolling => Box::new(LongPoll::new(&format!("/sub/{}", ask.channel))),
            _ => Box::new(Bare::new(format!("/sub/{}", ask.channel))),
        }
    }
}

impl TlsTarget for Nchan {
    fn transports_over_tls(&self) -> &'static [Transport] {
        self.transports()
    }

    fn start_with_certificate(&self, folder: &Path, options: &Options) -> anyhow::Result<Server> {
        let file = |name: &str| folder.join(name).display().to_string();
        let (certificate, key) = (file("cert.pem"), file("key.pem"));
        // The directives follow `listen`, which the configuration ends with a semicolon.
        start(
            &format!(" ssl; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {certificate}; ssl_certificate_key {key}"),
            options,
        )
    }
}

/// Starts nginx. `tls`: text after the address in nginx's `listen`.
fn start(tls: &str, options: &Options) -> anyhow::Result<Server> {
    let (nginx, module) = programs(options)?;
    let (folder, address) = (tempfile::tempdir()?, free_address()?);
    let config = folder.path().join("nginx.conf");
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20);
    let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
    let text = include_str!("nginx.conf")
        .replace("{workers}", &options.cpus.len().max(1).to_string())
        .replace("{descriptors}", &descriptors.to_string())
        .replace("{folder}", &folder.path().display().to_string())
        .replace("{module}", &module.display().to_string())
        .replace("{address}", &address.to_string())
        .replace("{user}", user)
        .replace("{tls}", tls);
    fs::write(&config, text)?;
    // With this module, nginx requires its compiled-in folders, whatever the configuration says. Installing nginx
    // would have created this folder. If it cannot be created here, nginx itself reports the problem.
    let _ = fs::create_dir_all("/var/lib/nginx");
    let mut command = Command::new(nginx);
    command.arg("-p").arg(folder.path()).arg("-e").arg("stderr").arg("-c").arg(config);
    Ok(Server::start(command, Ready::Accepts(address), folder, options)?.with_children())
}

/// Returns the paths of nginx and of the module.
fn programs(options: &Options) -> anyhow::Result<(PathBuf, PathBuf)> {
    let installed = PathBuf::from("/").join(MODULE);
    if let Some(nginx) = options.binary.clone().or_else(|| install::on_path("nginx")).filter(|_| installed.is_file()) {
        return Ok((nginx, installed));
    }
    let folder = install::debian(&options.cache, "nchan", PACKAGES)?;
    Ok((folder.join("usr/sbin/nginx"), folder.join(MODULE)))
}

/// Long polling with one message per response. The next request names that message.
struct LongPoll {
    path: String,
    after: String,
}

impl LongPoll {
    fn new(path: &str) -> Self {
        Self { path: path.into(), after: String::new() }
    }
}

impl Dialect for LongPoll {
    /// Reports ready at once, because Nchan does not confirm that a request is waiting. The server has received this
    /// request by the time it answers a later one.
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        get(&self.path, &self.after, out);
        true
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        while let Some(answer) = Answer::read(&bytes[at..])? {
            at += answer.used;
            ensure!(matches!(answer.head.status, 200 | 304 | 408), "refused: {}", answer.head.status);
            if answer.head.status == 200 {
                let time = answer.head.header("last-modified").context("an answer without a time")?;
                let tag = answer.head.header("etag").context("an answer without a tag")?;
                self.after = format!("If-Modified-Since: {time}\r\nIf-None-Match: {tag}\r\n");
                emit(Event::Message(&answer.body));
            }
            get(&self.path, &self.after, out);
        }
        Ok(at)
    }

    fn publish(&mut self, _: &[u8], _: &mut Vec<u8>) {
        unreachable!("who polls does not publish");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::script::in_pieces;

    #[test]
    fn each_poll_names_the_last_message() {
        let script = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nLast-Modified: then\r\nEtag: 7\r\n\r\n[\"a\"]\
            HTTP/1.1 304 Not Modified\r\n\r\n";
        let heard = in_pieces(|| Box::new(LongPoll::new("/sub/c")), script);
        assert_eq!(heard.events, ["[\"a\"]"]);
        assert_eq!(heard.sent.matches("If-Modified-Since: then\r\nIf-None-Match: 7\r\n").count(), 2);
    }
}
