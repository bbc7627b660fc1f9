//! Verdict on each disk: wiped, preserved or not ours.

use super::*;
use operations::{LockDisk, Operation, SessionOp, StageName, UnlockDisk};

#[test]
fn fresh_install_wipes_exactly_the_listed_disks() {
    let plan = make(&layout(), &machine(), InstallMode::Install).unwrap();
    assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Wipe, DiskVerdict::NotOurs]);
    let names: Vec<&str> = plan.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "image.reach",
            "storage.identify",
            "storage.lock",
            "storage.release",
            "report.begin",
            "storage.wipe",
            "storage.partition",
            "storage.format",
            "storage.mount",
            "image.burn",
            "target.files",
            "target.installer",
            "target.fstab",
            "boot.load",
            "storage.prove_kept",
            "storage.unmount",
            "report.final",
            "boot.kexec"
        ]
    );
    assert_eq!(plan.stages[plan.point_of_no_return].name, StageName::StorageWipe);
    assert!(
        matches!(&plan.stages[2].operations[..], [Operation::Run(SessionOp::LockDisk(LockDisk { device, .. }))] if device == "/dev/sdc")
    );
}

#[test]
fn mounts_and_fstab_list_parents_first() {
    let plan = make(&layout(), &machine(), InstallMode::Install).unwrap();
    let paths: Vec<&str> = plan.fstab.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["/", "/srv", "/tmp", "/boot/efi", "none"]);
    let passes: Vec<u8> = plan.fstab.iter().map(|entry| entry.pass).collect();
    assert_eq!(passes, [1, 2, 0, 2, 0]);
    assert_eq!(plan.fstab[0].source, format!("UUID={}", plan.root_uuid));
    assert_eq!(plan.fstab[2].source, "tmpfs");
    let mounts: Vec<&str> = plan
        .stages
        .iter()
        .flat_map(|stage| &stage.operations)
        .filter_map(|operation| match operation {
            Operation::Run(SessionOp::Mount(mount)) => Some(mount.path.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(mounts, ["/", "/srv", "/boot/efi"]);
}

#[test]
fn printed_reinstall_plan_matches_the_recorded_one() {
    let mut inventory = installed();
    inventory.disks[0].model = "SAMSUNG MZ7LH480".to_owned();
    inventory.disks[0].serial = "S45NNE0M01".to_owned();
    let plan = make(&layout(), &inventory, InstallMode::Reinstall).unwrap();
    assert_printed("reinstall", &plan);
}

#[test]
fn reinstall_preserves_disks_without_wipeonreinstall() {
    let before = installed();
    let plan = make(&layout(), &before, InstallMode::Reinstall).unwrap();
    assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Keep, DiskVerdict::NotOurs]);
    let srv = before.disks[1].table.as_ref().unwrap().partitions[0].signatures[0].uuid.clone();
    let entry = plan.fstab.iter().find(|entry| entry.path == "/srv").unwrap();
    assert_eq!(entry.source, format!("UUID={srv}"));
    let preserved = plan.stages.iter().find(|stage| stage.name == StageName::StorageMountPreserved).unwrap();
    assert_eq!(
        preserved.operations[0],
        Operation::Run(SessionOp::UnlockDisk(UnlockDisk { device: "/dev/sdb".into(), others: vec![] }))
    );
    assert_eq!(after(&plan, before.clone()).disks[1], before.disks[1]);
}
