//! Volumes on loop devices, checked with the real tools by the rules of MetalK8s.

use super::*;
use crate::process::ToolCommand;
use crate::storage::test_loop_device::TestLoopDevice;
use model::layout::FilesystemFormat;
use operations::MakeFilesystem;
use std::os::unix::fs::MetadataExt;

const UID: &str = "9474cda7-0dbe-40fc-9842-3cb0404a725a";

fn uid() -> Uuid {
    UID.parse().unwrap()
}

fn filesystem(device: &DevicePath, format: FilesystemFormat, options: &[&str]) -> InitialVolumeContent {
    InitialVolumeContent::Filesystem(MakeFilesystem {
        device: device.clone(),
        format,
        label: None,
        uuid: UID.to_owned(),
        createoptions: options.iter().map(|option| (*option).to_owned()).collect(),
    })
}

fn partition() -> InitialVolumeContent {
    InitialVolumeContent::Partition { guid: Uuid::from_u128(7) }
}

fn volume(device: &DevicePath, filling: InitialVolumeContent) -> CreateK8sVolume {
    CreateK8sVolume {
        name: "db-1".to_owned(),
        uid: uid(),
        device: device.clone(),
        create: None,
        must_be_blank: true,
        filling,
    }
}

fn output(program: &str, args: &[&str]) -> String {
    ToolCommand::new(program).args(args.iter().copied()).run().unwrap().stdout
}

/// Checks a volume with a filesystem in the same way as `is_prepared` of MetalK8s' salt module: the UUID that blkid
/// reads from the device must be that of the volume.
fn is_prepared_filesystem(path: &str) -> bool {
    let found = output("blkid", &["-p", "-o", "export", path]);
    found.lines().any(|line| line == format!("UUID={UID}"))
}

