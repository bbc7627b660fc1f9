//! Raw images: the disk is wiped, the image is written and adapted to the disk, and its filesystems are mounted without
//! being recreated.

use super::*;
use model::allocation::{Allocation, AssignedMachine};
use model::device_name::DevicePath;
use model::inventory::StackedDevice;
use operations::{
    AdaptImage, BurnDisk, DeviceOp, DiskIdentity, ExpectedFilesystem, ExtendFstab, GrowFilesystem, Operation,
    ResolveImage, SeedFilesystem, SessionOp, StageName,
};
use std::collections::BTreeMap;

/// Layout with the image on sda, and data on sdb that a reinstall preserves.
pub(super) fn raw() -> Layout {
    let mut layout = layout();
    layout.id = "raw".to_owned();
    layout.disks[0].partitions.clear();
    layout.disks[0].image = true;
    layout.filesystems.retain(|filesystem| filesystem.format != FilesystemFormat::Swap);
    layout
        .filesystems
        .iter_mut()
        .filter(|filesystem| filesystem.path.as_deref() == Some("/"))
        .for_each(|root| root.grow = true);
    layout
}

fn operations(plan: &Plan, name: StageName) -> Vec<Operation> {
    plan.stages.iter().filter(|stage| stage.name == name).flat_map(|stage| stage.operations.clone()).collect()
}

#[test]
fn install_writes_the_image_before_mounting_anything() {
    assert!(model::layout::validate_layout(&raw()).is_empty());
    let plan = make(&raw(), &machine(), InstallMode::Install).unwrap();
    assert_printed("raw", &plan);
    assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Wipe, DiskVerdict::NotOurs]);
    let expected = |number, path: &str, format, label: &str| ExpectedFilesystem {
        number,
        device: format!("/dev/sda{number}").into(),
        path: path.to_owned(),
        format,
        label: Some(label.to_owned()),
    };
    let burn = BurnDisk {
        name: subject().image,
        device: "/dev/sda".into(),
        identity: DiskIdentity::from_disk(&machine().disks[0]),
        size_bytes: machine().disks[0].size_bytes,
        sector_bytes: 512,
        grow: Some(2),
        filesystems: vec![
            expected(2, "/", FilesystemFormat::Ext4, "root"),
            expected(1, "/boot/efi", FilesystemFormat::Vfat, "efi"),
        ],
        taken: BTreeMap::new(),
        added: None,
    };
    assert_eq!(operations(&plan, StageName::ImageBurn), [Operation::Run(SessionOp::BurnDisk(burn))]);
    let mounts = operations(&plan, StageName::StorageMount);
    let Operation::Run(SessionOp::Mount(root)) = &mounts[0] else { panic!("{mounts:?}") };
    assert_eq!(
        (root.path.as_str(), &mounts[1]),
        ("/", &Operation::Run(SessionOp::GrowFilesystem(GrowFilesystem(root.clone()))))
    );
    let paths: Vec<_> = plan.fstab.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["/srv", "/tmp"]);
    assert_eq!(
        operations(&plan, StageName::TargetFstab),
        [Operation::Run(SessionOp::ExtendFstab(ExtendFstab(plan.fstab.clone())))]
    );
    let adapt = operations(&plan, StageName::TargetInstaller);
    let [Operation::Run(SessionOp::AdaptImage(AdaptImage(finishing)))] = &adapt[..] else { panic!("{adapt:?}") };
    assert_eq!(finishing.devices, ["/dev/sda", "/dev/sdb"]);
    assert_eq!(plan.stages[plan.point_of_no_return].name, StageName::StorageWipe);
}

