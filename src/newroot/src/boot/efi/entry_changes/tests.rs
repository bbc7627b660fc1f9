//! Tables of cases, and properties that hold for all firmware.

use super::super::tests::esp;
use super::*;
use linux::efi::load_option::testing::{PCI, mac_node, option};
use proptest::prelude::*;

const DISK: &[u8] = &[3, 18, 10, 0, 0, 0, 0xff, 0xff, 0, 0];
const IPV6: &[u8] = &[3, 13, 5, 0, 0];
const HTTP: &[u8] = &[3, 24, 4, 0];

fn ours(disk: u128) -> LoadOption {
    LoadOption::for_file("drophammer: web-1", &esp("/dev/sda1", disk), r"\EFI\debian\shimx64.efi", "").unwrap()
}

fn foreign() -> LoadOption {
    LoadOption::for_file("debian", &esp("/dev/sda1", 99), r"\EFI\debian\shimx64.efi", "").unwrap()
}

fn pxe(mac: u8) -> LoadOption {
    option(1, "UEFI PXEv4", &[PCI, &mac_node([2, 0, 0, 0, 0, mac])])
}

fn with(entries: &[(u16, LoadOption)], order: &[u16]) -> BootVariables {
    let entries = entries.iter().map(|(number, option)| (*number, option.to_bytes())).collect();
    BootVariables { entries, order: order.to_vec(), ..BootVariables::default() }
}

/// Returns the variables of the firmware after these changes.
fn after(before: &BootVariables, changes: &BootEntryChanges) -> BootVariables {
    let mut after = before.clone();
    after.entries.retain(|number, _| !changes.remove.contains(number));
    after.entries.extend(changes.write.iter().cloned());
    after.order = changes.order.clone().unwrap_or(after.order);
    after
}

fn order_of(before: &BootVariables, wanted: &[LoadOption], order: BootOrder) -> Vec<u16> {
    after(before, &decide_changes(before, wanted, order, &[])).order
}

#[test]
fn disk_entries_of_a_new_machine_follow_the_network() {
    let before = with(&[(0, option(1, "UiApp", &[])), (1, option(1, "DISK", &[DISK])), (3, pxe(1))], &[0, 3, 1]);
    let changes = decide_changes(&before, &[ours(1), ours(2)], BootOrder::Pxe, &[]);
    let expected = BootEntryChanges {
        remove: vec![],
        write: vec![(2, ours(1).to_bytes()), (4, ours(2).to_bytes())],
        order: Some(vec![3, 2, 4, 0, 1]),
        ours: vec![2, 4],
        network: Some(3),
    };
    assert_eq!(changes, expected);
    let again = decide_changes(&after(&before, &changes), &[ours(1), ours(2)], BootOrder::Pxe, &[]);
    assert!(again.is_empty(), "{again:?}");
    assert_eq!(order_of(&before, &[ours(1), ours(2)], BootOrder::Disk), [2, 4, 0, 3, 1]);
    assert_eq!(order_of(&before, &[ours(1), ours(2)], BootOrder::Keep), [0, 3, 1, 2, 4]);
}

#[test]
fn entries_of_former_installations_are_removed_and_others_kept() {
    let entries = [(0, ours(8)), (1, foreign()), (2, ours(1)), (5, ours(9)), (7, pxe(1)), (9, ours(7))];
    let before = with(&entries, &[0, 1, 9, 7, 5, 2, 0x33]);
    let changes = decide_changes(&before, &[ours(1), ours(2)], BootOrder::Pxe, &[]);
    // Entry 2 already has the right value. Entry 0 is overwritten.
    assert_eq!((&changes.remove, &changes.write), (&vec![5, 9], &vec![(0, ours(2).to_bytes())]));
    assert_eq!(changes.order, Some(vec![7, 2, 0, 1, 0x33]));
    // With `Keep`, entries of this installation keep their positions in the order.
    assert_eq!(order_of(&before, &[ours(1), ours(2)], BootOrder::Keep), [0, 1, 7, 2, 0x33]);
    assert_eq!(order_of(&before, &[ours(1)], BootOrder::Keep), [1, 7, 2, 0x33]);
    assert_eq!(order_of(&before, &[], BootOrder::Keep), [1, 7, 0x33]);
    let five: Vec<LoadOption> = (20..25).map(ours).collect();
    assert_eq!(order_of(&before, &five, BootOrder::Keep), [0, 1, 9, 7, 5, 2, 3, 0x33]);
}

