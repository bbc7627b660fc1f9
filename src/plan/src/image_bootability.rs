//! Determines the requirements for an image on this machine, and checks them against the boot contents that the control
//! plane has recorded for the image. The executor repeats the check, with the same rules, after it has downloaded the
//! manifest of the image.

use super::luks::is_optional;
use super::preserved_activation::mount_path;
use super::{InstallMode, PlanRequest};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::allocation::FinisherChoice;
use model::architecture::Architecture;
use model::inventory::{FirmwareType, Inventory};
use model::layout::{KeySource, Layout};
use operations::{ImageFindings, ImageNeeds, explain_mismatch};

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
        architecture: inventory.system.architecture,
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

/// Returns the reasons why an image cannot be installed on a machine of this architecture.
pub(crate) fn refuse_architecture(inventory: &Inventory, request: &PlanRequest) -> Vec<Diagnostic> {
    let (allocation, system) = (&request.assigned.allocation, &inventory.system);
    let mismatch = explain_mismatch(allocation.image.architecture, system.architecture, "its image file");
    let is_without_uefi = system.architecture == Architecture::Arm64 && system.firmware == FirmwareType::Bios;
    let is_built_in = matches!(allocation.finisher(), FinisherChoice::Auto | FinisherChoice::Builtin);
    let firmware = (is_without_uefi && is_built_in).then(|| {
        let why = "this arm64 machine was booted without UEFI, which the boot loaders of arm64 images require; install \
                   UEFI firmware (EDK II or U-Boot with EFI) on the machine, or set `finish` to `image` or `none`";
        Diagnostic::new("allocation.image", why).with_code(ErrorCode::ImageNotBootable)
    });
    mismatch.into_iter().chain(firmware).collect()
}
