//! Determines the requirements for an image on this machine, and checks them against the boot contents that the control
//! plane has recorded for the image. The executor repeats the check, with the same rules, after it has downloaded the
//! manifest of the image.

use super::luks::is_optional;
use super::preserved_activation::mount_path;
use super::{InstallMode, PlanRequest};
use model::inventory::Inventory;
use model::layout::{KeySource, Layout};
use operations::{ImageFindings, ImageNeeds};

/// Mount points that may contain kernels and the init program, in addition to `/`.
const SYSTEM_MOUNT_POINTS: [&str; 4] = ["/boot", "/usr", "/usr/lib", "/lib"];

/// Returns the requirements for an image that is a root tree. Returns `None` for a raw image, because a raw image must
/// be bootable without changes.
pub fn determine_needs(layout: &Layout, inventory: &Inventory, request: &PlanRequest) -> Option<ImageNeeds> {
    if layout.disks.iter().any(|disk| disk.image) {
        return None;
    }
    let paths = layout.filesystems.iter().filter_map(|filesystem| filesystem.path.as_deref());
    let needed = layout.filesystems.iter().filter(|filesystem| !is_optional(filesystem));
    let opened = needed.filter_map(|filesystem| {
        let group = || layout.find_encrypted_group(&filesystem.device)?.encrypted;
        Some((mount_path(filesystem)?.to_owned(), filesystem.encrypted.or_else(group)?.key))
    });
    let opened: Vec<(String, KeySource)> = opened.collect();
    let allocation = &request.assigned.allocation;
    Some(ImageNeeds {
        finisher: allocation.finisher(),
        firmware: inventory.system.firmware,
        may_preserve_kernel: request.mode == InstallMode::Reinstall
            && paths.into_iter().any(|path| SYSTEM_MOUNT_POINTS.contains(&path)),
        has_user_data: allocation.has_user_data(),
        has_network: !allocation.network.is_null(),
        opens: opened.first().map(|(path, _)| path.clone()),
        unlocked_by_tpm: opened.into_iter().find(|(_, key)| *key == KeySource::Tpm2).map(|(path, _)| path),
    })
}

/// Checks the boot contents that the control plane has recorded for the image.
pub(crate) fn check_image_contents(layout: &Layout, inventory: &Inventory, request: &PlanRequest) -> ImageFindings {
    let contents = request.assigned.allocation.image.contents.as_ref();
    let judged = contents
        .and_then(|contents| Some(determine_needs(layout, inventory, request)?.find_image_deficiencies(contents)));
    judged.unwrap_or_default()
}
