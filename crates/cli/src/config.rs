//! `millrace config`: prints the defaults, checks a configuration, and shows where each value comes from.

use clap::Subcommand;

use crate::{output, serve};

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Print a configuration file with every setting, its default and a comment
    #[command(after_help = "Example: create a file to edit\n  millrace config default > millrace.toml")]
    Default,
    /// Check a configuration; exit code 78 if it is invalid
    #[command(after_help = "Example: check before a restart\n  millrace config check --config millrace.toml")]
    Check(serve::Args),
    /// Print every value and where it comes from
    #[command(after_help = "Example: a file, the environment and a flag together\n  \
        MILLRACE_LIMITS__GRACE=5s millrace config effective --config millrace.toml --shards 2")]
    Effective(serve::Args),
}

pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Default => output::text(millrace_server::config::DEFAULT_TOML)?,
        Command::Check(args) => {
            args.load()?;
            output::line("valid")?;
        }
        Command::Effective(args) => output::text(args.load()?.effective())?,
    }
    Ok(())
}
