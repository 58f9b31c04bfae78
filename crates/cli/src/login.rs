//! The credential of commands that connect to a server.

use anyhow::Context;
use millrace_client::server::Token;

/// The environment is safer than a flag: other users of this machine can see the command line.
const ENV: &str = "MILLRACE_TOKEN";

#[derive(Clone, Debug, clap::Args)]
pub struct Login {
    /// Token or API key to authenticate with; MILLRACE_TOKEN is safer, because other users can see the command line
    #[arg(long, value_name = "TOKEN", value_parser = Token::parse)]
    token: Option<Token>,
}

impl Login {
    /// Whether `--token` was given. The environment variable does not count: it may be meant for other commands.
    pub fn is_given(&self) -> bool {
        self.token.is_some()
    }

    /// Errors: the value of `MILLRACE_TOKEN` is malformed.
    pub fn token(self) -> anyhow::Result<Option<Token>> {
        self.token.map_or_else(from_environment, |token| Ok(Some(token)))
    }
}

/// The token in `MILLRACE_TOKEN`, if there is one.
///
/// Errors: the value of `MILLRACE_TOKEN` is malformed.
pub fn from_environment() -> anyhow::Result<Option<Token>> {
    match std::env::var(ENV) {
        Ok(text) if !text.trim().is_empty() => Ok(Some(Token::parse(&text).context(ENV)?)),
        _ => Ok(None),
    }
}
