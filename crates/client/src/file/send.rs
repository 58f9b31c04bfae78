//! Publishes a file in chunks.

use std::{
    fs::File,
    io::{self, Read, Seek},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{CHUNK_BYTES, First, Manifest, hex};
use crate::{
    http::query_value,
    publish::{HttpPublisher, PublishError},
    server::Server,
};

/// Reason why a file cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("cannot read {}: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    #[error("{} has changed while it was sent; send it again", .0.display())]
    Changed(PathBuf),
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Publishes the file at a path to a channel, and returns its manifest. See [`send_from`].
pub async fn send(
    publisher: &mut HttpPublisher,
    server: &Server,
    channel: &str,
    path: &Path,
    progress: impl FnMut(u64, &Manifest),
) -> Result<Manifest, SendError> {
    let file = File::open(path).map_err(|error| SendError::Read(path.to_owned(), error))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    send_from(publisher, server, channel, name, file, progress).await.map_err(|error| match error {
        SendError::Read(_, error) => SendError::Read(path.to_owned(), error),
        SendError::Changed(_) => SendError::Changed(path.to_owned()),
        error => error,
    })
}

/// Publishes a file to a channel, and returns its manifest.
///
/// Each chunk is sent after the server has accepted the previous one. A server whose readers are slow asks to wait
/// (`congested`), so the sender is never faster than they are. Memory: one chunk.
/// Errors: the file cannot be read or changes; those of the publisher.
pub async fn send_from(
    publisher: &mut HttpPublisher,
    server: &Server,
    channel: &str,
    name: String,
    mut file: impl Read + Seek,
    mut progress: impl FnMut(u64, &Manifest),
) -> Result<Manifest, SendError> {
    let path = PathBuf::from(&name);
    let read_error = |error| SendError::Read(path.clone(), error);
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = fill(&mut file, &mut chunk).map_err(read_error)?;
        hash.update(&chunk[..length]);
        bytes += length as u64;
        if length < CHUNK_BYTES {
            break;
        }
    }
    let sha256 = hex(&hash.finalize());
    let manifest = Manifest { name, bytes, sha256, chunk_bytes: CHUNK_BYTES as u64 };
    let url = format!("/v1/channels/{}", query_value(channel));
    let first = serde_json::to_vec(&First { file: manifest.clone() }).expect("a manifest is JSON");
    let headers = [("Content-Type", "application/json"), ("Millrace-Key", &manifest.sha256)];
    publisher.post(server, &url, &headers, first, |_| Ok(())).await?;
    file.rewind().map_err(read_error)?;
    let (mut again, mut sent) = (Sha256::new(), 0);
    // An empty file has one empty chunk, so that its receiver finds an end.
    for index in 0..manifest.chunks().max(1) {
        let length = fill(&mut file, &mut chunk).map_err(read_error)?;
        again.update(&chunk[..length]);
        sent += length as u64;
        let key = format!("{}/{index}", manifest.sha256);
        let headers = [("Content-Type", "application/octet-stream"), ("Millrace-Key", &key)];
        publisher.post(server, &url, &headers, chunk[..length].to_vec(), |_| Ok(())).await?;
        progress(sent, &manifest);
    }
    match hex(&again.finalize()) == manifest.sha256 {
        true => Ok(manifest),
        false => Err(SendError::Changed(path)),
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}
