//! Refuses to prepare a Kubernetes volume a second time while its data may exist.
//!
//! | the volume was not found on any device that is preserved, and | preparation of the volume is |
//! |---|---|
//! | a file or a device with its UUID is elsewhere on an unwiped disk of the machine | refused |
//! | the control plane or an install marker records that it was prepared | refused, unless the plan erases the recorded data, or the operator discards the recorded disks |
//! | an earlier attempt was preparing it on a disk that is now absent | refused |
//! | neither the control plane nor a marker records volumes, and an object that could not be inspected may contain the volume | refused |
//! | none of these conditions applies | allowed |

use super::super::disk_descriptions::describe_record;
use super::super::planner_state::PlannerState;
use super::super::recorded_disk_match::{SharedIdentifiers, looks_like, may_be_recorded_disk};
use super::super::{DiskVerdict, InstallClaim, InstallMode};
use super::devices_by_volume_uuid::has_uuid;
use super::{VolumeDecision, VolumeRefusal};
use model::disk_identifiers::{comparable_serial, is_same_serial};
use model::install_marker::{InstallMarker, RecordedDisk, RecordedVolume};
use model::inventory::{self, InventoryDisk, OpaqueObject};
use model::k8s_volume::{K8sVolume, VolumeContent, VolumeSource};
use model::storage_graph::all_units;
use operations::logical_volume_link;
use uuid::Uuid;

/// Remedy that is always available: a new resource has a new UID, which identifies its volume in Kubernetes.
const REPLACE: &str = "delete the resource in Kubernetes and list a new resource, which has another UID";

impl<'a> PlannerState<'a> {
    /// Checks whether a volume that was not found on any unwiped device may be prepared.
    pub(super) fn refuse_second_copy(
        &mut self,
        volume: &K8sVolume,
        decision: &VolumeDecision,
    ) -> Result<(), VolumeRefusal> {
        let device = &decision.device;
        if let Some((carrier, _)) = self.find_preserved(volume)? {
            return Err(Some(format!(
                "cannot be prepared on {device}: a filesystem with the UUID of the volume, {uid}, is on {carrier}; remove that filesystem, or {REPLACE}",
                uid = volume.uid
            )));
        }
        if self.may_be_in_closed_filesystem(volume) {
            return Ok(());
        }
        if let Some(carrier) = self.sparse_files(volume.uid).find(|carrier| !self.is_erased(carrier)) {
            return Err(Some(format!(
                "cannot be prepared on {device}: a file {} is in the filesystem on {carrier}; move the file to this path in \
                    the installed system, or {REPLACE}",
                volume.sparse_path()
            )));
        }
        match self.find_record(volume) {
            Some(record) => self.decide_recorded(volume, record, decision),
            None => self.refuse_unfinished(volume, decision).and_then(|()| self.refuse_unseen(volume, decision)),
        }
    }

