//! Placement of partitions: converts sizes in MiB to sectors of the disk.

use model::device_name::LayoutPath;
use model::layout::{self, RequestedSize};

pub(crate) const MIB: u64 = 1 << 20;

/// Size of the partition entries of a GPT: 128 entries of 128 bytes (UEFI specification 5.3.2). The entries follow the
/// primary header, and precede the backup header.
pub(crate) const GPT_ENTRIES_BYTES: u64 = 128 * 128;

/// First and last sector of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SectorExtent {
    pub first_lba: u64,
    pub last_lba: u64,
}

impl SectorExtent {
    pub(crate) fn length_bytes(self, sector_bytes: u32) -> u64 {
        (self.last_lba + 1 - self.first_lba) * u64::from(sector_bytes)
    }
}

/// Error for partitions that do not fit on a disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DiskTooSmall {
    /// Disk size that the partitions and both partition tables require, in MiB.
    pub required_mib: u64,
    pub existing_mib: u64,
}

impl DiskTooSmall {
    /// Returns the message for a disk of the layout.
    pub(crate) fn explain(&self, device: &LayoutPath) -> String {
        format!(
            "device:{device} is not big enough required:{required_mib}MiB, existing:{existing_mib}MiB (with 1 MiB at each end for the partition table)",
            required_mib = self.required_mib,
            existing_mib = self.existing_mib
        )
    }
}

/// Places the partitions one after another in the order of their numbers, aligned to 1 MiB. The result is in the order
/// of `partitions`.
///
/// # Errors
/// Fails if the disk is too small for the partitions and both partition tables, or if no space is left for the
/// partition that takes the remaining space.
pub(crate) fn place_partitions(
    partitions: &[layout::PartitionSpec],
    size_bytes: u64,
    sector_bytes: u32,
) -> Result<Vec<SectorExtent>, DiskTooSmall> {
    let sector = u64::from(sector_bytes);
    let end_mib = usable_end_mib(size_bytes, sector_bytes);
    let too_small = || {
        let wanted = partitions.iter().map(|partition| partition.size.as_mib().unwrap_or(1));
        let sum = wanted.fold(0u64, |sum, mib| sum.saturating_add(mib));
        // Of the required size, 1 MiB at the start is for the primary table, and 1 MiB at the end for the backup table.
        DiskTooSmall { required_mib: sum.saturating_add(2), existing_mib: size_bytes / MIB }
    };

    let mut order: Vec<usize> = (0..partitions.len()).collect();
    order.sort_by_key(|&index| partitions[index].number);
    let mut extents = vec![SectorExtent { first_lba: 0, last_lba: 0 }; partitions.len()];
    let mut next_mib = 1;
    for index in order {
        let size_mib = match partitions[index].size {
            RequestedSize::Rest => end_mib.saturating_sub(next_mib),
            RequestedSize::Mib(mib) => mib.get(),
        };
        let end = next_mib.checked_add(size_mib).filter(|&end| end <= end_mib && size_mib > 0).ok_or_else(too_small)?;
        extents[index] = SectorExtent { first_lba: next_mib * MIB / sector, last_lba: end * MIB / sector - 1 };
        next_mib = end;
    }
    Ok(extents)
}

/// Returns the end of the space for partitions, in MiB. It is aligned, so that a filesystem on a 512e disk does not end
/// within a physical sector.
pub(crate) fn usable_end_mib(size_bytes: u64, sector_bytes: u32) -> u64 {
    let backup_bytes = GPT_ENTRIES_BYTES + u64::from(sector_bytes);
    size_bytes.saturating_sub(backup_bytes) / MIB
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(number: u32, size_mib: u64) -> layout::PartitionSpec {
        layout::PartitionSpec { number, label: None, size: size_mib.into(), kind: None, preserve: false }
    }

    #[test]
    fn partitions_are_placed_in_number_order() {
        let partitions = [partition(15, 0), partition(1, 500), partition(2, 100)];
        let extents = place_partitions(&partitions, 1000 * MIB, 512).unwrap();
        assert_eq!(extents[1], SectorExtent { first_lba: 2048, last_lba: 501 * 2048 - 1 });
        assert_eq!(extents[2], SectorExtent { first_lba: 501 * 2048, last_lba: 601 * 2048 - 1 });
        // The last MiB is reserved for the backup table.
        assert_eq!(extents[0], SectorExtent { first_lba: 601 * 2048, last_lba: 999 * 2048 - 1 });
    }

    #[test]
    fn lbas_are_counted_in_sectors_of_the_disk() {
        let extents = place_partitions(&[partition(1, 1)], 100 * MIB, 4096).unwrap();
        assert_eq!(extents, [SectorExtent { first_lba: 256, last_lba: 511 }]);
    }

    #[test]
    fn refuses_partitions_that_exceed_the_disk() {
        let cases: [(&[layout::PartitionSpec], u64, Option<DiskTooSmall>); 6] = [
            (&[partition(1, 98)], 100, None),
            (&[partition(1, 99)], 100, Some(DiskTooSmall { required_mib: 101, existing_mib: 100 })),
            (&[partition(1, 98), partition(2, 0)], 100, Some(DiskTooSmall { required_mib: 101, existing_mib: 100 })),
            (&[partition(1, 97), partition(2, 0)], 100, None),
            (
                &[partition(1, u64::MAX), partition(2, u64::MAX)],
                100,
                Some(DiskTooSmall { required_mib: u64::MAX, existing_mib: 100 }),
            ),
            (&[partition(1, 0)], 0, Some(DiskTooSmall { required_mib: 3, existing_mib: 0 })),
        ];
        for (partitions, size_mib, expected) in cases {
            assert_eq!(place_partitions(partitions, size_mib * MIB, 512).err(), expected, "{partitions:?}");
        }
    }
}
