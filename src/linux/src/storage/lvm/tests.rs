//! Volume groups and volumes: command lines, verification, and virtual machines with real disks.

use super::*;
use crate::probe::{self, ProbeDepth};
use crate::storage::teardown::{release_above, verify_unused};
use crate::storage::vm_test_disks::TestDisks;
use crate::storage::{block_device, mdadm, mkfs};
use operations::MakeFilesystem;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

mod activation;
mod foreign_volumes;

fn words<T: for<'a> From<&'a str>>(text: &str) -> Vec<T> {
    text.split_whitespace().map(T::from).collect()
}

fn group(name: &str, devices: &[DevicePath], tags: &str) -> CreateGroup {
    CreateGroup { name: name.to_owned(), devices: devices.to_vec(), tags: words(tags) }
}

fn volume(path: &str, physical: &[DevicePath], size_mib: u64, kind: LvmType) -> CreateVolume {
    let (group, name) = path.split_once('/').unwrap();
    let (name, group) = (name.to_owned(), group.to_owned());
    CreateVolume {
        name,
        group,
        device: format!("/dev/{path}").into(),
        physical: physical.to_vec(),
        size: size_mib.into(),
        kind,
    }
}

#[test]
fn lvm_command_lines_contain_size_type_and_tags() {
    let two = words("/dev/sda1 /dev/sdb1");
    assert_eq!(build_group_args(&group("vg00", &two, "")).join(" "), "vg00 /dev/sda1 /dev/sdb1");
    let tagged = group("vg00", &two[..1], "a b=c");
    assert_eq!(build_group_args(&tagged).join(" "), "--addtag a --addtag b=c vg00 /dev/sda1");
    let cases = [
        (LvmType::Linear, 100, "--type linear --size 100m"),
        (LvmType::Linear, 0, "--type linear --extents 100%FREE"),
        (LvmType::Striped, 5000, "--type striped --stripes 2 --size 5000m"),
        (LvmType::Raid1, 0, "--type raid1 --mirrors 1 --extents 100%FREE"),
    ];
    for (kind, size, expected) in cases {
        let args = build_volume_args(&volume("vg00/root", &two, size, kind)).join(" ");
        assert_eq!(args, format!("{expected} --wipesignatures y --zero y --name root vg00"));
    }
}

#[test]
fn created_volume_is_compared_with_the_plan() {
    const EXTENT: u64 = 4 << 20;
    let two = words("/dev/sda1 /dev/sdb1");
    let cases = [
        (LvmType::Linear, 100, "linear 1", 100 << 20, true),
        (LvmType::Linear, 101, "linear 1", 104 << 20, true),
        (LvmType::Linear, 0, "linear 1", 512 << 20, true),
        (LvmType::Linear, 100, "linear 1", 96 << 20, false),
        (LvmType::Linear, 100, "striped 2", 100 << 20, false),
        (LvmType::Striped, 100, "striped 2", 104 << 20, true),
        (LvmType::Striped, 100, "striped 1", 104 << 20, false),
        (LvmType::Striped, 100, "linear 1", 104 << 20, false),
        (LvmType::Raid1, 100, "raid1 2", 100 << 20, true),
        (LvmType::Raid1, 100, "mirror 2", 100 << 20, false),
    ];
    for (kind, mib, found, bytes, good) in cases {
        let mut fields = words(found);
        fields.extend([u64::to_string(&bytes), EXTENT.to_string()]);
        let result = compare_volume(&volume("vg00/root", &two, mib, kind), &fields);
        assert_eq!(result.is_ok(), good, "{kind} {mib} {found} {bytes}: {result:?}");
    }
    let error = compare_volume(&volume("vg00/root", &two, 100, LvmType::Linear), &words("striped 2 1 1")).unwrap_err();
    let expected = "/dev/vg00/root was created, but differs from the plan: planned linear 1 104857600 1, found \
                    striped 2 1 1";
    assert_eq!(error.to_string(), expected);
    assert!(compare_volume(&volume("vg00/root", &two, 100, LvmType::Linear), &[]).is_err());
}

