//! Hibernation images. A suspended system continues to use its mounted filesystems when it is resumed, so they must not
//! be mounted by another system in the meantime.

use super::planner_state::PlannerState;
use super::{DiskVerdict, InstallMode, MarkerWaiver};
use common::error_code::ErrorCode;
use model::device_name::DevicePath;

/// Signature type of a swap area that contains a hibernation image, as reported by libblkid.
const HIBERNATION_IMAGE: &str = "swsuspend";

impl PlannerState<'_> {
    /// Refuses to mount preserved filesystems while a suspended system may use them.
    ///
    /// | a hibernation image is on any disk, and | the reinstall is |
    /// |---|---|
    /// | nothing is preserved | allowed |
    /// | something is preserved | refused, because the suspended system may have mounted filesystems of any disk |
    /// | something is preserved, but the operator discards the disks with the image | allowed, with a warning |
    /// | something is preserved, and an attempt was started | allowed, with a warning: the suspended system was already wiped |
    pub(crate) fn refuse_hibernated(&mut self) {
        if self.request.mode == InstallMode::Install || !self.preserves_anything() {
            return;
        }
        let started = self.request.claim.as_ref().and_then(|claim| claim.waiver) == Some(MarkerWaiver::Begun);
        for device in self.find_hibernation_images() {
            let disks = self.disks_below(&device);
            let is_discarded = !disks.is_empty() && disks.iter().all(|disk| self.is_discarded(disk));
            let said = format!(
                "{device} contains a hibernation image: the suspended system may have mounted the filesystems that \
                 must be preserved"
            );
            if started || is_discarded {
                self.warn(format!("{said}; changes that it has not written to the disks are lost"));
                continue;
            }
            let message = format!(
                "{said}, and mounting them again would damage them. Start the suspended system and shut it down; if \
                 its state is not needed, discard the image with mkswap {device}"
            );
            self.refuse(ErrorCode::PreservedUnusable, "disks", message);
        }
    }

    fn preserves_anything(&self) -> bool {
        let preserving = [DiskVerdict::Keep, DiskVerdict::PartlyKept, DiskVerdict::Volumes];
        self.verdicts.values().any(|verdict| preserving.contains(verdict))
    }

    /// Returns the devices with a hibernation image. Components of running devices are omitted, because the image is
    /// also listed on the device on top of them.
    fn find_hibernation_images(&self) -> Vec<DevicePath> {
        let inside = self.inventory.partitions_inside_volumes();
        let found = self.inventory.devices_with_signature(&[HIBERNATION_IMAGE]).into_iter();
        let found = found.filter(|device| !inside.contains(device));
        found.filter(|device| !self.stack.is_held(&self.stack.kernel_name(device))).cloned().collect()
    }
}
