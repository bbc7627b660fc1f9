//! Source of a machine migration: determines which data of the installed machine is migrated, or the reasons why it
//! cannot be migrated. Nothing is written.
//!
//! | object on the disks of the layout | result |
//! |---|---|
//! | a filesystem that matches the layout | migrated |
//! | swap | recreated, with its UUID |
//! | a device with `format: none` | migrated as a whole |
//! | a filesystem that is absent or differs from the layout, a device with several signatures, or any encrypted device | refused |
//! | an inactive array or group, or a group with a missing physical volume | refused |
//! | an object that `unmigrated_data` describes: data that would not be migrated, or that cannot be read | refused |

mod unmigrated_data;

use super::existing_system_boot::{self, ExistingInstallation};
use super::{InstallClaim, SourceDevice, arrays, installation_identity::describe_owner};
use crate::content_descriptions;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use common::format::format_bytes;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::install_marker::{self, InstallMarker};
use model::inventory::{self, ComparableDiskIndex, InspectionTarget, Inventory};
use model::layout::{ArraySpec, FilesystemFormat, FilesystemSpec, Layout, VolumeGroupSpec};
use model::machine_migration::{MigratedArray, MigratedFilesystem, MigratedMachine, MigratedNic, MigratedPartition};
use model::storage_graph::{DeviceStack, LayoutMatch, StackUnit, find_arrays_on, find_groups_on};
use std::collections::BTreeSet;

const LUKS: &str = "crypto_LUKS";

const ENCRYPTED: &str = "is encrypted (LUKS), and its key is not migrated; decrypt the device first";

/// Returns the description of the migrated data, and the devices from which this data is read.
///
/// # Errors
/// Returns all reasons why the machine cannot be migrated.
pub fn check_migration(
    layout: &Layout,
    inventory: &Inventory,
    claim: &InstallClaim,
) -> Result<(MigratedMachine, Vec<SourceDevice>), Vec<Diagnostic>> {
    let found = existing_system_boot::find_best_marker(layout, inventory, |marker| claim.is_ours(marker));
    let marker = found.as_ref().map(|found| found.marker.clone()).unwrap_or_default();
    let meant =
        existing_system_boot::match_by_marker(layout, inventory, &ComparableDiskIndex::new(&inventory.disks), &marker);
    let stack = DeviceStack::new(inventory);
    let disks = (0..layout.disks.len()).filter_map(|listed| meant.matched_disk(listed)).map(|disk| disk.name.clone());
    let disks = disks.collect();
    let mut carrying = MigrationCheck {
        meant: &meant,
        stack: &stack,
        disks,
        problems: Vec::new(),
        all: MigratedMachine::default(),
        from: Vec::new(),
    };
    carrying.compare_marker(claim, found.as_ref());
    carrying.record_source_disks();
    layout.raid.iter().enumerate().for_each(|(index, raid)| carrying.check_array(&format!("raid[{index}]"), raid));
    for (index, group) in layout.volumegroups.iter().enumerate() {
        carrying.check_group(&format!("volumegroups[{index}]"), group);
    }
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        carrying.check_filesystem(&format!("filesystems[{index}]"), filesystem);
    }
    carrying.refuse_unmounted_volumes();
    carrying.refuse_unlisted();
    carrying.refuse_unreadable_devices();
    let MigrationCheck { problems, all, from, .. } = carrying;
    let nics = inventory.nics.iter().map(|nic| MigratedNic { name: nic.name.clone(), mac: nic.mac.clone() });
    match problems.is_empty() {
        true => Ok((
            MigratedMachine { marker, nics: nics.collect(), architecture: inventory.system.architecture, ..all },
            from,
        )),
        false => Err(problems),
    }
}

/// State while checking whether a machine can be migrated.
struct MigrationCheck<'a> {
    meant: &'a LayoutMatch<'a>,
    stack: &'a DeviceStack<'a>,
    /// Disks of the layout.
    disks: BTreeSet<KernelName>,
    problems: Vec<Diagnostic>,
    all: MigratedMachine,
    from: Vec<SourceDevice>,
}

