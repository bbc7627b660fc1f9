use super::*;
use crate::gpt::testing::crowded;
use crate::gpt::tests::mutated_tables::{Mutated, mutated};
use crate::process::ToolCommand;
use crate::storage::test_loop_device::TestLoopDevice;
use std::fs;
use std::time::Duration;
use tempfile::NamedTempFile;

/// Creates a disk image of this size, partitioned by sfdisk.
fn image(mib: u64, script: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(mib * MIB).unwrap();
    sfdisk(file.path().to_str().unwrap(), script);
    file
}

fn sfdisk(path: &str, script: &str) {
    let lines = NamedTempFile::new().unwrap();
    fs::write(lines.path(), script).unwrap();
    let line = format!("sfdisk -q --no-reread --no-tell-kernel {path} < {}", lines.path().display());
    ToolCommand::new("sh").args(["-c", &line]).run().unwrap();
}

const GPT: &str = "label: gpt\nfirst-lba: 2048\n1 : start=2048, size=4096, type=U, name=efi, attrs=\"LegacyBIOSBootable\"\n5 : start=8192, size=8192, type=L, name=\"die Wurzel\"\n";

fn dump(path: &str) -> serde_json::Value {
    let json = ToolCommand::new("sfdisk").args(["--json", path]).run().unwrap().stdout;
    serde_json::from_str::<serde_json::Value>(&json).unwrap()["partitiontable"].take()
}

fn fit_file(image: &NamedTempFile, mib: u64, grow: Option<u32>) -> io::Result<()> {
    image.as_file().set_len(mib * MIB).unwrap();
    fit_on_disk(&File::options().read(true).write(true).open(image.path())?, 512, mib * MIB, grow, None)
}

#[test]
fn backup_table_moves_and_the_last_partition_grows() {
    for (mib, number, size) in
        [(16, None, 8192), (64, None, 8192), (64, Some(5), 63 * 2048 - 8192), (16, Some(5), 15 * 2048 - 8192)]
    {
        let image = image(16, GPT);
        let before = dump(image.path().to_str().unwrap());
        // A second run changes nothing.
        for _ in 0..2 {
            fit_file(&image, mib, number).unwrap();
            let check = ToolCommand::new("sgdisk").args(["-v", image.path().to_str().unwrap()]).run().unwrap().stdout;
            assert!(check.contains("No problems found"), "{check}");
            let mut after = dump(image.path().to_str().unwrap());
            assert_eq!(after["lastlba"], mib * 2048 - 34);
            assert_eq!(after["partitions"][1]["size"], size);
            after["partitions"][1]["size"] = 8192.into();
            after["lastlba"] = before["lastlba"].clone();
            assert_eq!(after, before);
        }
        let mut mbr = [0; 512];
        image.as_file().read_exact_at(&mut mbr, 0).unwrap();
        assert_eq!(mbr[458..462], (mib as u32 * 2048 - 1).to_le_bytes());
        let mut old = [0; 512];
        image.as_file().read_exact_at(&mut old, 16 * MIB - 512).unwrap();
        assert_eq!(old.starts_with(b"EFI PART"), mib == 16);
    }
}

/// Size of the disk in MiB, partition that grows, function that damages the image, and expected error.
type Refused<'a> = (u64, Option<u32>, &'a dyn Fn(&File), &'a str);

