//! Builds the layout from the contents of the machine.

pub(crate) mod filesystems;
mod fstab_checks;
mod partitions;
mod volume_groups;

use crate::content_purposes::MachineContents;
use crate::discovery_notes::DiscoveryNote;
use crate::fstab::FstabLine;
use crate::layout_device_names::{array_path, select_disk};
use crate::mount_point_purposes::PurposeSet;
use model::device_name::{KernelName, LayoutPath};
use model::inventory::{InventoryDisk, MdArray, MemberRole};
use model::layout::{ArraySpec, DiskSpec, Layout, RaidLevel};
use std::collections::{BTreeMap, BTreeSet};

/// Layout under construction.
pub(crate) struct LayoutBuilder<'a> {
    machine: &'a MachineContents<'a>,
    layout: Layout,
    /// Entries of the disks that the layout lists, by kernel name.
    disks: BTreeMap<KernelName, DiskSpec>,
    /// Devices that the layout uses.
    used: BTreeSet<LayoutPath>,
    notes: Vec<DiscoveryNote>,
}

/// Builds the layout. For each property of the machine that the layout cannot express, adds a note to `notes`.
pub(crate) fn build_layout(
    machine: &MachineContents,
    memory: &[FstabLine],
    id: &str,
    notes: &mut Vec<DiscoveryNote>,
) -> Layout {
    let mut builder = LayoutBuilder {
        machine,
        layout: Layout { id: id.to_owned(), ..Layout::default() },
        disks: BTreeMap::new(),
        used: BTreeSet::new(),
        notes: Vec::new(),
    };
    builder.select_disks();
    builder.add_filesystems(memory);
    builder.add_groups();
    builder.add_arrays();
    builder.add_partitions();
    builder.layout.disks = builder.disks.into_values().filter(|disk| is_listed(disk, &builder.used)).collect();
    notes.append(&mut builder.notes);
    builder.layout
}

/// Returns whether the layout must list the disk: a reinstall wipes it, or other entries of the layout use it or its
/// partitions.
fn is_listed(disk: &DiskSpec, used: &BTreeSet<LayoutPath>) -> bool {
    disk.wipeonreinstall || !disk.partitions.is_empty() || used.contains(&disk.device)
}

impl<'a> LayoutBuilder<'a> {
    /// Selects the disks that contain the system or a mounted filesystem. Unlisted disks are never written.
    fn select_disks(&mut self) {
        let machine = self.machine;
        let mut mounted = BTreeSet::new();
        for content in machine.contents.iter().filter(|content| content.paths().next().is_some()) {
            mounted.extend(machine.stack.disks_below(&content.name));
        }
        for disk in &machine.inventory.disks {
            let purpose = machine.purpose_of(&disk.name);
            if purpose.system || mounted.contains(&disk.name) {
                self.check_disk(disk, purpose);
                self.disks.insert(disk.name.clone(), select_disk(machine, disk, purpose));
            } else {
                let content = if disk.blank { "blank" } else { "data that fstab does not mount" };
                self.report(format!("{}: {content}; the disk is not listed, and is never written", disk.device));
            }
        }
    }

    fn check_disk(&mut self, disk: &InventoryDisk, purpose: PurposeSet) {
        let device = &disk.device;
        match disk.table.as_ref().map(|table| table.kind.as_str()) {
            None | Some("gpt") => {}
            Some(kind) if purpose.data => self.prevent(format!(
                "{device} contains data, and a partition table of type {kind}, but layouts describe GPT: convert the table (sgdisk --mbrtogpt)"
            )),
            Some(kind) => self.report(format!("{device}: the partition table of type {kind} is replaced by a GPT")),
        }
    }

    /// Adds all arrays on listed disks.
    fn add_arrays(&mut self) {
        for array in &self.machine.inventory.arrays {
            let Some(running) = &array.running else {
                self.prevent(format!(
                    "the array \"{}\" ({}) is not running, so its content is unknown: start it, or record the inventory in the ramdisk",
                    array.name, array.level
                ));
                continue;
            };
            let members = array.members.iter().map(|member| self.machine.name_path(&member.device, &self.disks));
            let Ok(members) = members.collect::<Result<Vec<_>, _>>() else { continue };
            self.check_array(array);
            let spec = self.describe_array(array, running, members.into_iter().map(|member| member.path).collect());
            if let Some(spec) = spec {
                self.used.extend(spec.devices.iter().cloned());
                self.layout.raid.push(spec);
            }
        }
    }

    fn check_array(&mut self, array: &MdArray) {
        let path = array_path(array);
        let active = array.members.iter().filter(|member| matches!(member.role, MemberRole::Active(_))).count();
        if active < array.raid_devices as usize {
            self.prevent(format!(
                "{path}: the array is degraded: {active} of {} members are active, but the layout must list all members; replace the disk, or wait for the resync",
                array.raid_devices
            ));
        } else if array.members.iter().any(|member| member.role == MemberRole::Faulty) {
            self.report(format!("{path}: a member is faulty; remove or replace it before the reinstall"));
        }
    }

    fn describe_array(&mut self, array: &MdArray, running: &KernelName, devices: Vec<LayoutPath>) -> Option<ArraySpec> {
        let path = array_path(array);
        let level = RaidLevel::ALL.into_iter().find(|level| level.to_string() == array.level);
        let Some(level) = level else {
            self.prevent(format!("{path}: layouts do not support arrays of level {}", array.level));
            return None;
        };
        let purpose = self.machine.purpose_of(running);
        let is_used = self.used.contains(&path);
        let mut members: Vec<(usize, LayoutPath)> = array.members.iter().map(order_of_member).zip(devices).collect();
        members.sort_by_key(|(order, _)| *order);
        let spares = array.members.iter().filter(|member| member.role == MemberRole::Spare).count();
        let metadata = format!("--metadata={}", array.metadata);
        Some(ArraySpec {
            arrayname: path,
            devices: members.into_iter().map(|(_, device)| device).collect(),
            level,
            createoptions: if array.metadata == "1.2" { Vec::new() } else { vec![metadata] },
            spares: u32::try_from(spares).unwrap_or(u32::MAX),
            preserve: purpose.data && !is_used && self.is_partly_renewed(running),
        })
    }

    /// Returns whether any of the device's disks also contains parts of the system, which a reinstall recreates. If
    /// so, data on the device needs `preserve: true`.
    fn is_partly_renewed(&self, device: &KernelName) -> bool {
        let disks = self.machine.stack.disks_below(device);
        disks.iter().any(|disk| self.machine.purpose_of(disk).system)
    }

    fn report(&mut self, text: String) {
        self.notes.push(DiscoveryNote::report(text));
    }

    fn prevent(&mut self, text: String) {
        self.notes.push(DiscoveryNote::obstacle(text));
    }
}

/// Returns the sort key of a member: active members by slot, then faulty members, then spares.
fn order_of_member(member: &model::inventory::ArrayMember) -> usize {
    match member.role {
        MemberRole::Active(slot) => slot as usize,
        MemberRole::Faulty => usize::MAX - 1,
        MemberRole::Spare => usize::MAX,
    }
}
