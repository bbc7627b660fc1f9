//! Members of unknown arrays or groups are refused only if a reinstall could split such an array or group.

use super::installation_identity::{claim, reinstall};
use super::*;
use model::inventory::UnassignedDevices;

const SAID: &str = "`lvm fullreport` exited with 5, saying: bad checksum";

fn with(devices: &[&str], mut inventory: Inventory) -> Inventory {
    let devices = devices.iter().map(|device| (*device).into()).collect();
    inventory.unknown.push(UnassignedDevices { devices, reason: SAID.to_owned() });
    inventory
}

#[test]
fn refuses_reinstall_with_unknown_group_members_on_listed_disks() {
    // sda is wiped, sdb is preserved, and sdc is unlisted.
    for (devices, named) in [
        (&["/dev/sda2"][..], "/dev/sda2"),
        (&["/dev/sdb1"], "/dev/sdb1"),
        (&["/dev/sda2", "/dev/sdb1", "/dev/sdc"], "/dev/sda2, /dev/sdb1"),
    ] {
        let reasons = reasons(make(&layout(), &with(devices, installed()), InstallMode::Reinstall));
        let expected = format!(
            "disks: the array or volume group of {named} is unknown, and may span other disks: {SAID}; repair the array or group, or erase its members if it is not needed"
        );
        assert_eq!(reasons, [expected]);
    }
}

#[test]
fn continued_attempt_accepts_incomplete_group_on_wiped_disk() {
    let started = |device| {
        let claim = InstallClaim { waiver: Some(MarkerWaiver::Begun), ..claim() };
        reinstall(&layout(), &with(&[device], installed()), claim)
    };
    started("/dev/sda2").unwrap();
    assert!(reasons(started("/dev/sdb1"))[0].contains("the array or volume group of /dev/sdb1 is unknown"));
}

#[test]
fn refuses_unknown_group_on_an_array_of_listed_disks() {
    let inventory = with(&["/dev/md125"], arrays_and_groups::installed());
    let reasons = reasons(make(&arrays_and_groups::layout(), &inventory, InstallMode::Reinstall));
    assert!(
        reasons.iter().any(|reason| reason.contains("the array or volume group of /dev/md125 is unknown")),
        "{reasons:?}"
    );
}

#[test]
fn unknown_groups_on_other_disks_are_ignored() {
    let plan = make(&layout(), &with(&["/dev/sdc", "/dev/sdc1"], installed()), InstallMode::Reinstall).unwrap();
    let without = make(&layout(), &installed(), InstallMode::Reinstall).unwrap();
    assert_eq!(Plan { opaque: Vec::new(), ..plan }, without);
}

#[test]
fn installation_wipes_unknown_groups() {
    let inventory = with(&["/dev/sda2", "/dev/sdb1", "/dev/sdc"], installed());
    let plan = make(&layout(), &inventory, InstallMode::Install).unwrap();
    assert_eq!(plan.opaque.len(), 1, "{plan}");
    let without = make(&layout(), &installed(), InstallMode::Install).unwrap();
    assert_eq!(Plan { opaque: Vec::new(), ..plan }, without);
}
