//! A file with the text of an input, for code that reads files. The file is unlinked after its creation, so no file
//! is left behind however a run ends.

use std::{
    env,
    fs::{File, OpenOptions},
    io::{Seek, Write},
    os::fd::AsRawFd,
    path::PathBuf,
    process,
};

/// Writes `text` to the file and returns its path. The text stays valid until the next call.
pub fn with(text: &str) -> PathBuf {
    thread_local!(static FILE: File = open());
    FILE.with(|mut file| {
        file.rewind().and_then(|()| file.set_len(0)).and_then(|()| file.write_all(text.as_bytes())).expect("a file");
        format!("/proc/self/fd/{}", file.as_raw_fd()).into()
    })
}

fn open() -> File {
    let path = env::temp_dir().join(format!("millrace-fuzz-{}", process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a temporary file");
    std::fs::remove_file(path).expect("our own file");
    file
}
