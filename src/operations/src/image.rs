//! The image of the operating system.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText};
use crate::{BurnDisk, Effect, ImageNeeds, PlannedOperation};
use model::allocation::AllocatedImage;
use serde::Serialize;

/// Requests the size and digest of the image from the server that stores the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReachImage {
    pub name: String,
    /// URL without secrets, for display.
    pub url: String,
    /// All download locations of the image, including secrets in their URLs.
    #[serde(skip)]
    pub image: Box<AllocatedImage>,
    /// The disk to which a raw image is written. This operation refuses an image that does not fit the disk.
    #[serde(skip)]
    pub onto: Option<BurnDisk>,
    /// Requirements for a root tree. This operation refuses an image whose manifest does not meet them.
    #[serde(skip)]
    pub needs: Option<ImageNeeds>,
}

impl PlannedOperation for ReachImage {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        format!("query {url} for size and digest", url = self.url).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Streams the image to the mounted root filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BurnImage {
    pub name: String,
    /// Mount points of preserved filesystems that will hide files of the image.
    pub hidden: Vec<String>,
    /// Mount points of preserved filesystems to which the image's files are added.
    pub merged: Vec<String>,
    /// Mount points of filesystems that this plan creates, except the root.
    pub fresh: Vec<String>,
    /// Memory of the machine, in bytes. The kernel's writeback threshold is derived from this value.
    pub memory_bytes: u64,
}

impl PlannedOperation for BurnImage {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_image(&self.name, &self.hidden, &self.merged).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn describe_image(name: &str, hidden: &[String], merged: &[String]) -> OperationText {
    let below = |said: &str, paths: &[String]| (!paths.is_empty()).then(|| format!("{said} {}", paths.join(", ")));
    let hidden = below("files of the image are hidden below", hidden);
    let merged = below("files of the image are added, and replace those of the same name, below", merged);
    let first = OperationText::after(format!("{name}, whose digest is verified before the system is started"));
    first.with(hidden.into_iter().chain(merged).collect())
}
