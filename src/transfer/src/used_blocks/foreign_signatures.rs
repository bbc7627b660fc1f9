//! Detects signatures of unsupported contents. If a device has both an unsupported signature and the signature of a
//! supported filesystem, it is unknown which of the two is stale. For example, a swap signature survives the creation
//! of an array.
//!
//! Offsets and bytes match libblkid (libblkid/src/superblocks of util-linux) unless stated otherwise.

use super::bounded_disk_reads::{DiskView, ReadIntegers};

const LUKS_SECOND: &[u8] = b"SKUL\xba\xbe";

/// Name, offset and bytes of each signature.
#[rustfmt::skip]
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    // md superblocks of the versions 1.1 and 1.2, which are always little-endian (linux/raid/md_p.h).
    (MD, 0, &MD_MAGIC.to_le_bytes()),
    (MD, 4096, &MD_MAGIC.to_le_bytes()),
    // The label of an LVM physical volume is in one of the first four sectors of 512 bytes (LABEL_SCAN_SECTORS of
    // LVM2).
    ("LVM", 0, b"LABELONE"),
    ("LVM", 512, b"LABELONE"),
    ("LVM", 1024, b"LABELONE"),
    ("LVM", 1536, b"LABELONE"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LUKS", 0, LUKS_SECOND),
    // Possible offsets of the second LUKS2 header.
    ("LUKS", 0x4000, LUKS_SECOND),
    ("LUKS", 0x8000, LUKS_SECOND),
    ("LUKS", 0x1_0000, LUKS_SECOND),
    ("LUKS", 0x2_0000, LUKS_SECOND),
    ("LUKS", 0x4_0000, LUKS_SECOND),
    ("LUKS", 0x8_0000, LUKS_SECOND),
    ("LUKS", 0x10_0000, LUKS_SECOND),
    ("LUKS", 0x20_0000, LUKS_SECOND),
    ("LUKS", 0x40_0000, LUKS_SECOND),
    // In these superblocks, the magic number is preceded by a checksum, an offset and a version.
    ("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("bcachefs", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    ("BlueStore", 0, b"bluestore block device"),
    ("Stratis", 512 + 4, STRATIS),
    ("Stratis", 9 * 512 + 4, STRATIS),
    ("VDO", 0, b"dmvdo001"),
    ("dm-integrity", 0, b"integrt\0"),
    ("dm-verity", 0, b"verity\0\0"),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("NTFS", 3, b"NTFS    "),
    ("exFAT", 3, b"EXFAT   "),
    ("F2FS", 1024, b"\x10\x20\xf5\xf2"),
    ("JFS", 32 << 10, b"JFS1"),
    // A GPT found here belongs to a disk image inside a partition, or was made for another sector size.
    ("GPT", 512, b"EFI PART"),
    ("GPT", 4096, b"EFI PART"),
];

const STRATIS: &[u8] = b"!Stra0tis\x86\xff\x02^\x41rh";

const MD: &str = "md";
const MD_MAGIC: u32 = 0xa92b_4efc;

const FIRMWARE_RAID: &str = "firmware RAID";
const INTEL: &[u8] = b"Intel Raid ISM Cfg Sig. ";
const DDF: &[u8] = b"\xde\x11\xde\x11";

/// Offset of the magic number in the last 4 KiB of a DRBD device, in bytes. Sizes, ids and flags precede the magic
/// number.
const DRBD_MAGIC: u64 = 60;

/// The first ZFS label ends with a ring of uberblocks, each aligned to at least 1 KiB (module/zfs/vdev_label.c).
const ZFS_RING: u64 = 128 << 10;
const ZFS_RING_BYTES: u64 = 128 << 10;
const ZFS_SLOT: usize = 1 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// Partition type of a protective MBR.
const PROTECTIVE: u8 = 0xee;

/// Returns the name of an unsupported signature on the device, if there is one.
pub(crate) fn find_signature(view: &DiskView) -> Option<&'static str> {
    let holds = |(_, at, magic): &&(&str, u64, &[u8])| view.has_bytes(Some(*at), magic);
    let found = SIGNATURES.iter().find(holds).map(|(name, ..)| *name);
    found
        .or_else(|| has_uberblock(view).then_some("ZFS"))
        .or_else(|| find_end_signature(view))
        .or_else(|| read_mbr_types(view).is_some().then_some("MBR"))
}