/// Inverts a byte. The byte therefore changes even if its value is random, as in a GUID.
fn flip(file: &File, offset: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

#[test]
fn refuses_unsuitable_tables_without_writing() {
    let cases: [Refused; 8] = [
        (64, Some(1), &|_| (), "partition 1 cannot grow: partition 5 follows it"),
        (64, Some(2), &|_| (), "partition 2 cannot grow: the image does not contain this partition"),
        (64, Some(0), &|_| (), "partition 0 cannot grow: the image does not contain this partition"),
        (7, None, &|_| (), "partition 5 ends at sector 16383, after the last usable sector 14302"),
        (64, None, &|file| flip(file, 512 + 60), "the header's checksum does not match"),
        (64, None, &|file| flip(file, 1024 + 3), "the checksum of the partition entries does not match"),
        (64, None, &|file| file.write_all_at(&[0xff; 4], 512 + 12).unwrap(), "the header's checksum does not match"),
        (
            64,
            Some(5),
            &|file| file.write_all_at(&[0; 512], 512).unwrap(),
            "partition 5 cannot grow: the image does not contain a GPT",
        ),
    ];
    for (mib, grow, damage, says) in cases {
        let image = image(16, GPT);
        damage(image.as_file());
        image.as_file().set_len(mib * MIB).unwrap();
        let before = fs::read(image.path()).unwrap();
        let error = fit_file(&image, mib, grow).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert!(fs::read(image.path()).unwrap() == before, "{says}: the disk was written nevertheless");
    }
}

fn added(bytes: usize) -> AddedPartition {
    let guid = "5e1f0000-0000-4000-8000-0000000000c2".parse().unwrap();
    AddedPartition { name: "config-2".to_owned(), guid, content: vec![7; bytes] }
}

/// The image's last partition either keeps its size, or grows up to the added partition.
#[test]
fn partition_is_added_at_the_end_with_its_content() {
    for (grow, root) in [(None, 8192), (Some(5), 61 * 2048 - 8192)] {
        let image = image(16, GPT);
        image.as_file().set_len(64 * MIB).unwrap();
        let added = added(MIB as usize + 1);
        fit_on_disk(&image.reopen().unwrap(), 512, 64 * MIB, grow, Some(&added)).unwrap();
        let check = ToolCommand::new("sgdisk").args(["-v", image.path().to_str().unwrap()]).run().unwrap().stdout;
        assert!(check.contains("No problems found"), "{check}");
        let table = dump(image.path().to_str().unwrap());
        let found = table["partitions"].as_array().unwrap().iter().find(|one| one["name"] == "config-2").unwrap();
        assert_eq!((&found["start"], &found["size"]), (&(61 * 2048).into(), &4096.into()));
        assert_eq!(found["uuid"].as_str().unwrap().to_lowercase(), added.guid.to_string());
        let grown = table["partitions"].as_array().unwrap().iter().find(|one| one["start"] == 8192).unwrap();
        assert_eq!(grown["size"], root);
        let mut content = vec![0; added.content.len()];
        image.as_file().read_exact_at(&mut content, 61 * MIB).unwrap();
        assert!(content == added.content);
    }
}

#[test]
fn refuses_added_partition_without_space_and_writes_nothing() {
    let other = "label: dos\n1 : start=2048, size=4096, type=83\n";
    let full = (1..=128).map(|number| format!("{number} : start={}, size=8\n", 2048 + 8 * number));
    let full = format!("label: gpt\n{}", full.collect::<String>());
    for (mib, script, bytes, says) in [
        (64, &*full, 1, "cannot add partition config-2: all entries of the partition table are in use"),
        (16, GPT, 8 << 20, "cannot add partition config-2: not enough space"),
        (16, GPT, 32 << 20, "cannot add partition config-2: not enough space"),
        (64, other, 1, "cannot add partition config-2: the image does not contain a GPT"),
    ] {
        let image = image(mib, script);
        let before = fs::read(image.path()).unwrap();
        let done = fit_on_disk(&image.reopen().unwrap(), 512, mib * MIB, None, Some(&added(bytes)));
        assert!(done.unwrap_err().to_string().contains(says), "{says}");
        assert!(fs::read(image.path()).unwrap() == before, "{says}: the disk was written nevertheless");
        // The beginning of the image is sufficient to detect the same problem before anything is written.
        if script == GPT {
            let known = check_image_table(&before[..1 << 20], 512, mib * MIB, None, Some(&added(bytes))).unwrap_err();
            assert!(known.to_string().contains(says), "{known}");
        }
    }
}

fn fit_crowded(file: &NamedTempFile, sector: u64) -> io::Result<()> {
    let disk = File::options().read(true).write(true).open(file.path())?;
    fit_on_disk(&disk, sector, file.as_file().metadata()?.len(), None, None)
}

/// `fit_on_disk` itself verifies both copies of the table.
#[test]
fn old_backup_table_is_erased_unless_overlapped() {
    for sector in [512, 4096] {
        let (image_sectors, entries_sectors) = (500, 128 * 128 / sector);
        for more in [0, 1, entries_sectors - 3, entries_sectors - 1, entries_sectors, entries_sectors + 1, 100] {
            let file = crowded(sector, image_sectors, more, None);
            fit_crowded(&file, sector).unwrap_or_else(|error| panic!("{more} sectors of {sector} more: {error}"));
            let disk = fs::read(file.path()).unwrap();
            let old = &disk[((image_sectors - 1) * sector) as usize..][..sector as usize];
            assert_eq!(old.iter().all(|byte| *byte == 0), more > entries_sectors, "{more} sectors of {sector} more");
            assert!(disk[..sector as usize].iter().all(|byte| *byte == 0xaa));
        }
    }
}

#[test]
fn wrong_backup_location_in_the_header_is_harmless() {
    for sector in [512, 4096] {
        let (image_sectors, more) = (500, 100);
        for lie in [0, 1, 2, 5, 300, 499 + 100, 499 + 101, u64::MAX] {
            let file = crowded(sector, image_sectors, more, Some(lie));
            let before = fs::read(file.path()).unwrap();
            fit_crowded(&file, sector).unwrap_or_else(|error| panic!("backup at {lie}: {error}"));
            let after = fs::read(file.path()).unwrap();
            assert_eq!(after.len(), before.len());
            let entries_sectors = 128 * 128 / sector;
            let (header, last) = (sector as usize, ((image_sectors + more - 1 - entries_sectors) * sector) as usize);
            assert!(before[..header] == after[..header], "backup at {lie}: the MBR has changed");
            assert!(
                before[2 * header..last] == after[2 * header..last],
                "backup at {lie}: it was written between the tables"
            );
        }
    }
}

#[test]
fn mutated_tables_are_fitted_only_within_the_disk() {
    let (mut fitted, mut refused, mut none) = (0, 0, 0);
    for Mutated { name, sector, disk } in mutated() {
        let (size, step) = (disk.len() as u64, u64::from(sector));
        let file = NamedTempFile::new().unwrap();
        fs::write(file.path(), &disk).unwrap();
        let checked = check_image_table(&disk, sector, size, None, None);
        let opened = File::options().read(true).write(true).open(file.path()).unwrap();
        let done = fit_on_disk(&opened, step, size, None, None);
        match &checked {
            Ok(Some(_)) => assert!(done.is_ok(), "{name}: {done:?}"),
            Err(error) => assert!(done.is_err(), "{name}: {error}"),
            // There is no GPT, or its entries are not at the offset in its header.
            Ok(None) => {}
        }
        if let Err(error) = &done {
            assert!(!error.to_string().is_empty(), "{name}");
            assert!(fs::read(file.path()).unwrap() == disk, "{name}: refused, and written: {error}");
            refused += 1;
            continue;
        }
        let read_at = |bytes: &mut [u8], at: u64| opened.read_exact_at(bytes, at);
        let Some(table) = Gpt::read(&read_at, step, 1).unwrap() else {
            none += 1;
            continue;
        };
        for GptEntry { number, sectors, .. } in table.entries() {
            let lies = sectors.start < sectors.end && sectors.end <= size / step;
            assert!(lies, "{name}: partition {number} has {sectors:?}");
        }
        fitted += 1;
    }
    println!("300 mutated GPTs: {fitted} fitted, {refused} refused, {none} no longer recognized as a GPT");
    assert!(fitted > 20 && refused > 20 && none > 5, "{fitted} {refused} {none}");
}

#[test]
fn mbr_remains_unchanged() {
    let image = image(16, "label: dos\nstart=2048, size=4096, type=83, bootable\n");
    image.as_file().set_len(64 * MIB).unwrap();
    let before = fs::read(image.path()).unwrap();
    fit_file(&image, 64, None).unwrap();
    assert!(fs::read(image.path()).unwrap() == before);
}

/// Returns a disk that starts with the image of a smaller disk.
fn disk(mib: u64, sector: u32, script: &str) -> TestLoopDevice {
    let (small, large) = (TestLoopDevice::new(16 * MIB, sector), TestLoopDevice::new(mib * MIB, sector));
    sfdisk(small.path().as_str(), script);
    let image = fs::read(small.path()).unwrap();
    File::options().write(true).open(large.path()).unwrap().write_all_at(&image, 0).unwrap();
    large
}

/// Runs mkfs, and retries while the disk is in use: a child process that a concurrent test starts holds our descriptors
/// until its exec.
fn make_ext4(partition: &DevicePath) {
    let make = || ToolCommand::new("mkfs.ext4").args(["-q", partition.as_str()]).run();
    for _ in 0..100 {
        match make() {
            Err(error) if error.to_string().contains("in use") => std::thread::sleep(Duration::from_millis(50)),
            other => return drop(other.unwrap()),
        }
    }
    make().unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_kernel_registers_the_fitted_table_and_grown_partition() {
    let large = "label: gpt\n1 : start=256, size=256, type=U\n5 : start=1024, size=1024, type=L\n";
    for (sector, script) in [(512, GPT), (4096, large)] {
        let disk = disk(64, sector, script);
        fit_image_table(disk.path(), None, None).unwrap();
        make_ext4(&disk.partition(5));
        let table = fit_image_table(disk.path(), Some(5), None).unwrap().unwrap();
        let check = ToolCommand::new("sgdisk").args(["-v", disk.path().as_str()]).run().unwrap().stdout;
        assert!(check.contains("No problems found"), "{check}");
        let root = &table.partitions[1];
        assert_eq!((root.number, root.device.as_str()), (5, disk.partition(5).as_str()));
        assert_eq!(root.signatures[0].kind, "ext4");
        assert_eq!((root.start_bytes, root.start_bytes + root.size_bytes), (4 * MIB, 63 * MIB));
        let known = block_device::read_partitions(disk.path()).unwrap();
        let known: Vec<_> = known.iter().map(|is| (is.number, is.size_bytes)).collect();
        assert_eq!(known[1], (5, root.size_bytes));
        let point = tempfile::tempdir().unwrap();
        let mount = sys_mount::Mount::builder()
            .fstype("ext4")
            .mount_autodrop(disk.partition(5), point.path(), sys_mount::UnmountFlags::empty())
            .unwrap();
        let error = fit_image_table(disk.path(), None, None).unwrap_err().to_string();
        assert!(error.contains(&format!("is mounted at {}", point.path().display())), "{error}");
        drop(mount);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_mbr_and_logical_partitions_are_registered() {
    let script = "label: dos\n1 : start=2048, size=4096, type=83\n2 : start=8192, size=16384, type=5\n5 : start=10240, size=4096, type=83\n";
    let disk = disk(64, 512, script);
    for _ in 0..2 {
        let table = fit_image_table(disk.path(), None, None).unwrap().unwrap();
        assert_eq!(table.partitions.iter().map(|partition| partition.number).collect::<Vec<_>>(), [1, 2, 5]);
        let known = block_device::read_partitions(disk.path()).unwrap();
        let known: Vec<_> = known.iter().map(|is| (is.number, is.start_bytes / 512, is.size_bytes / 512)).collect();
        assert_eq!(known, [(1, 2048, 4096), (2, 8192, 2), (5, 10240, 4096)]);
    }
}
