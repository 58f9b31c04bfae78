//! `millrace config`: what can be set, whether it is good, and where each value comes from.

use clap::Subcommand;

use crate::serve;

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Print the defaults with a comment for every key: a file to start from
    #[command(after_help = "Example: a file to edit\n  millrace config default > millrace.toml")]
    Default,
    /// Say whether a configuration is good; exit code 78 if not
    #[command(after_help = "Example: before a restart\n  millrace config check --config millrace.toml")]
    Check(serve::Args),
    /// Print every value and where it comes from
    #[command(after_help = "Example: what a flag and the environment make of a file\n  \
        MILLRACE_LIMITS__GRACE=5s millrace config effective --config millrace.toml --shards 2")]
    Effective(serve::Args),
}

pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Default => print!("{}", millrace_server::config::DEFAULT_TOML),
        Command::Check(args) => {
            args.load()?;
            println!("good");
        }
        Command::Effective(args) => print!("{}", args.load()?.effective()),
    }
    Ok(())
}
