//! Operations that fetch the image of the operating system.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText};
use crate::{BurnDisk, Effect, ImageNeeds, PlannedOperation};
use model::allocation::AllocatedImage;
use serde::Serialize;

/// Operation that requests the size and the digest of the image from the image's server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResolveImage {
    pub name: String,
    /// URL without secrets, for display.
    pub url: String,
    /// Image with all of its download locations. Their URLs may contain secrets.
    #[serde(skip)]
    pub image: Box<AllocatedImage>,
    /// Disk to which a raw image will be written. The operation refuses an image that does not fit on this disk.
    #[serde(skip)]
    pub onto: Option<BurnDisk>,
    /// Requirements for a root tree. The operation refuses an image whose manifest does not meet them.
    #[serde(skip)]
    pub needs: Option<ImageNeeds>,
}

impl PlannedOperation for ResolveImage {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        format!("query {url} for size and digest", url = self.url).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that extracts the image into the mounted root filesystem while it is downloaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BurnImage {
    pub name: String,
    /// Mount points of preserved filesystems. Files of the image below these mount points will be hidden.
    pub hidden: Vec<String>,
    /// Mount points of preserved filesystems into which the files of the image are extracted.
    pub merged: Vec<String>,
    /// Mount points of filesystems that this plan creates, except `/`.
    pub fresh: Vec<String>,
    /// Memory of the machine, in bytes, from which the writeback threshold of the kernel is computed.
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
    let merged = below("files of the image are merged, replacing files of the same name, into", merged);
    let first = OperationText::after(format!("{name}, whose digest is verified before the system is started"));
    first.with(hidden.into_iter().chain(merged).collect())
}
