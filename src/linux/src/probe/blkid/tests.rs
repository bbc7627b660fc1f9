//! Signatures and partition tables of images and loop devices.

use super::super::simulated_machine::{ran, sfdisk};
use super::*;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// Creates an image file and runs a command on it. `IMAGE` in the command is replaced by the path of the file.
fn image(dir: &tempfile::TempDir, size_bytes: u64, argv: &str) -> PathBuf {
    let path = dir.path().join(format!("{size_bytes}-{}", argv.len()));
    File::create(&path).unwrap().set_len(size_bytes).unwrap();
    let mut words = argv.split(' ').map(|word| if word == "IMAGE" { path.to_str().unwrap() } else { word });
    ran(words.next().unwrap(), &words.collect::<Vec<_>>());
    path
}

fn signatures(path: &Path) -> Vec<BlkidSignature> {
    let found = BlkidProbe::open(path, None, 512).unwrap().read_signatures();
    assert!(found.error.is_none(), "{found:?}");
    found.signatures
}

fn kinds(path: &Path) -> Vec<String> {
    signatures(path).into_iter().map(|found| found.signature.kind).collect()
}

fn partition(image: &Path, sector_bytes: u32, script: &str) -> Option<BlkidTable> {
    sfdisk(image, script);
    BlkidProbe::open(image, None, sector_bytes).unwrap().read_table().unwrap()
}

#[test]
fn filesystem_and_swap_signatures_have_label_and_uuid() {
    let dir = tempfile::tempdir().unwrap();
    let uuid = "2f9f0b5e-3d3c-4a84-9b65-6ad8a7f2a1c0";
    let cases = [
        (format!("mkfs.ext4 -q -L varlib -U {uuid} IMAGE"), "ext4", "filesystem", "varlib", uuid),
        (format!("mkfs.ext3 -q -L old -U {uuid} IMAGE"), "ext3", "filesystem", "old", uuid),
        ("mkfs.vfat -F 16 -n EFI -i 1A2B3C4D IMAGE".into(), "vfat", "filesystem", "EFI", "1A2B-3C4D"),
        (format!("mkswap -L swap -U {uuid} IMAGE"), "swap", "other", "swap", uuid),
    ];
    for (argv, kind, usage, label, uuid) in cases {
        let [kind, usage, label, uuid] = [kind, usage, label, uuid].map(str::to_owned);
        let expected = DeviceSignature { kind, usage, label, uuid };
        let found = signatures(&image(&dir, 64 * MIB, &argv));
        assert_eq!(found, [BlkidSignature { signature: expected, damaged: false }], "{argv}");
    }
}

#[test]
fn blank_image_has_neither_signature_nor_table() {
    let dir = tempfile::tempdir().unwrap();
    let mut probe = BlkidProbe::open(&image(&dir, 4 * MIB, "true"), None, 512).unwrap();
    assert_eq!(probe.read_signatures().signatures, []);
    assert_eq!(probe.read_table().unwrap(), None);
    // The order of the calls is irrelevant.
    assert_eq!(probe.read_signatures().signatures, []);
}

#[test]
fn two_signatures_are_both_reported() {
    let dir = tempfile::tempdir().unwrap();
    let vfat = image(&dir, 64 * MIB, "mkfs.vfat -F 32 IMAGE");
    let ext4 = image(&dir, 64 * MIB, "mkfs.ext4 -q IMAGE");
    // ext4 reserves the first 1024 bytes for boot loaders, so the superblock of vfat can be copied there.
    let mut boot = [0; 1024];
    File::open(&vfat).unwrap().read_exact_at(&mut boot, 0).unwrap();
    OpenOptions::new().write(true).open(&ext4).unwrap().write_all_at(&boot, 0).unwrap();
    assert_eq!(kinds(&ext4), ["vfat", "ext4"]);
}

#[test]
fn signature_with_wrong_checksum_is_reported_as_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let disk = image(&dir, 4 * MIB, "true");
    // An LVM label in sector 1 (struct label_header of lvm2). The checksum in the label is zero, and therefore wrong.
    let mut label = b"LABELONE".to_vec();
    label.extend(1u64.to_le_bytes());
    label.extend(0u32.to_le_bytes());
    label.extend(32u32.to_le_bytes());
    label.extend(b"LVM2 0010123456789abcdefghijklmnopqrstuv");
    OpenOptions::new().write(true).open(&disk).unwrap().write_all_at(&label, 512).unwrap();
    let found = signatures(&disk);
    assert_eq!((found.len(), found[0].signature.kind.as_str(), found[0].damaged), (1, "LVM2_member", true));
}

