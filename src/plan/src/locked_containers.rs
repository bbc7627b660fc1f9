//! LUKS containers that stay on the disks without being opened.
//!
//! The only copy of the key of such a container may be a file in the old system, for example in
//! `/etc/cryptsetup-keys.d`. A reinstall recreates the filesystem of `/`, and with it erases this file.
//!
//! | a container that is not opened and stays unchanged | result |
//! |---|---|
//! | is preserved as `encrypted` in the layout, and the order lists its UUID in `leave_locked` | stays locked, with a warning |
//! | is preserved as `encrypted` in the layout, and the order does not list its UUID | refused |
//! | is not `encrypted` in the layout, or is not in the layout | warning |
//!
//! An encrypted group stays locked only if the order lists the containers of all its devices.

use super::DiskVerdict;
use super::luks::LUKS_SIGNATURE_TYPE;
use super::planner_state::PlannerState;
use common::error_code::ErrorCode;
use model::allocation::OrderedReinstall;
use model::device_name::DevicePath;
use uuid::Uuid;

/// Preserved containers that were not opened, and that the new system does not require: the container of a filesystem,
/// or all containers of a volume group.
pub(crate) struct LockedContainers<'a> {
    /// Name of the device or of the volume group.
    pub object: &'a str,
    pub uuids: &'a [Uuid],
    /// Device that could not be opened.
    pub device: &'a DevicePath,
    /// Reason why the device could not be opened.
    pub reason: &'a str,
}

impl PlannerState<'_> {
    /// Adds a warning if the order permits leaving the containers locked; otherwise refuses the plan.
    pub(crate) fn decide_locked(&mut self, place: &str, locked: &LockedContainers) {
        let LockedContainers { object, uuids, device, reason } = locked;
        let order = self.request.assigned.allocation.order.as_ref();
        if order.is_some_and(|order| uuids.iter().all(|uuid| permits_lock(order, uuid))) {
            return self.warn(format!(
                "{object} stays LOCKED and unchanged, as ordered; no lines for it are written to /etc/crypttab and \
                 /etc/fstab, because {device} cannot be opened: {reason}"
            ));
        }
        let message = format!(
            "{object} must be preserved in LUKS, but {device} cannot be opened: {reason}. The old system, which the \
             reinstall erases, may contain the only copy of the key. Provide the key; or, if the key is also stored \
             elsewhere, order the reinstall again with {options}",
            options = leave_locked_options(uuids)
        );
        self.refuse(ErrorCode::EncryptionLocked, place, message);
    }

    /// Warns about containers on devices that are not written, and for which the layout does not specify a key. The
    /// agent does not try to open these containers.
    pub(crate) fn warn_about_unlisted_containers(&mut self) {
        let mut unlisted = Vec::new();
        for (device, signatures) in self.inventory.all_signatures() {
            let is_container = signatures.iter().any(|found| found.kind == LUKS_SIGNATURE_TYPE);
            let is_written = self.verdicts_on(device).iter().any(|verdict| match verdict {
                DiskVerdict::Wipe | DiskVerdict::Make => true,
                DiskVerdict::Keep | DiskVerdict::NotOurs | DiskVerdict::Volumes | DiskVerdict::PartlyKept => false,
            });
            let name = self.stack.kernel_name(device);
            let mut planned = self.decided.luks.iter().map(|luks| self.stack.kernel_name(&luks.container.device));
            if is_container && !is_written && !planned.any(|planned| planned == name) {
                unlisted.push(device.clone());
            }
        }
        for device in unlisted {
            self.warn(format!(
                "{device} contains a LUKS container that the layout does not list as encrypted. The container stays \
                 unchanged, but cannot be opened afterwards if the only copy of its key is in a file that is erased"
            ));
        }
    }
}

/// Returns the options of a reinstall order that permit leaving these containers locked.
pub(crate) fn leave_locked_options(uuids: &[Uuid]) -> String {
    uuids.iter().map(|uuid| format!("--leave-locked {uuid}")).collect::<Vec<_>>().join(" ")
}

/// Returns whether the operator permits the reinstall although this container is locked.
fn permits_lock(order: &OrderedReinstall, uuid: &Uuid) -> bool {
    order.leave_locked.iter().any(|listed| Uuid::parse_str(listed.trim()).is_ok_and(|listed| listed == *uuid))
}

/// Returns the message for a container that cannot be opened and must not stay locked, because an attempt was
/// interrupted while it recreated the disk of the container. The problem causes a second planning pass
/// (`attempt_retry`), in which the disk is recreated; that pass is used if it solves all problems.
pub(crate) fn describe_incomplete_container(what: &str, why: &str) -> String {
    format!(
        "{what} must be preserved in LUKS, but an interrupted attempt was creating the container, and the container cannot be opened: {why}. \
         Provide the key of the container, or erase the container to have it recreated"
    )
}
