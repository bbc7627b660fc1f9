//! Preserved objects that could not be mounted or assembled after the installation: refused before anything is wiped.

use super::arrays_and_groups;
use super::installation_identity::{claim, reinstall};
use super::*;
use model::inventory::{AttemptTarget, FailedAttempt};

fn failed(tried: AttemptTarget, why: &str) -> FailedAttempt {
    FailedAttempt { tried, why: why.to_owned() }
}

fn unmountable(device: &str) -> FailedAttempt {
    failed(AttemptTarget::Filesystem(device.into()), "Structure needs cleaning (os error 117)")
}

type Case = (&'static str, fn(&mut Layout, &mut Inventory));

const BROKEN: &str = "filesystems[0]: /dev/sdb1 must be kept with ext4 \"srv\", mounted at /srv, but the filesystem cannot be mounted even read-only: Structure needs cleaning (os error 117)";

#[test]
fn a_kept_filesystem_that_cannot_be_mounted_is_refused() {
    let mut inventory = installed();
    inventory.failed.push(unmountable("/dev/sdb1"));
    assert_eq!(reasons(make(&layout(), &inventory, InstallMode::Reinstall)), [BROKEN]);
    make(&layout(), &inventory, InstallMode::Install).unwrap();
    // The failure is recorded under the present name of the volume.
    let mut inventory = arrays_and_groups::installed();
    let volume = inventory.groups[0].volumes[0].running.clone().unwrap();
    let volume = inventory.stacked.iter().find(|stacked| stacked.name == volume).unwrap().device.clone();
    inventory.failed.push(unmountable(volume.as_str()));
    let reasons = reasons(make(&arrays_and_groups::layout(), &inventory, InstallMode::Reinstall));
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(reasons[0].starts_with("filesystems[0]: /dev/vg00/varlib must be kept with xfs"), "{reasons:?}");
}

#[test]
fn what_nobody_mounts_may_fail() {
    let cases: [Case; 5] = [
        ("nothing was tried", |_, _| {}),
        ("the layout does not mount it", |layout, inventory| {
            layout.filesystems[0].path = None;
            inventory.failed.push(unmountable("/dev/sdb1"));
        }),
        ("the layout has nothing there", |layout, inventory| {
            drop(layout.filesystems.remove(0));
            inventory.failed.push(unmountable("/dev/sdb1"));
        }),
        ("what is wiped", |_, inventory| inventory.failed.push(unmountable("/dev/sda2"))),
        ("what is not ours", |_, inventory| inventory.failed.push(unmountable("/dev/sdc"))),
    ];
    for (name, change) in cases {
        let (mut layout, mut inventory) = (layout(), installed());
        change(&mut layout, &mut inventory);
        make(&layout, &inventory, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
}

/// The agent mounts filesystems for inspection without the layout's options. Once the old system is gone, a mount that
/// replays the journal is also worth a try.
#[test]
fn what_may_come_back_all_the_same_is_said() {
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
    let of = |waiver| reinstall(&layout(), &inventory, InstallClaim { waiver: Some(waiver), ..claim() });
    assert!(of(MarkerWaiver::Begun).unwrap().warnings.iter().any(|warning| warning == said));
    assert_eq!(reasons(of(MarkerWaiver::Operator)), [BROKEN]);
}

#[test]
fn a_kept_array_that_does_not_start_is_refused() {
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
    make(&layout, &inventory, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("nobody tried: {refusal}"));
    inventory.failed.push(failed(AttemptTarget::Array(Uuid::from_u128(7)), why));
    make(&layout, &inventory, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("another one: {refusal}"));
    inventory.failed.push(failed(AttemptTarget::Array(data), "the first try"));
    inventory.failed.push(failed(AttemptTarget::Array(data), why));
    let expected = format!(
        "raid[2]: /dev/md/data must be kept, but raid1 \"data\" of /dev/sdc, /dev/sdd, /dev/sde (spare) cannot be assembled: {why}"
    );
    assert_eq!(reasons(make(&layout, &inventory, InstallMode::Reinstall)), [expected]);
    make(&layout, &inventory, InstallMode::Install).unwrap();
}

#[test]
fn a_write_protected_disk_is_kept_where_nothing_writes() {
    let refused: [Case; 2] = [
        ("mounted for writing", |_, _| {}),
        ("made, as it is blank", |layout, inventory| {
            layout.filesystems[0].mountoptions = vec!["ro".to_owned()];
            let srv = &mut inventory.disks[1].table.as_mut().unwrap().partitions[0];
            (srv.signatures, srv.blank) = (Vec::new(), true);
        }),
    ];
    let accepted: [Case; 4] = [
        ("mounted read-only", |layout, _| layout.filesystems[0].mountoptions = vec!["ro".to_owned()]),
        ("not mounted", |layout, _| layout.filesystems[0].path = None),
        ("nothing of the layout", |layout, _| drop(layout.filesystems.remove(0))),
        ("another one, not ours", |_, inventory| {
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
    // A volume on a mirror, one disk of which is read-only.
    let mut inventory = arrays_and_groups::installed();
    inventory.disks[3].read_only = true;
    let reasons = reasons(make(&arrays_and_groups::layout(), &inventory, InstallMode::Reinstall));
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons[0].contains("/dev/vg00/varlib must be written (mounted at /var/lib), but /dev/sdd is"),
        "{reasons:?}"
    );
}
