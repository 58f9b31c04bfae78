//! The browsers: programs, profiles, flags.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
};

use anyhow::{Context, bail};

use crate::path::behind::HOST_VARIABLE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Browser {
    Chromium,
    Firefox,
}

/// Flags that make Chromium film the file behind them.
const CAMERA: &str = "--use-file-for-fake-video-capture=";
const CHROMIUM_FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
];
/// Relayed addresses of a server on loopback are on loopback, too.
const FIREFOX_PREFERENCES: &str = "user_pref(\"media.autoplay.default\", 0);
user_pref(\"media.peerconnection.ice.loopback\", true);
user_pref(\"network.proxy.type\", 0);
user_pref(\"datareporting.policy.dataSubmissionEnabled\", false);
user_pref(\"app.update.enabled\", false);
user_pref(\"browser.aboutwelcome.enabled\", false);
user_pref(\"browser.shell.checkDefaultBrowser\", false);
";

impl Browser {
    pub fn name(self) -> &'static str {
        match self {
            Browser::Chromium => "chromium",
            Browser::Firefox => "firefox",
        }
    }

    /// Returns the program: `$CHROMIUM` or `$FIREFOX`, or the one of the system.
    ///
    /// Errors: this program does not exist.
    pub fn program(self) -> anyhow::Result<PathBuf> {
        let (variable, usual) = match self {
            Browser::Chromium => ("CHROMIUM", "/usr/bin/chromium"),
            Browser::Firefox => ("FIREFOX", "/usr/bin/firefox-esr"),
        };
        let program = std::env::var_os(variable).map_or_else(|| PathBuf::from(usual), PathBuf::from);
        program.is_file().then_some(()).with_context(|| {
            let path = program.display();
            format!("{} is not at {path}: install it, or name its program in {variable}", self.name())
        })?;
        Ok(program)
    }

    /// Returns a command that opens a page behind a link. `folder`: receives profile, log and process id. `server_port`
    /// and `query` become the query of the page.
    pub fn command(
        self,
        folder: &Path,
        page: &Path,
        camera: &Path,
        (server_port, query): (u16, &str),
    ) -> anyhow::Result<Command> {
        let profile = folder.join("profile");
        fs::create_dir_all(&profile)?;
        let mut words: Vec<OsString> = vec![self.program()?.into()];
        let mut query = query.to_owned();
        match self {
            Browser::Chromium => {
                words.extend(CHROMIUM_FLAGS.map(OsString::from));
                words.extend([option("--user-data-dir=", &profile), option(CAMERA, camera)]);
                query += "&camera=1";
            }
            Browser::Firefox => {
                fs::write(profile.join("user.js"), FIREFOX_PREFERENCES)?;
                words.extend(["--headless", "--no-remote", "--profile"].map(OsString::from));
                words.push(profile.into());
            }
        }
        let log = fs::File::create(folder.join(LOG))?;
        // The address of the server is known only behind the link. `exec` keeps the process id.
        let script = format!(
            "echo $$ > \"$PID_FILE\" && exec \"$@\" \"file://$PAGE?server=http://${HOST_VARIABLE}:{server_port}&$QUERY\""
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).args(words);
        command.env("PAGE", page).env("QUERY", query).env("PID_FILE", folder.join(PID_FILE));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }
}

/// Files in the folder of a browser.
pub const LOG: &str = "log";
pub const PID_FILE: &str = "pid";

fn option(name: &str, path: &Path) -> OsString {
    let mut text = OsString::from(name);
    text.push(path);
    text
}

impl FromStr for Browser {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let found = [Browser::Chromium, Browser::Firefox].into_iter().find(|browser| browser.name() == name);
        let Some(found) = found else { bail!("{name:?}: expected chromium or firefox") };
        Ok(found)
    }
}

/// Browsers of the participants of a call: `chromium-firefox`.
pub fn parse(names: &str) -> anyhow::Result<Vec<Browser>> {
    names.split('-').map(str::parse).collect()
}

pub fn names(browsers: &[Browser]) -> String {
    browsers.iter().map(|browser| browser.name()).collect::<Vec<_>>().join("-")
}
