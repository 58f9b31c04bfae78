//! Which servers the commands believe.

use std::path::PathBuf;

use millrace_edge::tls;
use millrace_server::tls::dev::{self, Files};

/// For servers with https.
#[derive(clap::Args, Clone, Debug)]
pub struct Trust {
    /// Trust this authority, too (PEM); the one of `millrace cert dev` is found by itself
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Believe any server that it is the right one: anybody on the way can read and change everything
    #[arg(long)]
    insecure_accept_any_certificate: bool,
}

impl Trust {
    /// Holds for the whole process.
    ///
    /// Errors: a file that is no authority.
    pub fn decide(&self) -> anyhow::Result<()> {
        let dev_ca = Some(Files::at(&dev::default_dir()).ca);
        let trust = tls::Trust { ca: self.ca.clone(), dev_ca, anybody: self.insecure_accept_any_certificate };
        trust.decide().map_err(anyhow::Error::msg)
    }
}
