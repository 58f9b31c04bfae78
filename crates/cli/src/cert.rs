//! `millrace cert`: creates certificates for development.

use std::path::PathBuf;

use millrace_server::tls::dev::{self, Made};

use crate::output;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Create a certificate for this machine, signed by a local certificate authority
    #[command(after_help = DEV_EXAMPLES)]
    Dev(Args),
}

const DEV_EXAMPLES: &str = "\
The certificate covers localhost, this machine's name and its private addresses. The certificate authority is created once and kept, so each device must be told only once to trust it. The authority can sign only for private names and networks, and for the --name values given when it was created.

Example: an HTTPS server for phones in the local network
  millrace cert dev
  millrace serve --tls-dev --listen 0.0.0.0:8443
Example: a certificate for another name, in another folder
  millrace cert dev --dir ./tls --name cars.example
  millrace serve --set tls.cert=./tls/cert.pem --set tls.key=./tls/key.pem";

#[derive(clap::Args)]
pub struct Args {
    /// Folder of the authority, the certificate and the keys [default: ~/.local/share/millrace/tls, or below
    /// $XDG_DATA_HOME]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Additional host name or address of the certificate; may be repeated
    #[arg(long, value_name = "HOST")]
    name: Vec<String>,
}

pub fn run(command: Command) -> anyhow::Result<()> {
    let Command::Dev(args) = command;
    let dir = args.dir.unwrap_or_else(dev::default_dir);
    let made = dev::make(&dir, &args.name, false)?;
    output::line(format_args!("certificate  {}", made.files.cert.display()))?;
    output::line(format_args!("key          {}", made.files.key.display()))?;
    output::line(format_args!("names        {}", made.names.join(", ")))?;
    output::text(next_steps(&made))?;
    Ok(())
}

/// Explains how to trust the authority on this machine and on a phone.
pub fn next_steps(made: &Made) -> String {
    let ca = made.files.ca.display();
    let kept = if made.new_ca {
        "is new: each device must be told to trust it"
    } else {
        "is unchanged: devices that trust it need no change"
    };
    format!(
        "authority    {ca}
fingerprint  {} (SHA-256)

The authority {kept}.
  this machine   millrace commands trust it automatically; for curl: --cacert {ca}
  Debian         sudo install -m 644 {ca} /usr/local/share/ca-certificates/millrace-dev.crt && sudo update-ca-certificates
  Firefox        Settings, Privacy & Security, View Certificates, Authorities, Import
  a phone        open https://THIS-MACHINE:PORT/ca.crt of a server with --tls-dev, accept the warning once, compare the fingerprint, then
                 Android: Settings, Security, Encryption & credentials, Install a certificate, CA certificate
                 iPhone: Settings, Profile downloaded, Install; then General, About, Certificate Trust Settings, enable it
Remove the authority from a device when you no longer need it.
",
        made.fingerprint
    )
}
