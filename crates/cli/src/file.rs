//! `millrace file`: sends and receives files over a channel.

use std::path::PathBuf;

use clap::Subcommand;
use millrace_client::{
    file,
    publish::HttpPublisher,
    server::Server,
    subscription::{Options, Transport, Update},
};

use crate::{argument::ArgumentError, login::Login, number::number, output, retry::Retry, trust::Trust};

pub const EXAMPLES: &str = "\
A file is a manifest with its SHA-256 and chunks of 256 KiB, each a message of the channel. Both directions are the same: a device sends to an application, or an application to a device. The history of the channel must hold the file until it is received.

Example: a device sends its log
  millrace file send files/car-7/logs drive.log --to https://cars.example
Example: the application receives it, now or later
  millrace file receive files/car-7/logs --to https://cars.example";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish a file to a channel
    #[command(after_help = "Prints the SHA-256 of the file.\n\nExample: millrace file send files/car-7/logs drive.log")]
    Send {
        /// Channel to publish to, for example files/car-7/logs
        channel: String,
        /// File to send
        path: PathBuf,
        #[command(flatten)]
        connection: Connection,
    },
    /// Read a channel until a file is complete
    #[command(
        after_help = "Prints the path of the file. The file gets its name once its SHA-256 is right.\n\nExample: millrace file receive files/car-7/logs --out drive.log"
    )]
    Receive {
        /// Channel to read
        channel: String,
        /// Path to write to [default: the name in the manifest, in the current folder]
        #[arg(long, value_name = "PATH")]
        out: Option<PathBuf>,
        /// Maximum size of the file
        #[arg(long, value_name = "BYTES", default_value_t = file::FILE_BYTES_MAX, value_parser = number::<u64, _>(1..))]
        bytes_max: u64,
        /// SHA-256 of the file to receive [default: the first file of the channel]
        #[arg(long, value_name = "HEX", value_parser = sha256)]
        sha256: Option<String>,
        /// Where to start: earliest, now, or a position
        #[arg(long, value_name = "S", default_value = "earliest")]
        since: String,
        #[command(flatten)]
        connection: Connection,
    },
}

/// Flags of both commands.
#[derive(clap::Args, Debug)]
pub struct Connection {
    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = Server::parse)]
    to: Server,
    #[command(flatten)]
    retry: Retry,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

impl Connection {
    fn open(self) -> anyhow::Result<(Server, Retry)> {
        self.trust.decide()?;
        Ok((self.to.with_token(self.login.token()?), self.retry))
    }
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Send { channel, path, connection } => {
            let (server, retry) = connection.open()?;
            let mut publisher = HttpPublisher::new(retry.retry_for, |lost| output::note(lost))?;
            let manifest = file::send(&mut publisher, &server, &channel, &path, |_, _| {}).await?;
            output::line(manifest.sha256)?;
        }
        Command::Receive { channel, out, bytes_max, sha256, since, connection } => {
            let (server, retry) = connection.open()?;
            let options = Options {
                server,
                channels: vec![channel],
                transport: Transport::WebSocket,
                since: Some(since),
                policy: "every".into(),
                poll_interval: std::time::Duration::from_secs(1),
                retry_for: Some(retry.retry_for),
            };
            let note = |update: &Update| match update {
                Update::Gap(gap) => output::note(gap),
                Update::Lost(lost) => output::note(lost),
                Update::Message(_) | Update::StateComplete(_) => {}
            };
            let (path, _) = file::receive(&options, out.as_deref(), bytes_max, sha256, note).await?;
            output::line(path.display())?;
        }
    }
    Ok(())
}

fn sha256(text: &str) -> Result<String, ArgumentError> {
    match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(ArgumentError::expected("64 hexadecimal digits, as `millrace file send` prints them")),
    }
}
