//! `drophammer tree`: draws a layout from its disks up to its mount points, on a terminal or as an SVG image.

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

/// Options of `drophammer tree`.
#[derive(Debug, Args)]
pub struct Options {
    /// The layout, YAML or JSON.
    #[arg(value_name = "LAYOUT")]
    pub layout: PathBuf,
    /// Draw an SVG image: to FILE, or to standard output.
    // Requires `=`, so that a layout is never mistaken for the file to write.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub svg: Option<Option<PathBuf>>,
}

/// Draws a layout, or prints its problems.
///
/// # Errors
/// The layout cannot be read, or the image cannot be written.
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
            .context(Phase::Settings, || format!("write the image to {}", path.display()))?,
    }
    Ok(Exit::Good)
}