#[test]
fn entries_of_preserved_systems_are_neither_removed_nor_moved() {
    let entries = [(0, ours(8)), (1, foreign()), (2, ours(1)), (5, ours(9)), (7, pxe(1))];
    let before = with(&entries, &[0, 1, 7, 5, 2]);
    let preserved = [8, 9].map(Uuid::from_u128);
    for (order, expected) in
        [(BootOrder::Pxe, [7, 2, 0, 1, 5]), (BootOrder::Disk, [2, 0, 1, 7, 5]), (BootOrder::Keep, [0, 1, 7, 5, 2])]
    {
        let mut before = before.clone();
        let changes = decide_changes(&before, &[ours(3)], order, &preserved);
        assert_eq!((&changes.remove, &changes.write), (&vec![], &vec![(2, ours(3).to_bytes())]), "{order:?}");
        assert_eq!(after(&before, &changes).order, expected, "{order:?}");
        // A number that a preserved system uses is not free.
        before.entries.remove(&2);
        assert_eq!(decide_changes(&before, &[ours(3)], order, &preserved).ours, [3]);
    }
    // Without this information, the entries are those of former installations.
    assert_eq!(decide_changes(&before, &[ours(3)], BootOrder::Disk, &[]).remove, [2, 5]);
}

#[test]
fn referenced_number_is_not_free() {
    let mut before = with(&[(0, foreign())], &[1, 0]);
    before.next = Some(2);
    before.entries.insert(3, vec![]);
    assert_eq!(decide_changes(&before, &[ours(1)], BootOrder::Disk, &[]).ours, [4]);
    let all = (0..=u16::MAX).map(|number| (number, vec![])).collect();
    let changes =
        decide_changes(&BootVariables { entries: all, ..BootVariables::default() }, &[ours(1)], BootOrder::Pxe, &[]);
    assert!(changes.is_empty(), "{changes:?}");
}

#[test]
fn booted_network_entry_comes_first() {
    let entries = [(0, pxe(1)), (1, pxe(2)), (2, ours(1)), (3, option(1, "disk", &[DISK])), (4, ours(5))];
    let with_current = |current, order: &[u16]| BootVariables { current, ..with(&entries, order) };
    for (what, current, order, first) in [
        ("the second NIC", Some(1), &[0, 1, 3][..], Some(1)),
        ("a NIC outside of the order", Some(1), &[3], Some(1)),
        ("a disk, then the first NIC of the order", Some(3), &[1, 0, 3], Some(1)),
        ("an earlier entry of drophammer", Some(4), &[1, 4, 0], Some(1)),
        ("a missing entry", Some(9), &[3, 1, 0], Some(1)),
        ("no NIC in the order", None, &[3], None),
    ] {
        let changes = decide_changes(&with_current(current, order), &[ours(1)], BootOrder::Pxe, &[]);
        assert_eq!(changes.network, first, "{what}");
    }
    let mac_node = mac_node([2, 0, 0, 0, 0, 1]);
    let kinds: [(u16, &[&[u8]]); 3] = [(1, &[&mac_node, HTTP]), (2, &[&mac_node, IPV6]), (3, &[&mac_node])];
    let entries: Vec<(u16, LoadOption)> =
        kinds.iter().map(|(number, nodes)| (*number, option(1, "n", nodes))).collect();
    let disk = [&entries[..], &[(0, option(1, "disk", &[DISK]))]].concat();
    assert_eq!(decide_changes(&with(&disk, &[0, 1, 2, 3]), &[], BootOrder::Pxe, &[]).network, Some(3));
    assert_eq!(decide_changes(&with(&disk, &[0, 1, 2]), &[], BootOrder::Pxe, &[]).network, Some(2));
    assert_eq!(decide_changes(&with(&disk, &[1, 2, 3]), &[], BootOrder::Pxe, &[]).network, Some(1));
}

#[test]
fn network_entries_are_recognized_in_all_forms() {
    let vendor: &[u8] = &[&[3u8, 10, 20, 0][..], &[0; 16]].concat();
    let bios: &[u8] = &[5, 1, 9, 0, 0x80, 0, 0, 0, 0];
    let bios_disk: &[u8] = &[5, 1, 9, 0, 2, 0, 0, 0, 0];
    let file: &[u8] = &[4, 4, 8, 0, b'a', 0, 0, 0];
    for (is, option) in [
        (true, pxe(1)),
        (true, option(1, "PCI LAN", &[vendor])),
        (true, option(1, "Slot 4 PXEv4", &[])),
        (true, option(1, "x", &[bios])),
        (false, option(0, "off", &[&mac_node([0; 6])])),
        (false, option(1, "x", &[bios_disk])),
        (false, option(1, "Atlantic plan", &[vendor])),
        (false, option(1, "network boot program", &[file])),
        (false, foreign()),
    ] {
        assert_eq!(is_network(&option.to_bytes()), is, "{option:?}");
    }
    assert!(!is_network(&[1, 0, 0, 0, 200, 0, 0, 0]));
}

