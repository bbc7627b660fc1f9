//! Comparison of a disk with its record, for every combination of known properties.

use super::installation_identity::{claim, marked, marker, reinstall};
use super::*;
use model::install_marker::RecordedDisk;

/// Known identifiers of a record or disk: serial number, WWN, GUID of the GPT.
const KNOWN: [&str; 8] = ["---", "s--", "-w-", "--g", "sw-", "s-g", "-wg", "swg"];

/// Results by recorded identifiers (rows) and current identifiers (columns), in the order of `KNOWN`. `=`: accepted.
/// `?`: refused, because no identifier is known for both. `x`: refused, because the identifiers contradict each other.
const SAME_VALUES: [&str; 8] = [
    "? ? ? ? ? ? ? ?",
    "? = ? ? = = ? =",
    "? ? = ? = ? = =",
    "? ? ? = ? = = =",
    "? = = ? = = = =",
    "? = ? = = = = =",
    "? ? = = = = = =",
    "? = = = = = = =",
];
const OTHER_VALUES: [&str; 8] = [
    "? ? ? ? ? ? ? ?",
    "? x ? ? x x ? x",
    "? ? x ? x ? x x",
    "? ? ? x ? x x x",
    "? x x ? x x x x",
    "? x ? x x x x x",
    "? ? x x x x x x",
    "? x x x x x x x",
];

/// Layout with scratch space on sdc, which is wiped and does not contain the marker. A disk without a table has no
/// known GUID.
fn layout_with_scratch() -> Layout {
    let mut layout = layout();
    layout.disks.push(DiskSpec {
        device: "/dev/sdc".into(),
        wipeonreinstall: true,
        partitions: vec![],
        ..layout.disks[1].clone()
    });
    layout.filesystems.push(filesystem("/scratch", "/dev/sdc", FilesystemFormat::Xfs, "scratch"));
    layout
}

/// Returns a machine whose scratch disk has these recorded and current identifiers. If `values` is 0, the current
/// identifiers equal the recorded ones.
fn machine_with(recorded: &str, found: &str, values: u128) -> Inventory {
    let mut inventory = marked();
    let guid = |values: u128| Uuid::from_u128(900 + values);
    let disk = &mut inventory.disks[2];
    let value = |known: &str, what: char, values: u128| {
        if known.contains(what) { format!("{what}{values}") } else { String::new() }
    };
    (disk.serial, disk.wwn) = (value(found, 's', values), value(found, 'w', values));
    disk.signatures = vec![DeviceSignature {
        kind: "xfs".into(),
        usage: "filesystem".into(),
        uuid: "theirs".into(),
        label: "photos".into(),
    }];
    if found.contains('g') {
        disk.signatures.clear();
        disk.table = Some(DiskTable { kind: "gpt".into(), guid: Some(guid(values)), partitions: vec![] });
    }
    let mut marker = marker(&inventory);
    marker.disks[2] = RecordedDisk {
        device: "/dev/sdc".to_owned(),
        serial: value(recorded, 's', 0),
        wwn: value(recorded, 'w', 0),
        guid: recorded.contains('g').then(|| guid(0).to_string()),
        size_bytes: inventory.disks[2].size_bytes,
        ..RecordedDisk::default()
    };
    inventory.filesystems[0].marker = Some(marker);
    inventory
}

fn answer(inventory: &Inventory) -> &'static str {
    match reinstall(&layout_with_scratch(), inventory, claim()) {
        Ok(plan) => {
            assert_eq!((plan.disks[2].verdict, plan.warnings.len()), (DiskVerdict::Wipe, 0), "{plan}");
            "="
        }
        Err(refusal) => {
            let reasons: Vec<String> = refusal.problems.iter().map(ToString::to_string).collect();
            assert_eq!(reasons.len(), 1, "{reasons:?}");
            assert!(reasons[0].starts_with("disks[2].device: /dev/sdc"), "{reasons:?}");
            assert!(
                reasons[0].contains("(recorded: serial ") && reasons[0].contains("; found: serial "),
                "{reasons:?}"
            );
            if reasons[0].contains("no identifier is known for both") { "?" } else { "x" }
        }
    }
}

