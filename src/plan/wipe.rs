//! How a disk is made empty, and which places are made sure of.
//!
//! Zeroed are both ends of the disk and of every partition, old and new: an old superblock at the very offset of a new
//! partition would come back to life (LP #1718699). What lies elsewhere can come back only where a new device begins or
//! ends: both ends of new arrays are zeroed when they are made, signatures on new volumes by lvcreate, and mkfs begins
//! with both ends of its device.

use super::sectors::{self, Extent};
use super::{ByteRange, DiskIdentity, WipeDisk};
use crate::inventory::{Disk, EraseMethod};
use crate::steps::Erase;

const QUICK_SECONDS: u64 = 60;
const SECURE_SECONDS: u64 = 4 * 3600;

pub fn of_disk(erase: Erase, disk: &Disk, extents: &[Extent]) -> WipeDisk {
    let takes_seconds = |method: &EraseMethod| matches!(method, EraseMethod::NvmeFormatCrypto | EraseMethod::Discard);
    let (methods, strict, budget_seconds) = match erase {
        Erase::Quick => (disk.erase.iter().copied().filter(takes_seconds).collect(), false, QUICK_SECONDS),
        Erase::Secure => {
            let all = disk.erase.iter().copied().chain([EraseMethod::WriteZeroes]);
            (all.collect(), true, SECURE_SECONDS)
        }
        Erase::None => (vec![EraseMethod::Ends], false, QUICK_SECONDS),
    };
    let (device, identity) = (disk.device.clone(), DiskIdentity::of(disk));
    WipeDisk { device, identity, methods, strict, budget_seconds, zero: zero(disk, extents) }
}

fn zero(disk: &Disk, extents: &[Extent]) -> Vec<ByteRange> {
    let whole = ByteRange { start: 0, length: disk.size_bytes };
    let old = disk.table.iter().flat_map(|table| &table.partitions);
    let old = old.map(|partition| ByteRange { start: partition.start_bytes, length: partition.size_bytes });
    let new = extents.iter().map(|extent| ByteRange {
        start: extent.first_lba * u64::from(disk.sector_bytes),
        length: extent.length_bytes(disk.sector_bytes),
    });
    sectors::ends(std::iter::once(whole).chain(old).chain(new), disk.size_bytes)
}
