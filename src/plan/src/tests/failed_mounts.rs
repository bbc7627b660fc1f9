//! Preserved objects that could not be mounted or assembled after the installation are refused before anything is
//! wiped.

use super::arrays_and_groups;
use super::installation_identity::{claim, reinstall};
use super::*;
use model::inventory::{InspectionFailure, InspectionTarget};

fn failed(tried: InspectionTarget, why: &str) -> InspectionFailure {
    InspectionFailure { tried, why: why.to_owned() }
}

fn unmountable(device: &str) -> InspectionFailure {
    failed(InspectionTarget::Filesystem(device.into()), "Structure needs cleaning")
}

type Case = (&'static str, fn(&mut Layout, &mut Inventory));

const BROKEN: &str = "filesystems[0]: /dev/sdb1 must be preserved, and must contain ext4 \"srv\", mounted at /srv, but the filesystem cannot be mounted even read-only: Structure needs cleaning";

#[test]
fn refuses_preserved_filesystem_that_cannot_be_mounted() {
    let mut inventory = installed();
    inventory.failed.push(unmountable("/dev/sdb1"));
    assert_eq!(reasons(make(&layout(), &inventory, InstallMode::Reinstall)), [BROKEN]);
    make(&layout(), &inventory, InstallMode::Install).unwrap();
    // The inventory records the failure under the current device path of the volume.
    let mut inventory = arrays_and_groups::installed();
    let volume = inventory.groups[0].volumes[0].running.clone().unwrap();
    let volume = inventory.stacked.iter().find(|stacked| stacked.name == volume).unwrap().device.clone();
    inventory.failed.push(unmountable(volume.as_str()));
    let reasons = reasons(make(&arrays_and_groups::layout(), &inventory, InstallMode::Reinstall));
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(
        reasons[0].starts_with("filesystems[0]: /dev/vg00/varlib must be preserved, and must contain xfs"),
        "{reasons:?}"
    );
}

#[test]
fn ignores_failed_mounts_of_unmounted_or_wiped_filesystems() {
    let cases: [Case; 5] = [
        ("no mount was tried", |_, _| {}),
        ("the layout does not mount it", |layout, inventory| {
            layout.filesystems[0].path = None;
            inventory.failed.push(unmountable("/dev/sdb1"));
        }),
        ("the layout has no filesystem on the device", |layout, inventory| {
            drop(layout.filesystems.remove(0));
            inventory.failed.push(unmountable("/dev/sdb1"));
        }),
        ("wiped filesystem", |_, inventory| inventory.failed.push(unmountable("/dev/sda2"))),
        ("filesystem on a foreign disk", |_, inventory| inventory.failed.push(unmountable("/dev/sdc"))),
    ];
    for (name, change) in cases {
        let (mut layout, mut inventory) = (layout(), installed());
        change(&mut layout, &mut inventory);
        make(&layout, &inventory, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
}

/// A failed inspection causes only a warning in two cases: if the layout has mount options for further devices,
/// without which the inspection may have failed, or if an earlier attempt has already wiped the old system.
#[test]
fn failed_inspection_warns_if_a_mount_may_succeed() {
    let mut inventory = installed();
    inventory.failed.push(unmountable("/dev/sdb1"));
    let parts = &mut inventory.disks[1].table.as_mut().unwrap().partitions;
    parts.push(inventory::DiskPartition { number: 2, device: "/dev/sdb2".into(), ..Default::default() });
    let said = BROKEN.trim_start_matches("filesystems[0]: ");
    for option in ["degraded", "device=/dev/sdb2", "logdev=/dev/sdb2"] {
        let mut layout = layout();
        layout.filesystems[0].mountoptions = vec!["noatime".to_owned(), option.to_owned()];
        let plan = make(&layout, &inventory, InstallMode::Reinstall).unwrap();
        assert!(plan.warnings.iter().any(|warning| warning == said), "{option}: {:?}", plan.warnings);
    }
    let of = |waiver| reinstall(&layout(), &inventory, InstallClaim { waiver: Some(waiver), order: None, ..claim() });
    assert!(of(MarkerWaiver::Begun).unwrap().warnings.iter().any(|warning| warning == said));
    assert_eq!(reasons(of(MarkerWaiver::Operator)), [BROKEN]);
}

#[test]
fn refuses_preserved_array_that_cannot_be_assembled() {
    let why = "mdadm: failed to RUN_ARRAY /dev/md127: Input/output error";
    let data = arrays_and_groups::installed().arrays[2].uuid;
    // No object of the layout is on top of the array, so no other problem is reported.
    let mut layout = arrays_and_groups::layout();
    layout.volumegroups.clear();
    layout.logicalvolumes.clear();
    layout.filesystems.retain(|filesystem| !filesystem.device.as_str().starts_with("/dev/vg00"));
    let mut inventory = arrays_and_groups::installed();
    inventory.groups.clear();
    inventory.stacked.retain(|stacked| !stacked.name.starts_with("dm-"));
    let name = inventory.arrays[2].running.take().unwrap();
    inventory.stacked.retain(|stacked| stacked.name != name);
    inventory.disks.iter_mut().for_each(|disk| disk.uses.retain(|usage| *usage != DeviceUse::Holder(name.clone())));
    make(&layout, &inventory, InstallMode::Reinstall)
        .unwrap_or_else(|refusal| panic!("no activation was tried: {refusal}"));
    inventory.failed.push(failed(InspectionTarget::Array(Uuid::from_u128(7)), why));
    make(&layout, &inventory, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("another one: {refusal}"));
    inventory.failed.push(failed(InspectionTarget::Array(data), "the first try"));
    inventory.failed.push(failed(InspectionTarget::Array(data), why));
    let expected = format!(
        "raid[2]: /dev/md/data must be preserved, but raid1 \"data\" of /dev/sdc, /dev/sdd, /dev/sde (spare) cannot be assembled: {why}"
    );
    assert_eq!(reasons(make(&layout, &inventory, InstallMode::Reinstall)), [expected]);
    make(&layout, &inventory, InstallMode::Install).unwrap();
}

#[test]
fn write_protected_disk_is_preserved_only_without_writes() {
    let refused: [Case; 2] = [
        ("mounted for writing", |_, _| {}),
        ("recreated because it is blank", |layout, inventory| {
            layout.filesystems[0].mountoptions = vec!["ro".to_owned()];
            let srv = &mut inventory.disks[1].table.as_mut().unwrap().partitions[0];
            (srv.signatures, srv.blank) = (Vec::new(), true);
        }),
    ];
    let accepted: [Case; 4] = [
        ("mounted read-only", |layout, _| layout.filesystems[0].mountoptions = vec!["ro".to_owned()]),
        ("not mounted", |layout, _| layout.filesystems[0].path = None),
        ("not in the layout", |layout, _| drop(layout.filesystems.remove(0))),
        ("another disk, which is foreign", |_, inventory| {
            inventory.disks[1].read_only = false;
            inventory.disks[2].read_only = true;
        }),
    ];
    let planned = |change: fn(&mut Layout, &mut Inventory)| {
        let (mut layout, mut inventory) = (layout(), installed());
        inventory.disks[1].read_only = true;
        change(&mut layout, &mut inventory);
        make(&layout, &inventory, InstallMode::Reinstall)
    };
    for (name, change) in refused {
        let expected = "filesystems[0]: /dev/sdb1 must be written (mounted at /srv), but /dev/sdb is read-only (possible causes: write protection switch, failing disk)";
        assert_eq!(reasons(planned(change)), [expected], "{name}");
    }
    for (name, change) in accepted {
        planned(change).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
    // A volume cannot be written if it is on a mirror with a read-only disk.
    let mut inventory = arrays_and_groups::installed();
    inventory.disks[3].read_only = true;
    let reasons = reasons(make(&arrays_and_groups::layout(), &inventory, InstallMode::Reinstall));
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons[0].contains("/dev/vg00/varlib must be written (mounted at /var/lib), but /dev/sdd is"),
        "{reasons:?}"
    );
}
