//! Disks with an installation of another machine, or of this machine under a former id.

use super::installation_identity::{claim, install, marked, reinstall};
use super::*;
use model::install_marker::InstallMarker;
use model::inventory::FilesystemContents;

/// Returns an inventory whose sda has a marker of the given machine and allocation.
fn of(machine: &str, allocation: &str) -> Inventory {
    let mut inventory = marked();
    let marker = inventory.filesystems[0].marker.as_mut().unwrap();
    (marker.machine, marker.allocation) = (machine.to_owned(), allocation.to_owned());
    inventory
}

/// The id of the machine changed because the mainboard was replaced or the firmware was updated, and the operator
/// edited the id in the machine file.
#[test]
fn refuses_same_allocation_of_another_machine() {
    let reasons = reasons(install(&layout(), &of("m-9", "a-1"), claim()));
    let expected = "disks: /dev/sda2 on sda, which will be wiped, contains the installation of machine m-9, \
        allocation a-1, but this plan is for the installation of machine m-1, allocation a-1: if this is that machine \
        and its id has changed, register the new id (drophammer machine rename OLD NEW); otherwise attach the disks \
        of this machine. If that installation is not needed, erase the disk (wipefs -a in the rescue shell, on each \
        of its partitions and on the disk itself)";
    assert_eq!(reasons, [expected]);
}

#[test]
fn refuses_installation_over_another_machine() {
    let reasons = reasons(install(&layout(), &of("m-9", "a-7"), claim()));
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(reasons[0].contains("contains the installation of machine m-9, allocation a-7"), "{reasons:?}");
    assert!(reasons[0].contains("wipefs -a in the rescue shell"), "{reasons:?}");
}

#[test]
fn accepts_marker_of_a_former_machine_id() {
    let claim = InstallClaim { former_machines: vec!["m-0".to_owned(), "m-9".to_owned()], ..claim() };
    let plan = install(&layout(), &of("m-9", "a-1"), InstallClaim { succeeded: true, ..claim.clone() }).unwrap();
    assert_eq!(plan.already.as_ref().map(|marker| marker.machine.as_str()), Some("m-9"));
    // The marker of an earlier allocation of the machine is ignored.
    assert_eq!(install(&layout(), &of("m-9", "a-0"), claim.clone()).unwrap().already, None);
    let plan = reinstall(&layout(), &of("m-9", "a-1"), claim).unwrap();
    assert_eq!((plan.already, plan.warnings), (None, vec![]));
}

#[test]
fn markers_on_unlisted_disks_are_ignored() {
    let mut inventory = machine();
    let marker = Some(InstallMarker { machine: "m-9".to_owned(), ..InstallMarker::default() });
    inventory.filesystems.push(FilesystemContents {
        device: "/dev/sdc".into(),
        marker,
        ..FilesystemContents::default()
    });
    install(&layout(), &inventory, claim()).unwrap();
    assert_eq!(install(&layout(), &of("m-1", "a-0"), claim()).unwrap().already, None);
}

/// A disk with the installation of another machine must not be preserved, because its data would be mounted for
/// writing.
#[test]
fn refuses_preserved_disk_of_another_machine() {
    for machine in ["m-9", "m-1"] {
        let mut inventory = marked();
        let marker =
            InstallMarker { machine: machine.to_owned(), allocation: "a-0".to_owned(), ..InstallMarker::default() };
        let device = "/dev/sdb1".into();
        inventory.filesystems.push(FilesystemContents {
            device,
            marker: Some(marker),
            ..FilesystemContents::default()
        });
        inventory.disks[1].serial = "Z9".to_owned();
        let plan = reinstall(&layout(), &inventory, InstallClaim { give_up: vec!["Z9".to_owned()], ..claim() });
        if machine == "m-1" {
            assert_eq!(plan.unwrap().disks[1].verdict, DiskVerdict::Keep);
            continue;
        }
        let expected = "disks: /dev/sdb1 on sdb, which will be kept, contains the installation of machine m-9, \
            allocation a-0, but this plan is for the reinstall of machine m-1, allocation a-1: attach the disk of \
            this machine, or erase this disk if you do not need its data";
        assert_eq!(reasons(plan), [expected]);
    }
}

#[test]
fn wipes_installation_of_another_machine_only_if_discarded() {
    let claim = InstallClaim { waiver: Some(MarkerWaiver::Operator), ..claim() };
    let refused = reasons(reinstall(&layout(), &of("m-9", "a-7"), claim.clone()));
    assert!(refused[0].contains("contains the installation of machine m-9"), "{refused:?}");
    let given = |serial: &str| InstallClaim { give_up: vec![serial.to_owned()], ..claim.clone() };
    assert_eq!(reasons(reinstall(&layout(), &of("m-9", "a-7"), given("B0"))), refused);
    let plan = reinstall(&layout(), &of("m-9", "a-7"), given("A0")).unwrap();
    assert!(
        plan.to_string().contains(
            "WARNING: /dev/sda2 on sda, which will be wiped, contains the installation of \
        machine m-9, allocation a-7, but this plan is for the reinstall of machine m-1, allocation a-1: that \
        installation will be discarded, as requested by the operator"
        ),
        "{plan}"
    );
    // A serial number that two disks share does not identify either of them.
    let mut twice = of("m-9", "a-7");
    twice.disks[2].serial = "A0".to_owned();
    assert!(reinstall(&layout(), &twice, given("A0")).is_err());
}
