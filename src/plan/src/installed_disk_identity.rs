//! Comparison of each listed disk with its record, to determine whether the machine was installed on the same disks.

use super::DiskVerdict;
use super::disk_descriptions::{describe_disk, describe_match, describe_record};
use super::planner_state::PlannerState;
use super::recorded_disk_match::{self, DiskLikeness, MatchCandidates, SharedIdentifiers};
use crate::content_descriptions;
use common::error_code::ErrorCode;
use model::device_name::{KernelName, LayoutPath};
use model::install_marker::RecordedDisk;
use model::inventory::{self, Inventory};
use model::layout;
use std::collections::BTreeSet;

/// Records of the disks of this installation.
pub(crate) struct DiskRecords<'a> {
    /// Records of the last completed installation.
    finished: &'a [RecordedDisk],
    /// Records of the last started attempt, which are newer than `finished`. They include disks that have replaced
    /// disks in `finished`.
    begun_on: &'a [RecordedDisk],
    /// Disks that contain the marker of the installation.
    proven: BTreeSet<KernelName>,
    shared: SharedIdentifiers,
    /// Two indexes by identifier: of the disks of the machine, and of the records in [`DiskRecords::disks`].
    candidates: (MatchCandidates, MatchCandidates),
}

impl<'a> DiskRecords<'a> {
    pub(crate) fn new(
        inventory: &'a Inventory,
        finished: &'a [RecordedDisk],
        begun_on: &'a [RecordedDisk],
        proven: BTreeSet<KernelName>,
    ) -> DiskRecords<'a> {
        let records = if begun_on.is_empty() { finished } else { begun_on };
        let shared = SharedIdentifiers::new(inventory, records);
        let candidates = (MatchCandidates::of_disks(&inventory.disks), MatchCandidates::of_records(records));
        DiskRecords { finished, begun_on, proven, shared, candidates }
    }

    fn disks(&self) -> &'a [RecordedDisk] {
        if self.begun_on.is_empty() { self.finished } else { self.begun_on }
    }

    pub(crate) fn record_of(&self, device: &LayoutPath) -> Option<&'a RecordedDisk> {
        self.disks().iter().find(|record| record.device == *device)
    }

    fn match_disk(&self, record: &RecordedDisk, disk: &inventory::InventoryDisk) -> DiskLikeness {
        // An attempt may have stopped either before or after it wrote its partition table, so the GUIDs of both
        // tables are accepted.
        let finished = self.finished.iter().filter(|finished| finished.device == record.device);
        let finished = finished.map(|finished| &finished.guid);
        let guids = [&record.guid, &record.guid_before].into_iter().chain(finished).flatten();
        let guids: Vec<&str> = guids.map(String::as_str).collect();
        recorded_disk_match::compare_disk(record, &guids, disk, &self.shared)
    }

    pub(crate) fn is_recorded_disk(&self, record: &RecordedDisk, disk: &inventory::InventoryDisk) -> bool {
        self.match_disk(record, disk) == DiskLikeness::Equal
    }
}

