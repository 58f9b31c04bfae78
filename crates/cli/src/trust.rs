//! Flags for the verification of server certificates.

use std::path::PathBuf;

use millrace_client::tls;
use millrace_server::tls::dev::{self, Files};

/// Flags of commands that connect to a server.
#[derive(clap::Args, Clone, Debug)]
pub struct Trust {
    /// Additional certificate authority to trust (PEM); the authority of `millrace cert dev` is trusted automatically
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Skip certificate verification (insecure): anyone on the network path can read and change the traffic
    #[arg(long)]
    insecure_accept_any_certificate: bool,
}

impl Trust {
    /// Applies these flags to the whole process.
    ///
    /// Errors: the file of `--ca` has no certificate authority.
    pub fn decide(&self) -> anyhow::Result<()> {
        let dev_ca = Some(Files::at(&dev::default_dir()).ca);
        let trust = tls::Trust { ca: self.ca.clone(), dev_ca, accept_any: self.insecure_accept_any_certificate };
        Ok(trust.apply()?)
    }
}
