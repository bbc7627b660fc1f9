use super::*;
use crate::process::ToolCommand;
use crate::storage::test_loop_device::TestLoopDevice;
use model::device_name::DevicePath;
use operations::{ExpectedEntry, NewPartition, PartitionTable};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use uuid::Uuid;

fn expected(new: &NewPartition) -> ExpectedEntry {
    let NewPartition { number, first_lba, last_lba, kind, guid, ref name, .. } = *new;
    ExpectedEntry { number, first_lba, last_lba, kind, guid, name: name.clone() }
}

/// Returns an edit of this table that preserves the partitions with these numbers and removes the others.
fn edit(table: &PartitionTable, preserved: &[u32], added: Vec<NewPartition>) -> TableEdit {
    let is_preserved = |new: &&NewPartition| preserved.contains(&new.number);
    let PartitionTable { device, identity, guid, sector_bytes, partitions } = table.clone();
    let removed = partitions.iter().filter(|new| !is_preserved(new)).map(|new| new.number).collect();
    let preserved = partitions.iter().filter(is_preserved).map(expected).collect();
    TableEdit { device, identity, guid, sector_bytes, preserved, removed, added, boot_gap: None }
}

fn assert_valid(device: &DevicePath) {
    let check = ToolCommand::new("sgdisk").args(["-v", device.as_str()]).run().unwrap().stdout;
    assert!(check.contains("No problems found"), "{check}");
    let check = ToolCommand::new("sfdisk").args(["--verify", device.as_str()]).run().unwrap().stdout;
    assert!(check.contains("No errors detected"), "{check}");
}

