//! The decision: what becomes of each disk and each filesystem, or why this cannot be done.
//!
//! | mode | layout says | found | verdict |
//! |---|---|---|---|
//! | install | disk listed | anything, not in use | wipe |
//! | reinstall | `wipeonreinstall: true` | anything, not in use | wipe |
//! | reinstall | `wipeonreinstall: false` | as the layout says | keep |
//! | reinstall | `wipeonreinstall: false` | anything else | refuse, with both sides |
//! | any | disk not listed | anything | not ours |

use super::sectors::{self, Extent};
use super::{ByteRange, DiskPlan, Mode, NewPartition, PartitionTable, Verdict, display};
use crate::inventory::{self, Inventory, Signature, Use};
use crate::layout::{self, Format, Layout, PartitionKind, partition_device};
use crate::problem::Problem;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Everything that was decided, before it is put into an order.
pub struct Decided {
    pub disks: Vec<DiskPlan>,
    pub wipes: Vec<Wipe>,
    /// In the order of `Layout::filesystems`.
    pub filesystems: Vec<Decision>,
    pub problems: Vec<Problem>,
}

/// One disk to be made anew.
pub struct Wipe {
    pub device: String,
    pub zero: Vec<ByteRange>,
    pub table: Option<PartitionTable>,
}

/// Where a filesystem lives and whether it is made.
pub struct Decision {
    /// Kernel's device path; the layout's may be a link.
    pub device: String,
    pub uuid: String,
    pub keep: bool,
}

pub fn decide(layout: &Layout, inventory: &Inventory, mode: Mode, ids: &mut dyn FnMut() -> Uuid) -> Decided {
    let mut decided = Decided { disks: Vec::new(), wipes: Vec::new(), filesystems: Vec::new(), problems: Vec::new() };
    let mut verdicts = BTreeMap::new();
    // Layout device path to what is really there.
    let mut devices: BTreeMap<String, Backing> = BTreeMap::new();

    for (index, disk) in layout.disks.iter().enumerate() {
        let place = format!("disks[{index}]");
        let Some(found) = inventory.disk(&disk.device) else {
            decided.problems.push(unknown_disk(&place, disk, inventory));
            continue;
        };
        let wipe = mode == Mode::Install || disk.wipeonreinstall;
        let verdict = if wipe { Verdict::Wipe } else { Verdict::Keep };
        if verdicts.insert(found.name.clone(), verdict).is_some() {
            let message = format!("{} is {} again, which the layout lists already", disk.device, found.device);
            decided.problems.push(Problem::new(format!("{place}.device"), message));
            continue;
        }
        if wipe {
            match make_disk(&place, disk, found, ids) {
                Ok(wipe) => decided.wipes.push(wipe),
                Err(problems) => decided.problems.extend(problems),
            }
        } else {
            decided.problems.extend(keep_disk(&place, disk, found));
        }
        note_devices(&mut devices, disk, found, wipe);
    }
    if mode == Mode::Reinstall && !layout.disks.iter().any(|disk| disk.wipeonreinstall) {
        let message = format!(
            "filesystemlayout:{} is not reinstallable, abort reinstallation: no disk says wipeonreinstall: true",
            layout.id
        );
        decided.problems.push(Problem::new("disks", message));
    }
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        match decide_filesystem(index, filesystem, &devices, ids) {
            Ok(decision) => decided.filesystems.push(decision),
            Err(problem) => decided.problems.extend(problem),
        }
    }
    decided.disks = inventory.disks.iter().map(|disk| disk_plan(disk, &verdicts)).collect();
    decided
}

/// The block device behind a device path of the layout.
struct Backing<'a> {
    device: String,
    wipe: bool,
    signatures: &'a [Signature],
    size_bytes: u64,
}

fn disk_plan(disk: &inventory::Disk, verdicts: &BTreeMap<String, Verdict>) -> DiskPlan {
    DiskPlan {
        name: disk.name.clone(),
        device: disk.device.clone(),
        size_bytes: disk.size_bytes,
        model: disk.model.clone(),
        serial: disk.serial.clone(),
        verdict: verdicts.get(&disk.name).copied().unwrap_or(Verdict::NotOurs),
        now: display::contents(disk),
        running: Vec::new(),
    }
}

fn unknown_disk(place: &str, disk: &layout::Disk, inventory: &Inventory) -> Problem {
    let there: Vec<String> = inventory.disks.iter().map(display::disk_in_short).collect();
    let there =
        if there.is_empty() { "it has no disks".to_owned() } else { format!("its disks are {}", there.join(", ")) };
    Problem::new(format!("{place}.device"), format!("device:{} does not exist on given hardware: {there}", disk.device))
}

