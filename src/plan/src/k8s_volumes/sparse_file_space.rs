//! Space for the files of sparse volumes on their carrier, the filesystem that contains them. A new sparse file does
//! not occupy space, but mkfs then writes a journal or log and metadata to the file. If the carrier is full, mkfs would
//! fail in every attempt, and only after the disks have been wiped.
//!
//! The table shows the space in KiB that mkfs.ext4 (e2fsprogs 1.47.0) and mkfs.xfs (xfsprogs 6.1.0) allocate without
//! options in a sparse file on ext4. On xfs and btrfs, the space is the same within 1 %; on ext3, it is less.
//!
//! | file | ext4 | xfs |
//! |---|---|---|
//! | 64 MiB | 4,480 | refused by mkfs.xfs |
//! | 300 MiB | 8,624 | 65,868 |
//! | 1 GiB | 33,428 | 65,868 |
//! | 10 GiB | 69,868 | 65,868 |
//! | 64 GiB | 529,100 | 65,868 |
//! | 100 GiB | 529,544 | 65,868 |
//! | 128 GiB | 1,054,088 | 65,868 |
//! | 500 GiB | 1,058,420 | 256,332 |
//! | 1 TiB | 1,064,668 | 524,620 |
//! | 4 TiB | 1,106,176 | 2,087,244 |
//! | 15 TiB | 1,272,140 | 2,087,508 |
//!
//! The formulas in this module yield more than each of these values. Each formula adds the size of the metadata to the
//! size of the journal or log that the tool chooses. Some options change the amount written; for example, `-E
//! nodiscard,lazy_itable_init=0` writes 2.2 GB to a file of 100 GiB. With such options, all inode tables are assumed to
//! be written. A block volume gets a partition table, for which 1 MiB is enough. vfat does not support sparse files.

use super::super::filesystem_fate::{FilesystemFate, NewFilesystem};
use super::super::partition_placement::MIB;
use super::super::planned_devices::DeviceSize;
use super::super::planner_state::PlannerState;
use common::error_code::ErrorCode;
use common::format;
use model::layout::{FilesystemFormat, FilesystemSpec};
use operations::{InitialVolumeContent, MakeFilesystem};

const GIB: u64 = 1 << 30;

/// Maximum log size of XFS, in bytes. Without options, mkfs.xfs chooses a smaller log.
const XFS_LOG_BYTES: u64 = 2 * GIB;

/// Estimated size of the headers and first blocks of an XFS allocation group, in bytes; 24 KiB were measured.
const XFS_GROUP_BYTES: u64 = 64 << 10;

/// Options of mke2fs that do not change the amount written.
const SIZE_NEUTRAL_OPTIONS: [&str; 5] = ["-m", "-q", "-F", "-L", "-e"];

impl PlannerState<'_> {
    /// Refuses new sparse volumes if the filesystems in their files need more space than is free on the filesystem that
    /// contains these files.
    pub(super) fn refuse_full_carrier(&mut self) {
        let new = self.decided.persistent.sparse.iter().filter_map(|file| Some((file, file.make.as_ref()?)));
        let Some((path, wanted, is)) = self.sparse_carrier() else { return };
        let needs: Vec<(String, u64)> =
            new.map(|(file, make)| (file.name.clone(), file_bytes(make, file.size_bytes, wanted.format))).collect();
        let Some(room) = self.carrier_free_bytes(wanted, is) else { return };
        let needed = needs.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let Some((last, _)) = needs.last().filter(|_| needed > room) else { return };
        let (place, path) = (format!("volumes[{last}]"), path.to_owned());
        let names: Vec<&str> = needs.iter().map(|(name, _)| name.as_str()).collect();
        let message = format!(
            "{path} cannot hold the files of the new volumes {}: their filesystems need {} initially, but only {} are free; \
             free or add space, or make the volumes smaller",
            names.join(", "),
            format::format_bytes(needed),
            format::format_bytes(room)
        );
        self.refuse(ErrorCode::KubernetesVolume, place, message);
    }

    /// Returns the number of free bytes on the filesystem that contains the files; `None` if this number is unknown
    /// until that filesystem is created or opened.
    fn carrier_free_bytes(&self, wanted: &FilesystemSpec, is: &FilesystemFate) -> Option<u64> {
        match is {
            FilesystemFate::Preserved { .. } => {
                let (_, now) = self.preserved_carrier()?;
                let inside = self.inventory.filesystems.iter().find(|filesystem| filesystem.device == *now)?;
                (inside.size_bytes > 0).then(|| inside.size_bytes.saturating_sub(inside.used_bytes))
            }
            FilesystemFate::Created(NewFilesystem { size: DeviceSize::Known(bytes), .. })
            | FilesystemFate::Filled(NewFilesystem { size: DeviceSize::Known(bytes), .. }) => {
                Some(bytes.saturating_sub(own_bytes(wanted.format, *bytes)))
            }
            FilesystemFate::Created(_)
            | FilesystemFate::Filled(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => None,
        }
    }
}

