//! Disks and their partitions: disks of the layout are matched with disks of the machine, and are then either
//! recreated or compared with the layout.

use super::disk_descriptions::describe_record;
use super::partition_placement::{self, SectorExtent};
use super::planned_devices::{DeviceFate, PlannedDevice};
use super::planner_state::{MissingDisk, PlannerState, verdict_on_disk};
use super::{DiskVerdict, InstallMode, disk_erasure_plan};
use crate::content_descriptions;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::deploy_steps::EraseMode;
use model::device_name::{DevicePath, LayoutPath};
use model::inventory;
use model::layout::{self, FilesystemFormat, PartitionType};
use model::storage_graph::disk_lookup;
use model::storage_graph::multipath::{self, DiskPaths};
use operations::{DiskIdentity, NewPartition, PartitionTable};

impl<'a> PlannerState<'a> {
    pub(crate) fn decide_disks(&mut self) {
        let paths = DiskPaths::new(self.inventory);
        for (index, disk) in self.layout.disks.iter().enumerate() {
            let place = format!("disks[{index}]");
            match disk_lookup::find_disk(disk, self.inventory) {
                Ok(found) if self.verdicts.contains_key(&found.name) => {
                    let message = format!(
                        "{listed} refers to {device}, which the layout already lists",
                        listed = disk.device,
                        device = found.device
                    );
                    self.refuse(ErrorCode::DiskListedTwice, format!("{place}.device"), message);
                }
                Ok(found) => {
                    if let Some(other) = paths.find_other_path(found) {
                        self.refuse(
                            ErrorCode::DiskUnusable,
                            format!("{place}.device"),
                            multipath::describe_refusal(found, other),
                        );
                    }
                    self.found.insert(index, found);
                    self.decide_disk(&place, disk, found);
                }
                Err(message)
                    if self.request.mode == InstallMode::Reinstall && disk_lookup::is_absent(disk, self.inventory) =>
                {
                    let was = self.latest_record(&disk.device).map(|record| {
                        format!("; at installation, this device was {former}", former = describe_record(record))
                    });
                    self.absent.insert(index, MissingDisk::new(message + &was.unwrap_or_default()));
                    self.register_absent_disk(index, disk);
                }
                Err(message) => self.refuse(ErrorCode::DiskMissing, format!("{place}.device"), message),
            }
        }
        if self.request.mode == InstallMode::Reinstall && !self.layout.disks.iter().any(|disk| disk.wipeonreinstall) {
            let message = format!(
                "filesystemlayout:{} is not reinstallable, abort reinstallation: no disk has wipeonreinstall: true",
                self.layout.id
            );
            self.refuse(ErrorCode::NotReinstallable, "disks", message);
        }
        self.note_renewed_volumes();
    }

    fn decide_disk(&mut self, place: &str, disk: &layout::DiskSpec, found: &'a inventory::InventoryDisk) {
        let verdict = match verdict_on_disk(self.request.mode, Some((self.graph, disk))) {
            DiskVerdict::Keep if self.is_empty(disk, found) || self.was_recreated(&disk.device, found) => {
                DiskVerdict::Make
            }
            verdict => verdict,
        };
        self.set_verdict(&found.name, verdict);
        self.decided.identities.push(DiskIdentity::from_disk(found));
        match verdict {
            DiskVerdict::Wipe => self.make_disk(place, disk, found, DeviceFate::Wiped),
            DiskVerdict::Make => {
                let said = match self.is_empty(disk, found) {
                    true => {
                        self.require_zeros_of(disk, found);
                        "the disk is blank, possibly because the old disk was replaced; its contents will be recreated"
                    }
                    false => {
                        "an interrupted attempt had started to recreate its contents; the contents will be recreated again"
                    }
                };
                self.warn(format!("{device} must be preserved, but {said}", device = found.device));
                self.make_disk(place, disk, found, DeviceFate::Blank);
            }
            DiskVerdict::PartlyKept => self.renew_disk(place, disk, found),
            DiskVerdict::Keep | DiskVerdict::NotOurs | DiskVerdict::Volumes => {
                self.decided.problems.extend(keep_disk(place, disk, found, &|_| true));
                self.register_preserved_disk(disk, found);
            }
        }
    }

    /// Returns whether the disk is empty although the layout specifies content for it. A disk with partitions for
    /// arrays or groups also counts as empty if all of its partitions are blank: an attempt that was interrupted
    /// while it recreated the disk may leave it in this state.
    fn is_empty(&self, disk: &layout::DiskSpec, found: &inventory::InventoryDisk) -> bool {
        let mut partitions = disk.partitions.iter().map(|partition| disk.device.partition_path(partition.number));
        let formatted = |device: &LayoutPath| {
            let mut filesystems = self.layout.filesystems.iter();
            filesystems.any(|filesystem| filesystem.device == *device && filesystem.format != FilesystemFormat::None)
        };
        let is_new = |partition: &inventory::DiskPartition| {
            partition.blank
                && partition.uses.is_empty()
                && disk.partitions.iter().any(|wanted| wanted.number == partition.number)
        };
        if found.unreadable.is_some() || !found.signatures.is_empty() || !found.uses.is_empty() {
            return false;
        }
        match &found.table {
            None => {
                found.blank
                    && (!disk.partitions.is_empty() || self.graph.is_member(&disk.device) || formatted(&disk.device))
            }
            Some(table) => {
                table.kind == "gpt"
                    && table.partitions.len() == disk.partitions.len()
                    && table.partitions.iter().all(is_new)
                    && partitions.any(|device| self.graph.is_member(&device))
            }
        }
    }