fn make_disk(
    place: &str,
    disk: &layout::Disk,
    found: &inventory::Disk,
    ids: &mut dyn FnMut() -> Uuid,
) -> Result<Wipe, Vec<Problem>> {
    let mut problems: Vec<Problem> = uses(found)
        .map(|(device, usage)| {
            let message =
                format!("{device} is in use ({usage}): unmount or stop it first; nothing here does that for you");
            Problem::new(format!("{place}.device"), message)
        })
        .collect();
    if found.read_only {
        let message =
            format!("{} is read-only: it cannot be written (write protection switch, failing disk?)", found.device);
        problems.push(Problem::new(format!("{place}.device"), message));
    }
    let extents = match sectors::place(&disk.partitions, found.size_bytes, found.sector_bytes) {
        Ok(extents) => extents,
        Err(small) => {
            let message = format!(
                "device:{} is not big enough required:{}MiB, existing:{}MiB (with 1 MiB at each end for the partition table)",
                disk.device, small.required_mib, small.existing_mib
            );
            problems.push(Problem::new(format!("{place}.partitions"), message));
            return Err(problems);
        }
    };
    if !problems.is_empty() {
        return Err(problems);
    }
    let table = (!disk.partitions.is_empty()).then(|| PartitionTable {
        device: found.device.clone(),
        guid: ids(),
        sector_bytes: found.sector_bytes,
        partitions: disk
            .partitions
            .iter()
            .zip(&extents)
            .map(|(new, extent)| new_partition(new, found, *extent, ids))
            .collect(),
    });
    Ok(Wipe { device: found.device.clone(), zero: signature_areas(found, &extents), table })
}

fn new_partition(
    partition: &layout::Partition,
    disk: &inventory::Disk,
    extent: Extent,
    ids: &mut dyn FnMut() -> Uuid,
) -> NewPartition {
    NewPartition {
        number: partition.number,
        device: partition_device(&disk.device, partition.number),
        first_lba: extent.first_lba,
        last_lba: extent.last_lba,
        kind: partition.kind.unwrap_or(PartitionKind::Linux).guid(),
        guid: ids(),
        name: partition.label.clone().unwrap_or_default(),
    }
}

/// Both ends of the disk and of every partition, old and new: an old superblock at the very offset of a new partition
/// would come back to life (LP #1718699).
fn signature_areas(found: &inventory::Disk, extents: &[Extent]) -> Vec<ByteRange> {
    let sector = u64::from(found.sector_bytes);
    let whole = ByteRange { start: 0, length: found.size_bytes };
    let old = found.table.iter().flat_map(|table| &table.partitions);
    let old = old.map(|partition| ByteRange { start: partition.start_bytes, length: partition.size_bytes });
    let new = extents.iter().map(|extent| ByteRange {
        start: extent.first_lba * sector,
        length: (extent.last_lba + 1 - extent.first_lba) * sector,
    });
    sectors::ends(std::iter::once(whole).chain(old).chain(new), found.size_bytes)
}

fn uses(disk: &inventory::Disk) -> impl Iterator<Item = (&str, &Use)> {
    let whole = disk.uses.iter().map(|usage| (disk.device.as_str(), usage));
    let partitions = disk.table.iter().flat_map(|table| &table.partitions);
    whole.chain(partitions.flat_map(|partition| partition.uses.iter().map(|usage| (partition.device.as_str(), usage))))
}

/// Is a kept disk as the layout says? Its filesystems are compared by [`decide_filesystem`].
fn keep_disk(place: &str, disk: &layout::Disk, found: &inventory::Disk) -> Vec<Problem> {
    if let Some(why) = &found.unreadable {
        let message = format!("{} is to be kept, but what is on it cannot be read: {why}", found.device);
        return vec![Problem::new(format!("{place}.device"), message)];
    }
    let table = found.table.as_ref().filter(|table| table.kind == "gpt");
    if !disk.partitions.is_empty() && table.is_none() {
        let message = format!(
            "{} is to be kept with {} partitions, but has no GPT: there is {}",
            found.device,
            disk.partitions.len(),
            display::contents(found)
        );
        return vec![Problem::new(format!("{place}.partitions"), message)];
    }
    let partitions = table.map(|table| table.partitions.as_slice()).unwrap_or_default();
    let differs = |(index, wanted): (usize, &layout::Partition)| {
        let is = partitions.iter().find(|partition| partition.number == wanted.number);
        let message = keep_partition(found, wanted, is)?;
        Some(Problem::new(format!("{place}.partitions[{index}]"), message))
    };
    disk.partitions.iter().enumerate().filter_map(differs).collect()
}