fn mount(device: &DevicePath, point: &Path) -> sys_mount::UnmountDrop<sys_mount::Mount> {
    let mount = || {
        let flags = sys_mount::UnmountFlags::empty();
        sys_mount::Mount::builder().fstype("ext4").mount_autodrop(device, point, flags)
    };
    // Concurrent tests briefly open block devices exclusively.
    for _ in 0..100 {
        match mount() {
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            mounted => return mounted.unwrap(),
        }
    }
    mount().unwrap()
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_table_is_edited_while_a_preserved_partition_is_mounted() {
    for sector_bytes in [512_u32, 4096] {
        let disk = TestLoopDevice::new(128 << 20, sector_bytes);
        let mib = u64::from((1 << 20) / sector_bytes);
        // Partition 2 starts directly after the table, so it shares a page of the page cache with the table.
        let first = 2 + 16384 / u64::from(sector_bytes);
        let table = disk.table(sector_bytes, &[(2, first, 60 * mib), (1, 61 * mib, 80 * mib), (5, 81 * mib, 99 * mib)]);
        partition_table::write_partition_table(&table).unwrap();
        fs::OpenOptions::new().write(true).open(disk.path()).unwrap().write_all_at(&[0x90; 440], 0).unwrap();
        ToolCommand::new("sgdisk").args(["-A", "2:set:60", disk.path().as_str()]).run().unwrap();
        ToolCommand::new("mkfs.ext4")
            .args(["-q", "-b", &sector_bytes.max(1024).to_string(), disk.partition(2).as_str()])
            .run()
            .unwrap();
        let point = tempfile::tempdir().unwrap();
        let mounted = mount(&disk.partition(2), point.path());
        fs::write(point.path().join("data"), vec![0xd7; 20 << 20]).unwrap();

        let added = disk.table(sector_bytes, &[(1, 61 * mib, 70 * mib), (3, 71 * mib, 110 * mib)]).partitions;
        let edit = edit(&table, &[2], added.clone());
        let written = edit_partition_table(&edit).unwrap();
        assert!(matches!(written, TableEditOutcome::Written { sectors: 4..=6 }), "{written:?}");
        assert_eq!(edit_partition_table(&edit).unwrap(), TableEditOutcome::Unchanged);

        fs::write(point.path().join("more"), vec![0xd8; 9 << 20]).unwrap();
        drop(mounted);
        assert_valid(disk.path());
        ToolCommand::new("e2fsck").args(["-fn", disk.partition(2).as_str()]).run().unwrap();
        let mounted = mount(&disk.partition(2), point.path());
        assert!(fs::read(point.path().join("data")).unwrap() == vec![0xd7; 20 << 20]);
        drop(mounted);
        let shown = ToolCommand::new("sgdisk").args(["-A", "2:show", disk.path().as_str()]).run().unwrap().stdout;
        assert!(shown.contains("2:60:1"), "{shown}");
        let image = fs::read(disk.image()).unwrap();
        assert!(image[..440].iter().all(|byte| *byte == 0x90), "the boot code was changed");
        let known = block_device::read_partitions(disk.path()).unwrap();
        assert_eq!(known.iter().map(|is| is.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(added.iter().all(|new| fs::metadata(&new.device).is_ok()));
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_nothing_is_written_if_removal_is_impossible() {
    let disk = TestLoopDevice::new(64 << 20, 512);
    let table = disk.table(512, &[(1, 2048, 8191), (2, 8192, 65535)]);
    partition_table::write_partition_table(&table).unwrap();
    let before = fs::read(disk.image()).unwrap();
    let edit = edit(&table, &[1], vec![]);

    ToolCommand::new("mkfs.ext4").args(["-q", disk.partition(2).as_str()]).run().unwrap();
    let point = tempfile::tempdir().unwrap();
    let mounted = mount(&disk.partition(2), point.path());
    let error = edit_partition_table(&edit).unwrap_err().to_string();
    let user = format!("is mounted at {}", point.path().display());
    assert!(error.contains("remove partition 2 of ") && error.contains(&user), "{error}");
    drop(mounted);

    // Partition that another tool has registered with the kernel, and that is not in the table.
    let file = fs::File::open(disk.path()).unwrap();
    block_device::add_partition(&file, 3, 40 << 20, 1 << 20).unwrap();
    let error = edit_partition_table(&edit).unwrap_err().to_string();
    assert!(error.contains("at byte 41943040 with 1048576 bytes, which is not in the plan"), "{error}");
    block_device::delete_partition(&file, 3).unwrap();

    let other = TableEdit { identity: TestLoopDevice::new(32 << 20, 512).identity(), ..edit.clone() };
    let error = edit_partition_table(&other).unwrap_err().to_string();
    assert!(error.contains("is not the disk for which the plan was made"), "{error}");
    let other = TableEdit { guid: Uuid::nil(), ..edit.clone() };
    let error = edit_partition_table(&other).unwrap_err().to_string();
    assert!(error.contains("(nothing was written): the disk's GUID is"), "{error}");

    let after = fs::read(disk.image()).unwrap();
    assert!(after[..8192 * 512] == before[..8192 * 512] && after[65536 * 512..] == before[65536 * 512..]);
    assert_eq!(block_device::read_partitions(disk.path()).unwrap().len(), 2);
    edit_partition_table(&edit).unwrap();
    assert_valid(disk.path());
    assert_eq!(block_device::read_partitions(disk.path()).unwrap().len(), 1);
}

/// Returns a disk of 64 MiB with a preserved and a removed partition, and the edit.
fn checked_disk(added: &[(u32, u64, u64)]) -> (TestLoopDevice, TableEdit) {
    let disk = TestLoopDevice::new(64 << 20, 512);
    let table = disk.table(512, &[(1, 2048, 8191), (2, 8192, 65535)]);
    partition_table::write_partition_table(&table).unwrap();
    let edit = edit(&table, &[1], disk.table(512, added).partitions);
    (disk, edit)
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_an_impossible_edit_is_found_by_reading() {
    let (disk, edit) = checked_disk(&[(2, 8192, 20000)]);
    let read = || fs::read(disk.image()).unwrap();
    let whole = read();
    check_table_edit(&edit).unwrap();
    let refuse = |edit: &TableEdit, expected: &str| {
        let before = read();
        let error = check_table_edit(edit).unwrap_err().to_string();
        assert!(error.contains(expected) && read() == before, "{error}");
        assert_eq!(edit_partition_table(edit).unwrap_err().to_string(), error);
        assert!(read() == before, "{error}");
    };
    let file = fs::OpenOptions::new().write(true).open(disk.path()).unwrap();
    let header = whole[whole.len() - 512..].to_vec();
    let changed = |at: usize| header.iter().enumerate().map(|(index, byte)| byte ^ u8::from(index == at)).collect();
    for (at, expected) in [(0, "does not contain a GPT header"), (56, "describe different partition tables")] {
        let damaged: Vec<u8> = changed(at);
        file.write_all_at(&damaged, (64 << 20) - 512).unwrap();
        file.sync_all().unwrap();
        refuse(&edit, expected);
    }
    file.write_all_at(&header, (64 << 20) - 512).unwrap();
    file.sync_all().unwrap();
    check_table_edit(&edit).unwrap();

    // The disk has grown, but its table has not.
    fs::OpenOptions::new().write(true).open(disk.image()).unwrap().set_len(128 << 20).unwrap();
    ToolCommand::new("losetup").args(["--set-capacity", disk.path().as_str()]).run().unwrap();
    refuse(&edit, "is not the disk for which the plan was made");
    let grown = TableEdit { identity: disk.identity(), ..edit.clone() };
    check_table_edit(&grown).unwrap();
    let added = disk.table(512, &[(2, 8192, 200_000)]).partitions;
    refuse(&TableEdit { added, ..grown }, "partition 2 cannot be added: the sectors 8192 to 200000 are not within");
}