/// `cargo test --lib every_combination -- --nocapture` prints the table.
#[test]
fn every_combination_of_recorded_and_found_identifiers_is_decided() {
    for (title, values, expected) in
        [("the values of the recorded disk", 0, SAME_VALUES), ("other values", 1, OTHER_VALUES)]
    {
        println!("{title}\nrecorded | found: {}", KNOWN.join(" "));
        for (recorded, expected) in KNOWN.iter().zip(expected) {
            let row: Vec<&str> = KNOWN.iter().map(|found| answer(&machine_with(recorded, found, values))).collect();
            println!("{recorded}      |          {}", row.join("   "));
            assert_eq!(row.join(" "), expected, "{title}: {recorded}");
        }
    }
}

#[test]
fn blank_disk_is_wiped_whatever_its_identifiers_are() {
    for recorded in KNOWN {
        for found in KNOWN.iter().filter(|found| !found.contains('g')) {
            let mut inventory = machine_with(recorded, found, 1);
            inventory.disks[2].signatures.clear();
            inventory.disks[2].blank = true;
            let plan = reinstall(&layout_with_scratch(), &inventory, claim()).unwrap();
            assert_eq!(plan.disks[2].verdict, DiskVerdict::Wipe);
        }
    }
}

#[test]
fn wipes_data_that_the_operator_discards() {
    let inventory = machine_with("swg", "swg", 1);
    let plan =
        reinstall(&layout_with_scratch(), &inventory, InstallClaim { give_up: vec!["s1".to_owned()], ..claim() })
            .unwrap();
    assert!(plan.to_string().contains("; its data will be discarded, as requested by the operator\n"), "{plan}");
    let other = InstallClaim { give_up: vec!["s0".to_owned(), String::new()], ..claim() };
    assert!(reinstall(&layout_with_scratch(), &inventory, other.clone()).is_err());
    // A disk without a serial number does not have an identifier with which the operator could discard it.
    assert!(reinstall(&layout_with_scratch(), &machine_with("swg", "-wg", 1), other).is_err());
}

type Case = (&'static str, fn(&mut Inventory), bool);

/// Size, sector size and model are also compared; the slot is not.
#[test]
fn compares_size_sector_size_and_model_but_not_slot() {
    let cases: [Case; 10] = [
        ("as recorded", |_| {}, true),
        ("another size", |inventory| inventory.disks[2].size_bytes += 512, false),
        ("another sector size", |inventory| inventory.disks[2].sector_bytes = 4096, false),
        ("another model", |inventory| inventory.disks[2].model = "WDC WD80".to_owned(), false),
        ("a longer model name", |inventory| inventory.disks[2].model += "-1V21", true),
        ("no model name", |inventory| inventory.disks[2].model.clear(), true),
        ("another slot", |inventory| inventory.disks[2].by_path = "/dev/disk/by-path/z".to_owned(), true),
        ("another WWN behind the same serial number", |inventory| inventory.disks[2].wwn = "w9".to_owned(), false),
        (
            "another table",
            |inventory| inventory.disks[2].table.as_mut().unwrap().guid = Some(Uuid::from_u128(7)),
            false,
        ),
        (
            "a serial number and a WWN that another disk has as well",
            |inventory| {
                inventory.disks[2].table = None;
                inventory.disks[2]
                    .signatures
                    .push(DeviceSignature { kind: "xfs".into(), ..DeviceSignature::default() });
                let (serial, wwn) = (inventory.disks[2].serial.clone(), inventory.disks[2].wwn.clone());
                inventory.disks.push(inventory::InventoryDisk { serial, wwn, ..disk("sdz", 77) });
            },
            false,
        ),
    ];
    for (name, change, goes_on) in cases {
        let mut inventory = machine_with("swg", "swg", 0);
        inventory.disks[2].model = "ST8000NM000A".to_owned();
        let recorded = &mut inventory.filesystems[0].marker.as_mut().unwrap().disks[2];
        (recorded.model, recorded.by_path) = ("ST8000NM000A".to_owned(), "/dev/disk/by-path/a".to_owned());
        recorded.sector_bytes = 512;
        change(&mut inventory);
        let plan = reinstall(&layout_with_scratch(), &inventory, claim());
        assert_eq!(plan.is_ok(), goes_on, "{name}: {plan:?}");
    }
}
