//! `millrace token`: creates keys, signs tokens, and explains what a token grants.

use std::{
    fs::OpenOptions,
    io::{IsTerminal as _, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use millrace_server::{
    Config,
    auth::{self, Algorithm, Auth, Rights, SigningKey, Token},
};
use serde_json::json;

use crate::{output, retry::duration, serve};

/// Maximum size of a token to inspect.
const INPUT_BYTES_MAX: u64 = 64 * 1024;

pub const EXAMPLES: &str = "\
Example: create a key, start a server that accepts its tokens, and sign a first token
  millrace token key --out millrace.key
  millrace --set 'auth.keys=[\"millrace.key.pub\"]' &
  millrace token create --key millrace.key --sub alice --subscribe 'chat/#' --publish 'chat/{sub}'";

#[derive(Subcommand)]
pub enum Command {
    /// Create a key that signs tokens
    #[command(
        after_help = "Example: a key pair; millrace.key signs tokens, and the server's `auth.keys` lists millrace.key.pub\n  \
        millrace token key --out millrace.key\nExample: a shared secret for `auth.secret`\n  millrace token key --alg HS256"
    )]
    Key(KeyArgs),
    /// Sign a token and print it
    #[command(after_help = "Example: a car that publishes only its own data and subscribes to `news`\n  \
        millrace token create --key millrace.key --sub car-7 --publish 'cars/{sub}/#' --subscribe news --expires 30days\n\
        Without --key, the token is signed with auth.secret of the configuration. A token without any permission gets those of the server's [auth.default].")]
    Create(CreateArgs),
    /// Verify a token and print its permissions and expiry; exit code 1 if the token is invalid
    #[command(
        after_help = "Example: verify with the server's keys; standard input hides the token from other users of this machine\n  \
        millrace token inspect --config millrace.toml < token\nExample: print the claims without verification\n  \
        echo \"$TOKEN\" | millrace token inspect"
    )]
    Inspect(InspectArgs),
    /// Create an API key for a back end; the server's configuration stores only its hash
    #[command(
        after_help = "Example: a key that can only publish to orders/#\n  millrace token api-key --name billing --publish 'orders/#'"
    )]
    ApiKey(ApiKeyArgs),
}

