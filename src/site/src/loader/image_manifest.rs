//! Manifests next to image files.

use crate::snapshot::MANIFEST;
use model::image_boot_contents::{self, BootContents};
use std::path::{Path, PathBuf};
use store::image_digest_cache;

/// Maximum size of a manifest, in bytes. The largest known manifests are 4.4 MB.
const MANIFEST_BYTES: i64 = 8 << 20;

/// Returns the path of the manifest of an image file.
pub(super) fn manifest_path(image: &Path) -> PathBuf {
    let mut path = image.as_os_str().to_owned();
    path.push(MANIFEST);
    path.into()
}

/// Reads an image's boot contents from its manifest. Returns `None` if the manifest or the image's digest is missing.
pub(super) fn read_image_contents(manifest: &Path, digest: Option<&str>) -> Result<Option<BootContents>, String> {
    let Some(digest) = digest else { return Ok(None) };
    let text = match image_digest_cache::file_stamp(manifest) {
        Ok(file) if file.size > MANIFEST_BYTES => {
            return Err(format!("the manifest is {} bytes long; the limit is {MANIFEST_BYTES} bytes", file.size));
        }
        Ok(_) => std::fs::read(manifest).map_err(|error| error.to_string())?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    image_boot_contents::read_manifest_contents(&text, digest)
}