/// Returns the name of an unsupported signature at the end of the device, if there is one. A GPT at the start of such a
/// device may not belong to the device itself: if the metadata of an array is at the end of its members, a member may
/// start with the GPT of the array.
pub(crate) fn find_end_signature(view: &DiskView) -> Option<&'static str> {
    let size = view.size;
    // md superblocks of version 0.90 have the byte order of the CPU, and those of version 1.0 are little-endian
    // (MD_NEW_SIZE_SECTORS of linux/raid/md_p.h, super_1_load of md.c).
    let old = (size & !0xffff).checked_sub(64 << 10);
    let at_end = (size & !0xfff).checked_sub(8 << 10);
    let before_end = |bytes: u64| size.checked_sub(bytes);
    let holds = |(_, at, magic): &&(&str, Option<u64>, &[u8])| view.has_bytes(*at, magic);
    [
        (MD, old, &MD_MAGIC.to_le_bytes()[..]),
        (MD, old, &MD_MAGIC.to_be_bytes()),
        (MD, at_end, &MD_MAGIC.to_le_bytes()),
        ("DRBD", before_end(4096 - DRBD_MAGIC), b"\x83\x74\x02\x6b"),
        ("DRBD", before_end(4096 - DRBD_MAGIC), b"\x83\x74\x02\x6c"),
        ("DRBD", before_end(4096 - DRBD_MAGIC), b"\x83\x74\x02\x6d"),
        // Intel's signature is in the next-to-last sector.
        (FIRMWARE_RAID, before_end(2 * 512), INTEL),
        (FIRMWARE_RAID, before_end(2 * 4096), INTEL),
        // The signature of DDF is in the last sector, or at an offset that some controllers use.
        (FIRMWARE_RAID, before_end(512), DDF),
        (FIRMWARE_RAID, before_end(257 * 512), DDF),
    ]
    .iter()
    .find(holds)
    .map(|(name, ..)| *name)
}

fn has_uberblock(view: &DiskView) -> bool {
    let is_one = |slot: &[u8]| ZFS_MAGIC == slot.le64(0) || ZFS_MAGIC == slot.be64(0);
    view.read_bytes(ZFS_RING, ZFS_RING_BYTES).is_some_and(|ring| ring.chunks(ZFS_SLOT).any(is_one))
}

/// Returns whether the disk has a protective MBR. Without a protective MBR, the kernel ignores a GPT
/// (block/partitions/efi.c).
pub(crate) fn is_protected(view: &DiskView) -> bool {
    read_mbr_types(view).is_some_and(|entries| entries.contains(&PROTECTIVE))
}

/// Returns the partition types in the MBR; `None` if the sector is not an MBR according to the kernel's checks
/// (block/partitions/msdos.c). The values at the offsets of the boot flags distinguish an MBR from a boot sector, which
/// has code at these offsets. The kernel checks the flags of a sector with a FAT signature in the same way, and treats
/// the sector as FAT only if a flag is invalid.
fn read_mbr_types(view: &DiskView) -> Option<Vec<u8>> {
    let mbr = view.read_bytes(0, 512).filter(|mbr| mbr.ends_with(&[0x55, 0xaa]))?;
    let (entries, _) = mbr[446..510].as_chunks::<16>();
    let are_flags = entries.iter().all(|entry| matches!(entry[0], 0 | 0x80));
    let kinds: Vec<u8> = entries.iter().map(|entry| entry[4]).filter(|kind| *kind != 0).collect();
    (are_flags && !kinds.is_empty()).then_some(kinds)
}