/// Returns an estimate of the space that a new filesystem needs for its own metadata, most of which is the journal or
/// log.
fn own_bytes(format: FilesystemFormat, size_bytes: u64) -> u64 {
    match format {
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => {
            ext_journal_bytes(size_bytes).saturating_add(size_bytes / 64)
        }
        FilesystemFormat::Xfs => xfs_log_bytes(size_bytes).saturating_add(size_bytes / 256),
        FilesystemFormat::Btrfs
        | FilesystemFormat::Vfat
        | FilesystemFormat::Swap
        | FilesystemFormat::Tmpfs
        | FilesystemFormat::None => size_bytes / 128,
    }
}

/// Returns an upper bound for the space that the file of a sparse volume takes, including the filesystem or partition
/// table in the file.
fn file_bytes(filling: &InitialVolumeContent, size_bytes: u64, carrier: FilesystemFormat) -> u64 {
    match filling {
        _ if carrier == FilesystemFormat::Vfat => size_bytes,
        InitialVolumeContent::Filesystem(make) => filesystem_bytes(make, size_bytes).min(size_bytes),
        InitialVolumeContent::Partition { .. } | InitialVolumeContent::Nothing => MIB,
    }
}

fn filesystem_bytes(make: &MakeFilesystem, size_bytes: u64) -> u64 {
    let options: Vec<&str> = make.createoptions.iter().map(String::as_str).collect();
    match make.format {
        FilesystemFormat::Xfs => {
            let log = sub_option(&options, 'l', "size").map_or(xfs_log_bytes(size_bytes), |_| XFS_LOG_BYTES);
            let groups = sub_option(&options, 'd', "agcount").and_then(|count| count.parse().ok()).unwrap_or(0_u64);
            let metadata = 4 * MIB + size_bytes / (1 << 20);
            log.saturating_add(metadata).saturating_add(groups.saturating_mul(XFS_GROUP_BYTES))
        }
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => {
            let journal = sub_option(&options, 'J', "size").and_then(|mib| mib.parse::<u64>().ok());
            let journal = journal.map_or(ext_journal_bytes(size_bytes), |mib| mib.saturating_mul(MIB));
            let is_usual = options
                .iter()
                .filter(|word| word.starts_with('-'))
                .all(|word| SIZE_NEUTRAL_OPTIONS.iter().any(|usual| word.starts_with(usual)) || word.starts_with("-J"));
            let metadata = (MIB + size_bytes / 1024).min(8 * MIB + size_bytes / 65536);
            let tables = if is_usual { 0 } else { size_bytes / 32 };
            journal.saturating_add(metadata).saturating_add(tables)
        }
        // Storage classes cannot specify these formats, so a rough estimate is sufficient.
        FilesystemFormat::Btrfs
        | FilesystemFormat::Vfat
        | FilesystemFormat::Swap
        | FilesystemFormat::Tmpfs
        | FilesystemFormat::None => size_bytes / 16,
    }
}

/// Returns the log size that mkfs.xfs chooses: 64 MiB, or a 2048th of the filesystem size if that size exceeds 128 GiB.
fn xfs_log_bytes(size_bytes: u64) -> u64 {
    (size_bytes / 2048).clamp(64 * MIB, XFS_LOG_BYTES)
}

