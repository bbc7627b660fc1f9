//! `drophammer tree`: draws a layout, from its disks to its mount points, on a terminal or as an SVG image.

mod terminal;
#[cfg(test)]
mod tests;

use crate::terminal_output::{print_for_terminal, wants_color};
use clap::Args;
use common::command_outcome::CommandOutcome;
use common::error::{Context, Phase, Result};
use common::output::print_text;
use model::layout::graph::LayoutGraph;
use std::path::PathBuf;

/// Options of `drophammer tree`.
#[derive(Debug, Args)]
pub struct TreeOptions {
    /// The layout, in YAML or JSON.
    #[arg(value_name = "LAYOUT")]
    pub layout: PathBuf,
    /// Draw an SVG image, and write it to FILE or, if FILE is omitted, to standard output.
    // FILE must be preceded by `=`, so that a layout on the command line is never mistaken for the file to write.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub svg: Option<Option<PathBuf>>,
}

/// Draws a layout, or prints its problems.
///
/// # Errors
/// Returns an error if the layout cannot be read, or the image cannot be written.
pub fn run_tree(options: &TreeOptions) -> Result<CommandOutcome> {
    let parsed = match super::read_layout(&options.layout)? {
        Ok(parsed) => parsed,
        Err(problems) => {
            super::print_problems(&options.layout, &problems)?;
            return Ok(CommandOutcome::Refused);
        }
    };
    let graph = LayoutGraph::from_layout(&parsed.layout);
    match &options.svg {
        None => print_for_terminal(&terminal::draw_tree(&graph, wants_color()))?,
        Some(None) => print_text(&diagram::draw_svg(&graph))?,
        Some(Some(path)) => std::fs::write(path, diagram::draw_svg(&graph))
            .context(Phase::Settings, || format!("write the diagram to {file}", file = path.display()))?,
    }
    Ok(CommandOutcome::Good)
}
