//! Source of a machine migration: the data of an installed machine that are migrated, or the reasons why it cannot be. Nothing is written.
//!
//! | on the disks of the layout | | |---|---| | a filesystem that matches the layout | migrated | | swap | recreated, with its UUID | |
//! `format: none` | migrated as a whole | | a filesystem that is absent or differs, several signatures, anything encrypted | refused | | an
//! inactive array or group | refused | | a partition, array, group or volume that the layout does not list; data on a device without a
//! filesystem in the layout | refused: it would not be migrated |

use super::already::{self, Marked};
use super::{Claim, FromDevice, arrays, display, identity::whose};
use crate::carried::{Carried, CarriedArray, CarriedFilesystem, CarriedNic, CarriedPartition};
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::inventory::{self, ComparableDisks, Inventory, Tried};
use crate::layout::{Filesystem, Format, Layout, Raid, VolumeGroup};
use crate::marker::{self, Marker};
use crate::problem::Problem;
use crate::text::bytes;
use crate::topology::{Match, Stack, Unit, arrays_on, groups_on};
use std::collections::BTreeSet;

const LUKS: &str = "crypto_LUKS";

const ENCRYPTED: &str = "is encrypted (LUKS), and its key is not migrated; decrypt it first";

/// Returns the description of the migrated data, and the devices that are read for it.
///
/// # Errors Returns all reasons why the machine cannot be migrated.
pub fn carry(
    layout: &Layout,
    inventory: &Inventory,
    claim: &Claim,
) -> Result<(Carried, Vec<FromDevice>), Vec<Problem>> {
    let found = already::latest(layout, inventory, |marker| claim.is_ours(marker));
    let marker = found.as_ref().map(|found| found.marker.clone()).unwrap_or_default();
    let meant = already::by_marker(layout, inventory, &ComparableDisks::new(&inventory.disks), &marker);
    let stack = Stack::new(inventory);
    let disks = (0..layout.disks.len()).filter_map(|listed| meant.disk(listed)).map(|disk| disk.name.clone());
    let disks = disks.collect();
    let mut carrying = Carrying {
        meant: &meant,
        stack: &stack,
        disks,
        problems: Vec::new(),
        all: Carried::default(),
        from: Vec::new(),
    };
    carrying.compare_marker(claim, found.as_ref());
    carrying.note_disks();
    layout.raid.iter().enumerate().for_each(|(index, raid)| carrying.array(&format!("raid[{index}]"), raid));
    for (index, group) in layout.volumegroups.iter().enumerate() {
        carrying.group(&format!("volumegroups[{index}]"), group);
    }
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        carrying.filesystem(&format!("filesystems[{index}]"), filesystem);
    }
    carrying.refuse_unlisted();
    let Carrying { problems, all, from, .. } = carrying;
    let nics = inventory.nics.iter().map(|nic| CarriedNic { name: nic.name.clone(), mac: nic.mac.clone() });
    match problems.is_empty() {
        true => Ok((Carried { marker, nics: nics.collect(), ..all }, from)),
        false => Err(problems),
    }
}

/// State of the check of a source machine.
struct Carrying<'a> {
    meant: &'a Match<'a>,
    stack: &'a Stack<'a>,
    /// Disks of the layout.
    disks: BTreeSet<KernelName>,
    problems: Vec<Problem>,
    all: Carried,
    from: Vec<FromDevice>,
}