    /// Returns the record of the volume in the newest marker that contains one. If no marker contains one, returns the
    /// record in the list of the control plane.
    pub(super) fn find_record(&self, volume: &K8sVolume) -> Option<&'a RecordedVolume> {
        let uid = volume.uid.to_string();
        let mut markers: Vec<&InstallMarker> = self.all_markers().collect();
        // RFC 3339 times in UTC can be compared as text.
        markers.sort_by_key(|marker| std::cmp::Reverse(marker.time.clone()));
        let marked = markers.into_iter().flat_map(|marker| marker.volumes.iter().flatten());
        let listed = self.request.assigned.allocation.prepared_volumes.iter().flatten();
        marked.chain(listed).find(|record| record.uid.eq_ignore_ascii_case(&uid))
    }

    /// Returns the marker that the control plane has stored, and all markers on the disks. Markers of other allocations
    /// are included, because the UID of a resource is unique.
    fn all_markers(&self) -> impl Iterator<Item = &'a InstallMarker> + use<'a> {
        let remembered = self.request.claim.as_ref().and_then(|claim| claim.installed.as_ref());
        let found = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        remembered.into_iter().chain(found)
    }

    fn decide_recorded(
        &mut self,
        volume: &K8sVolume,
        record: &RecordedVolume,
        decision: &VolumeDecision,
    ) -> Result<(), VolumeRefusal> {
        if self.request.mode == InstallMode::Install && self.is_recorded_on_erased(record) {
            return Ok(());
        }
        let was = describe_preparation(record);
        if self.are_discarded(&record.disks) {
            self.warn(format!(
                "volume {volume} {was}: the data of the volume will be discarded, as requested by the operator, and the volume is prepared again", volume = volume.name));
            return Ok(());
        }
        let serials: Vec<&str> = record.disks.iter().map(|disk| disk.serial.as_str()).collect();
        let are_usable = !serials.is_empty() && serials.iter().all(|serial| comparable_serial(serial).is_some());
        let can_give_up = self.request.mode == InstallMode::Reinstall && are_usable;
        let give_up = match can_give_up {
            true => format!(
                "order the reinstall again with --give-up {serials}, or ",
                serials = serials.join(" --give-up ")
            ),
            false => String::new(),
        };
        Err(Some(format!(
            "cannot be prepared on {device}: the volume {was}, and no device of this machine has its {identifier}; attach the device that contains the volume. If the data of the volume is lost, {give_up}{REPLACE}",
            device = decision.device,
            identifier = describe_identifier(volume)
        )))
    }

    /// Returns whether this plan erases the recorded data.
    pub(super) fn is_recorded_on_erased(&self, record: &RecordedVolume) -> bool {
        let is_wiped = |device| self.verdicts_on(device).contains(&DiskVerdict::Wipe);
        let uid = Uuid::try_parse(&record.uid).unwrap_or_default();
        let is_seen = all_units(self.inventory).any(|(device, unit)| has_uuid(unit, uid) && is_wiped(device));
        let has_file = self.sparse_files(uid).any(is_wiped);
        let recorded = self.recorded_logical(record).is_some_and(|(group, _)| group.present_devices().any(is_wiped));
        let shared = SharedIdentifiers::new(self.inventory, &record.disks);
        let is_erased = |disk: &RecordedDisk| {
            let mut wiped = self.inventory.disks.iter().filter(|found| self.verdict(&found.name).loses_data());
            wiped.any(|found| may_be_recorded_disk(disk, found, &shared) || is_alike(disk, found))
        };
        let all_erased = !record.disks.is_empty() && record.disks.iter().all(is_erased);
        is_seen || has_file || recorded || all_erased
    }

    /// Returns the logical volume with the recorded LVM UUIDs, regardless of its current name.
    pub(super) fn recorded_logical(
        &self,
        record: &RecordedVolume,
    ) -> Option<(&'a inventory::LvmVolumeGroup, &'a inventory::LvmLogicalVolume)> {
        let groups = self.inventory.groups.iter();
        let mut volumes = groups.flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
        let is_it = |group: &str, volume: &str| !volume.is_empty() && logical_volume_link(group, volume) == record.path;
        volumes.find(|(group, volume)| is_it(&group.uuid, &volume.uuid))
    }

    pub(super) fn are_discarded(&self, disks: &[RecordedDisk]) -> bool {
        let given_up = self.request.claim.as_ref().map(|claim| claim.give_up.as_slice()).unwrap_or_default();
        let is_named =
            |disk: &RecordedDisk| given_up.iter().any(|given| is_same_serial(given, &disk.serial) == Some(true));
        !disks.is_empty() && disks.iter().all(is_named)
    }

    /// Refuses a volume that an interrupted attempt was preparing on a disk that is now absent.
    fn refuse_unfinished(&self, volume: &K8sVolume, decision: &VolumeDecision) -> Result<(), VolumeRefusal> {
        let begun_on = self.request.claim.as_ref().map(|claim| claim.begun_on.as_slice()).unwrap_or_default();
        let uuid = volume.uid.to_string();
        let shared = SharedIdentifiers::new(self.inventory, begun_on);
        let is_there = |disk: &RecordedDisk| {
            self.inventory.disks.iter().any(|found| may_be_recorded_disk(disk, found, &shared) || is_alike(disk, found))
        };
        let mut on =
            begun_on.iter().filter(|disk| disk.making.iter().any(|making| making.uuid.as_ref() == Some(&uuid)));
        match on.find(|disk| !is_there(disk)) {
            Some(gone) => Err(Some(format!(
                "cannot be prepared on {device}: an interrupted attempt was preparing the volume on disk {disk} ({disk_identity}), which is absent; attach the disk, or {REPLACE}",
                device = decision.device,
                disk = gone.device,
                disk_identity = describe_record(gone)
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a volume in a reinstall if no record lists prepared volumes and an object that could not be inspected
    /// may contain the volume.
    fn refuse_unseen(&self, volume: &K8sVolume, decision: &VolumeDecision) -> Result<(), VolumeRefusal> {
        let is_file = matches!(volume.source, VolumeSource::Sparse { .. });
        if is_file
            || self.request.mode == InstallMode::Install
            || self.request.claim.is_none()
            || self.records_volumes()
        {
            return Ok(());
        }
        match self.find_unseen_object() {
            Some(what) => Err(Some(format!(
                "cannot be prepared on {device}: no record shows whether the volume was prepared before, and its content may be in {what}, which could not be inspected; make {what} readable, or reinstall once without this volume in the list: the marker then records that the volume is new",
                device = decision.device
            ))),
            None => Ok(()),
        }
    }

    /// Returns whether the control plane or a marker of this allocation has a list of prepared volumes.
    fn records_volumes(&self) -> bool {
        let is_installed = self.request.claim.as_ref().is_some_and(InstallClaim::is_installed);
        let is_listed = is_installed && self.request.assigned.allocation.prepared_volumes.is_some();
        is_listed || self.own_markers().any(|marker| marker.volumes.is_some())
    }

    /// Returns the markers of this allocation. Without a control plane, the allocation is unknown, and all markers are
    /// returned.
    pub(super) fn own_markers(&self) -> impl Iterator<Item = &'a InstallMarker> + use<'a> {
        let claim = self.request.claim.as_ref();
        self.all_markers().filter(move |marker| claim.is_none_or(|claim| claim.is_ours(marker)))
    }

    /// Describes an object that could not be inspected, is not erased, and may contain the device of a volume.
    fn find_unseen_object(&self) -> Option<String> {
        let objects = self.inventory.find_opaque_objects().into_iter();
        let mut carriers = objects.filter(OpaqueObject::may_contain_devices);
        let carrier = carriers.find(|object| !object.devices.iter().any(|device| self.is_erased(device)));
        carrier.map(|object| format!("{object} ({})", object.reason))
    }
}

/// Returns whether the recorded disk has neither serial number nor WWN, and the present disk looks the same and is in
/// the same slot.
fn is_alike(record: &RecordedDisk, disk: &InventoryDisk) -> bool {
    record.serial.is_empty() && record.wwn.is_empty() && looks_like(record, disk)
}

/// Describes the record of a volume: `was prepared on /dev/sdc, the disk with serial S4X (400 GB)`.
fn describe_preparation(record: &RecordedVolume) -> String {
    let disks: Vec<String> = record.disks.iter().map(describe_record).collect();
    match (record.device.as_str(), disks.is_empty()) {
        ("", _) => "was prepared before, according to the control plane".to_owned(),
        (device, true) => format!("was prepared on {device}"),
        (device, false) => format!("was prepared on {device}, {disks}", disks = disks.join(", ")),
    }
}

fn describe_identifier(volume: &K8sVolume) -> String {
    match (&volume.source, &volume.content) {
        (VolumeSource::Sparse { .. }, _) => format!("file {}", volume.uid),
        (VolumeSource::Logical { .. }, VolumeContent::Block) => "LVM UUID".to_owned(),
        _ => format!("UUID {}", volume.uid),
    }
}
