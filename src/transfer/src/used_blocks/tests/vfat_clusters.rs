//! Used clusters of vfat, and the detection of FAT12, FAT16 and FAT32.

use super::*;

/// Uses mtools, which write to an image without the kernel, because not every kernel supports vfat.
#[test]
fn used_clusters_of_vfat_contain_all_its_files() {
    for (size, bits, most_used) in
        [(512 * MIB, "32", 60 * MIB), (256 * MIB, "16", 60 * MIB), (60 * MIB, "12", 60 * MIB)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (image, tree) = (empty(dir.path(), "disk", size), dir.path().join("tree"));
        let disk = image.to_str().unwrap();
        run("mkfs.vfat", &["-F", bits, disk]);
        fill(&tree);
        for folder in 0..7 {
            run("mcopy", &["-s", "-i", disk, tree.join(folder.to_string()).to_str().unwrap(), "::"]);
        }
        // Free clusters must lie between used ones.
        run("mdel", &["-i", disk, "::1/*", "::4/*"]);
        fs::remove_dir_all(tree.join("1")).unwrap();
        fs::remove_dir_all(tree.join("4")).unwrap();
        let used = used_of(&image);
        assert_eq!(used.what, "vfat");
        assert!(bytes(&used) < most_used || bits == "12", "FAT{bits}: {} of {size} bytes are used", bytes(&used));
        let copy = copied(&image, &used);
        let copy = copy.to_str().unwrap();
        run("fsck.vfat", &["-n", copy]);
        let back = dir.path().join("back");
        fs::create_dir(&back).unwrap();
        run("mcopy", &["-s", "-n", "-i", copy, "::*", back.to_str().unwrap()]);
        assert!(contents_below(&tree) == contents_below(&back), "FAT{bits}: files have changed");
    }
}

/// Linux recognizes FAT32 only by the table size field (fs/fat/inode.c), so a FAT32 may have few clusters.
#[test]
fn fat32_with_few_clusters_is_not_fat16() {
    const SECTOR: u64 = 4096;
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", 100 * MIB);
    run("mkfs.vfat", &["-F", "32", "-S", "4096", "-s", "1", image.to_str().unwrap()]);
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let mut boot = [0; 512];
    file.read_exact_at(&mut boot, 0).unwrap();
    let (reserved, copies) = (u64::from(boot[..].le16(14)), u64::from(boot[16]));
    let table_sectors = u64::from(boot[..].le32(36));
    assert_eq!((boot[..].le16(22), boot[..].le16(11), boot[13]), (0, 4096, 1));
    let chain = 7700..15400_u64;
    for copy in 0..copies {
        let table = (reserved + copy * table_sectors) * SECTOR;
        for cluster in chain.clone() {
            let next = if cluster + 1 == chain.end { 0x0fff_ffff } else { cluster as u32 + 1 };
            file.write_all_at(&next.to_le_bytes(), table + cluster * 4).unwrap();
        }
    }
    let used = used_of(&image);
    assert_eq!(used.what, "vfat");
    let place = |cluster: u64| (reserved + copies * table_sectors + cluster - 2) * SECTOR;
    let file_is = place(chain.start)..place(chain.end);
    assert!(
        used.ranges.iter().any(|range| range.start <= file_is.start && file_is.end <= range.end),
        "{:?}",
        used.ranges
    );
    assert!(bytes(&used) < 40 * MIB, "{}", bytes(&used));
    // According to its table size, this filesystem is a FAT16, but it has more clusters than 16 bits can number.
    file.write_all_at(&(table_sectors as u16).to_le_bytes(), 22).unwrap();
    assert_eq!(used_of(&image).what, "vfat");
    file.write_all_at(&[0, 2], 11).unwrap();
    file.write_all_at(&(100 * MIB as u32 / 512).to_le_bytes(), 32).unwrap();
    assert_eq!(used_of(&image).what, "vfat (the whole disk)");
}