impl Carrying<'_> {
    fn refuse(&mut self, place: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(place, message));
    }

    fn compare_marker(&mut self, claim: &Claim, found: Option<&Marked>) {
        let (layout, inventory) = (self.meant.graph.layout, self.meant.inventory);
        let Some(found) = found else {
            let there = inventory.filesystems.iter().filter_map(|is| Some((&is.device, is.marker.as_ref()?)));
            let there = there.map(|(device, marker)| format!("{device} has the marker of {}", in_words(marker)));
            let there: Vec<String> = there.collect();
            let there = if there.is_empty() { "no filesystem has a marker".to_owned() } else { there.join("; ") };
            let message = format!(
                "no filesystem of this machine has the marker of {} ({}), so the system cannot be identified: {there}; attach the disks of that installation",
                whose(&claim.machine, &claim.allocation),
                marker::PATH
            );
            return self.refuse("disks", message);
        };
        let root = layout.filesystems.iter().find(|is| is.path.as_deref() == Some("/"));
        let now = root.and_then(|root| self.meant.now(&root.device));
        if let Some(now) = now.filter(|now| now != found.device) {
            let message = format!(
                "the layout has / on {now}, but the marker of the installed system is on {}; put the disks back in their original slots",
                found.device
            );
            self.refuse("filesystems", message);
        }
    }

    fn note_disks(&mut self) {
        let layout = self.meant.graph.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            if listed.image {
                let message = "a raw image is on this disk, whose partitions the layout does not list, so the machine cannot be migrated; \
                               copy the disk with `drophammer move`";
                self.refuse(&format!("disks[{index}]"), message);
                continue;
            }
            let Some(disk) = self.meant.disk(index) else { continue };
            if let Some(why) = &disk.unreadable {
                self.refuse(&format!("disks[{index}]"), format!("{} is partly unreadable: {why}", disk.device));
            }
            for part in disk.table.iter().flat_map(|table| &table.partitions) {
                let is_listed = listed.partitions.iter().any(|listed| listed.number == part.number);
                let device = listed.device.partition(part.number);
                self.all
                    .partitions
                    .extend(part.guid.filter(|_| is_listed).map(|guid| CarriedPartition { device, guid }));
            }
        }
    }

    fn array(&mut self, place: &str, raid: &Raid) {
        let inventory = self.meant.inventory;
        let members: Vec<DevicePath> = raid.devices.iter().filter_map(|device| self.meant.now(device)).collect();
        let name = &raid.arrayname;
        match arrays_on(inventory, &members).as_slice() {
            [] => self.refuse(place, format!("{name} is absent: none of its devices is a member of an array")),
            [one] => {
                if one.running.is_none() {
                    let why = inventory.failure(&Tried::Array(one.uuid)).map(|why| format!(": {why}"));
                    let message = format!(
                        "{name} ({}) is not running{}; repair it in the installed system, then migrate the machine",
                        arrays::in_words(one),
                        why.unwrap_or_default()
                    );
                    self.refuse(place, message);
                }
                let others = one.members.iter().map(|member| &member.device);
                self.refuse_others(place, name.as_str(), others.filter(|device| !members.contains(device)));
                self.all.arrays.push(CarriedArray { device: name.clone(), uuid: one.uuid });
            }
            several => {
                let all: Vec<String> = several.iter().map(|array| arrays::in_words(array)).collect();
                self.refuse(place, format!("{name} is ambiguous: found {}", all.join(" and ")));
            }
        }
    }

    fn group(&mut self, place: &str, group: &VolumeGroup) {
        if group.encrypted.is_some() {
            return self.refuse(place, format!("volume group {} {ENCRYPTED}", group.name));
        }
        let physical: Vec<DevicePath> = group.devices.iter().filter_map(|device| self.meant.now(device)).collect();
        let found = groups_on(self.meant.inventory, &physical).into_iter().find(|found| found.name == group.name);
        let Some(found) = found else {
            return self.refuse(place, format!("volume group {} is absent or inactive", group.name));
        };
        if let Some(why) = &found.closed {
            self.refuse(place, format!("volume group {} {why}", group.name));
        }
        self.refuse_others(place, &group.name, found.devices().filter(|device| !physical.contains(device)));
        let layout = self.meant.graph.layout;
        let is_listed = |volume: &&inventory::LogicalVolume| {
            layout.logicalvolumes.iter().any(|listed| listed.volumegroup == group.name && listed.name == volume.name)
        };
        for volume in found.volumes.iter().filter(|volume| !is_listed(volume)) {
            let message = format!(
                "logical volume {}/{} ({}, {}) is not in the layout and would not be migrated; remove it, or copy its data yourself",
                group.name,
                volume.name,
                volume.kind,
                bytes(volume.size_bytes)
            );
            self.refuse(place, message);
        }
    }

    /// Refuses members of migrated objects that the layout does not list.
    fn refuse_others<'b>(&mut self, place: &str, what: &str, others: impl Iterator<Item = &'b DevicePath>) {
        let others: Vec<&str> = others.map(DevicePath::as_str).collect();
        if !others.is_empty() {
            let message = format!(
                "{what} also uses {}, which the layout does not list for it; remove that from it first",
                others.join(", ")
            );
            self.refuse(place, message);
        }
    }

    fn filesystem(&mut self, place: &str, wanted: &Filesystem) {
        let name = &wanted.device;
        if wanted.format == Format::Tmpfs || self.is_in_image(name) {
            return;
        }
        let place_of = wanted.path.as_deref().map(|path| format!(" ({path})")).unwrap_or_default();
        let Some(device) = self.meant.now(name) else {
            return self.refuse(place, format!("{name}{place_of} is absent or inactive"));
        };
        let now = self.stack.name(&device);
        let unit = self.stack.unit(&now);
        let size_bytes = match unit {
            Unit::Disk(disk) => disk.size_bytes,
            Unit::Partition(part) => part.size_bytes,
            Unit::Stacked(stacked) => stacked.size_bytes,
            Unit::Unknown => return self.refuse(place, format!("{name}{place_of} is absent: {device} does not exist")),
        };
        let inventory = self.meant.inventory;
        let uuid = match content(wanted, unit) {
            Err(why) => return self.refuse(place, format!("{device}{place_of} {why}")),
            Ok(uuid) => uuid,
        };
        if let Some(part) = inventory.parts.iter().find(|part| part.device == device) {
            let message =
                format!("{device}{place_of} is a part of {} on several devices, which cannot be migrated", part.whole);
            return self.refuse(place, message);
        }
        let below = self.stack.disks(&now);
        let sectors = inventory.disks.iter().filter(|disk| below.contains(&disk.name)).map(|disk| disk.sector_bytes);
        let (sector_bytes, format) = (sectors.max().unwrap_or(512), wanted.format);
        self.all.filesystems.push(CarriedFilesystem { device: name.clone(), format, uuid, size_bytes, sector_bytes });
        if format != Format::Swap {
            self.from.push(FromDevice { name: name.clone(), device, format });
        }
    }

    fn is_in_image(&self, device: &LayoutPath) -> bool {
        self.meant.graph.layout.disks.iter().any(|disk| disk.image_partition(device).is_some())
    }

    /// Refuses data on the disks of the layout that the layout does not list.
    fn refuse_unlisted(&mut self) {
        let layout = self.meant.graph.layout;
        for (index, listed) in layout.disks.iter().enumerate().filter(|(_, listed)| !listed.image) {
            let place = format!("disks[{index}]");
            let Some(disk) = self.meant.disk(index) else { continue };
            // A member shows the partition table inside its array.
            let is_member = self.meant.graph.is_member(&listed.device);
            if listed.partitions.is_empty() {
                self.refuse_data(&place, &listed.device, Unit::Disk(disk));
            }
            for part in disk.table.iter().flat_map(|table| &table.partitions).filter(|_| !is_member) {
                let name = listed.device.partition(part.number);
                match listed.partitions.iter().any(|listed| listed.number == part.number) {
                    true => self.refuse_data(&place, &name, Unit::Partition(part)),
                    false => {
                        let message = format!(
                            "{} ({}, {}) is not in the layout and would not be migrated; remove it, or copy its data yourself",
                            part.device,
                            bytes(part.size_bytes),
                            in_short(Unit::Partition(part))
                        );
                        self.refuse(&place, message);
                    }
                }
            }
        }
        let inventory = self.meant.inventory;
        let is_ours = |device: &DevicePath| !self.stack.disks(&self.stack.name(device)).is_disjoint(&self.disks);
        let of_arrays = inventory.arrays.iter().filter(|array| {
            let is_carried = self.all.arrays.iter().any(|carried| carried.uuid == array.uuid);
            !is_carried && array.members.iter().any(|member| is_ours(&member.device))
        });
        let of_groups = inventory.groups.iter().filter(|group| {
            let is_listed = layout.volumegroups.iter().any(|listed| listed.name == group.name);
            !is_listed && group.devices().any(is_ours)
        });
        let arrays = of_arrays.map(|array| ("raid", format!("array {}", arrays::in_words(array))));
        let groups = of_groups.map(|group| ("volumegroups", format!("volume group {}", group.name)));
        let unlisted: Vec<(&str, String)> = arrays.chain(groups).collect();
        for (place, what) in unlisted {
            self.refuse(place, format!("{what} is not in the layout and would not be migrated; remove it first"));
        }
    }

    /// Refuses data on a device of the layout that is neither a member nor has a filesystem in the layout.
    fn refuse_data(&mut self, place: &str, name: &LayoutPath, unit: Unit) {
        let graph = &self.meant.graph;
        let has_filesystem = graph.device(name).is_some_and(|node| graph.content(node).is_some());
        if graph.is_member(name) || has_filesystem || (unit.signatures().is_empty() && unit.is_blank()) {
            return;
        }
        if let Unit::Disk(disk) = unit
            && disk.table.is_some()
        {
            // Its partitions are reported individually.
            return;
        }
        let message = format!(
            "the layout does not list a filesystem on {name}, but it contains {}, which would not be migrated; set `format: none` to migrate the whole device, or erase it",
            in_short(unit)
        );
        self.refuse(place, message);
    }
}