/// Checks a block volume: partition 1 has the UUID as its GUID, so udev's link `by-partuuid` leads to it. The salt
/// module checks block volumes in another way, which is defective: it expects the link to lead to the name of the disk
/// or file, followed by `1`. The module therefore accepts `sdb`, but rejects disks whose names end in a digit
/// (`nvme0n1`, `loop0`), arrays, sparse files, and partitions with names other than `sdb1` or `nvme0n1p1`. For an NVMe
/// partition, the module passes `/dev/nvme0n1p` to sgdisk as the disk. docs/volumes-devices.md lists the module's
/// results for each type of volume on an installed machine.
fn is_prepared_block(disk: &str) -> bool {
    let found = output("sgdisk", &["-i", "1", disk]);
    let has = |field: &str, value: &str| found.lines().any(|line| line == format!("{field}: {value}"));
    has("Partition unique GUID", &UID.to_uppercase()) && has("Partition name", "'db-1'")
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_filesystems_are_prepared_for_metalk8s() {
    let disk = TestLoopDevice::new(400 << 20, 512);
    for (format, options) in [(FilesystemFormat::Ext4, &["-m", "0"][..]), (FilesystemFormat::Xfs, &[])] {
        let mut volume = volume(disk.path(), filesystem(disk.path(), format, options));
        prepare_volume(&volume).unwrap();
        assert!(is_prepared_filesystem(disk.path().as_str()), "{format}");
        // Existing data is preserved.
        let error = prepare_volume(&volume).unwrap_err().to_string();
        assert!(error.contains("prepare volume db-1") && error.contains("is no longer blank"), "{error}");
        // An interrupted preparation is repeated.
        volume.must_be_blank = false;
        prepare_volume(&volume).unwrap();
        assert!(is_prepared_filesystem(disk.path().as_str()), "{format}");
        let size = block_device::read_size_bytes(&File::open(disk.path()).unwrap()).unwrap();
        block_device::zero_range(&File::options().write(true).open(disk.path()).unwrap(), 0, size).unwrap();
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_whole_disk_becomes_a_partition_with_the_uuid() {
    for sector_bytes in [512, 4096] {
        let disk = TestLoopDevice::new(64 << 20, sector_bytes);
        // The path is a symlink, as for arrays and for disks in by-id.
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("data");
        std::os::unix::fs::symlink(disk.path(), &link).unwrap();
        let link = DevicePath::from(link.display().to_string());
        prepare_volume(&volume(&link, partition())).unwrap();
        assert!(is_prepared_block(disk.path().as_str()), "{sector_bytes}");
        // Partitions are named like `/dev/loop3p1`, as on NVMe disks.
        assert!(disk.partition(1).as_str().ends_with("p1"));
        let size = block_device::read_size_bytes(&File::open(disk.partition(1)).unwrap()).unwrap();
        assert_eq!(size, 62 << 20);
        assert!(output("sgdisk", &["-v", disk.path().as_str()]).contains("No problems found"));
    }
}

/// Files are attached with `losetup --partscan`, as by the unit in the installed system.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_files_of_sparse_volumes_are_prepared() {
    let dir = tempfile::tempdir().unwrap();
    for (index, filling) in [
        filesystem(&"/x".into(), FilesystemFormat::Ext4, &["-m", "0"]),
        filesystem(&"/x".into(), FilesystemFormat::Xfs, &[]),
        partition(),
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(index.to_string());
        let file = File::create_new(&path).unwrap();
        file.set_len(400 << 20).unwrap();
        fill_sparse_file(&path, &filling, uid(), "db-1").unwrap();
        let path = path.to_str().unwrap();
        match &filling {
            InitialVolumeContent::Partition { .. } => assert!(is_prepared_block(path)),
            _ => assert!(is_prepared_filesystem(path)),
        }
        let metadata = std::fs::metadata(path).unwrap();
        assert_eq!(metadata.len(), 400 << 20);
        assert!(metadata.blocks() * 512 < 100 << 20, "it is sparse: {}", metadata.blocks());
    }
}

#[test]
fn partition_covers_whole_mebibytes() {
    assert_eq!(whole_disk_range(64 << 20, 512), (2048, 63 * 2048 - 1));
    assert_eq!(whole_disk_range((64 << 20) + 512, 4096), (256, 63 * 256 - 1));
}

#[test]
#[ignore = "needs root, LVM and disks: scripts/vm-tests"]
fn vm_volumes_of_lvm_are_prepared() {
    use crate::storage::vm_test_disks::TestDisks;
    use model::layout::LvmType;
    use operations::{CreateGroup, CreateVolume};
    let disks = TestDisks::take("vda");
    let physical = disks.all().to_vec();
    let group = CreateGroup { name: "kube".to_owned(), devices: physical.clone(), tags: Vec::new() };
    lvm::create_group(&group).unwrap();
    for (name, filling) in [
        ("fs", filesystem(&"/dev/kube/fs".into(), FilesystemFormat::Ext4, &[])),
        ("bare", InitialVolumeContent::Nothing),
    ] {
        let device = DevicePath::from(format!("/dev/kube/{name}"));
        let create = CreateVolume {
            name: name.to_owned(),
            group: "kube".to_owned(),
            device: device.clone(),
            physical: physical.clone(),
            size: 33.into(),
            kind: LvmType::Linear,
        };
        let is_fs = matches!(filling, InitialVolumeContent::Filesystem(_));
        let new = CreateK8sVolume { create: Some(create.clone()), must_be_blank: false, ..volume(&device, filling) };
        prepare_volume(&new).unwrap();
        assert_eq!(read_device_size(&device).unwrap(), 36 << 20, "whole extents");
        assert!(!is_fs || is_prepared_filesystem(device.as_str()));
        // udev's link contains the device-mapper UUID.
        let path = persistent_path(&VolumePath::NewVolume(create)).unwrap();
        // Without udev, the path is not a link to a node such as dm-0, so the device is found by its number.
        let number = std::fs::metadata(&device).unwrap().rdev();
        let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
        let dm = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/dm/uuid"));
        assert_eq!(path, format!("/dev/disk/by-id/dm-uuid-{}", dm.unwrap().trim()));
        let error = prepare_volume(&new).unwrap_err().to_string();
        assert!(error.contains("prepare volume db-1"), "{error}");
    }
    // The inventory reports the free space that the next plan uses.
    let inventory = probe::read_inventory(probe::ProbeDepth::Deep).unwrap();
    let found = inventory.groups.iter().find(|group| group.name == "kube").unwrap();
    assert_eq!(found.free_bytes, Some(found.physical[0].size_bytes - (72 << 20)));
    lvm::deactivate_group("kube", &physical).unwrap();
}

/// Ceph stores copies of its label in the middle of a disk, between the samples of the blank detection.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_disk_with_bluestore_label_copy_is_not_prepared() {
    const LABEL_COPY_OFFSET: u64 = 10 << 30;
    let disk = TestLoopDevice::new(12 << 30, 512);
    let image = File::options().read(true).write(true).open(disk.image()).unwrap();
    image.write_all_at(b"bluestore block device\n", LABEL_COPY_OFFSET).unwrap();
    let fillings = || [filesystem(disk.path(), FilesystemFormat::Ext4, &[]), partition()];
    for filling in fillings() {
        let error = prepare_volume(&volume(disk.path(), filling)).unwrap_err().to_string();
        assert!(error.contains("is no longer blank: the device was not changed"), "{error}");
        assert_eq!(image.metadata().unwrap().blocks() * 512, 4096, "only the copy is stored");
    }
    image.write_all_at(&[0; 4096], LABEL_COPY_OFFSET).unwrap();
    for filling in fillings() {
        prepare_volume(&volume(disk.path(), filling)).unwrap();
        image.set_len(0).and_then(|()| image.set_len(12 << 30)).unwrap();
    }
}
