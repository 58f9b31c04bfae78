//! Options to start a target.

use std::{net::Ipv4Addr, path::PathBuf};

/// Options to start a target.
#[derive(Clone, Debug)]
pub struct Options {
    /// CPUs that the server may use. Empty: any CPU.
    pub cpus: Vec<usize>,
    /// Program to use instead of the one that would be found or installed.
    pub binary: Option<PathBuf>,
    /// Folder for installed programs.
    pub cache: PathBuf,
    /// Minimum number of file descriptors of the server.
    pub descriptors: u64,
    /// Additional arguments of the program.
    pub arguments: Vec<String>,
    /// Address at which clients reach the server, if it is not its own.
    pub public_address: Option<Ipv4Addr>,
}

impl Default for Options {
    fn default() -> Self {
        let (cpus, arguments) = Default::default();
        Self { cpus, binary: None, cache: cache(), descriptors: 0, arguments, public_address: None }
    }
}

/// `$XDG_CACHE_HOME/millrace/lab`, or `~/.cache/millrace/lab`.
fn cache() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("millrace/lab")
}
