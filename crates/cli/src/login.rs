//! What every command shows a server that asks who is there.

use millrace_edge::wire::Token;

/// Where the token stands for all commands of a shell: the command line is seen by everybody on the machine.
const ENV: &str = "MILLRACE_TOKEN";

#[derive(Clone, Debug, clap::Args)]
pub struct Login {
    /// A token or API key for a server that asks who is there; better in the environment, as MILLRACE_TOKEN
    #[arg(long, value_name = "TOKEN", value_parser = Token::parse)]
    token: Option<Token>,
}

impl Login {
    /// Whether the flag was given; the environment is for all commands.
    pub fn is_given(&self) -> bool {
        self.token.is_some()
    }

    /// Errors: `MILLRACE_TOKEN` is no token.
    pub fn token(self) -> anyhow::Result<Option<Token>> {
        self.token.map_or_else(from_environment, |token| Ok(Some(token)))
    }
}

/// The token in `MILLRACE_TOKEN`, if there is one.
///
/// Errors: `MILLRACE_TOKEN` is no token.
pub fn from_environment() -> anyhow::Result<Option<Token>> {
    match std::env::var(ENV) {
        Ok(text) if !text.trim().is_empty() => {
            Token::parse(&text).map(Some).map_err(|what| anyhow::anyhow!("{ENV}: {what}"))
        }
        _ => Ok(None),
    }
}