/// Returns the journal size that e2fsprogs chooses (`ext2fs_default_journal_size`) for blocks of 4096 bytes. With other
/// block sizes, the journal is not larger.
fn ext_journal_bytes(size_bytes: u64) -> u64 {
    let steps =
        [(128 * MIB, 4), (GIB, 16), (2 * GIB, 32), (16 * GIB, 64), (32 * GIB, 128), (64 * GIB, 256), (128 * GIB, 512)];
    let step = steps.into_iter().find(|(below, _)| size_bytes < *below);
    step.map_or(GIB, |(_, mib)| mib * MIB)
}

/// Returns the value of `name=` in an option such as `-l size=64m`, which may be written as one argument or as two.
fn sub_option<'a>(options: &[&'a str], letter: char, name: &str) -> Option<&'a str> {
    let flag = format!("-{letter}");
    options.iter().enumerate().find_map(|(at, word)| {
        let rest = word.strip_prefix(flag.as_str())?;
        let value = if rest.is_empty() { options.get(at + 1).copied()? } else { rest };
        value.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(format: FilesystemFormat, options: &str, size_bytes: u64) -> u64 {
        let createoptions = options.split_whitespace().map(str::to_owned).collect();
        let make = MakeFilesystem { device: "/x".into(), format, label: None, uuid: String::new(), createoptions };
        file_bytes(&InitialVolumeContent::Filesystem(make), size_bytes, FilesystemFormat::Ext4)
    }

    /// Each row contains the size of the file in MiB, and the space in KiB that mkfs was measured to allocate in it.
    /// Without options, the estimate may be at most three times the measured space.
    #[test]
    fn estimated_size_is_at_least_the_measured_size() {
        let ext4 = [
            (64, 4480),
            (300, 8624),
            (1 << 10, 33_428),
            (2 << 10, 66_716),
            (10 << 10, 69_868),
            (16 << 10, 135_440),
            (64 << 10, 529_100),
            (100 << 10, 529_544),
            (128 << 10, 1_054_088),
            (500 << 10, 1_058_424),
            (1 << 20, 1_064_672),
            (2 << 20, 1_077_484),
            (4 << 20, 1_106_180),
            (8 << 20, 1_163_564),
            (15 << 20, 1_272_172),
        ];
        let xfs = [
            (300, 65_952),
            (1 << 10, 65_952),
            (10 << 10, 65_964),
            (64 << 10, 65_972),
            (100 << 10, 65_972),
            (128 << 10, 65_972),
            (500 << 10, 256_620),
            (1 << 20, 525_172),
            (2 << 20, 1_048_908),
            (4 << 20, 2_087_244),
            (8 << 20, 2_087_340),
            (15 << 20, 2_087_508),
        ];
        let more = [
            (FilesystemFormat::Ext4, "-E nodiscard,lazy_itable_init=0,lazy_journal_init=0", 100 << 10, 2_167_940),
            (FilesystemFormat::Ext4, "-b 1024", 100 << 10, 281_016),
            (FilesystemFormat::Ext4, "-m 0 -J size=100", 100 << 10, 107_644),
            (FilesystemFormat::Ext4, "-O ^metadata_csum,^uninit_bg", 100 << 10, 535_720),
            (FilesystemFormat::Xfs, "-d agcount=1000", 100 << 10, 89_780),
            (FilesystemFormat::Xfs, "-l size=1g", 100 << 10, 1_048_908),
        ];
        let plain = ext4
            .map(|(mib, kib)| (FilesystemFormat::Ext4, "", mib, kib))
            .into_iter()
            .chain(xfs.map(|(mib, kib)| (FilesystemFormat::Xfs, "", mib, kib)));
        for (format, options, mib, kib) in plain {
            let found = bytes(format, options, mib * MIB) / 1024;
            assert!(kib <= found && found <= kib * 3, "{format} {mib} MiB: {found} KiB, measured {kib}");
        }
        for (format, options, mib, kib) in more {
            let found = bytes(format, options, mib * MIB) / 1024;
            assert!(kib <= found, "{format} {options}: {found} KiB, measured {kib}");
        }
    }

    #[test]
    fn estimate_is_at_most_the_file_size() {
        assert_eq!(bytes(FilesystemFormat::Xfs, "-l size=1g", 10 * MIB), 10 * MIB);
        assert_eq!(file_bytes(&InitialVolumeContent::Nothing, GIB, FilesystemFormat::Xfs), MIB);
        assert_eq!(file_bytes(&InitialVolumeContent::Nothing, GIB, FilesystemFormat::Vfat), GIB);
    }
}