fn put(device: impl AsRef<Path>, offset: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(device).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

fn get(device: impl AsRef<Path>, offset: u64, length: usize) -> Vec<u8> {
    let file = File::open(device).unwrap();
    block_device::flush_buffers(&file).unwrap();
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn status(device: &str) -> String {
    let name = teardown::mapping_name(&device.into()).unwrap();
    ToolCommand::new("dmsetup").args(["status", &name]).run().unwrap().stdout
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_every_volume_type_is_created_deactivated_and_activated() {
    let disks = TestDisks::take("vda vdb vdc");
    let all = disks.all();
    create_group(&group("vg00", all, "metal x=y")).unwrap();
    let volumes = [
        volume("vg00/root", all, 101, LvmType::Linear),
        volume("vg00/fast-er", all, 100, LvmType::Striped),
        volume("vg00/safe", all, 100, LvmType::Raid1),
        volume("vg00/rest", all, 0, LvmType::Linear),
    ];
    for volume in &volumes {
        create_volume(volume).unwrap();
        assert_eq!(get(&volume.device, 0, 1 << 20), vec![0; 1 << 20]);
        put(&volume.device, 4 << 20, volume.name.as_bytes());
    }
    assert!(fs::metadata("/dev/mapper/vg00-fast--er").is_ok());
    deactivate_group("vg00", all).unwrap();
    verify_unused(all).unwrap();
    assert!(fs::metadata("/dev/vg00").is_err());
    for _ in 0..2 {
        activate_volumes("vg00", &words("root fast-er safe rest"), all).unwrap();
        for volume in &volumes {
            assert_eq!(get(&volume.device, 4 << 20, volume.name.len()), volume.name.as_bytes());
        }
    }
    deactivate_group("vg00", all).unwrap();
    // Volumes of each type that take the rest of the group; disks have different sizes.
    for (devices, kind) in
        [("vda vdb", LvmType::Striped), ("vdc nvme0n1", LvmType::Striped), ("vdd nvme1n1", LvmType::Raid1)]
    {
        let disks = TestDisks::take(devices);
        create_group(&group("vg01", disks.all(), "")).unwrap();
        create_volume(&volume("vg01/all", disks.all(), 0, kind)).unwrap_or_else(|error| panic!("{devices}: {error}"));
        deactivate_group("vg01", disks.all()).unwrap();
    }
}

/// Covers all questions of LVM (`yes_no_prompt` in its source code) that can occur here.
#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_creation_needs_no_confirmation() {
    let disks = TestDisks::take("vda vdb");
    let all = disks.all();
    let make = |tool: &str, args: &[&str]| drop(ToolCommand::new(tool).args(args).run().unwrap());
    type Leave<'a> = &'a dyn Fn(&str);
    let old: [(&str, Leave); 7] = [
        ("an ext4", &|disk| make("mkfs.ext4", &["-q", "-F", disk])),
        ("an xfs", &|disk| make("mkfs.xfs", &["-q", "-f", disk])),
        ("a btrfs", &|disk| make("mkfs.btrfs", &["-q", "-f", disk])),
        ("a swap area", &|disk| make("mkswap", &[disk])),
        ("an ISO 9660", &|disk| put(disk, 0x8001, b"CD001")),
        ("a LUKS header", &|disk| put(disk, 0, b"LUKS\xba\xbe\0\x01")),
        ("a physical volume of another group", &|disk| {
            create_group(&group("other", &[disk.into()], "")).unwrap();
        }),
    ];
    for (what, signature) in old {
        all.iter().for_each(|disk| signature(disk.as_str()));
        create_group(&group("vg00", all, "")).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    for metadata in ["0.90", "1.0", "1.1", "1.2"] {
        let stale = operations::CreateArray {
            device: "/dev/md/stale".into(),
            level: model::layout::RaidLevel::Raid1,
            metadata: metadata.into(),
            uuid: uuid::Uuid::new_v4(),
            devices: operations::ArraySlot::parse_list(all),
            spares: 0,
            createoptions: vec![],
        };
        mdadm::create_array(&stale).unwrap();
        mdadm::stop_array(&stale.device).unwrap();
        create_group(&group("vg00", all, "")).unwrap_or_else(|error| panic!("{metadata}: {error}"));
    }
    // The new volume begins at the old content of an earlier volume.
    let kinds = [
        (LvmType::Linear, "mkfs.ext4"),
        (LvmType::Linear, "mkfs.btrfs"),
        (LvmType::Striped, "mkfs.xfs"),
        (LvmType::Raid1, "mkfs.ext4"),
    ];
    for (kind, tool) in kinds.into_iter().flat_map(|case| [case, case]) {
        create_volume(&volume("vg00/root", all, 400, kind)).unwrap_or_else(|error| panic!("{kind}: {error}"));
        make(tool, &["-q", "/dev/vg00/root"]);
        deactivate_group("vg00", all).unwrap();
        create_group(&group("vg00", all, "")).unwrap();
    }
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_equally_named_groups_on_other_disks_are_ignored() {
    let disks = TestDisks::take("vda vdb vdc");
    let [first, second, third] = disks.all() else { unreachable!() };
    for disk in [first, second] {
        create_group(&group("vg00", std::slice::from_ref(disk), &disk.kernel_name())).unwrap();
    }
    let ours = std::slice::from_ref(third);
    create_group(&group("vg00", ours, "ours")).unwrap();
    create_volume(&volume("vg00/root", ours, 100, LvmType::Linear)).unwrap();
    assert_eq!(fs::read_dir(block_device::sysfs_path(third).unwrap().join("holders")).unwrap().count(), 1);
    deactivate_group("vg00", ours).unwrap();
    activate_volumes("vg00", &words("root"), ours).unwrap();
    deactivate_group("vg00", ours).unwrap();
    for disk in [first, second] {
        let found = read_report("vgs", std::slice::from_ref(disk), "vg00", &["vg_tags", "lv_count"]).unwrap();
        assert_eq!(found, [&disk.kernel_name(), "0"]);
    }
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_group_on_arrays_and_partitions_holds_a_filesystem() {
    let disks = TestDisks::take("vda vdb");
    let partitions = disks.partition(&[500]);
    // With metadata 1.0, the beginning of a member looks like that of the array.
    for metadata in ["0.90", "1.0", "1.2"] {
        let array = operations::CreateArray {
            device: "/dev/md/pv".into(),
            level: model::layout::RaidLevel::Raid1,
            metadata: metadata.into(),
            uuid: uuid::Uuid::new_v4(),
            devices: operations::ArraySlot::parse_list(&partitions[0]),
            spares: 0,
            createoptions: vec![],
        };
        mdadm::create_array(&array).unwrap();
        let ours = words("/dev/md/pv");
        create_group(&group("vg-0", &ours, "")).unwrap();
        let root = volume("vg-0/root", &ours, 0, LvmType::Linear);
        create_volume(&root).unwrap();
        let uuid = "5a1d7c0e-93b2-4f57-8f0c-6e1a2b3c4d5e".to_owned();
        let format = model::layout::FilesystemFormat::Xfs;
        let make = MakeFilesystem { device: root.device.clone(), format, label: None, uuid, createoptions: vec![] };
        mkfs::make_filesystem(&make).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut mounts = crate::storage::mount::MountStack::new(dir.path());
        let (device, path) = (root.device.clone(), "/".to_owned());
        mounts
            .mount_filesystem(&operations::MountFilesystem { device, path, format, options: vec![], others: vec![] })
            .unwrap();
        let error = deactivate_group("vg-0", &ours).unwrap_err().to_string();
        let expected = format!("is mounted at {}", dir.path().display());
        assert!(
            error.starts_with("deactivate volume group vg-0, used by: dm-") && error.contains(&expected),
            "{error}"
        );
        mounts.unmount_all().unwrap();
        deactivate_group("vg-0", &ours).unwrap();
        mdadm::stop_array(&"/dev/md/pv".into()).unwrap();
        mdadm::assemble_array(&"/dev/md/pv".into(), array.uuid, &partitions[0]).unwrap();
        activate_volumes("vg-0", &words("root"), &ours).unwrap();
        deactivate_group("vg-0", &ours).unwrap();
        mdadm::stop_array(&"/dev/md/pv".into()).unwrap();
    }
    verify_unused(disks.all()).unwrap();
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_refusals_contain_the_message_of_the_tool() {
    let disks = TestDisks::take("vda vdb");
    let all = disks.all();
    create_group(&group("vg00", all, "")).unwrap();
    let error = create_volume(&volume("vg00/big", all, 1 << 20, LvmType::Linear)).unwrap_err().to_string();
    assert!(error.starts_with("create linear volume /dev/vg00/big: "), "{error}");
    assert!(error.contains("insufficient free space"), "{error}");
    create_volume(&volume("vg00/root", all, 100, LvmType::Linear)).unwrap();
    let error = create_group(&group("vg00", all, "")).unwrap_err().to_string();
    assert!(error.contains("open /dev/vda for writing, used by: vda is held by dm-0 (vg00-root)"), "{error}");
    assert!(
        activate_volumes("no-such", &words("root"), all).unwrap_err().to_string().contains("\"no-such\" not found")
    );
}
