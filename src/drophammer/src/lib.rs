//! Command line of drophammer: one file for each command that runs on a workstation, and the client of the server's
//! API.
//!
//! Commands read files, inspect machines, send requests to servers, and print the results. All decisions are made in
//! other crates. Start with [`cli`], the table of all commands.

pub mod cli;
mod client_config;
pub mod command_examples;
pub mod completions;
mod confirmation;
#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod hostile_text_tests;
pub mod live_completion;
pub mod local_commands;
pub mod machine_adoption;
pub mod man_pages;
pub mod missing_verbs;
mod object_list;
pub mod option_environment_variables;
pub mod server_commands;
mod terminal_output;
#[cfg(test)]
mod terminal_writers_tests;
#[cfg(test)]
mod wire_format_tests;

#[cfg(test)]
testing::workers!(linux::process::worker_process::USED_BLOCKS_WORKER => transfer::run_used_blocks_worker, linux::process::worker_process::WORKER => image::worker::run_image_worker, linux::verify_program::WORKER => || -> std::io::Result<()> { linux::verify_program::worker::run_verify_worker() });