/// The seed is on the third partition of the image, or on a partition that the layout creates on another disk.
#[test]
fn seed_partition_is_used_if_listed_in_the_layout() {
    let seed = |device: &str| FilesystemSpec { path: None, ..filesystem("", device, FilesystemFormat::Vfat, "cidata") };
    let mut own = raw();
    own.filesystems.push(seed("/dev/sda3"));
    let mut beside = raw();
    beside.disks[1].wipeonreinstall = true;
    beside.disks[1].partitions =
        vec![partition(1, "seed", 8, PartitionType::Linux), partition(2, "srv", 0, PartitionType::Linux)];
    beside
        .filesystems
        .iter_mut()
        .filter(|filesystem| filesystem.device == "/dev/sdb1")
        .for_each(|srv| srv.device = "/dev/sdb2".into());
    beside.filesystems.push(seed("/dev/sdb1"));
    for (layout, device, name) in [(&own, "/dev/sda3", "raw-seed"), (&beside, "/dev/sdb1", "raw-seed-beside")] {
        assert_eq!(model::layout::validate_layout(layout), []);
        let plan = make(layout, &machine(), InstallMode::Install).unwrap();
        assert_printed(name, &plan);
        let adapt = operations(&plan, StageName::TargetInstaller);
        let [Operation::Run(SessionOp::AdaptImage(AdaptImage(finishing)))] = &adapt[..] else { panic!("{adapt:?}") };
        assert_eq!(finishing.seed, Some(SeedFilesystem { device: device.into(), path: None }));
    }
    // A reinstall writes the seed to a preserved filesystem only through its mount point.
    let mut preserved = beside.clone();
    preserved.disks[1].wipeonreinstall = false;
    let installed = after(&make(&preserved, &machine(), InstallMode::Install).unwrap(), machine());
    let finished = |layout: &Layout| {
        let plan = make(layout, &installed, InstallMode::Reinstall).unwrap();
        let adapt = operations(&plan, StageName::TargetInstaller);
        let [Operation::Run(SessionOp::AdaptImage(AdaptImage(finishing)))] = &adapt[..] else { panic!("{adapt:?}") };
        finishing.seed.clone()
    };
    assert_eq!(finished(&preserved), None);
    preserved.filesystems.last_mut().unwrap().path = Some("/seed".to_owned());
    assert_eq!(
        finished(&preserved),
        Some(SeedFilesystem { device: "/dev/sdb1".into(), path: Some("/seed".to_owned()) })
    );
    // Of the partitions of the image, only the one for the seed may be listed without a mount point.
    let mut other = own.clone();
    other.filesystems.last_mut().unwrap().label = Some("data".to_owned());
    assert!(
        model::layout::validate_layout(&other)[0].message.contains("List only the partitions that the system mounts")
    );
}

#[test]
fn reinstall_rewrites_the_image_and_preserves_other_disks() {
    let installed = after(&make(&raw(), &machine(), InstallMode::Install).unwrap(), machine());
    let plan = make(&raw(), &installed, InstallMode::Reinstall).unwrap();
    assert_printed("raw-reinstall", &plan);
    assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Keep, DiskVerdict::NotOurs]);
    let preserved = operations(&plan, StageName::StorageMountPreserved);
    assert!(
        matches!(&preserved[..], [Operation::Run(SessionOp::UnlockDisk(_)), Operation::Run(SessionOp::Mount(mount))] if mount.path == "/srv")
    );
    let wiped: Vec<_> = operations(&plan, StageName::StorageWipe);
    assert!(
        matches!(&wiped[..], [Operation::Device(DeviceOp::WipeDisk(disk))] if disk.device == "/dev/sda"),
        "{wiped:?}"
    );
}

#[test]
fn image_must_not_contain_identifiers_of_preserved_disks() {
    let mut installed = after(&make(&raw(), &machine(), InstallMode::Install).unwrap(), machine());
    let guid = |byte: u8| Uuid::from_bytes([byte; 16]);
    let signature = |kind: &str, uuid: &str| DeviceSignature {
        kind: kind.to_owned(),
        usage: "filesystem".to_owned(),
        uuid: uuid.to_owned(),
        ..DeviceSignature::default()
    };
    let partition = |device: &str, guid, uuid: &str| inventory::DiskPartition {
        number: 1,
        device: device.into(),
        guid,
        signatures: vec![signature("vfat", uuid)],
        ..inventory::DiskPartition::default()
    };
    let stacked = |name: &str, below: &[&str], uuid: &str| StackedDevice {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        below: below.iter().map(|below| (*below).into()).collect(),
        signatures: vec![signature("ext4", uuid)],
        ..StackedDevice::default()
    };
    let preserved = installed.disks[1].table.clone().unwrap();
    let root = &mut installed.disks[0].table.as_mut().unwrap();
    root.guid = Some(guid(1));
    root.partitions[0].guid = Some(guid(2));
    installed.disks[2].table = Some(DiskTable {
        kind: "gpt".to_owned(),
        guid: Some(guid(3)),
        partitions: vec![partition("/dev/sdc1", Some(guid(0)), "1A2B-3C4D")],
    });
    installed.stacked =
        vec![stacked("dm-0", &["sda2"], "on what is wiped"), stacked("dm-2", &["sdc1"], "on what is not ours")];
    let srv = &preserved.partitions[0];
    let of_kept = [
        (preserved.guid.unwrap().to_string(), "/dev/sdb"),
        (srv.guid.unwrap().to_string(), "/dev/sdb1"),
        (srv.signatures[0].uuid.to_lowercase(), "/dev/sdb1"),
    ];
    let of_others = [
        (guid(3).to_string(), "/dev/sdc"),
        ("1a2b-3c4d".to_owned(), "/dev/sdc1"),
        ("on what is not ours".to_owned(), "/dev/dm-2"),
    ];
    let both = [&of_kept[..], &of_others].concat();
    for (mode, expected) in [(InstallMode::Reinstall, both), (InstallMode::Install, of_others.to_vec())] {
        let plan = make(&raw(), &installed, mode).unwrap();
        let expected = expected.into_iter().map(|(uuid, device)| (uuid, DevicePath::from(device)));
        let reach = operations(&plan, StageName::ImageReach);
        let [Operation::Run(SessionOp::ResolveImage(ResolveImage { onto: Some(burn), .. }))] = reach.as_slice() else {
            panic!("{plan}")
        };
        assert_eq!(burn.taken, expected.collect());
        // An installation may wipe members of an object that has other members elsewhere. A reinstall would be
        // refused.
        installed.stacked.push(stacked("dm-1", &["sda2", "sdc1"], "on both"));
    }
}

