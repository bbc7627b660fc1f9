//! A first installation does not erase data that the layout preserves, unless the erasure is intended.

use super::installation_identity::{claim, empty, install, marked, marker};
use super::partly_kept_disks::{MIRRORED, installed_with};
use super::*;
use model::install_marker::InstallMarker;

/// Returns a machine that another installer has set up as the layout describes: it has no install marker.
fn foreign() -> Inventory {
    let mut inventory = marked();
    inventory.filesystems.clear();
    inventory
}

#[test]
fn refuses_to_erase_matching_data_and_names_both_remedies() {
    let reasons = reasons(install(&layout(), &foreign(), claim()));
    let expected = "disks: a first installation would erase /dev/sdb, which is preserved by this layout and already \
        contains the data that the layout preserves. To preserve the data, record the machine as installed \
        (drophammer machine adopt 4c4c4544-0051-3010), and order a reinstall with --without-marker. If the data is not needed, list the \
        serial numbers of these disks in give_up of the allocation, or run wipefs -a on the disks in the rescue shell";
    assert_eq!(reasons, [expected]);
}

#[test]
fn data_is_erased_only_if_the_erasure_is_intended() {
    let with_data_label = |label: &str| {
        let mut inventory = foreign();
        let table = inventory.disks[1].table.as_mut().unwrap();
        table.partitions[0].signatures[0].label = label.to_owned();
        inventory
    };
    let of_machine = |machine: &str| {
        let mut inventory = foreign();
        let marker = InstallMarker { machine: machine.into(), allocation: "a-0".into(), ..marker(&inventory) };
        let device = "/dev/sda2".into();
        inventory.filesystems.push(inventory::FilesystemContents {
            device,
            marker: Some(marker),
            ..Default::default()
        });
        inventory
    };
    // The data matches, but a reinstall is refused until the suspended system was shut down.
    let mut suspended = foreign();
    suspended.disks[0].table.as_mut().unwrap().partitions[2].signatures[0].kind = "swsuspend".to_owned();
    let mut blank = foreign();
    blank.disks[1].signatures.clear();
    empty(&mut blank.disks[1], "B0");
    let mut all_kept = layout();
    all_kept.disks.iter_mut().for_each(|disk| disk.wipeonreinstall = false);
    let begun = InstallClaim { begun_on: marker(&foreign()).disks, ..claim() };
    let given_up = |serial: &str| InstallClaim { give_up: vec![serial.to_owned()], ..claim() };
    for (case, layout, inventory, claim, is_planned) in [
        ("no marker", layout(), foreign(), claim(), false),
        ("a hibernation image", layout(), suspended, claim(), false),
        ("the disks are wiped", layout(), blank, claim(), true),
        ("another label", layout(), with_data_label("other"), claim(), true),
        ("the same label", layout(), with_data_label("srv"), claim(), false),
        ("an earlier allocation of this machine", layout(), of_machine("m-1"), claim(), true),
        ("another machine", layout(), of_machine("m-9"), claim(), false),
        ("an attempt was started", layout(), foreign(), begun, true),
        ("the data disk is discarded", layout(), foreign(), given_up("B0"), true),
        ("only the system disk is discarded", layout(), foreign(), given_up("A0"), false),
        ("the layout does not support reinstalls", all_kept, foreign(), claim(), true),
    ] {
        let plan = install(&layout, &inventory, claim);
        assert_eq!(plan.is_ok(), is_planned, "{case}: {:?}", plan.err().map(|refusal| refusal.to_string()));
        if let Ok(plan) = plan {
            assert_ne!(plan.disks[1].verdict, DiskVerdict::Keep, "{case}");
        }
    }
}

/// An offline plan does not belong to a machine of a control plane, and shows the effect of the layout.
#[test]
fn offline_plans_are_not_refused() {
    assert!(make(&layout(), &foreign(), InstallMode::Install).is_ok());
}

/// A layout with `preserve` describes an existing machine. Data that does not match prevents both a reinstall and a
/// first installation.
#[test]
fn preserved_objects_are_never_erased_by_a_first_installation() {
    let layout = layout_of(MIRRORED);
    let mut inventory = installed_with(MIRRORED);
    let why = reasons(install(&layout, &inventory, claim()));
    assert!(why.len() == 1 && why[0].contains("would erase /dev/sda, /dev/sdb"), "{why:?}");
    // The mirror with the data lacks a member.
    let table = inventory.disks[1].table.as_mut().unwrap();
    table.partitions.retain(|partition| partition.number != 3);
    let why = reasons(install(&layout, &inventory, claim()));
    assert!(why.iter().any(|why| why.contains("A reinstall would also be refused at present")), "{why:?}");
}
