//! Reinstalls of machines whose disks contain a hibernation image.

use super::installation_identity::{claim, install, marked, reinstall};
use super::partly_kept_disks::{MIRRORED, installed_with, renew};
use super::*;

fn hibernation_image() -> Vec<DeviceSignature> {
    vec![DeviceSignature { kind: "swsuspend".into(), usage: "other".into(), ..DeviceSignature::default() }]
}

/// Returns the installed machine, suspended to this partition.
fn suspended_to(disk: usize, partition: usize) -> Inventory {
    let mut inventory = marked();
    inventory.disks[disk].table.as_mut().unwrap().partitions[partition].signatures = hibernation_image();
    inventory
}

fn refused(inventory: &Inventory) -> Vec<String> {
    reasons(reinstall(&layout(), inventory, claim()))
}

const REASON: &str = "contains a hibernation image: the suspended system may have mounted the filesystems that must \
    be preserved";

#[test]
fn refuses_image_on_wiped_disk_while_another_disk_is_preserved() {
    let inventory = suspended_to(0, 2);
    let expected = "disks: /dev/sda3 contains a hibernation image: the suspended system may have mounted the \
        filesystems that must be preserved, and mounting them again would damage them. Start the suspended system and shut \
        it down; if its state is not needed, discard the image with mkswap /dev/sda3";
    assert_eq!(refused(&inventory), [expected]);
    let refusal = reinstall(&layout(), &inventory, claim()).unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::PreservedUnusable);
}

/// A suspended system may have mounted filesystems of any disk.
#[test]
fn refuses_image_on_preserved_and_unlisted_disks() {
    let mut unlisted = marked();
    unlisted.disks[2].signatures = hibernation_image();
    let found = refused(&unlisted);
    assert!(found.len() == 1 && found[0].starts_with(&format!("disks: /dev/sdc {REASON}")), "{found:?}");
    let mut layout = layout();
    layout.filesystems[0] = filesystem("", "/dev/sdb1", FilesystemFormat::Swap, "");
    let mut inventory = marked();
    inventory.disks[1].table.as_mut().unwrap().partitions[0].signatures = hibernation_image();
    let found = reasons(reinstall(&layout, &inventory, claim()));
    assert!(found.iter().any(|why| why.starts_with(&format!("disks: /dev/sdb1 {REASON}"))), "{found:?}");
}

#[test]
fn refuses_image_on_a_volume_and_on_a_partly_kept_disk() {
    let mut inventory = installed_with(MIRRORED);
    let esp = inventory.disks[0].table.as_ref().unwrap().partitions[0].signatures.clone();
    inventory.disks[1].table.as_mut().unwrap().partitions[0].signatures = hibernation_image();
    let problems = |inventory: &Inventory| {
        let problems = renew(MIRRORED, inventory).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let found = problems(&inventory);
    assert!(found.len() == 1 && found[0].contains(&format!("/dev/sdb1 {REASON}")), "{found:?}");
    inventory.disks[1].table.as_mut().unwrap().partitions[0].signatures = esp;
    let (name, kind) = ("dm-7".into(), inventory::StackedDeviceKind::Volume);
    let volume = inventory::StackedDevice {
        name,
        device: "/dev/mapper/vg-swap".into(),
        kind,
        below: vec!["sdb1".into()],
        signatures: hibernation_image(),
        assembled: true,
        ..inventory::StackedDevice::default()
    };
    inventory.stacked.push(volume);
    let found = problems(&inventory);
    assert!(found.iter().any(|why| why.contains(&format!("/dev/mapper/vg-swap {REASON}"))), "{found:?}");
}

#[test]
fn image_is_discarded_on_request_or_after_an_attempt_has_wiped_the_system() {
    let inventory = suspended_to(0, 2);
    let given = |serial: &str| InstallClaim { give_up: vec![serial.to_owned()], ..claim() };
    reinstall(&layout(), &inventory, given("B0")).unwrap_err();
    // The installed system was already wiped, so it can no longer be started.
    let begun = InstallClaim { waiver: Some(MarkerWaiver::Begun), ..claim() };
    let wiped = Inventory { filesystems: Vec::new(), ..inventory.clone() };
    // The attempt was only announced: the old system is still there.
    reinstall(&layout(), &inventory, begun.clone()).unwrap_err();
    for (inventory, claim) in [(&inventory, given("A0")), (&wiped, begun)] {
        let plan = reinstall(&layout(), inventory, claim).unwrap();
        let warned = format!("/dev/sda3 {REASON}");
        assert!(plan.warnings.iter().any(|warning| warning.starts_with(&warned)), "{:?}", plan.warnings);
    }
}

#[test]
fn image_is_irrelevant_if_nothing_is_preserved() {
    let mut layout = layout();
    layout.disks[1].wipeonreinstall = true;
    let claim = InstallClaim { change_promise: true, ..claim() };
    let plan = reinstall(&layout, &suspended_to(0, 2), claim.clone()).unwrap();
    assert!(!plan.warnings.iter().any(|warning| warning.contains("hibernation")), "{:?}", plan.warnings);
    let first = InstallClaim { allocation: "a-2".to_owned(), ..claim };
    install(&layout, &suspended_to(0, 2), first).unwrap();
}

/// The disk of a virtual machine may contain the image of the virtual machine's own system.
#[test]
fn image_inside_the_disk_of_a_virtual_machine_is_ignored() {
    let mut inventory = marked();
    let table = suspended_to(0, 2).disks[0].table.take();
    let (name, kind) = ("dm-0".into(), inventory::StackedDeviceKind::Volume);
    let device = "/dev/mapper/vg-vm".into();
    let mut table = table.unwrap();
    table.partitions.retain(|part| part.number == 3);
    table.partitions[0].device = "/dev/mapper/vg-vm3".into();
    let (table, below) = (Some(table), vec!["sdc".into()]);
    inventory.stacked.push(inventory::StackedDevice { name, device, kind, below, table, ..Default::default() });
    reinstall(&layout(), &inventory, claim()).unwrap();
}