#[test]
fn image_is_not_adapted_without_growth_and_other_disks() {
    let mut layout = raw();
    layout.disks.truncate(1);
    layout.filesystems.retain(|filesystem| filesystem.device.as_str().starts_with("/dev/sda"));
    layout.filesystems.iter_mut().for_each(|filesystem| filesystem.grow = false);
    let plan = make(&layout, &machine(), InstallMode::Install).unwrap();
    assert!(
        matches!(&operations(&plan, StageName::ImageBurn)[..], [Operation::Run(SessionOp::BurnDisk(burn))] if burn.grow.is_none())
    );
    let mounts = operations(&plan, StageName::StorageMount);
    assert!(mounts.iter().all(|operation| matches!(operation, Operation::Run(SessionOp::Mount(_)))), "{mounts:?}");
    assert_eq!(operations(&plan, StageName::TargetFstab), []);
    assert_eq!((plan.root_uuid.as_str(), plan.fstab.len()), ("", 0));
}

#[test]
fn image_partitions_are_named_after_their_disk() {
    let mut layout = raw();
    layout.disks[0].device = "os".into();
    layout.disks[0].hints = [("name".to_owned(), "/dev/sdc".to_owned())].into();
    for filesystem in &mut layout.filesystems {
        filesystem.device = filesystem.device.as_str().replace("/dev/sda", "os").into();
    }
    let plan = make(&layout, &machine(), InstallMode::Install).unwrap();
    let burn = operations(&plan, StageName::ImageBurn);
    let [Operation::Run(SessionOp::BurnDisk(burn))] = &burn[..] else { panic!("{burn:?}") };
    let devices: Vec<_> = burn.filesystems.iter().map(|filesystem| filesystem.device.as_str()).collect();
    assert_eq!((burn.device.as_str(), devices), ("/dev/sdc", vec!["/dev/sdc2", "/dev/sdc1"]));
    assert_eq!(verdicts(&plan), [DiskVerdict::NotOurs, DiskVerdict::Wipe, DiskVerdict::Wipe]);
}

#[test]
fn image_disk_must_exist_and_be_writable() {
    let mut machine = machine();
    machine.disks.remove(0);
    for mode in [InstallMode::Install, InstallMode::Reinstall] {
        let said = reasons(make(&raw(), &machine, mode)).join("; ");
        assert!(said.contains("disks[0].device: device:/dev/sda does not exist on given hardware"), "{said}");
    }
    let mut machine = super::machine();
    machine.disks[0].read_only = true;
    let said = reasons(make(&raw(), &machine, InstallMode::Install)).join("; ");
    assert!(said.contains("/dev/sda is read-only"), "{said}");
}

#[test]
fn image_url_is_complete_but_printed_without_secrets() {
    let secret = model::registry_auth::PullSecret {
        password: model::secret_text::SecretText::new("hunter2"),
        ..Default::default()
    };
    let url = "https://me:hunter2@h/i.zst?sig=secret".to_owned();
    let image = model::allocation::AllocatedImage { url, pull_secrets: vec![secret], ..Default::default() };
    let allocation = Allocation { image, user_data: "secret".to_owned(), ..Allocation::default() };
    let request = crate::request_from_allocation::build_request(&AssignedMachine::default(), "m-1", &allocation, &[]);
    let plan = super::super::make_plan(&layout(), &machine(), request, &mut counting()).unwrap();
    let reach = operations(&plan, StageName::ImageReach);
    let [Operation::Run(SessionOp::ResolveImage(ResolveImage { image, .. }))] = reach.as_slice() else {
        panic!("{plan}")
    };
    assert_eq!(image.url, allocation.image.url);
    for text in [plan.to_string(), serde_json::to_string(&plan).unwrap()] {
        assert!(text.contains("https://") && !text.contains("hunter2") && !text.contains("secret"), "{text}");
    }
}
