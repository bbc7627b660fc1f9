//! Disks and their partitions: which ones are meant, made anew or as the layout says.

use super::devices::Device;
use super::sectors::{self, Extent};
use super::verdict::{Deciding, of_disk};
use super::{DiskIdentity, Mode, NewPartition, PartitionTable, Verdict, display, find, wipe};
use crate::inventory;
use crate::layout::{self, PartitionKind, partition_device};
use crate::problem::Problem;

impl<'a> Deciding<'a> {
    pub fn decide_disks(&mut self) {
        for (index, disk) in self.layout.disks.iter().enumerate() {
            let place = format!("disks[{index}]");
            match find::disk(disk, self.inventory) {
                Ok(found) if self.verdicts.contains_key(&found.name) => {
                    let message = format!("{} is {} again, which the layout lists already", disk.device, found.device);
                    self.refuse(format!("{place}.device"), message);
                }
                Ok(found) => self.decide_disk(&place, disk, found),
                Err(message) => self.refuse(format!("{place}.device"), message),
            }
        }
        if self.request.mode == Mode::Reinstall && !self.layout.disks.iter().any(|disk| disk.wipeonreinstall) {
            let message = format!(
                "filesystemlayout:{} is not reinstallable, abort reinstallation: no disk says wipeonreinstall: true",
                self.layout.id
            );
            self.refuse("disks", message);
        }
    }

    fn decide_disk(&mut self, place: &str, disk: &layout::Disk, found: &'a inventory::Disk) {
        let verdict = of_disk(self.request.mode, Some(disk));
        self.verdicts.insert(found.name.clone(), verdict);
        self.decided.identities.push(DiskIdentity {
            device: found.device.clone(),
            size_bytes: found.size_bytes,
            serial: found.serial.clone(),
            wwn: found.wwn.clone(),
        });
        if verdict == Verdict::Wipe {
            self.make_disk(place, disk, found);
        } else {
            self.decided.problems.extend(keep_disk(place, disk, found));
            self.note_kept(disk, found);
        }
    }

    fn make_disk(&mut self, place: &str, disk: &layout::Disk, found: &'a inventory::Disk) {
        if found.read_only {
            let message =
                format!("{} is read-only: it cannot be written (write protection switch, failing disk?)", found.device);
            self.refuse(format!("{place}.device"), message);
        }
        let extents = match sectors::place(&disk.partitions, found.size_bytes, found.sector_bytes) {
            Ok(extents) => extents,
            Err(small) => {
                let message = format!(
                    "device:{} is not big enough required:{}MiB, existing:{}MiB (with 1 MiB at each end for the partition table)",
                    disk.device, small.required_mib, small.existing_mib
                );
                return self.refuse(format!("{place}.partitions"), message);
            }
        };
        self.devices.insert(disk.device.clone(), made(found, found.device.clone(), found.size_bytes));
        for (partition, extent) in disk.partitions.iter().zip(&extents) {
            let path = partition_device(&found.device, partition.number);
            let device = made(found, path, extent.length_bytes(found.sector_bytes));
            self.devices.insert(partition_device(&disk.device, partition.number), device);
        }
        self.decided.wipes.push(wipe::of_disk(self.request.erase, found, &extents));
        if !disk.partitions.is_empty() {
            let partitions = disk.partitions.iter().zip(&extents);
            let guid = (self.ids)();
            let partitions = partitions.map(|(new, extent)| self.new_partition(new, found, *extent)).collect();
            let (device, sector_bytes) = (found.device.clone(), found.sector_bytes);
            self.decided.tables.push(PartitionTable { device, guid, sector_bytes, partitions });
        }
    }

    fn new_partition(&mut self, new: &layout::Partition, disk: &inventory::Disk, extent: Extent) -> NewPartition {
        NewPartition {
            number: new.number,
            device: partition_device(&disk.device, new.number),
            first_lba: extent.first_lba,
            last_lba: extent.last_lba,
            kind: new.kind.unwrap_or(PartitionKind::Linux).guid(),
            guid: (self.ids)(),
            name: new.label.clone().unwrap_or_default(),
        }
    }

    fn note_kept(&mut self, disk: &layout::Disk, found: &'a inventory::Disk) {
        let kept = |path: &str, size_bytes: u64, content: &'a [inventory::Signature]| Device {
            path: path.to_owned(),
            now: path.to_owned(),
            keep: true,
            size_bytes: Some(size_bytes),
            sector_bytes: found.sector_bytes,
            stripe_bytes: 0,
            content: Ok(content),
        };
        self.devices.insert(disk.device.clone(), kept(&found.device, found.size_bytes, &found.signatures));
        for partition in &disk.partitions {
            // One that is missing was refused with its disk.
            if let Some(is) = gpt(found).iter().find(|is| is.number == partition.number) {
                let device = kept(&is.device, is.size_bytes, &is.signatures);
                self.devices.insert(partition_device(&disk.device, partition.number), device);
            }
        }
    }
}

fn made<'a>(disk: &inventory::Disk, path: String, size_bytes: u64) -> Device<'a> {
    Device {
        now: path.clone(),
        path,
        keep: false,
        size_bytes: Some(size_bytes),
        sector_bytes: disk.sector_bytes,
        stripe_bytes: 0,
        content: Ok(&[]),
    }
}

/// The partitions of a GPT; none of any other table.
fn gpt(disk: &inventory::Disk) -> &[inventory::Partition] {
    let table = disk.table.as_ref().filter(|table| table.kind == "gpt");
    table.map(|table| table.partitions.as_slice()).unwrap_or_default()
}

/// Is a kept disk as the layout says? What lies on it is compared with that.
fn keep_disk(place: &str, disk: &layout::Disk, found: &inventory::Disk) -> Vec<Problem> {
    if let Some(why) = &found.unreadable {
        let message = format!("{} is to be kept, but what is on it cannot be read: {why}", found.device);
        return vec![Problem::new(format!("{place}.device"), message)];
    }
    let has_gpt = found.table.as_ref().is_some_and(|table| table.kind == "gpt");
    if !disk.partitions.is_empty() && !has_gpt {
        let message = format!(
            "{} is to be kept with {} partitions, but has no GPT: there is {}",
            found.device,
            disk.partitions.len(),
            display::contents(found)
        );
        return vec![Problem::new(format!("{place}.partitions"), message)];
    }
    let differs = |(index, wanted): (usize, &layout::Partition)| {
        let is = gpt(found).iter().find(|partition| partition.number == wanted.number);
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
