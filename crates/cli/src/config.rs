use clap::Subcommand;

use crate::serve;

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Print the defaults with a comment for every key: a file to start from
    Default,
    /// Say whether a configuration is good; exit code 78 if not
    Check(serve::Args),
    /// Print every value and where it comes from
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
