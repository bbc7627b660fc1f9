//! Writing a raw disk image from the pipeline to a whole disk.
//!
//! The first MiB of the image, where partition table and boot loader begin, is held back until decoder, length and
//! digest have succeeded, and so is the disk's last sector, which has the header of a backup GPT. Until then both are
//! zero, so that neither an incomplete image nor the old content can boot.
//!
//! It uses no other module of `image` but `flow`, whose output it reads.
//!
//! It provides [`write()`] to a [`Target`], and the checks before it: [`check`] and [`require_tree`], by the beginning
//! of an image.

mod sniff;
mod target;
pub mod unique;
mod write;

pub use sniff::{Expected, KIND_BYTES, check, require_tree};
pub use target::{Aligned, Disk, Target};
pub use write::{HEAD_BYTES, write};
