/// Reasons why an engine cannot be opened. No variant contains a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no engine of this kind; an engine is memory, sqlite:PATH, redis://HOST:PORT or nats://HOST:PORT")]
    Unknown,
    /// A setting that this engine does not support. The text names the setting and the remedy.
    #[error("{0}")]
    Setting(String),
    #[error("the file {path} {what}")]
    File { path: String, what: String },
    #[error("cannot start a thread: {0}")]
    System(std::io::Error),
    #[error("the system's random number generator fails: {0}")]
    Random(#[from] getrandom::Error),
}
