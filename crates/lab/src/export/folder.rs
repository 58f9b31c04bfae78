//! The folder of an export, and the list of its files in `export.json`.
//!
//! An export replaces only files that an export wrote: those in the list of the folder.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::sheet::Sheet;
use crate::recording::{Form, Recording};

/// Format version of the list, raised when a field changes its meaning.
const FORMAT: u32 = 1;
const LIST: &str = "export.json";
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Files of an export: the content of `export.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exported {
    pub format: u32,
    pub scenario: String,
    pub form: Form,
    /// Start of the recording, in RFC 3339 format.
    pub started: String,
    pub runs_planned: u32,
    pub runs: u32,
    /// Limits of the figures in all files.
    pub notes: Vec<String>,
    pub files: Vec<File>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// Name with the extension: `runs.csv`.
    pub name: String,
    pub rows: usize,
    /// How the figures were obtained, or why there are none.
    pub note: String,
}

/// Writes the files and their list. Files of an earlier export of this folder are replaced or removed.
///
/// Errors: the folder has files that no export wrote, or cannot be written.
pub fn write(recording: &Recording, sheets: &[Sheet], notes: Vec<String>, folder: &Path) -> anyhow::Result<Exported> {
    let earlier = earlier(folder)?;
    let exported = Exported {
        format: FORMAT,
        scenario: recording.scenario.clone(),
        form: recording.form,
        started: recording.started.clone(),
        runs_planned: recording.planned,
        runs: recording.runs.len() as u32,
        notes,
        files: sheets.iter().map(file).collect(),
    };
    for File { name, .. } in &exported.files {
        let is_ours = earlier.iter().any(|ours| ours == name) || !folder.join(name).exists();
        ensure!(is_ours, "{}: no export wrote this file; choose another --out", folder.join(name).display());
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // The list comes first: if the export is interrupted, the next one knows its files.
    let mut list = exported.clone();
    let kept = earlier.iter().filter(|name| !exported.files.iter().any(|file| file.name == **name));
    list.files.extend(kept.clone().map(|name| File { name: name.clone(), rows: 0, note: "removed".into() }));
    save(&folder.join(LIST), &serde_json::to_vec_pretty(&list)?)?;
    for name in kept {
        remove(&folder.join(name))?;
    }
    for (sheet, File { name, .. }) in sheets.iter().zip(&exported.files) {
        save(&folder.join(name), &sheet.csv().with_context(|| name.clone())?)?;
    }
    save(&folder.join(LIST), &serde_json::to_vec_pretty(&exported)?)?;
    Ok(exported)
}

fn file(sheet: &Sheet) -> File {
    File { name: format!("{}.csv", sheet.name), rows: sheet.rows.len(), note: sheet.note.clone() }
}

/// Returns the names of the files that an earlier export wrote into this folder.
///
/// Errors: the folder has files, but no list of an export; or the list cannot be read.
fn earlier(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", folder.display())),
    };
    let path = folder.join(LIST);
    if !path.exists() {
        ensure!(
            entries.count() == 0,
            "{} has files that no export wrote; choose another --out, or an empty folder",
            folder.display()
        );
        return Ok(Vec::new());
    }
    let size = fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.len();
    ensure!(size <= LIST_BYTES_MAX, "{}: larger than {LIST_BYTES_MAX} bytes, so no list of an export", path.display());
    let list = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let list: Exported = serde_json::from_slice(&list)
        .with_context(|| format!("{}: not the list of an export; choose another --out", path.display()))?;
    if list.format != FORMAT {
        bail!("{}: format {}, this program reads {FORMAT}; choose another --out", path.display(), list.format);
    }
    // A list that was changed must not lead to files elsewhere.
    let is_plain = |name: &String| name.ends_with(".csv") && Path::new(name).file_name() == Some(name.as_ref());
    Ok(list.files.into_iter().map(|file| file.name).filter(is_plain).collect())
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Writes a file beside its place and renames it, so that a reader never sees half a file.
fn save(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".part");
    let aside = PathBuf::from(aside);
    let write = || -> std::io::Result<()> {
        fs::write(&aside, bytes)?;
        fs::rename(&aside, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
