//! A raw disk image: what comes out of the flow, onto a whole disk.
//!
//! The image's first MiB, where partition table and boot loader begin, is held back until decoder, length and digest all
//! agree, and with it what it has for the disk's last sector, where a backup GPT has its header. Till then both are zero:
//! neither half an image nor what was there before can boot.
//!
//! Of `image` it uses `flow` alone, which it reads. It knows nothing of `get` and `tree`.
//!
//! It gives [`write()`] onto a [`Target`], and before it [`check`] and [`require_tree`]: what the beginning of an image says.

mod sniff;
mod target;
pub mod unique;
mod write;

pub use sniff::{Expected, KIND_BYTES, check, require_tree};
pub use target::{Aligned, Disk, Target};
pub use write::{HEAD_BYTES, write};
