//! Reads a channel until a file is complete.

use std::{
    fs::{self, File},
    io::{self, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use super::{Assembler, FileError, Manifest, Piece};
use crate::subscription::{Options, SubscriptionError, Update, read};

/// Reason why a file cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("cannot write {}: {}", .0.display(), .1)]
    Write(PathBuf, io::Error),
    #[error("the name of the file in its manifest is no plain file name; set the path to write to")]
    Name,
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Subscription(#[from] SubscriptionError),
    #[error("the subscription ended before the file was complete")]
    Ended,
}

/// Reads the channel of `options` until its first file, or the one with the SHA-256 `only`, is complete, and returns
/// path and manifest.
///
/// The bytes are written beside the path, with the extension `part`; the file gets its name once its SHA-256 is right.
/// Errors: those of the assembler, the subscription and the disk. The partial file is deleted then.
pub async fn receive(
    options: &Options,
    out: Option<&Path>,
    bytes_max: u64,
    only: Option<String>,
    mut progress: impl FnMut(&Update),
) -> Result<(PathBuf, Manifest), ReceiveError> {
    let mut assembler = Assembler::new(bytes_max).only(only);
    let mut target: Option<Target> = None;
    let mut result: Option<Result<(PathBuf, Manifest), ReceiveError>> = None;
    let mut sink = |update: Update| {
        progress(&update);
        let Update::Message(message) = update else { return ControlFlow::Continue(()) };
        let step = assembler.handle(&message).map_err(Into::into).and_then(|piece| write(&mut target, piece, out));
        match step {
            Ok(None) => ControlFlow::Continue(()),
            Ok(Some(complete)) => {
                result = Some(Ok(complete));
                ControlFlow::Break(())
            }
            Err(error) => {
                result = Some(Err(error));
                ControlFlow::Break(())
            }
        }
    };
    read(options, &mut sink).await?;
    result.unwrap_or(Err(ReceiveError::Ended))
}

/// The file that is written. Dropping it deletes the partial file.
struct Target {
    manifest: Manifest,
    path: PathBuf,
    part: PathBuf,
    file: File,
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.part);
    }
}

/// Writes a piece. Returns path and manifest once the file is complete.
fn write(
    target: &mut Option<Target>,
    piece: Piece,
    out: Option<&Path>,
) -> Result<Option<(PathBuf, Manifest)>, ReceiveError> {
    let (data, is_last) = match piece {
        Piece::Ignored => return Ok(None),
        Piece::Begin(manifest) => {
            let path = match out {
                Some(path) => path.to_owned(),
                None => plain_name(&manifest.name).ok_or(ReceiveError::Name)?,
            };
            let mut part = path.clone().into_os_string();
            part.push(".part");
            let part = PathBuf::from(part);
            let file = File::create(&part).map_err(|error| ReceiveError::Write(part.clone(), error))?;
            *target = Some(Target { manifest, path, part, file });
            return Ok(None);
        }
        Piece::Data(data) => (data, false),
        Piece::Last(data) => (data, true),
    };
    let Some(open) = target else { return Ok(None) };
    let failed = |error| ReceiveError::Write(open.part.clone(), error);
    open.file.write_all(&data).map_err(failed)?;
    if !is_last {
        return Ok(None);
    }
    open.file.sync_all().map_err(failed)?;
    fs::rename(&open.part, &open.path).map_err(|error| ReceiveError::Write(open.path.clone(), error))?;
    Ok(Some((open.path.clone(), open.manifest.clone())))
}

/// Returns the name if it names a file in the current folder: a sender must not choose another folder.
fn plain_name(name: &str) -> Option<PathBuf> {
    let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
    is_plain.then(|| PathBuf::from(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_cannot_choose_another_folder() {
        assert_eq!(plain_name("log.txt"), Some("log.txt".into()));
        for bad in ["", ".", "..", ".bashrc", "../log", "/etc/passwd", "a/b", "a\\b", "a\0"] {
            assert_eq!(plain_name(bad), None, "{bad:?}");
        }
    }
}