fn keep_partition(
    disk: &inventory::Disk,
    wanted: &layout::Partition,
    found: Option<&inventory::Partition>,
) -> Option<String> {
    let device = partition_device(&disk.device, wanted.number);
    let Some(found) = found else {
        return Some(format!("{device} is to be kept, but {} has no partition {}", disk.device, wanted.number));
    };
    let found_mib = found.size_bytes / sectors::MIB;
    if wanted.size_mib != 0 && wanted.size_mib != found_mib {
        return Some(format!("{device} is to be kept with {} MiB, but has {found_mib} MiB", wanted.size_mib));
    }
    let kind = wanted.kind?;
    let is_kind = found.kind.eq_ignore_ascii_case(&kind.guid().to_string());
    (!is_kind).then(|| {
        format!("{device} is to be kept as type {} ({}), but has type {}", kind.code(), kind.guid(), found.kind)
    })
}

fn note_devices<'a>(
    devices: &mut BTreeMap<String, Backing<'a>>,
    disk: &layout::Disk,
    found: &'a inventory::Disk,
    wipe: bool,
) {
    let whole =
        Backing { device: found.device.clone(), wipe, signatures: &found.signatures, size_bytes: found.size_bytes };
    devices.insert(disk.device.clone(), whole);
    for partition in &disk.partitions {
        let is = found.table.iter().flat_map(|table| &table.partitions).find(|is| is.number == partition.number);
        let backing = Backing {
            device: partition_device(&found.device, partition.number),
            wipe,
            signatures: is.map(|is| is.signatures.as_slice()).unwrap_or_default(),
            size_bytes: is.map(|is| is.size_bytes).unwrap_or_default(),
        };
        devices.insert(partition_device(&disk.device, partition.number), backing);
    }
}

fn decide_filesystem(
    index: usize,
    filesystem: &layout::Filesystem,
    devices: &BTreeMap<String, Backing>,
    ids: &mut dyn FnMut() -> Uuid,
) -> Result<Decision, Option<Problem>> {
    if filesystem.format == Format::Tmpfs {
        return Ok(Decision { device: "tmpfs".to_owned(), uuid: String::new(), keep: true });
    }
    // A device that is missing here belongs to a disk that was refused already.
    let backing = devices.get(&filesystem.device).ok_or(None)?;
    if backing.wipe {
        let uuid = filesystem_uuid(filesystem.format, ids());
        return Ok(Decision { device: backing.device.clone(), uuid, keep: false });
    }
    let place = format!("filesystems[{index}]");
    match keep_filesystem(filesystem, backing) {
        Ok(uuid) => Ok(Decision { device: backing.device.clone(), uuid, keep: true }),
        Err(message) => Err(Some(Problem::new(place, message))),
    }
}

/// The UUID of the filesystem that is there, when it is the one that the layout means.
fn keep_filesystem(wanted: &layout::Filesystem, backing: &Backing) -> Result<String, String> {
    if wanted.format == Format::None {
        return Ok(String::new());
    }
    let label = wanted.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
    let wish = format!("{} is to be kept with {}{label}", backing.device, wanted.format);
    match backing.signatures {
        [] => {
            Err(format!("{wish}, but there is nothing that is known on its {}", crate::text::bytes(backing.size_bytes)))
        }
        [one] if one.kind != wanted.format.name() => Err(format!("{wish}, but there is {}", display::signature(one))),
        [one] if wanted.label.as_ref().is_some_and(|label| *label != one.label) => {
            Err(format!("{wish}, but there is {}", display::signature(one)))
        }
        [one] => Ok(one.uuid.clone()),
        several => {
            let there: Vec<String> = several.iter().map(display::signature).collect();
            Err(format!("{wish}, but there are several signatures at once: {}", there.join(" and ")))
        }
    }
}

/// vfat has a 32-bit volume id, written as blkid does.
fn filesystem_uuid(format: Format, id: Uuid) -> String {
    match format {
        Format::None => String::new(),
        Format::Vfat => {
            let bytes = id.as_bytes();
            format!("{:02X}{:02X}-{:02X}{:02X}", bytes[0], bytes[1], bytes[2], bytes[3])
        }
        _ => id.to_string(),
    }
}
