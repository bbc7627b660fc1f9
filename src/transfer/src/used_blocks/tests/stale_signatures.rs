//! Stale signatures of earlier contents next to current contents. All current contents must be treated as used.

use super::*;

fn write(path: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn everything(size: u64) -> Vec<Range<u64>> {
    std::iter::once(0..size).collect()
}

/// Creates a filesystem with `mkfs`, and then writes these bytes. Returns the used blocks.
fn with(size: u64, mkfs: &[&str], more: &[(u64, &[u8])]) -> UsedBlocks {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", size);
    run(mkfs[0], &[&mkfs[1..], &[image.to_str().unwrap()]].concat());
    for (at, bytes) in more {
        write(&image, *at, bytes);
    }
    used_of(&image)
}

const SWAP: &[&str] = &["mkswap", "-q"];
const EXT4: &[&str] = &["mkfs.ext4", "-q", "-F"];
const VFAT: &[&str] = &["mkfs.vfat"];

#[test]
fn unsupported_signatures_mark_the_whole_disk_as_used() {
    // The size is a multiple of neither 64 KiB nor 4 KiB, as for a partition.
    let size = 64 * MIB + 5 * 512;
    let md = 0xa92b_4efc_u32;
    let (little, big, bcache) =
        (md.to_le_bytes(), md.to_be_bytes(), b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81");
    let (zfs, zfs_big) = (0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes());
    let bcachefs = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
    for (name, at, signature) in [
        ("md", 0, &little[..]),
        ("md", 4096, &little),
        ("md", 64 * MIB - (8 << 10), &little),
        ("md", 64 * MIB - (64 << 10), &little),
        ("md", 64 * MIB - (64 << 10), &big),
        ("LVM", 0, b"LABELONE"),
        ("LVM", 512, b"LABELONE"),
        ("LVM", 1536, b"LABELONE"),
        ("LUKS", 0, b"LUKS\xba\xbe"),
        ("LUKS", 16 << 10, b"SKUL\xba\xbe"),
        ("LUKS", 4 << 20, b"SKUL\xba\xbe"),
        ("bcache", 4096 + 24, bcache),
        ("bcachefs", 4096 + 24, bcachefs),
        ("ZFS", 128 << 10, &zfs),
        ("ZFS", (128 + 77) << 10, &zfs_big),
        ("ZFS", (256 - 1) << 10, &zfs),
        ("GPT", 512, b"EFI PART\x01"),
        ("GPT", 4096, b"EFI PART"),
        ("BlueStore", 0, b"bluestore block device\n"),
        ("Stratis", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
        ("VDO", 0, b"dmvdo001"),
        ("NTFS", 3, b"NTFS    "),
        ("DRBD", size - 4096 + 60, b"\x83\x74\x02\x6b"),
        ("firmware RAID", size - 1024, b"Intel Raid ISM Cfg Sig. "),
        ("firmware RAID", size - 512, b"\xde\x11\xde\x11"),
    ] {
        let used = with(size, SWAP, &[(at, signature)]);
        // A GPT with wrong checksums is rejected before filesystems are read.
        let alone = used.what == "the whole disk" && name == "GPT" && at == 512;
        assert!(alone || used.what == format!("swap or {name} (the whole disk)"), "{name} at {at}: {}", used.what);
        assert_eq!(used.ranges, everything(size), "{name} at {at}");
    }
    for (what, at, signature) in [
        ("md next to its usual offset", 4096 + 512, &little[..]),
        ("md with the other byte order", 4096, &big),
        ("LVM behind its four sectors", 2048, b"LABELONE"),
        ("LUKS without its end", 0, b"LUKS"),
        ("a second header of LUKS elsewhere", 20 << 10, b"SKUL\xba\xbe"),
        ("ZFS beside a slot", (128 << 10) + 512, &zfs),
        ("ZFS behind the last slot", 256 << 10, &zfs),
        ("md before its end", 64 * MIB - (12 << 10), &little),
    ] {
        let used = with(size, SWAP, &[(at, signature)]);
        assert_eq!((&*used.what, bytes(&used)), ("swap", 2 * MIB + 5 * 512), "{what}");
    }
}

/// If the superblock of an array is at the end of its members, a member of a RAID 1 array begins with the filesystem,
/// and a member of any other level begins with a part of the filesystem.
#[test]
fn array_member_with_filesystem_is_used_completely() {
    let (size, md) = (320 * MIB, 0xa92b_4efc_u32.to_le_bytes());
    for (name, mkfs) in [
        ("ext4", EXT4),
        ("xfs", &["mkfs.xfs", "-q", "-f"]),
        ("btrfs", &["mkfs.btrfs", "-q", "-f"]),
        ("vfat", VFAT),
        ("swap", SWAP),
    ] {
        let used = with(size, mkfs, &[(size - (8 << 10), &md)]);
        assert_eq!((used.what, used.ranges), (format!("{name} or md (the whole disk)"), everything(size)));
    }
    // Cases without a supported filesystem, and with two of them.
    let zeros = &[0; 4096][..];
    let used = with(size, SWAP, &[(0, zeros), (4096, &md)]);
    assert_eq!((&*used.what, used.ranges), ("md (the whole disk)", everything(size)));
    let used = with(size, EXT4, &[(4096 - 10, b"SWAPSPACE2"), (4096, &md)]);
    assert_eq!((&*used.what, used.ranges), ("two filesystems (the whole disk)", everything(size)));
}

/// A member of a firmware RAID begins with the partition table of the array, but contains only a part of the
/// partitions.
#[test]
fn gpt_on_an_array_member_is_not_followed() {
    let size = 64 * MIB;
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", size);
    let disk = image.to_str().unwrap();
    run("sgdisk", &["-n", "1:2048:65535", disk]);
    let swap = empty(dir.path(), "swap", 31 * MIB);
    run("mkswap", &["-q", swap.to_str().unwrap()]);
    write(&image, MIB, &fs::read(&swap).unwrap());
    let used = used_of(&image);
    assert_eq!(used.what, "GPT with swap");
    assert!(bytes(&used) < 40 * MIB);
    // Signatures are searched in partitions, but not in the gap before the first partition.
    write(&image, MIB + 4096, &0xa92b_4efc_u32.to_le_bytes());
    assert_eq!(used_of(&image).what, "GPT with swap or md (the whole disk)");
    write(&image, size - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00");
    let all_of_a_table = UsedBlocks { has_table: true, ..mark_all_used(size) };
    assert_eq!(used_of(&image), all_of_a_table);
    // Without a protective MBR, the GPT is stale: the disk now has an MBR, or a filesystem on the whole disk.
    for (what, kind, is_followed) in [("the GPT's", 0xee, true), ("another one", 0x83, false), ("none", 0, false)] {
        write(&image, size - 1024, &[0; 512]);
        write(&image, 446 + 4, &[kind]);
        let used = used_of(&image);
        assert!((used != all_of_a_table) == is_followed && used.has_table, "{what}: {}", used.what);
    }
}

/// An MBR, on a disk with an earlier filesystem on the whole disk.
#[test]
fn partitions_of_an_mbr_are_used_completely() {
    let size = 64 * MIB;
    // Boot flag, type, first sector, number of sectors.
    let entry = |flag: u8, kind: u8, start: u32, count: u32| -> Vec<u8> {
        let (start, count) = (start.to_le_bytes(), count.to_le_bytes());
        [&[flag, 0, 0, 0, kind, 0, 0, 0][..], &start, &count].concat()
    };
    let linux = entry(0x80, 0x83, 2048, 100_000);
    let signed = (510, &b"\x55\xaa"[..]);
    for (name, mkfs) in [("ext4", EXT4), ("swap", SWAP), ("vfat", VFAT)] {
        for place in 0..4 {
            let used = with(size, mkfs, &[signed, (446 + place * 16, &linux)]);
            assert_eq!(used.what, format!("{name} or MBR (the whole disk)"), "{place}");
            assert_eq!((used.ranges, used.has_table), (everything(size), true), "{name} {place}");
        }
        let no_flag = entry(0, 0x83, 2048, 100_000);
        assert_eq!(with(size, mkfs, &[signed, (446, &no_flag)]).ranges, everything(size), "{name}");
        // Sectors that are not an MBR according to the kernel: code of a boot loader, and no entry at all.
        let code = entry(0xeb, 0x90, 2048, 100_000);
        for more in [&[signed][..], &[signed, (446, &code)], &[signed, (446, &linux), (462, &code)]] {
            let used = with(size, mkfs, more);
            assert!(used.what == name && bytes(&used) < size, "{name}: {}", used.what);
        }
    }
    let unsigned = with(size, SWAP, &[(446, &linux)]);
    assert_eq!((&*unsigned.what, unsigned.has_table), ("swap", false));
}

#[test]
fn invalid_swap_header_marks_the_whole_disk_as_used() {
    let size = 64 * MIB;
    let pages = (size / 4096) as u32;
    let word = |word: u32| word.to_le_bytes();
    for (what, more, is_believed) in [
        ("as it is", &[][..], true),
        ("version 0", &[(1024, &word(0)[..])], false),
        ("version 2", &[(1024, &word(2))], false),
        ("no page", &[(1028, &word(0))], false),
        ("a page too many", &[(1028, &word(pages))], false),
        ("far too many", &[(1028, &word(u32::MAX))], false),
        ("the other byte order", &[(1024, &1_u32.to_be_bytes()[..]), (1028, &(pages - 1).to_be_bytes())], true),
        ("the other byte order, too many", &[(1024, &1_u32.to_be_bytes()[..]), (1028, &pages.to_be_bytes())], false),
    ] {
        let used = with(size, SWAP, more);
        let expected = if is_believed { ("swap", 2 * MIB) } else { ("swap (the whole disk)", size) };
        assert_eq!((&*used.what, bytes(&used)), expected, "{what}");
    }
    // The space after the last page does not belong to the swap space.
    let used = with(size, SWAP, &[(1028, &word(pages / 2 - 1))]);
    assert_eq!((&*used.what, used.ranges), ("swap", vec![0..MIB, size / 2..size]));
}
