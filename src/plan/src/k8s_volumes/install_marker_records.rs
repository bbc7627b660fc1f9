//! Records of Kubernetes volumes for the install marker.

use super::super::planner_state::PlannerState;
use super::super::{PersistentVerdict, PersistentVolume, install_marker};
use model::device_name::KernelName;
use model::install_marker::{RecordedDisk, RecordedVolume};

impl PlannerState<'_> {
    /// Records the volumes of this plan, and volumes of earlier installations unless this plan erases their data.
    pub(super) fn record_volumes(&mut self) {
        let planned =
            self.decided.persistent.planned.iter().filter(|volume| volume.verdict != PersistentVerdict::Leave);
        let mut records: Vec<RecordedVolume> = planned.map(|planned| self.record_planned(planned)).collect();
        let request = self.request;
        let earlier = self.own_markers().flat_map(|marker| marker.volumes.iter().flatten());
        for record in earlier.chain(request.assigned.allocation.prepared_volumes.iter().flatten()) {
            let is_known = records.iter().any(|known| known.uid.eq_ignore_ascii_case(&record.uid));
            if !is_known && !self.is_recorded_on_erased(record) && !self.are_discarded(&record.disks) {
                records.push(record.clone());
            }
        }
        self.decided.persistent.records = records;
    }

    fn record_planned(
        &self,
        PersistentVolume { name, uid, device, disks, path, .. }: &PersistentVolume,
    ) -> RecordedVolume {
        let inventory = self.inventory;
        let disk = |name: &KernelName| {
            let disk = inventory.disks.iter().find(|disk| disk.name == *name)?;
            Some(RecordedDisk {
                device: disk.device.to_string(),
                ..install_marker::unique_record(disk, &self.identifiers)
            })
        };
        RecordedVolume {
            uid: uid.to_string(),
            name: name.clone(),
            path: path.clone().unwrap_or_default(),
            device: device.to_string(),
            disks: disks.iter().filter_map(disk).collect(),
        }
    }
}
