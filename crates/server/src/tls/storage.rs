//! Files and folders that the server creates: certificates, keys and accounts.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// Returns `$XDG_DATA_HOME/millrace/NAME`, or the same below the home directory.
pub fn data_dir(name: &str) -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    data.map_or_else(|| format!("millrace-{name}").into(), |data| data.join("millrace").join(name))
}

/// Creates a folder that only its owner can open, unless it exists.
pub fn make_private_dir(dir: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("cannot create {}", dir.display()))
}

/// Writes a file atomically, so that a server that reads it concurrently sees the old or the new content.
pub fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let temporary = path.with_extension("new");
    let unwritable = || format!("cannot write {}", path.display());
    let _ = fs::remove_file(&temporary);
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).with_context(unwritable)?;
    file.write_all(text.as_bytes()).with_context(unwritable)?;
    fs::rename(&temporary, path).with_context(unwritable)
}