/// Returns the UUID of the content if it matches the layout; otherwise the reason why it cannot be migrated.
fn content(wanted: &Filesystem, unit: Unit) -> Result<String, String> {
    let found = unit.signatures();
    if found.iter().any(|is| is.kind == LUKS) {
        return Err(ENCRYPTED.to_owned());
    }
    let format = wanted.format;
    match found {
        _ if format == Format::None => Ok(String::new()),
        [one] if one.kind == format.name() && one.uuid.is_empty() => {
            Err(format!("has {format} without a UUID, which the migrated system needs to find it; set one"))
        }
        [one] if one.kind == format.name() => Ok(one.uuid.clone()),
        [_, _, ..] => Err(format!("has several signatures, {}; wipe the wrong one with wipefs", in_short(unit))),
        _ => Err(format!(
            "must contain {format} according to the layout, but contains {}; correct the layout that is stored for the machine",
            in_short(unit)
        )),
    }
}

fn in_short(unit: Unit) -> String {
    match unit.signatures() {
        [] => display::nothing_known(unit.is_blank()).to_owned(),
        found => found.iter().map(display::signature).collect::<Vec<_>>().join(" and "),
    }
}

fn in_words(marker: &Marker) -> String {
    whose(&marker.machine, &marker.allocation)
}
