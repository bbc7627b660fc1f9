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
use std::io::IsTerminal;

/// Draws a layout, or prints what is wrong with it.
///
/// # Errors
/// The layout cannot be read, or the picture not be written.
pub fn tree(options: &cli::Tree) -> Result<Outcome> {
    let parsed = match super::read_layout(&options.layout)? {
        Ok(parsed) => parsed,
        Err(problems) => {
            super::print_problems(&options.layout, &problems);
            return Ok(Outcome::Refused);
        }
    };
    let graph = Graph::of(&parsed.layout);
    match &options.svg {
        None => super::print(&terminal::draw(&graph, wants_colour()))?,
        Some(None) => super::print(&svg::draw(&graph))?,
        Some(Some(path)) => std::fs::write(path, svg::draw(&graph))
            .context(Phase::Settings, || format!("write the picture to {}", path.display()))?,
    }
    Ok(Outcome::Good)
}

/// Colour is for people: no pipe gets it, and nobody who asked for none (no-color.org).
fn wants_colour() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !unwanted && !dumb
}
