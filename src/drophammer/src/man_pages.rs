//! `drophammer man`: writes a manual page in section 1 for each command, generated from the definition of the command
//! line, and pages in section 5 for the files that operators write, generated from the schemas.

mod file_formats;
mod page_sections;
#[cfg(test)]
mod tests;

use crate::cli::Cli;
use crate::command_examples::add_examples;
use crate::option_environment_variables::add_variables;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use common::command_outcome::CommandOutcome;
use common::error::{Context, Phase, Result};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) use page_sections::is_exit_status;

/// Writes the pages. If the directory is named `man1`, pages of section 5 are written to the directory `man5` next to
/// it; otherwise all pages are written to the same directory.
///
/// # Errors
/// Returns an error if a directory or a page cannot be written.
pub fn write_man_pages(folder: &Path) -> Result<CommandOutcome> {
    let what = || format!("write manual pages into {folder}", folder = folder.display());
    let formats = file_format_folder(folder);
    [folder, &formats].into_iter().try_for_each(fs::create_dir_all).context(Phase::Settings, what)?;
    for (name, text) in render_command_pages() {
        fs::write(folder.join(name), text).context(Phase::Settings, what)?;
    }
    for (name, text) in file_formats::render_pages() {
        fs::write(formats.join(name), text).context(Phase::Settings, what)?;
    }
    Ok(CommandOutcome::Good)
}

fn file_format_folder(folder: &Path) -> PathBuf {
    match folder.file_name() {
        Some(name) if name == "man1" => folder.with_file_name("man5"),
        _ => folder.to_owned(),
    }
}

/// Returns the definition of the command line that the pages describe.
fn described_command() -> Command {
    let mut command = add_examples(add_variables(Cli::command(), |_, _| true)).disable_help_subcommand(true);
    command.build();
    command
}

/// Returns the file names and contents of all pages about commands.
fn render_command_pages() -> Vec<(String, Vec<u8>)> {
    let mut pages = Vec::new();
    add_pages(&described_command(), &[], &mut pages);
    pages
}

/// Adds the pages about a command and its visible subcommands. `above` contains the parent commands.
fn add_pages<'a>(command: &'a Command, above: &[&'a Command], pages: &mut Vec<(String, Vec<u8>)>) {
    let path: Vec<&Command> = above.iter().copied().chain([command]).collect();
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        add_pages(below, &path, pages);
    }
    let name = page_sections::page_name(&path);
    let mut text = Vec::new();
    // Writing to memory cannot fail, so the result is ignored.
    let _ = render_page(command, &path, &mut text);
    pages.push((format!("{name}.1"), text));
}

fn render_page(command: &Command, path: &[&Command], page: &mut dyn Write) -> std::io::Result<()> {
    let man = Man::new(command.clone()).source(concat!("drophammer ", env!("CARGO_PKG_VERSION")));
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(page)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(page)?;
    }
    page_sections::render_sections(path).to_writer(page)
}
