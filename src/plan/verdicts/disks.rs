//! Disks in the verdicts: identity, content and verdict. Kernel names are not included.

use crate::inventory::{Disk, OwnIdentifiers, Partition, Signature};
use crate::layout;
use crate::order::{self, Gather};
use crate::plan::display::nothing_known;
use crate::plan::{Torn, Verdict};
use crate::text::{bytes, clean};
use serde::{Deserialize, Serialize};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

/// Verdict on a disk. The fields are sorted by name, like those of [`super::Verdicts`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskVerdict {
    /// Table, partitions and signatures, one line each; `None` if the plan was made without reading them.
    pub contents: Option<Vec<String>>,
    /// Name in the layout; only set if neither serial number nor WWN distinguishes the disk from the others of the machine.
    pub device: String,
    pub model: String,
    /// Partitions of the layout: number, label and MiB of each.
    pub partitions: Vec<String>,
    /// `by-path` link or SCSI address; only set if `device` is.
    pub place: String,
    pub serial: String,
    pub size_bytes: u64,
    pub verdict: Verdict,
    pub wwn: String,
}

impl PartialOrd for DiskVerdict {
    fn partial_cmp(&self, other: &DiskVerdict) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Orders disks by their identifiers, so that other contents do not change the order.
impl Ord for DiskVerdict {
    fn cmp(&self, other: &DiskVerdict) -> Ordering {
        let identity = |is: &DiskVerdict| [is.serial.clone(), is.wwn.clone(), is.device.clone(), is.place.clone()];
        let rest = |is: &DiskVerdict| (is.size_bytes, is.verdict, is.partitions.clone(), is.model.clone());
        let order = identity(self).cmp(&identity(other)).then_with(|| rest(self).cmp(&rest(other)));
        order.then_with(|| self.contents.cmp(&other.contents))
    }
}

impl DiskVerdict {
    /// Returns the verdict on a listed disk. `identifiers` are those of all disks of the machine.
    pub(super) fn new(
        listed: &layout::Disk,
        disk: &Disk,
        identifiers: &OwnIdentifiers,
        verdict: Verdict,
    ) -> DiskVerdict {
        DiskVerdict {
            contents: Some(contents(disk)),
            model: printed(&disk.model),
            partitions: partitions(listed),
            verdict,
            ..DiskVerdict::identity(listed.device.as_str(), disk, identifiers)
        }
    }

    /// Returns the fields that identify the disk among those of the machine. `device` stands for it if it has no unique identifier.
    pub(super) fn identity(device: &str, disk: &Disk, identifiers: &OwnIdentifiers) -> DiskVerdict {
        let is_identified =
            if disk.serial.trim().is_empty() { identifiers.has_wwn(disk) } else { identifiers.has_serial(disk) };
        let place = if disk.by_path.is_empty() { &disk.hctl } else { &disk.by_path };
        let unless_identified = |text: &str| if is_identified { String::new() } else { printed(text) };
        DiskVerdict {
            device: unless_identified(device),
            place: unless_identified(place),
            serial: printed(&disk.serial),
            size_bytes: disk.size_bytes,
            wwn: printed(&disk.wwn),
            ..DiskVerdict::default()
        }
    }

    /// Returns whether the verdict is about this disk of the inventory.
    pub fn is_of(&self, disk: &Disk, identifiers: &OwnIdentifiers) -> bool {
        if self.size_bytes != disk.size_bytes {
            return false;
        }
        let found = DiskVerdict::identity(&self.device, disk, identifiers);
        let key = |is: &DiskVerdict| (is.serial.clone(), is.wwn.clone(), is.place.clone(), is.size_bytes);
        key(self) == key(&found) && self.device == found.device
    }