impl PlannerState<'_> {
    /// Compares each listed disk with its record. In the table, the *found disk* is the disk that the layout's name or
    /// hints currently match.
    ///
    /// | the found disk | result |
    /// |---|---|
    /// | is the recorded one | accepted, regardless of its kernel name |
    /// | is the recorded one, must be preserved, and reads as blank | refused, unless the operator discards its data |
    /// | is not proven to be the recorded one; it was recorded under another name, or the recorded disk has another name now | refused: names or hints no longer match the same disks |
    /// | is not proven to be the recorded one, and is kept | accepted if the rest of the plan accepts its content, with a warning if a property differs from the record |
    /// | is not proven to be the recorded one, and is blank or contains the marker | accepted as a replacement, with a warning if a property differs from the record |
    /// | is not proven to be the recorded one, will be wiped, and is not blank | refused, unless the operator discards its data, or it is accepted as the disk of an interrupted attempt |
    ///
    /// Hints match a disk regardless of its name. If that disk is absent, they may match a different disk.
    pub(crate) fn compare_disks(&mut self, known: &DiskRecords) {
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let place = format!("disks[{index}].device");
            let found = self.found.get(&index).copied();
            if let Some(found) = found {
                self.refuse_blanked(&place, listed, found, known);
            }
            let Some(record) = known.record_of(&listed.device) else {
                if let Some(found) = found.filter(|_| !known.disks().is_empty()) {
                    self.decide_unrecorded(place, listed, found, known);
                }
                continue;
            };
            let likeness = found.map(|found| known.match_disk(record, found));
            if likeness == Some(DiskLikeness::Equal) {
                continue;
            }
            if let Some(message) = self.find_elsewhere(listed, record, found, known) {
                self.refuse(ErrorCode::DisksChanged, place, message);
            } else if let (Some(found), Some(likeness)) = (found, likeness) {
                self.decide_unproven(place, listed, record, found, (likeness, known));
            }
        }
    }

    /// Checks the disks of an interrupted first installation. A first installation preserves no data, but it may erase
    /// only the disks on which the attempt was started.
    pub(crate) fn compare_started(&mut self, begun_on: &[RecordedDisk]) {
        if begun_on.is_empty() {
            return;
        }
        let known = DiskRecords::new(self.inventory, &[], begun_on, BTreeSet::new());
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let Some(found) = self.found.get(&index).copied() else { continue };
            let record = known.record_of(&listed.device);
            if let Some(record) = record.filter(|record| known.is_attempt_disk(record, found)) {
                if !known.is_recorded_disk(record, found) {
                    self.warn_unproven_start(listed, found);
                }
                continue;
            }
            let then = match record {
                Some(record) => format!("on a disk with {}", recorded_disk_match::describe_record_fully(record)),
                None => "without this disk".to_owned(),
            };
            let message = format!(
                "{}, but this installation was started {then}; this disk has {}. The installation continues only on \
                    the disks on which it was started: attach the old disk; or assign a new id to the allocation, to start over with this disk",
                describe_match(listed, found),
                recorded_disk_match::describe_disk_fully(found)
            );
            self.refuse(ErrorCode::DisksChanged, format!("disks[{index}].device"), message);
        }
    }

    /// Warns that only slot, model and size of a disk show that the first installation was started on it.
    fn warn_unproven_start(&mut self, listed: &layout::DiskSpec, found: &inventory::InventoryDisk) {
        if !found.blank {
            self.warn(format!(
                "{matched_disk}: no identifier proves that this installation was started on this disk, but slot, model and size are the same. It contains {contents}, and will be wiped",
                matched_disk = describe_match(listed, found),
                contents = content_descriptions::describe_contents(found)
            ));
        }
    }

    /// Refuses the plan if a recorded disk reads as blank, because this disk has lost its data. The serial number or
    /// WWN proves that it is the recorded disk, even if its size or model differs. A disk that replaces a recorded
    /// disk may be blank.
    fn refuse_blanked(
        &mut self,
        place: &str,
        listed: &layout::DiskSpec,
        found: &inventory::InventoryDisk,
        known: &DiskRecords,
    ) {
        let mut recorded = known.finished.iter().filter(|record| record.device == listed.device);
        let has_its_hardware =
            |record: &RecordedDisk| recorded_disk_match::has_recorded_hardware(record, found, &known.shared);
        let is_it = recorded.any(|record| known.is_recorded_disk(record, found) || has_its_hardware(record));
        if self.verdict(&found.name) != DiskVerdict::Make || !is_it {
            return;
        }
        let said = format!(
            "{matched_disk}, which was recorded when the machine was installed; this disk must be preserved, but reads as blank",
            matched_disk = describe_match(listed, found)
        );
        if self.is_discarded(&found.name) {
            return self.warn(format!("{said}: its data will be discarded, as requested by the operator"));
        }
        let remedy = match self.discard_name(found) {
            None => "if the data on the disk is lost, erase the whole disk".to_owned(),
            Some(name) => {
                format!("if the data on the disk is lost, order the reinstall again with --give-up {name}")
            }
        };
        self.refuse(
            ErrorCode::BlankDevice,
            place,
            format!("{said}. Check whether the disk was erased or its controller is failing; {remedy}"),
        );
    }

    /// Decides on a listed disk for which the installation has no record.
    fn decide_unrecorded(
        &mut self,
        place: String,
        listed: &layout::DiskSpec,
        found: &inventory::InventoryDisk,
        known: &DiskRecords,
    ) {
        let claim = self.request.claim.as_ref();
        let is_wanted = claim.is_some_and(|claim| claim.change_promise) || self.is_discarded(&found.name);
        let is_lost = self.verdict(&found.name).loses_data() && !found.blank && !known.proven.contains(&found.name);
        if !is_lost {
            return;
        }
        let said = format!(
            "{matched_disk}, but no disk with that name was recorded when the machine was installed; {device} will be wiped and is not blank: it contains {contents}",
            matched_disk = describe_match(listed, found),
            device = found.device,
            contents = content_descriptions::describe_contents(found)
        );
        match is_wanted {
            true => self.warn(format!("{said}: its data will be discarded, as requested by the operator")),
            false => self.refuse(
                ErrorCode::DisksChanged,
                place,
                format!("{said}. {}", self.suggest_remedy(found, "Correct the layout")),
            ),
        }
    }

    /// Explains that names or hints no longer match the same disks as during the installation: the recorded disk has
    /// another name now, or the found disk was recorded under another name. Returns `None` if neither is the case.
    fn find_elsewhere(
        &self,
        listed: &layout::DiskSpec,
        record: &RecordedDisk,
        found: Option<&inventory::InventoryDisk>,
        known: &DiskRecords,
    ) -> Option<String> {
        let is_found = |disk: &&inventory::InventoryDisk| found.is_some_and(|found| found.name == disk.name);
        let (disks, records) = &known.candidates;
        let alike = disks.find_like_record(record).into_iter().filter_map(|index| self.inventory.disks.get(index));
        let mut others = alike.filter(|disk| !is_found(disk));
        let now = others.find(|disk| recorded_disk_match::may_be_recorded_disk(record, disk, &known.shared));
        let then = found.and_then(|found| {
            let alike = records.find_like_disk(found).into_iter().filter_map(|index| known.disks().get(index));
            let mut others =
                alike.filter(|record| recorded_disk_match::may_be_recorded_disk(record, found, &known.shared));
            others.find(|other| !self.is_harmless_copy(other, found, known))
        });
        if now.is_none() && then.is_none() {
            return None;
        }
        let is = match found {
            Some(found) => format!("{} now", describe_match(listed, found)),
            None => format!("{} is absent now", record.device),
        };
        let then =
            then.map(|record| format!("that disk was {device}, and ", device = record.device)).unwrap_or_default();
        let now = now.map(|disk| format!(", which is {} now", disk.device)).unwrap_or_default();
        let remedy = match listed.hints.is_empty() {
            true => {
                "The names in the layout no longer match the same disks. Put the disks back in their slots, or reboot so that they get their names back"
            }
            false => {
                "The hints in the layout no longer match the same disks. Restore the previous set of disks, or remove \
                    the disk that was added"
            }
        };
        Some(format!(
            "{is}. When the machine was installed, {then}{device} was {former}{now}. {remedy}",
            device = record.device,
            former = describe_record(record)
        ))
    }

    /// Returns whether it is harmless that `found` matches `record`. When a mirror is repaired, the partition table may
    /// be copied together with its GUID; two disks then match the same record, and it is unknown which of them is the
    /// copy. The match is harmless if the disk that the layout selects for `record` also matches it, and if either
    /// `found` is not wiped or the layout also wipes that disk.
    fn is_harmless_copy(&self, record: &RecordedDisk, found: &inventory::InventoryDisk, known: &DiskRecords) -> bool {
        let mut listed = self.layout.disks.iter().enumerate().filter(|(_, listed)| listed.device == record.device);
        listed.any(|(index, listed)| {
            let is_in_place = self
                .found
                .get(&index)
                .is_some_and(|is| recorded_disk_match::may_be_recorded_disk(record, is, &known.shared));
            is_in_place && (listed.wipeonreinstall || !self.verdict(&found.name).loses_data())
        })
    }

    /// Decides on a disk that is not proven to be the recorded disk.
    fn decide_unproven(
        &mut self,
        place: String,
        listed: &layout::DiskSpec,
        record: &RecordedDisk,
        found: &inventory::InventoryDisk,
        (likeness, known): (DiskLikeness, &DiskRecords),
    ) {
        let other = describe_difference(listed, record, found, likeness);
        // A preserved disk is not wiped, and its content is compared with the layout.
        let has_nothing_to_lose =
            !self.verdict(&found.name).loses_data() || found.blank || known.proven.contains(&found.name);
        if has_nothing_to_lose {
            if likeness == DiskLikeness::Contradicting {
                self.warn(other);
            }
        } else if self.is_discarded(&found.name) {
            self.warn(format!("{other}; its data will be discarded, as requested by the operator"));
        } else if !known.begun_on.is_empty() && known.is_attempt_disk(record, found) {
            self.warn(format!(
                "{other}; an earlier attempt of this installation has already started to wipe a disk with the same slot, model and size"
            ));
        } else {
            let first = match recorded_disk_match::has_other_size_only(record, found) {
                true => "Restore its size",
                false => "Attach the old disk",
            };
            let message = format!(
                "{other}; {device} will be wiped and is not blank: it contains {contents}. {remedy} (recorded: {recorded}; found: {found})",
                device = found.device,
                contents = content_descriptions::describe_contents(found),
                remedy = self.suggest_remedy(found, first),
                recorded = recorded_disk_match::describe_record_fully(record),
                found = recorded_disk_match::describe_disk_fully(found)
            );
            self.refuse(ErrorCode::DisksChanged, place, message);
        }
    }

    /// Returns the remedies for a disk that is not proven to be the recorded one. `first` is the first of these
    /// remedies.
    fn suggest_remedy(&self, found: &inventory::InventoryDisk, first: &str) -> String {
        match self.discard_name(found) {
            None => format!("{first}, or erase the new disk"),
            Some(name) => format!("{first}, erase the new disk, or discard its data with --give-up {name}"),
        }
    }
}