#[test]
fn gpt_with_two_partitions_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let script = "label: gpt\nlabel-id: 6B29FC40-CA47-1067-B31D-00DD010662DA\n\
                  1: size=8MiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name=efi\n\
                  5: uuid=0FC63DAF-0000-4772-8E79-3D69D8477DE4, name=\"r\u{f6}\u{f6}t\"\n";
    let table = partition(&image(&dir, 64 * MIB, "true"), 512, script).unwrap();
    assert_eq!((table.kind.as_str(), table.id.as_str()), ("gpt", "6b29fc40-ca47-1067-b31d-00dd010662da"));
    let [efi, root] = &table.partitions[..] else { panic!("{table:?}") };
    assert_eq!((efi.number, efi.start_bytes, efi.size_bytes), (1, MIB, 8 * MIB));
    assert_eq!(efi.kind, "c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
    assert_eq!((root.number, root.start_bytes, root.name.as_str()), (5, 9 * MIB, "r\u{f6}\u{f6}t"));
    assert_eq!(root.guid, "0fc63daf-0000-4772-8e79-3d69d8477de4");
}

#[test]
fn empty_table_is_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let table = partition(&image(&dir, 64 * MIB, "true"), 512, "label: gpt\n").unwrap();
    assert_eq!((table.kind.as_str(), table.partitions.len()), ("gpt", 0));
}

#[test]
fn dos_table_with_logical_partition_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let script = "label: dos\nlabel-id: 0x1a2b3c4d\nsize=8MiB, type=83\ntype=5\nsize=4MiB, type=8e\n";
    let table = partition(&image(&dir, 64 * MIB, "true"), 512, script).unwrap();
    assert_eq!((table.kind.as_str(), table.id.as_str()), ("dos", "1a2b3c4d"));
    let seen: Vec<_> = table.partitions.iter().map(|part| (part.number, part.kind.as_str(), part.extended)).collect();
    assert_eq!(seen, [(1, "0x83", false), (2, "0x5", true), (5, "0x8e", false)]);
    assert_eq!(table.partitions[0].guid, "1a2b3c4d-01");
}

#[test]
fn area_of_an_image_is_probed_separately() {
    let dir = tempfile::tempdir().unwrap();
    let disk = image(&dir, 64 * MIB, "mkfs.ext4 -q -E offset=16777216 IMAGE 16M");
    assert_eq!(kinds(&disk), Vec::<String>::new());
    let probe = |start_bytes, size_bytes| {
        let area = DeviceArea { start_bytes, size_bytes };
        BlkidProbe::open(&disk, Some(area), 512).map(|mut probe| probe.read_signatures().signatures.len())
    };
    assert_eq!(probe(16 * MIB, 16 * MIB).unwrap(), 1);
    assert_eq!(probe(32 * MIB, 16 * MIB).unwrap(), 0);
    assert!(probe(u64::MAX, 512).is_err());
}

#[test]
fn nonexistent_device_is_an_error() {
    assert!(BlkidProbe::open(Path::new("/nonexistent/sda"), None, 512).is_err());
}

/// A loop device on an image file, detached at the end.
struct Loop(String);

impl Loop {
    fn new(image: &Path, sector_bytes: u32) -> Loop {
        let output = crate::process::ToolCommand::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector_bytes.to_string()])
            .arg(image)
            .run();
        Loop(output.unwrap().stdout.trim().to_owned())
    }

    fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = crate::process::ToolCommand::new("losetup").args(["--detach", &self.0]).run();
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_disk_with_large_sectors_is_read_correctly() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(&dir, 64 * MIB, "true");
    let disk = Loop::new(&image, 4096);
    let table = partition(disk.path(), 4096, "label: gpt\nsize=8MiB, name=one\nname=two\n").unwrap();
    let seen: Vec<_> =
        table.partitions.iter().map(|part| (part.number, part.start_bytes, part.name.as_str())).collect();
    assert_eq!(seen, [(1, MIB, "one"), (2, 9 * MIB, "two")]);
    assert_eq!(table.partitions[0].size_bytes, 8 * MIB);
    // The table in an image file is read correctly if the caller specifies the sector size.
    assert_eq!(BlkidProbe::open(&image, None, 4096).unwrap().read_table().unwrap().as_ref(), Some(&table));
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_physical_volume_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Loop::new(&image(&dir, 64 * MIB, "true"), 512);
    ran("pvcreate", &["--yes", "--config", "devices { use_devicesfile=0 }", &disk.0]);
    assert_eq!(kinds(disk.path()), ["LVM2_member"]);
    assert_eq!(signatures(disk.path())[0].signature.usage, "raid");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_unreadable_device_is_an_error_and_not_blank() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(&dir, 16 * MIB, "mkfs.ext4 -q IMAGE");
    let disk = Loop::new(&image, 512);
    // Reads of a loop device fail with EIO if its file was truncated to zero bytes.
    OpenOptions::new().write(true).open(&image).unwrap().set_len(0).unwrap();
    let mut probe = BlkidProbe::open(disk.path(), None, 512).unwrap();
    let found = probe.read_signatures();
    assert_eq!(found.error.and_then(|error| error.raw_os_error()), Some(libc::EIO));
    assert_eq!(found.signatures, []);
    assert_eq!(probe.read_table().unwrap_err().raw_os_error(), Some(libc::EIO));
}