impl MigrationCheck<'_> {
    fn refuse(&mut self, place: &str, message: impl Into<String>) {
        self.problems.push(Diagnostic::new(place, message).with_code(ErrorCode::MigrationSource));
    }

    fn compare_marker(&mut self, claim: &InstallClaim, found: Option<&ExistingInstallation>) {
        let (layout, inventory) = (self.meant.graph.layout, self.meant.inventory);
        let Some(found) = found else {
            let there = inventory
                .filesystems
                .iter()
                .filter_map(|filesystem| Some((&filesystem.device, filesystem.marker.as_ref()?)));
            let there = there
                .map(|(device, marker)| format!("{device} has the marker of {owner}", owner = describe_marker(marker)));
            let there: Vec<String> = there.collect();
            let there = if there.is_empty() { "no filesystem has a marker".to_owned() } else { there.join("; ") };
            let message = format!(
                "no filesystem of this machine has the marker of {owner} ({marker_file}), so the system cannot be identified: {there}; attach the disks of that installation",
                owner = describe_owner(&claim.machine, &claim.allocation),
                marker_file = install_marker::PATH
            );
            return self.refuse("disks", message);
        };
        let root = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/"));
        let now = root.and_then(|root| self.meant.present_path(&root.device));
        if let Some(now) = now.filter(|now| now != found.device) {
            let message = format!(
                "according to the layout, / is on {now}, but the marker of the installed system is on {device}; put the disks back in their original slots",
                device = found.device
            );
            self.refuse("filesystems", message);
        }
    }

    fn record_source_disks(&mut self) {
        let layout = self.meant.graph.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            if listed.image {
                let message = "a raw image is on this disk, whose partitions the layout does not list, so the machine cannot be migrated; \
                               copy the disk with `drophammer move`";
                self.refuse(&format!("disks[{index}]"), message);
                continue;
            }
            let Some(disk) = self.meant.matched_disk(index) else { continue };
            if let Some(why) = &disk.unreadable {
                self.refuse(
                    &format!("disks[{index}]"),
                    format!("{disk} is partly unreadable: {why}", disk = disk.device),
                );
            }
            for part in disk.table.iter().flat_map(|table| &table.partitions) {
                let is_listed = listed.partitions.iter().any(|listed| listed.number == part.number);
                let device = listed.device.partition_path(part.number);
                self.all
                    .partitions
                    .extend(part.guid.filter(|_| is_listed).map(|guid| MigratedPartition { device, guid }));
            }
        }
    }

    fn check_array(&mut self, place: &str, raid: &ArraySpec) {
        let inventory = self.meant.inventory;
        let members: Vec<DevicePath> =
            raid.devices.iter().filter_map(|device| self.meant.present_path(device)).collect();
        let name = &raid.arrayname;
        match find_arrays_on(inventory, &members).as_slice() {
            [] => self.refuse(place, format!("{name} is absent: none of its devices is a member of an array")),
            [one] => {
                if one.running.is_none() {
                    let why = inventory.find_failure(&InspectionTarget::Array(one.uuid)).map(|why| format!(": {why}"));
                    let message = format!(
                        "{name} ({array}) is not running{reason}; repair the array in the installed system, then migrate the machine",
                        array = arrays::describe_array(one),
                        reason = why.unwrap_or_default()
                    );
                    self.refuse(place, message);
                }
                if let Some(running) = &one.running {
                    self.refuse_data(place, name, self.stack.find_unit(running));
                }
                let others = one.members.iter().map(|member| &member.device);
                self.refuse_others(place, name.as_str(), others.filter(|device| !members.contains(device)));
                self.all.arrays.push(MigratedArray { device: name.clone(), uuid: one.uuid });
            }
            several => {
                let all: Vec<String> = several.iter().map(|array| arrays::describe_array(array)).collect();
                self.refuse(place, format!("{name} is ambiguous: found {candidates}", candidates = all.join(" and ")));
            }
        }
    }

    fn check_group(&mut self, place: &str, group: &VolumeGroupSpec) {
        if group.encrypted.is_some() {
            return self.refuse(place, format!("volume group {} {ENCRYPTED}", group.name));
        }
        let physical: Vec<DevicePath> =
            group.devices.iter().filter_map(|device| self.meant.present_path(device)).collect();
        let found = find_groups_on(self.meant.inventory, &physical).into_iter().find(|found| found.name == group.name);
        let Some(found) = found else {
            return self.refuse(place, format!("volume group {group} is absent or inactive", group = group.name));
        };
        if let Some(why) = &found.closed {
            self.refuse(place, format!("volume group {} {why}", group.name));
        }
        let missing = found.physical.iter().filter(|physical| physical.device.is_none()).count();
        if missing > 0 {
            let message = format!(
                "{missing} of the {all} physical volumes of volume group {group} are missing, so their content is unknown; attach their disks, or repair the group",
                all = found.physical.len(),
                group = group.name
            );
            self.refuse(place, message);
        }
        self.refuse_others(place, &group.name, found.present_devices().filter(|device| !physical.contains(device)));
        let layout = self.meant.graph.layout;
        let is_listed = |volume: &&inventory::LvmLogicalVolume| {
            layout.logicalvolumes.iter().any(|listed| listed.volumegroup == group.name && listed.name == volume.name)
        };
        for volume in found.volumes.iter().filter(|volume| !is_listed(volume)) {
            let message = format!(
                "logical volume {group}/{volume} ({kind}, {size}) is not in the layout and would not be migrated. If you need its data, copy it elsewhere; then remove the logical volume",
                group = group.name,
                volume = volume.name,
                kind = volume.kind,
                size = format_bytes(volume.size_bytes)
            );
            self.refuse(place, message);
        }
    }

    /// Refuses a migrated object if it also has members that the layout does not list.
    fn refuse_others<'b>(&mut self, place: &str, what: &str, others: impl Iterator<Item = &'b DevicePath>) {
        let others: Vec<&str> = others.map(DevicePath::as_str).collect();
        if !others.is_empty() {
            let others = others.join(", ");
            let message = format!(
                "{what} also uses {others}, which the layout does not list as its devices; remove {others} from \
                {what} first"
            );
            self.refuse(place, message);
        }
    }

    fn check_filesystem(&mut self, place: &str, wanted: &FilesystemSpec) {
        let name = &wanted.device;
        if wanted.format == FilesystemFormat::Tmpfs || self.is_in_image(name) {
            return;
        }
        let place_of = wanted.path.as_deref().map(|path| format!(" ({path})")).unwrap_or_default();
        let Some(device) = self.meant.present_path(name) else {
            return self.refuse(place, format!("{name}{place_of} is absent or inactive"));
        };
        let now = self.stack.kernel_name(&device);
        let unit = self.stack.find_unit(&now);
        let size_bytes = match unit {
            StackUnit::Disk(disk) => disk.size_bytes,
            StackUnit::Partition(part) => part.size_bytes,
            StackUnit::Stacked(stacked) => stacked.size_bytes,
            StackUnit::Unknown => {
                return self.refuse(place, format!("{name}{place_of} is absent: {device} does not exist"));
            }
        };
        let inventory = self.meant.inventory;
        let uuid = match check_content(wanted, unit) {
            Err(why) => return self.refuse(place, format!("{device}{place_of} {why}")),
            Ok(uuid) => uuid,
        };
        if let Some(part) = inventory.parts.iter().find(|part| part.device == device) {
            let message = format!(
                "{device}{place_of} is a component of {whole} on several devices, and such a component cannot be migrated",
                whole = part.whole
            );
            return self.refuse(place, message);
        }
        let below = self.stack.disks_below(&now);
        let sectors = inventory.disks.iter().filter(|disk| below.contains(&disk.name)).map(|disk| disk.sector_bytes);
        let (sector_bytes, format) = (sectors.max().unwrap_or(512), wanted.format);
        self.all.filesystems.push(MigratedFilesystem { device: name.clone(), format, uuid, size_bytes, sector_bytes });
        if format != FilesystemFormat::Swap {
            self.from.push(SourceDevice { name: name.clone(), device, format });
        }
    }

    fn is_in_image(&self, device: &LayoutPath) -> bool {
        self.meant.graph.layout.disks.iter().any(|disk| disk.image_partition_number(device).is_some())
    }
}

