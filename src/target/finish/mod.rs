//! Makes a tree without an installer a machine that boots: one concern a file.

mod arrays;
pub mod bls;
pub mod boot;
mod command_line;
mod esp;
mod initramfs;
mod kernel;
mod loader;
mod places;
