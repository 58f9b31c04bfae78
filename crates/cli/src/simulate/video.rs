//! `millrace simulate video`: the picture of a synthetic camera as a file.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
};

use anyhow::Context;
use clap::Args as ClapArgs;
use millrace_call::{
    source::FRAMES_PER_S,
    y4m::{Size, Y4m},
};

use crate::{number::number, output};

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The file is raw video (YUV4MPEG2, 4:2:0, 30 frames per second): 640x480 has 14 MB per second. The same seed gives the same bytes.\n\n\
    Example: Chromium with this file as its camera\n  \
    millrace simulate video --y4m camera.y4m --seconds 10\n  \
    chromium --use-fake-ui-for-media-stream --use-fake-device-for-media-stream --use-file-for-fake-video-capture=camera.y4m"
)]
pub struct Args {
    /// File to write
    #[arg(long, value_name = "FILE")]
    y4m: PathBuf,
    /// Width and height in pixels, even numbers from 16 to 4096
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value = "640x480")]
    size: Size,
    /// Length of the video in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = number::<u32, _>(1..=3600))]
    seconds: u32,
    /// Seed of the pictures
    #[arg(long, default_value_t = 7, value_parser = number::<u64, _>(..))]
    seed: u64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let path = args.y4m.display();
    let mut file = BufWriter::new(File::create(&args.y4m).with_context(|| format!("cannot create {path}"))?);
    let frames = u64::from(args.seconds * FRAMES_PER_S);
    for piece in Y4m::new(args.size, frames, args.seed) {
        file.write_all(&piece).with_context(|| format!("cannot write {path}"))?;
    }
    file.flush().with_context(|| format!("cannot write {path}"))?;
    output::note(format_args!("{frames} frames written to {path}"));
    Ok(())
}