    fn make_disk(
        &mut self,
        place: &str,
        disk: &layout::DiskSpec,
        found: &'a inventory::InventoryDisk,
        fate: DeviceFate,
    ) {
        self.decided.problems.extend(explain_read_only(place, found));
        let extents =
            match partition_placement::place_partitions(&disk.partitions, found.size_bytes, found.sector_bytes) {
                Ok(extents) => extents,
                Err(small) => {
                    return self.refuse(
                        ErrorCode::TooSmall,
                        format!("{place}.partitions"),
                        small.explain(&disk.device),
                    );
                }
            };
        self.devices.insert(disk.device.clone(), new_device(found, fate, found.device.clone(), found.size_bytes));
        for (partition, extent) in disk.partitions.iter().zip(&extents) {
            let path = found.device.partition_path(partition.number);
            let device = new_device(found, fate, path, extent.length_bytes(found.sector_bytes));
            self.devices.insert(disk.device.partition_path(partition.number), device);
        }
        if disk.image {
            self.register_image_partitions(disk, found);
        }
        // A blank disk is not erased, because it does not contain any data.
        let erase = if fate == DeviceFate::Blank { EraseMode::None } else { self.request.steps.erase_mode() };
        self.decided.wipes.push(disk_erasure_plan::wipe_disk(erase, found, &extents));
        if !disk.partitions.is_empty() {
            let partitions = disk.partitions.iter().zip(&extents);
            let guid = (self.ids)();
            let partitions = partitions.map(|(new, extent)| self.new_partition(&disk.device, new, found, *extent));
            let partitions = partitions.collect();
            let (device, sector_bytes) = (found.device.clone(), found.sector_bytes);
            let identity = DiskIdentity::from_disk(found);
            self.decided.tables.push(PartitionTable { device, identity, guid, sector_bytes, partitions });
        }
    }

    /// Registers the partitions that the layout expects in the image. The partitions are verified after the image was
    /// written.
    fn register_image_partitions(&mut self, disk: &layout::DiskSpec, found: &'a inventory::InventoryDisk) {
        self.decided.image_disk = Some(found.clone());
        for device in self.layout.filesystems.iter().map(|filesystem| &filesystem.device) {
            if let Some(number) = disk.image_partition_number(device) {
                let path = found.device.partition_path(number);
                let partition = PlannedDevice { size_bytes: None, ..new_device(found, DeviceFate::Wiped, path, 0) };
                self.devices.insert(device.clone(), partition);
            }
        }
    }

    pub(crate) fn new_partition(
        &mut self,
        listed: &LayoutPath,
        new: &layout::PartitionSpec,
        disk: &inventory::InventoryDisk,
        extent: SectorExtent,
    ) -> NewPartition {
        let migrated_guid = self.migrated_partition_guid(&listed.partition_path(new.number));
        NewPartition {
            number: new.number,
            device: disk.device.partition_path(new.number),
            first_lba: extent.first_lba,
            last_lba: extent.last_lba,
            kind: new.kind.unwrap_or(PartitionType::Linux).guid(),
            guid: migrated_guid.unwrap_or_else(|| (self.ids)()),
            name: new.label.clone().unwrap_or_default(),
        }
    }

    fn register_preserved_disk(&mut self, disk: &layout::DiskSpec, found: &'a inventory::InventoryDisk) {
        let mut whole = kept_device(found, &found.device, found.size_bytes, found.blank, &found.signatures);
        if found.table.is_some() && found.signatures.is_empty() {
            whole.content = Err(format!("there is {}", content_descriptions::describe_contents(found)));
        }
        self.devices.insert(disk.device.clone(), whole);
        for partition in &disk.partitions {
            // A missing partition is skipped, because a problem of its disk was already reported.
            if let Some(is) = gpt_partitions(found).iter().find(|is| is.number == partition.number) {
                self.devices.insert(disk.device.partition_path(partition.number), kept_partition(found, is));
            }
        }
    }
}

/// Returns a preserved disk or partition as a device of the plan, with its signatures.
fn kept_device<'a>(
    disk: &inventory::InventoryDisk,
    path: &DevicePath,
    size_bytes: u64,
    blank: bool,
    content: &'a [inventory::DeviceSignature],
) -> PlannedDevice<'a> {
    PlannedDevice {
        path: path.clone(),
        now: path.clone(),
        fate: DeviceFate::Preserved,
        absent: None,
        blank,
        size_bytes: Some(size_bytes),
        most_bytes: size_bytes,
        sector_bytes: disk.sector_bytes,
        stripe_bytes: 0,
        content: Ok(content),
    }
}

