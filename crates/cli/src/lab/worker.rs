//! `millrace lab worker`: a generator process of a run that needs several.

use std::process::ExitCode;

use clap::Args as ClapArgs;

#[derive(ClapArgs)]
pub struct Args {}

pub fn run(_: &Args) -> anyhow::Result<ExitCode> {
    millrace_lab::spread::serve()?;
    Ok(ExitCode::SUCCESS)
}
