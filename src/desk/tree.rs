//! `drophammer tree`: a layout from its disks up to its mount points, for a terminal and as a picture.

mod terminal;
#[cfg(test)]
mod tests;

use crate::error::{Context, Phase, Result};
use crate::exit::Exit;
use crate::layout::tree::Graph;
use crate::picture;
use crate::stdout::{print, print_styled};
use clap::Args;
use std::path::PathBuf;

/// What is asked for.
#[derive(Debug, Args)]
pub struct Options {
    /// The layout, YAML or JSON.
    #[arg(value_name = "LAYOUT")]
    pub layout: PathBuf,
    /// A picture instead: to FILE, or to standard output.
    // With `=`, so that no layout is ever taken for the file to write.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub svg: Option<Option<PathBuf>>,
}

/// Draws a layout, or prints what is wrong with it.
///
/// # Errors
/// The layout cannot be read, or the picture not be written.
pub fn tree(options: &Options) -> Result<Exit> {
    let parsed = match super::read_layout(&options.layout)? {
        Ok(parsed) => parsed,
        Err(problems) => {
            super::print_problems(&options.layout, &problems)?;
            return Ok(Exit::Refused);
        }
    };
    let graph = Graph::of(&parsed.layout);
    match &options.svg {
        None if super::wants_colour() => print_styled(&terminal::draw(&graph, true))?,
        None => print(&terminal::draw(&graph, false))?,
        Some(None) => print(&picture::draw(&graph))?,
        Some(Some(path)) => std::fs::write(path, picture::draw(&graph))
            .context(Phase::Settings, || format!("write the picture to {}", path.display()))?,
    }
    Ok(Exit::Good)
}