/// Returns the UUID of the content if the content matches the layout; otherwise returns the reason why the content
/// cannot be migrated.
fn check_content(wanted: &FilesystemSpec, unit: StackUnit) -> Result<String, String> {
    let found = unit.signatures();
    if found.iter().any(|signature| signature.kind == LUKS) {
        return Err(ENCRYPTED.to_owned());
    }
    let format = wanted.format;
    match found {
        _ if format == FilesystemFormat::None => Ok(String::new()),
        [one] if one.kind == format.name() && one.uuid.is_empty() => {
            Err(format!("has {format} without a UUID, which the migrated system needs to find the device; set a UUID"))
        }
        [one] if one.kind == format.name() => Ok(one.uuid.clone()),
        [_, _, ..] => Err(format!(
            "has several signatures, {signatures}; wipe the wrong signature with wipefs",
            signatures = describe_content(unit)
        )),
        _ => Err(format!(
            "must contain {format} according to the layout, but contains {content}; correct the layout that is stored for the machine",
            content = describe_content(unit)
        )),
    }
}

fn describe_content(unit: StackUnit) -> String {
    match unit.signatures() {
        [] => content_descriptions::describe_unrecognized(unit.is_blank()).to_owned(),
        found => found.iter().map(content_descriptions::describe_signature).collect::<Vec<_>>().join(" and "),
    }
}

fn describe_marker(marker: &InstallMarker) -> String {
    describe_owner(&marker.machine, &marker.allocation)
}