    /// Returns the name of the disk for messages and for [`super::Thing::on`].
    pub fn name(&self) -> String {
        let DiskVerdict { device, place, serial, wwn, size_bytes, .. } = self;
        if device.is_empty() {
            return if serial.is_empty() { format!("wwn {wwn}") } else { format!("serial {serial}") };
        }
        let at = if place.is_empty() { String::new() } else { format!(" at {place}") };
        let reported: Vec<String> = [("serial", serial), ("wwn", wwn)]
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!(", {name} {value}"))
            .collect();
        format!("{device}{at}, {}{}, which has no serial number of its own", bytes(*size_bytes), reported.concat())
    }
}

/// Returns the text as a control plane stores it, without terminal control characters.
fn printed(text: &str) -> String {
    clean(text).trim().to_owned()
}

fn partitions(listed: &layout::Disk) -> Vec<String> {
    let of_table = listed.partitions.iter().map(|partition| {
        let label = partition.label.as_deref().unwrap_or_default();
        let size = partition.size.mib().map_or_else(|| "rest".to_owned(), |mib| mib.to_string());
        format!("{} {label} {size}", partition.number)
    });
    let image = listed.image.then(|| "image".to_owned());
    of_table.chain(image).collect()
}

/// Describes the content of a disk. Users, used bytes and kernel names are omitted, because they change although nothing is written. The
/// texts are part of the format.
fn contents(disk: &Disk) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(table) = &disk.table {
        let guid = table.guid.map(|guid| format!(" {guid}")).unwrap_or_default();
        lines.push(format!("table {}{guid}", table.kind));
        table.partitions.iter().for_each(|part| lines.extend(of_partition(part)));
    }
    lines.extend(disk.signatures.iter().map(|is| format!("disk: {}", of_signature(is))));
    lines.extend(
        disk.unreadable.iter().map(|why| format!("not all can be read: {}", why.replace(disk.device.as_str(), "disk"))),
    );
    if lines.is_empty() {
        lines.push(format!("disk: {}", nothing_known(disk.blank)));
    }
    let mut lines: Vec<String> = lines.iter().map(|line| printed(line)).collect();
    order::sort(&mut lines);
    lines
}

fn of_partition(part: &Partition) -> Vec<String> {
    let Partition { number, start_bytes, size_bytes, kind, label, .. } = part;
    let guid = part.guid.map(|guid| format!(" {guid}")).unwrap_or_default();
    let bounds = format!("partition {number}: {size_bytes} bytes at {start_bytes}, type {kind}{guid} {label:?}");
    let signatures = part.signatures.iter().map(|is| format!("partition {number} has {}", of_signature(is)));
    let nothing = format!("partition {number} has {}", nothing_known(part.blank));
    let nothing = Some(nothing).filter(|_| part.signatures.is_empty());
    std::iter::once(bounds).chain(signatures).chain(nothing).collect()
}

fn of_signature(signature: &Signature) -> String {
    let Signature { kind, label, uuid, .. } = signature;
    format!("{kind} {label:?} UUID {uuid}")
}

/// Common prefix of the paths of all disks.
const PATHS: &str = "/dev/";

/// Names of disks by path, to replace the paths in a text.
pub(super) struct DiskNames<'a> {
    names: BTreeMap<&'a str, String>,
    /// Lengths of the paths in descending order, so that no path is a prefix of one that is looked up later.
    lengths: BTreeSet<Reverse<usize>>,
}

impl<'a> DiskNames<'a> {
    pub(super) fn new(disks: &'a [Disk], identifiers: &OwnIdentifiers) -> DiskNames<'a> {
        let name = |disk: &Disk| DiskVerdict::identity("a disk", disk, identifiers).name();
        let names = disks.iter().filter(|disk| disk.device.as_str().starts_with(PATHS));
        let names: BTreeMap<&str, String> = names.map(|disk| (disk.device.as_str(), name(disk))).gather();
        let lengths = names.keys().map(|path| Reverse(path.len())).gather();
        DiskNames { names, lengths }
    }

    /// Describes an object that loses members, with its disks by their identifiers.
    pub(super) fn describe(&self, torn: &Torn) -> String {
        let (mut text, mut rest) = (String::new(), torn.whole.as_str());
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
        printed(&(text + rest))
    }
}
