//! Writes a raw disk image from the pipeline to a whole disk.
//!
//! Two parts of the image are held back until the image is completely decoded and verified: the first MiB, in which the
//! partition table and the boot loader begin, and the data for the disk's last sector, which contains the header of a
//! backup GPT. Until then, both ranges of the disk contain zeros, so that neither an incomplete image nor the old
//! content can boot.
//!
//! The only other module of `image` that this module uses is `pipeline`, whose output it reads.
//!
//! It provides [`write_image()`], which writes to a [`RawTarget`], and two checks of the beginning of an image:
//! [`check_disk_image`] and [`require_tree`].

mod disk_image_detection;
mod disk_writer;
pub mod duplicate_uuids;
mod target;

pub(crate) use disk_image_detection::is_disk_image;
pub use disk_image_detection::{DETECTION_BYTES, ImageRequirements, check_disk_image, require_tree};
pub use disk_writer::{HEAD_BYTES, write_image};
pub use target::{RawTarget, TargetDisk};