pub(crate) fn kept_partition<'a>(
    disk: &inventory::InventoryDisk,
    part: &'a inventory::DiskPartition,
) -> PlannedDevice<'a> {
    kept_device(disk, &part.device, part.size_bytes, part.blank, &part.signatures)
}

/// Returns a problem if the disk is read-only.
pub(crate) fn explain_read_only(place: &str, found: &inventory::InventoryDisk) -> Option<Diagnostic> {
    let message = || {
        format!(
            "{device} is read-only: it cannot be written (possible causes: write protection switch, failing disk)",
            device = found.device
        )
    };
    found.read_only.then(|| Diagnostic::new(format!("{place}.device"), message()).with_code(ErrorCode::DiskUnusable))
}

pub(crate) fn new_device<'a>(
    disk: &inventory::InventoryDisk,
    fate: DeviceFate,
    path: DevicePath,
    size_bytes: u64,
) -> PlannedDevice<'a> {
    PlannedDevice {
        now: path.clone(),
        path,
        fate,
        absent: None,
        blank: false,
        size_bytes: Some(size_bytes),
        most_bytes: size_bytes,
        sector_bytes: disk.sector_bytes,
        stripe_bytes: 0,
        content: Ok(&[]),
    }
}

/// Returns the partitions of a GPT; an empty list for any other type of partition table.
pub(crate) fn gpt_partitions(disk: &inventory::InventoryDisk) -> &[inventory::DiskPartition] {
    let table = disk.table.as_ref().filter(|table| table.kind == "gpt");
    table.map(|table| table.partitions.as_slice()).unwrap_or_default()
}

/// Compares number, size and type of a disk's preserved partitions with the layout. Does not compare their content.
pub(crate) fn keep_disk(
    place: &str,
    disk: &layout::DiskSpec,
    found: &inventory::InventoryDisk,
    is_preserved: &dyn Fn(&layout::PartitionSpec) -> bool,
) -> Vec<Diagnostic> {
    if let Some(why) = &found.unreadable {
        let message =
            format!("{device} must be preserved, but its content cannot be read: {why}", device = found.device);
        return vec![Diagnostic::new(format!("{place}.device"), message).with_code(ErrorCode::PreservedUnusable)];
    }
    let has_gpt = found.table.as_ref().is_some_and(|table| table.kind == "gpt");
    if !disk.partitions.is_empty() && !has_gpt {
        let message = format!(
            "{device} must be preserved, but lacks a GPT with the partitions to preserve ({count}): found {actual}",
            device = found.device,
            count = disk.partitions.iter().filter(|part| is_preserved(part)).count(),
            actual = content_descriptions::describe_contents(found)
        );
        return vec![Diagnostic::new(format!("{place}.partitions"), message).with_code(ErrorCode::PreservedMismatch)];
    }
    if found.table.is_some() && !found.signatures.is_empty() && !is_member_with_table(disk, found) {
        let message = format!(
            "{device} must be preserved, but has both a partition table and signatures: {contents}",
            device = found.device,
            contents = content_descriptions::describe_contents(found)
        );
        return vec![Diagnostic::new(format!("{place}.device"), message).with_code(ErrorCode::PreservedMismatch)];
    }
    let differs = |(index, wanted): (usize, &layout::PartitionSpec)| {
        let is = gpt_partitions(found).iter().find(|partition| partition.number == wanted.number);
        let message = preserve_partition(found, wanted, is)?;
        Some(Diagnostic::new(format!("{place}.partitions[{index}]"), message).with_code(ErrorCode::PreservedMismatch))
    };
    disk.partitions.iter().enumerate().filter(|(_, part)| is_preserved(part)).filter_map(differs).collect()
}

/// Returns whether the partition table belongs to an array instead of the disk. If the metadata of an array is at the
/// end of its members, the array's partition table is also visible on the members.
fn is_member_with_table(disk: &layout::DiskSpec, found: &inventory::InventoryDisk) -> bool {
    disk.partitions.is_empty()
        && found.signatures.iter().all(|signature| signature.usage == "raid" && signature.kind != "LVM2_member")
}

fn preserve_partition(
    disk: &inventory::InventoryDisk,
    wanted: &layout::PartitionSpec,
    found: Option<&inventory::DiskPartition>,
) -> Option<String> {
    let device = disk.device.partition_path(wanted.number);
    let Some(found) = found else {
        return Some(format!(
            "{device} must be preserved, but {disk} lacks partition {number}",
            disk = disk.device,
            number = wanted.number
        ));
    };
    let found_mib = found.size_bytes / partition_placement::MIB;
    if let Some(mib) = wanted.size.as_mib().filter(|mib| *mib != found_mib) {
        return Some(format!("{device} must be preserved with a size of {mib} MiB, but its size is {found_mib} MiB"));
    }
    let kind = wanted.kind?;
    let is_kind = found.kind.eq_ignore_ascii_case(&kind.guid().to_string());
    (!is_kind).then(|| {
        format!(
            "{device} must be preserved with type {type_code} ({type_guid}), but has type {actual}",
            type_code = kind.code(),
            type_guid = kind.guid(),
            actual = found.kind
        )
    })
}
