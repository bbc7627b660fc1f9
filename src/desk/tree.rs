//! `drophammer tree`: a layout from its disks up to its mount points, for a terminal and as a picture.

mod faces;
mod place;
mod svg;
mod terminal;
#[cfg(test)]
mod tests;
mod words;

use super::Outcome;
use crate::cli;
use crate::error::{Context, Phase, Result};
use crate::layout::tree::Graph;

/// Draws a layout, or prints what is wrong with it.
///
/// # Errors
/// The layout cannot be read, or the picture not be written.
pub fn tree(options: &cli::Tree) -> Result<Outcome> {
    let parsed = match super::read_layout(&options.layout)? {
        Ok(parsed) => parsed,
        Err(problems) => {
            super::print_problems(&options.layout, &problems)?;
            return Ok(Outcome::Refused);
        }
    };
    let graph = Graph::of(&parsed.layout);
    match &options.svg {
        None => super::print(&terminal::draw(&graph, super::wants_colour()))?,
        Some(None) => super::print(&svg::draw(&graph))?,
        Some(Some(path)) => std::fs::write(path, svg::draw(&graph))
            .context(Phase::Settings, || format!("write the picture to {}", path.display()))?,
    }
    Ok(Outcome::Good)
}
