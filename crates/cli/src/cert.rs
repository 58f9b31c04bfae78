//! `millrace cert`: certificates to begin with.

use std::path::PathBuf;

use millrace_server::tls::dev::{self, Made};

#[derive(clap::Subcommand)]
pub enum Command {
    /// Make a certificate for this machine, signed by an authority of its own
    #[command(after_help = DEV_EXAMPLES)]
    Dev(Args),
}

const DEV_EXAMPLES: &str = "\
The certificate is for localhost, this machine's name and its private addresses. The authority is made once and kept, so that devices have to be told only once to trust it; it can sign for private networks and names only, unless others are named when it is made.

Example: a secured server for the phones in this network
  millrace cert dev
  millrace serve --tls-dev --listen 0.0.0.0:8443
Example: for another name, in a folder of its own
  millrace cert dev --dir ./tls --name cars.example
  millrace serve --set tls.cert=./tls/cert.pem --set tls.key=./tls/key.pem";

#[derive(clap::Args)]
pub struct Args {
    /// Where authority, certificate and keys lie [default: ~/.local/share/millrace/tls, or below $XDG_DATA_HOME]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Another name or address that the certificate shall be for; may be repeated
    #[arg(long, value_name = "HOST")]
    name: Vec<String>,
}

pub fn run(command: Command) -> anyhow::Result<()> {
    let Command::Dev(args) = command;
    let dir = args.dir.unwrap_or_else(dev::default_dir);
    let made = dev::make(&dir, &args.name, false)?;
    println!("certificate  {}", made.files.cert.display());
    println!("its key      {}", made.files.key.display());
    println!("for          {}", made.names.join(", "));
    print!("{}", next_steps(&made));
    Ok(())
}

/// What a person does now, on this machine and on a phone.
pub fn next_steps(made: &Made) -> String {
    let ca = made.files.ca.display();
    let kept = if made.new_ca {
        "is new: devices have to be told to trust it"
    } else {
        "was kept: who trusts it already need not do anything"
    };
    format!(
        "authority    {ca}
fingerprint  {} (SHA-256)

The authority {kept}.
  this machine   millrace sub, pub and simulate, and the lab, find it by themselves; curl --cacert {ca}
  Debian         sudo install -m 644 {ca} /usr/local/share/ca-certificates/millrace-dev.crt && sudo update-ca-certificates
  Firefox        Settings, Privacy & Security, View Certificates, Authorities, Import
  a phone        open https://THIS-MACHINE:PORT/ca.crt of a server with --tls-dev, go on past the warning once, compare the fingerprint, then
                 Android: Settings, Security, Encryption & credentials, Install a certificate, CA certificate
                 iPhone: Settings, Profile downloaded, Install; then General, About, Certificate Trust Settings, switch it on
Remove it from a device when you no longer need it.
",
        made.fingerprint
    )
}
