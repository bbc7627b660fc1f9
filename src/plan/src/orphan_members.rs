//! Members of unknown arrays, and physical volumes of unknown groups. Such an array or group may have members on any
//! disk.

use super::planner_state::PlannerState;
use super::{DiskVerdict, InstallMode, MarkerWaiver};
use common::error_code::ErrorCode;
use model::device_name::DevicePath;

impl PlannerState<'_> {
    /// Refuses a reinstall if one of its disks has a member of an unknown array or group, because the member may
    /// belong to a preserved object. A first installation is not refused, because it wipes its disks. If an attempt
    /// of the reinstall was started, members on wiped disks are accepted: any other member would have been refused
    /// before that attempt, so these members belong to unfinished objects of the attempt.
    pub(crate) fn refuse_orphans(&mut self) {
        if self.request.mode == InstallMode::Install {
            return;
        }
        let started = self.request.claim.as_ref().and_then(|claim| claim.waiver) == Some(MarkerWaiver::Begun);
        for unknown in &self.inventory.unknown {
            let is_ours = |device: &&DevicePath| {
                let verdicts = self.verdicts_on(device);
                verdicts.contains(&DiskVerdict::Keep)
                    || (!started && verdicts.iter().any(|verdict| *verdict != DiskVerdict::NotOurs))
            };
            let ours: Vec<&str> = unknown.devices.iter().filter(is_ours).map(DevicePath::as_str).collect();
            if ours.is_empty() {
                continue;
            }
            let message = format!(
                "the array or volume group of {devices} is unknown, and may span other disks: {reason}; repair the array or group, or erase its members if it is not needed",
                devices = ours.join(", "),
                reason = unknown.reason
            );
            self.refuse(ErrorCode::IncompleteObject, "disks", message);
        }
    }
}
