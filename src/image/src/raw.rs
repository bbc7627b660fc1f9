//! Writing a raw disk image from the pipeline to a whole disk.
//!
//! The first MiB of the image, where partition table and boot loader begin, is held back until decoder, length and
//! digest have succeeded, and so is the disk's last sector, which has the header of a backup GPT. Until then both are
//! zero, so that neither an incomplete image nor the old content can boot.
//!
//! It uses no other module of `image` but `pipeline`, whose output it reads.
//!
//! It provides [`write_image()`] to a [`RawTarget`], and the checks before it: [`check_disk_image`] and [`require_tree`], by the beginning
//! of an image.

mod detect;
pub mod duplicate_uuids;
mod target;
mod write;

pub use detect::{ImageRequirements, KIND_BYTES, check_disk_image, require_tree};
pub use target::{AlignedBuffer, RawTarget, TargetDisk};
pub use write::{HEAD_BYTES, write_image};