#[derive(Args)]
pub struct KeyArgs {
    /// Algorithm of the key; for RS256 use `openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048`
    #[arg(long, value_enum, ignore_case = true, default_value = "EdDSA")]
    alg: Made,
    /// Write the private key to FILE and the public key to FILE.pub, instead of printing both
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Made {
    #[value(name = "EdDSA")]
    EdDsa,
    #[value(name = "ES256")]
    Es256,
    #[value(name = "HS256")]
    Hs256,
}

#[derive(Args)]
struct RightArgs {
    /// Channel or pattern that the token can subscribe to; may be repeated
    #[arg(long, value_name = "PATTERN")]
    subscribe: Vec<String>,
    /// Channel or pattern that the token can publish to; may be repeated
    #[arg(long, value_name = "PATTERN")]
    publish: Vec<String>,
    /// Channel or pattern whose subscribers the token can count; may be repeated
    #[arg(long, value_name = "PATTERN")]
    presence: Vec<String>,
    /// Channel or pattern whose history the token can read; may be repeated
    #[arg(long, value_name = "PATTERN")]
    history: Vec<String>,
    /// Permit operator requests, such as those of `millrace admin`; this includes no permission on channels
    #[arg(long)]
    admin: bool,
}

#[derive(Args)]
pub struct CreateArgs {
    /// Subject (user or device) of the token; `{sub}` in a pattern is replaced by it
    #[arg(long)]
    sub: Option<String>,
    #[command(flatten)]
    rights: RightArgs,
    /// Lifetime of the token
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    expires: Duration,
    /// Id of the token, for revocation [default: random]
    #[arg(long, value_name = "JTI")]
    id: Option<String>,
    /// Private key (PEM), or a file with the secret for HS256
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Name of the key, if the server knows several keys by name
    #[arg(long, value_name = "NAME")]
    kid: Option<String>,
    /// Configuration file that provides issuer, audience and secret
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
pub struct InspectArgs {
    /// Token or API key to inspect [default: standard input]
    token: Option<String>,
    /// Configuration file with the keys to verify with
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
pub struct ApiKeyArgs {
    /// Name of the key in the configuration; revocation uses it, too
    #[arg(long)]
    name: String,
    #[command(flatten)]
    rights: RightArgs,
}

impl From<RightArgs> for Rights {
    fn from(RightArgs { subscribe, publish, presence, history, admin }: RightArgs) -> Self {
        Self { subscribe, publish, presence, history, admin }
    }
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Key(args) => key(&args),
        Command::Create(args) => create(args),
        Command::Inspect(args) => inspect(args).await,
        Command::ApiKey(args) => api_key(args),
    }
}

fn key(args: &KeyArgs) -> anyhow::Result<()> {
    let algorithm = match args.alg {
        Made::EdDsa => Algorithm::EdDsa,
        Made::Es256 => Algorithm::Es256,
        Made::Hs256 => {
            let secret = format!("{}\n", auth::random_text(32).map_err(|error| anyhow!(error.to_string()))?);
            return match &args.out {
                Some(path) => write_private(path, &secret),
                None => Ok(output::text(secret)?),
            };
        }
    };
    let pair = auth::generate(algorithm)?;
    let Some(path) = &args.out else {
        return Ok(output::text(format_args!("{}{}", pair.private, pair.public))?);
    };
    let mut public = path.clone().into_os_string();
    public.push(".pub");
    write_private(path, &pair.private)?;
    std::fs::write(&public, pair.public).with_context(|| format!("cannot write {}", public.display()))?;
    Ok(output::line(format_args!(
        "{} signs tokens: keep it secret\n{} verifies them: add it to the server's `auth.keys`",
        path.display(),
        public.display()
    ))?)
}

/// Creates a file that only its owner can read. Never overwrites an existing key.
///
/// Errors: the file exists or cannot be written.
fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn create(args: CreateArgs) -> anyhow::Result<()> {
    let config = load(args.config)?;
    let key = match &args.key {
        Some(path) => {
            let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            SigningKey::parse(&text).map_err(|what| anyhow!("{}: {what}", path.display()))?
        }
        None if !config.auth.secret.is_empty() => SigningKey::parse(config.auth.secret.as_bytes())?,
        None => bail!(
            "no signing key: add --key FILE (`millrace token key --out FILE` creates one), or --config with a file that sets auth.secret"
        ),
    };
    if args.expires > config.auth.lifetime_max {
        let max = humantime::format_duration(config.auth.lifetime_max);
        bail!("--expires: the server refuses tokens with a lifetime above {max} (`auth.lifetime_max`)");
    }
    let (now_s, rights) = (unix_s(), Rights::from(args.rights));
    let id = match args.id {
        Some(id) => id,
        None => auth::random_text(12).map_err(|error| anyhow!(error.to_string()))?,
    };
    let mut claims = json!({ "jti": id, "iat": now_s, "exp": now_s + args.expires.as_secs() });
    if let Some(sub) = args.sub {
        claims["sub"] = sub.into();
    }
    if !config.auth.issuer.is_empty() {
        claims["iss"] = config.auth.issuer.clone().into();
    }
    if !config.auth.audience.is_empty() {
        claims["aud"] = config.auth.audience.clone().into();
    }
    if rights != Rights::default() {
        let all = rights.by_right().into_iter().filter(|(_, patterns)| !patterns.is_empty());
        claims["millrace"] = all.map(|(right, patterns)| (right.name().to_owned(), json!(patterns))).collect();
        if rights.admin {
            claims["millrace"]["admin"] = true.into();
        }
    }
    let token = key.sign(&claims, args.kid.as_deref())?;
    // The same checks as in the server, so that a bad pattern or subject fails here.
    let read =
        Token::parse(&token, config.auth.token_bytes_max).and_then(|token| token.claims()?.grant(&config.auth, now_s));
    read.map_err(|error| anyhow!("the server would refuse this token: {}", error.detail))?;
    Ok(output::line(token)?)
}

async fn inspect(args: InspectArgs) -> anyhow::Result<()> {
    let text = match args.token {
        Some(token) => token,
        None => {
            if std::io::stdin().is_terminal() {
                output::note("Paste the token, then press Enter and Ctrl-D:");
            }
            let mut text = String::new();
            std::io::stdin().take(INPUT_BYTES_MAX).read_to_string(&mut text)?;
            text
        }
    };
    let (config, text) = (load(args.config)?, text.trim());
    let text = text.strip_prefix("Bearer ").unwrap_or(text);
    match Token::parse(text, usize::MAX) {
        Ok(token) => output::line(describe(&token))?,
        Err(_) if !text.contains('.') => output::line("Not a JWT; it may be an API key.")?,
        Err(error) => output::line(format_args!("Malformed token: {}.", error.detail))?,
    }
    if !config.auth.is_configured() {
        output::line("Not verified: no key is configured. Add --config FILE, or set MILLRACE_AUTH__SECRET.")?;
        bail!("not verified");
    }
    let auth = Auth::new(&config.auth, &config.anonymous(), unix_s).map_err(|what| anyhow!("`[auth]`: {what}"))?;
    match auth.explain(text).await {
        Ok(verified) => {
            output::line(format_args!("Valid: verified with {}. Permissions:", verified.by))?;
            for (right, pattern) in verified.grant.rules() {
                output::line(entry(right.name(), pattern.as_str()))?;
            }
            if verified.grant.is_admin {
                output::line(entry("admin", "operator requests"))?;
            }
            if verified.grant.rules().is_empty() && !verified.grant.is_admin {
                output::line("  nothing")?;
            }
            Ok(())
        }
        Err(error) => bail!("invalid: {}", error.detail),
    }
}

/// Formats the header and claims of a token, without verification.
fn describe(token: &Token<'_>) -> String {
    let mut lines = vec![format!("A token. It claims to be signed with {}.", token.algorithm.name())];
    let mut line = |name: &str, value: Option<String>| lines.extend(value.map(|value| entry(name, &shown(&value))));
    line("key", token.header.kid.clone());
    match token.claims() {
        Ok(claims) => {
            line("subject", claims.sub);
            line("id", claims.jti);
            line("issuer", claims.iss);
            line("issued", claims.iat.map(moment));
            line("valid from", claims.nbf.map(moment));
            line("expires", claims.exp.map(moment));
            match claims.millrace {
                Some(rights) => {
                    for (right, patterns) in rights.by_right() {
                        patterns.iter().for_each(|pattern| line(right.name(), Some(pattern.clone())));
                    }
                    line("admin", rights.admin.then(|| "operator requests".into()));
                }
                None => line("rights", Some("none in the token: the server's [auth.default] applies".into())),
            }
        }
        Err(error) => lines.push(format!("  {}", error.detail)),
    }
    lines.join("\n")
}

/// Formats one line of a list of claims or permissions. Every pattern has a line of its own.
fn entry(name: &str, value: &str) -> String {
    format!("  {name:<10} {value}")
}

/// Replaces control characters, so that a token cannot control the terminal.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn moment(seconds: f64) -> String {
    let now_s = unix_s();
    if !(0.0..=1e11).contains(&seconds) {
        return "out of range".into();
    }
    let at = seconds as u64;
    let distance = humantime::format_duration(Duration::from_secs(at.abs_diff(now_s)));
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(at));
    if at > now_s { format!("{time}, in {distance}") } else { format!("{time}, {distance} ago") }
}