impl DiskRecords<'_> {
    /// Returns whether the found disk is the disk of the interrupted attempt. The attempt may have wiped the partition
    /// table of the disk. If the disk has no other identifier, it must look the same as the recorded disk and be in the
    /// same slot.
    pub(crate) fn is_attempt_disk(&self, record: &RecordedDisk, disk: &inventory::InventoryDisk) -> bool {
        match self.match_disk(record, disk) {
            DiskLikeness::Equal => true,
            DiskLikeness::Contradicting => false,
            DiskLikeness::Inconclusive => recorded_disk_match::looks_like(record, disk),
        }
    }
}

/// Describes how the disk differs from its record: `/dev/sda is the disk with serial Z9, but when the machine was
/// installed it was the disk with serial A0, which is now absent`. If only the size differs, describes the change of
/// the size, because a virtual disk may have been enlarged.
fn describe_difference(
    listed: &layout::DiskSpec,
    record: &RecordedDisk,
    found: &inventory::InventoryDisk,
    likeness: DiskLikeness,
) -> String {
    let (is, was) = (describe_match(listed, found), describe_record(record));
    match likeness {
        DiskLikeness::Inconclusive => {
            format!(
                "{is}, and was {was} when the machine was installed: no identifier is known for both disks, so it \
                is unknown whether they are the same disk"
            )
        }
        _ if describe_disk(found) == was => {
            format!("{is}, as when the machine was installed, but other properties of the disk differ")
        }
        _ if recorded_disk_match::has_other_size_only(record, found) => format!(
            "{is}, the same as when the machine was installed, but its size has changed from {recorded_bytes} to {bytes} bytes",
            recorded_bytes = record.size_bytes,
            bytes = found.size_bytes
        ),
        _ => format!("{is}, but when the machine was installed it was {was}, which is now absent"),
    }
}
