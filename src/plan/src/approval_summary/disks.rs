//! Disks in the verdicts: identity, content and verdict. Kernel names are not included.

use crate::content_descriptions::describe_unrecognized;
use crate::{ApprovedDisk, DiskVerdict, TornObject};
use common::format::{format_bytes, replace_hidden};
use model::inventory::{DeviceSignature, DiskPartition, InventoryDisk, UniqueIdentifiers};
use model::layout;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

impl ApprovedDisk {
    /// Returns the verdict on a listed disk. `identifiers` contains the identifiers of all disks of the machine.
    pub(super) fn new(
        listed: &layout::DiskSpec,
        disk: &InventoryDisk,
        identifiers: &UniqueIdentifiers,
        verdict: DiskVerdict,
    ) -> ApprovedDisk {
        ApprovedDisk {
            contents: Some(describe_contents(disk)),
            model: sanitize(&disk.model),
            partitions: describe_partitions(listed),
            verdict,
            ..ApprovedDisk::identify_disk(listed.device.as_str(), disk, identifiers)
        }
    }

    /// Returns the fields that distinguish the disk from the other disks of the machine. `device` and the slot are
    /// included only if no serial number or WWN identifies the disk uniquely.
    pub(super) fn identify_disk(device: &str, disk: &InventoryDisk, identifiers: &UniqueIdentifiers) -> ApprovedDisk {
        let is_identified =
            if disk.serial.trim().is_empty() { identifiers.has_wwn(disk) } else { identifiers.has_serial(disk) };
        let place = if disk.by_path.is_empty() { &disk.hctl } else { &disk.by_path };
        let unless_identified = |text: &str| if is_identified { String::new() } else { sanitize(text) };
        ApprovedDisk {
            device: unless_identified(device),
            place: unless_identified(place),
            serial: sanitize(&disk.serial),
            size_bytes: disk.size_bytes,
            wwn: sanitize(&disk.wwn),
            ..ApprovedDisk::default()
        }
    }

    /// Returns whether this verdict applies to the given disk of the inventory: all identifying fields must be equal.
    pub(crate) fn is_about(&self, disk: &InventoryDisk, identifiers: &UniqueIdentifiers) -> bool {
        if self.size_bytes != disk.size_bytes {
            return false;
        }
        let found = ApprovedDisk::identify_disk(&self.device, disk, identifiers);
        let key = |is: &ApprovedDisk| (is.serial.clone(), is.wwn.clone(), is.place.clone(), is.size_bytes);
        key(self) == key(&found) && self.device == found.device
    }

    /// Returns the name of the disk for messages and for [`super::ApprovedObject::on`].
    pub(crate) fn name(&self) -> String {
        let ApprovedDisk { device, place, serial, wwn, size_bytes, .. } = self;
        if device.is_empty() {
            return if serial.is_empty() { format!("wwn {wwn}") } else { format!("serial {serial}") };
        }
        let at = if place.is_empty() { String::new() } else { format!(" at {place}") };
        let reported: Vec<String> = [("serial", serial), ("wwn", wwn)]
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!(", {name} {value}"))
            .collect();
        format!(
            "{device}{at}, {size}{other_names}, which has no serial number of its own",
            size = format_bytes(*size_bytes),
            other_names = reported.concat()
        )
    }
}

/// Returns the text without terminal control characters. A control plane stores strings in the same form.
fn sanitize(text: &str) -> String {
    replace_hidden(text).trim().to_owned()
}

fn describe_partitions(listed: &layout::DiskSpec) -> Vec<String> {
    let of_table = listed.partitions.iter().map(|partition| {
        let label = partition.label.as_deref().unwrap_or_default();
        let size = partition.size.as_mib().map_or_else(|| "rest".to_owned(), |mib| mib.to_string());
        format!("{} {label} {size}", partition.number)
    });
    let image = listed.image.then(|| "image".to_owned());
    of_table.chain(image).collect()
}

/// Describes the content of a disk. The description omits users, used bytes and kernel names, because they can change
/// without a write by the agent. The returned strings are part of the format of the approval summary.
fn describe_contents(disk: &InventoryDisk) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(table) = &disk.table {
        let guid = table.guid.map(|guid| format!(" {guid}")).unwrap_or_default();
        lines.push(format!("table {}{guid}", table.kind));
        table.partitions.iter().for_each(|part| lines.extend(describe_partition(part)));
    }
    lines.extend(disk.signatures.iter().map(|signature| format!("disk: {}", describe_signature(signature))));
    lines.extend(
        disk.unreadable
            .iter()
            .map(|why| format!("not all can be read: {reason}", reason = why.replace(disk.device.as_str(), "disk"))),
    );
    if lines.is_empty() {
        lines.push(format!("disk: {}", describe_unrecognized(disk.blank)));
    }
    let mut lines: Vec<String> = lines.iter().map(|line| sanitize(line)).collect();
    lines.sort();
    lines
}

fn describe_partition(part: &DiskPartition) -> Vec<String> {
    let DiskPartition { number, start_bytes, size_bytes, kind, label, .. } = part;
    let guid = part.guid.map(|guid| format!(" {guid}")).unwrap_or_default();
    let bounds = format!("partition {number}: {size_bytes} bytes at {start_bytes}, type {kind}{guid} {label:?}");
    let signatures =
        part.signatures.iter().map(|signature| format!("partition {number} has {}", describe_signature(signature)));
    let nothing = format!("partition {number} has {}", describe_unrecognized(part.blank));
    let nothing = Some(nothing).filter(|_| part.signatures.is_empty());
    std::iter::once(bounds).chain(signatures).chain(nothing).collect()
}

fn describe_signature(signature: &DeviceSignature) -> String {
    let DeviceSignature { kind, label, uuid, .. } = signature;
    format!("{kind} {label:?} UUID {uuid}")
}

/// Common prefix of the paths of all disks.
const PATHS: &str = "/dev/";

/// Names of disks by path. In descriptions, the paths are replaced by these names.
pub(super) struct DiskNames<'a> {
    names: BTreeMap<&'a str, String>,
    /// Lengths of the paths in descending order, so that `/dev/sdaa` is looked up before its prefix `/dev/sda`.
    lengths: BTreeSet<Reverse<usize>>,
}

impl<'a> DiskNames<'a> {
    pub(super) fn new(disks: &'a [InventoryDisk], identifiers: &UniqueIdentifiers) -> DiskNames<'a> {
        let name = |disk: &InventoryDisk| ApprovedDisk::identify_disk("a disk", disk, identifiers).name();
        let names = disks.iter().filter(|disk| disk.device.as_str().starts_with(PATHS));
        let names: BTreeMap<&str, String> = names.map(|disk| (disk.device.as_str(), name(disk))).collect();
        let lengths = names.keys().map(|path| Reverse(path.len())).collect();
        DiskNames { names, lengths }
    }

    /// Describes an object that loses members. Its disks are named by their identifiers instead of their paths.
    pub(super) fn describe(&self, dismantled: &TornObject) -> String {
        let (mut text, mut rest) = (String::new(), dismantled.whole.as_str());
        while let Some((before, after)) = rest.find(PATHS).map(|at| rest.split_at(at)) {
            text += before;
            let starts = |length: &usize| after.get(..*length).and_then(|path| self.names.get_key_value(path));
            rest = match self.lengths.iter().find_map(|Reverse(length)| starts(length)) {
                Some((path, name)) => {
                    text += &format!("({name})");
                    &after[path.len()..]
                }
                None => {
                    text += PATHS;
                    &after[PATHS.len()..]
                }
            };
        }
        sanitize(&(text + rest))
    }
}