fn api_key(args: ApiKeyArgs) -> anyhow::Result<()> {
    let key = auth::generate_api_key().map_err(|error| anyhow!(error.to_string()))?;
    let rights = Rights::from(args.rights);
    let config = auth::ApiKey { sha256: auth::encode_hash(&auth::hash_api_key(&key)), grants: rights.clone() };
    let named = auth::Config { api_keys: [(args.name.clone(), config.clone())].into(), ..auth::Config::default() };
    named.check()?;
    output::line(format_args!(
        "{key}\n\n# The line above is the key for the back end. It cannot be shown again. The lines below are for the server's configuration."
    ))?;
    output::line(format_args!("[auth.api_keys.{}]\nsha256 = {:?}", toml_key(&args.name), config.sha256))?;
    for (right, patterns) in rights.by_right().into_iter().filter(|(_, patterns)| !patterns.is_empty()) {
        output::line(format_args!("grants.{} = {}", right.name(), json!(patterns)))?;
    }
    if rights.admin {
        output::line("grants.admin = true")?;
    }
    Ok(())
}

/// Quotes a TOML key unless TOML allows it bare.
fn toml_key(name: &str) -> String {
    let is_bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if is_bare { name.to_owned() } else { json!(name).to_string() }
}

fn load(file: Option<PathBuf>) -> anyhow::Result<Config> {
    Ok(serve::Args::of_file(file).load()?.config)
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