#[test]
fn own_labels_have_a_common_prefix() {
    assert_eq!(add_label_prefix("web-1"), "drophammer: web-1");
    assert_eq!(add_label_prefix("drophammer: web-1"), "drophammer: web-1");
    assert!(is_former(&ours(1).to_bytes(), &[]) && !is_former(&foreign().to_bytes(), &[]));
    let close = option(1, "drophammers", &[]);
    assert!(!is_former(&close.to_bytes(), &[]) && !is_former(&ours(1).to_bytes()[..40], &[]));
}

fn any_entry() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (1u128..6).prop_map(|disk| ours(disk).to_bytes()),
        (0u8..3).prop_map(|mac| pxe(mac).to_bytes()),
        Just(foreign().to_bytes()),
        Just(option(1, "disk", &[DISK]).to_bytes()),
        proptest::collection::vec(any::<u8>(), 0..40),
        (any::<proptest::sample::Index>(), any::<u8>()).prop_map(|(place, byte)| {
            let mut value = ours(1).to_bytes();
            *place.get_mut(&mut value) = byte;
            value
        }),
    ]
}

prop_compose! {
    fn any_firmware()(
        entries in proptest::collection::btree_map(0u16..12, any_entry(), 0..9),
        order in proptest::collection::vec(0u16..14, 0..12),
        current in proptest::option::of(0u16..12),
        next in proptest::option::of(0u16..12),
    ) -> BootVariables {
        BootVariables { entries, order, current, next, ..BootVariables::default() }
    }
}

fn any_order() -> impl Strategy<Value = BootOrder> {
    prop_oneof![Just(BootOrder::Pxe), Just(BootOrder::Disk), Just(BootOrder::Keep)]
}

proptest! {
    #[test]
    fn foreign_entries_are_kept_and_changes_are_idempotent(
        before in any_firmware(),
        disks in proptest::collection::vec(1u128..9, 0..5),
        order in any_order(),
    ) {
        let twice: Vec<LoadOption> = disks.iter().chain(&disks).copied().map(ours).collect();
        let mut seen = BTreeSet::new();
        let wanted: Vec<LoadOption> = disks.iter().copied().filter(|disk| seen.insert(*disk)).map(ours).collect();
        let changes = decide_changes(&before, &twice, order, &[]);
        let after = after(&before, &changes);
        let is_foreign = |variables: &BootVariables, number: &u16| !variables.entries.get(number).is_some_and(|is| is_former(is, &[]));
        let foreign = |variables: &BootVariables| -> Vec<(u16, Vec<u8>)> {
            let entries = variables.entries.clone().into_iter();
            entries.filter(|(number, _)| is_foreign(variables, number)).collect()
        };
        prop_assert_eq!(foreign(&before), foreign(&after));
        // The order contains all other entries. A network entry may have moved to the front.
        let others = |variables: &BootVariables| -> Vec<u16> {
            let order = variables.order.iter().copied();
            order.filter(|number| is_foreign(variables, number) && Some(*number) != changes.network).collect()
        };
        prop_assert_eq!(others(&before), others(&after));
        prop_assert!(changes.network.is_none_or(|number| after.order.first() == Some(&number)));
        // The entries of drophammer are exactly the requested ones, and all of them are in the order.
        let own = after.entries.iter().filter(|(_, value)| is_former(value, &[])).count();
        prop_assert_eq!((own, changes.ours.len()), (wanted.len(), wanted.len()));
        for (number, option) in changes.ours.iter().zip(&wanted) {
            prop_assert_eq!(&after.entries[number], &option.to_bytes());
            prop_assert!(after.order.contains(number));
        }
        prop_assert!(changes.remove.iter().all(|number| !after.order.contains(number)));
        prop_assert!(decide_changes(&after, &wanted, order, &[]).is_empty(), "{:?}", decide_changes(&after, &wanted, order, &[]));
    }
}
