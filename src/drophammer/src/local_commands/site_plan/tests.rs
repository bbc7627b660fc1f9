//! Tests of the rows and the summary in both formats, text and JSON.

use super::*;
use crate::local_commands::plan::read_inventory;
use api::plan_input::RegisteredInventory;
use api::rack_plan::{MachineForecast, PredictedMachine};
use model::allocation::{AllocatedImage, Allocation, AssignedMachine, OrderedReinstall};
use model::install_marker::InstallMarker;
use plan::DiskVerdict;
use testing::docs::code_blocks;

fn seen(name: &str, outlook: MachineForecast, registered: Option<RegisteredInventory>) -> PredictedMachine {
    let id = "4c4c4544-0051-3010-8031-b2c04f333633".to_owned();
    let (name, size) = (name.to_owned(), Some("c1".to_owned()));
    PredictedMachine { id, name, size, outlook, registered, installed: String::new(), seconds: Some(245.0) }
}

fn disk(name: &str) -> model::inventory::InventoryDisk {
    model::inventory::InventoryDisk {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        size_bytes: 20_971_520_000,
        sector_bytes: 512,
        serial: format!("S-{name}"),
        ..Default::default()
    }
}

fn inventory(disks: &[&str]) -> Inventory {
    Inventory { disks: disks.iter().map(|name| disk(name)).collect(), ..Inventory::default() }
}

fn layout() -> serde_json::Value {
    let part =
        |number, label: &str| serde_json::json!({"number": number, "label": label, "size": 0, "gpttype": "8300"});
    serde_json::json!({"id": "storage", "constraints": {"sizes": [], "images": {}},
        "disks": [{"device": "/dev/sda", "wipeonreinstall": true, "partitions": [part(1, "root")]},
            {"device": "/dev/sdb", "wipeonreinstall": false, "partitions": [part(1, "srv")]}],
        "filesystems": [{"path": "/", "device": "/dev/sda1", "format": "ext4", "label": "root"},
            {"path": "/srv", "device": "/dev/sdb1", "format": "ext4", "label": "srv"}]})
}

/// Returns the forecast of a machine. If `ordered` is true, the machine is installed and a reinstall is ordered.
fn forecast(ordered: bool) -> MachineForecast {
    let image =
        AllocatedImage { id: "debian-13".to_owned(), url: "http://server/i".to_owned(), ..AllocatedImage::default() };
    let allocation = Allocation {
        id: "a1".to_owned(),
        hostname: "h".to_owned(),
        image,
        filesystemlayout: layout(),
        reinstall: ordered,
        succeeded: ordered,
        installed: ordered.then(|| InstallMarker { allocation: "a1".to_owned(), ..InstallMarker::default() }),
        order: ordered.then(|| OrderedReinstall {
            id: "o1".to_owned(),
            attempt: 1,
            attempts: 3,
            ..OrderedReinstall::default()
        }),
        ..Allocation::default()
    };
    let id = "4c4c4544-0051-3010-8031-b2c04f333633".to_owned();
    MachineForecast::Assigned(Box::new(AssignedMachine {
        id,
        allocation: Some(allocation),
        ..AssignedMachine::default()
    }))
}

fn registered(inventory: Inventory, outdated: bool) -> Option<RegisteredInventory> {
    Some(RegisteredInventory { inventory, time: "2026-11-22T10:11:12Z".to_owned(), seconds_ago: 60, outdated })
}

fn row(name: &str, outlook: MachineForecast, registered: Option<RegisteredInventory>) -> RackRow {
    plan_machine_row(seen(name, outlook, registered), None).0
}

#[test]
fn outcome_follows_from_forecast_and_inventory() {
    let both = || inventory(&["sda", "sdb"]);
    let mut blank = both();
    blank.disks.iter_mut().for_each(|disk| disk.blank = true);
    let cases = [
        (MachineForecast::NoAction("why".to_owned()), None, RackOutcome::Nothing, 0),
        (MachineForecast::Refused("one\ntwo".to_owned()), None, RackOutcome::Refused, 0),
        (MachineForecast::Unknown("why".to_owned()), None, RackOutcome::Unknown, 0),
        (forecast(false), None, RackOutcome::Unknown, 0),
        (forecast(false), registered(both(), false), RackOutcome::Erases, 2),
        (forecast(false), registered(blank, false), RackOutcome::Installs, 0),
        (forecast(false), registered(inventory(&["sda"]), false), RackOutcome::Refused, 0),
        // The disk to preserve has no partitions, so the machine itself would also refuse the plan.
        (forecast(true), registered(both(), false), RackOutcome::Refused, 0),
        (forecast(true), registered(both(), true), RackOutcome::Erases, 1),
        (forecast(true), registered(inventory(&["sda"]), true), RackOutcome::Refused, 0),
        (forecast(false), registered(both(), true), RackOutcome::Erases, 2),
    ];
    for (index, (outlook, registered, outcome, lost)) in cases.into_iter().enumerate() {
        let is_foreseen = registered.as_ref().is_some_and(|registered| registered.outdated);
        let row = row("one", outlook, registered);
        let planned = matches!(row.outcome, RackOutcome::Installs | RackOutcome::Erases);
        assert_eq!((row.outcome, row.lost_bytes), (outcome, lost * 20_971_520_000), "{index}: {row:?}");
        assert_eq!((row.sha256.is_some(), row.minutes.is_some()), (planned, planned), "{index}");
        assert_eq!(row.foreseen, planned && is_foreseen, "{index}");
        assert_eq!(row.reasons.is_empty(), planned && !is_foreseen, "{index}: {row:?}");
    }
    let row = row("one", forecast(true), registered(both(), true));
    let disks: Vec<_> =
        row.disks.iter().map(|disk| (disk.serial.as_str(), disk.device.as_str(), disk.verdict)).collect();
    assert_eq!(disks, [("S-sda", "/dev/sda", DiskVerdict::Wipe), ("S-sdb", "/dev/sdb", DiskVerdict::Keep)]);
    assert!(row.reasons[0].contains("can be checked only on the machine"), "{row:?}");
    // The inventory from a file replaces the registered inventory.
    let fresh = plan_machine_row(seen("one", forecast(false), None), Some(both())).0;
    assert_eq!((fresh.outcome, fresh.inventory), (RackOutcome::Erases, None));
}

#[test]
fn reasons_of_refused_plans_contain_the_codes_of_the_agent() {
    for registered in [registered(inventory(&["sda"]), false), registered(inventory(&["sda"]), true)] {
        let row = row("one", forecast(false), registered);
        assert!(row.outcome == RackOutcome::Refused && row.reasons[0].ends_with("(DH-210)"), "{row:?}");
    }
}

/// The agent assembles arrays before it reads the inventory of a plan, but not before it registers.
#[test]
fn inactive_arrays_cause_a_forecast_instead_of_refusal() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata");
    let inventory = read_inventory(&path.join("inventories/raid-lvm.json")).unwrap();
    let text = std::fs::read_to_string(path.join("layouts/storage.yaml")).unwrap();
    let layout = model::layout::read_yaml(&text).unwrap().layout;
    let MachineForecast::Assigned(mut machine) = forecast(true) else { panic!() };
    machine.allocation.as_mut().unwrap().filesystemlayout = serde_json::to_value(layout).unwrap();
    let mut at_rest = inventory;
    at_rest.stacked.clear();
    at_rest.filesystems.clear();
    at_rest.arrays.iter_mut().for_each(|array| array.running = None);
    at_rest.groups.iter_mut().flat_map(|group| &mut group.volumes).for_each(|volume| volume.running = None);
    let row = row("one", MachineForecast::Assigned(machine), registered(at_rest, false));
    assert!(row.foreseen && row.outcome == RackOutcome::Erases, "{row:?}");
    assert!(row.reasons[0].contains("were not active when it registered"), "{row:?}");
}

#[test]
fn exit_code_distinguishes_refusals_and_lost_data() {
    let one = |outcome| RackRow { outcome, ..row("one", MachineForecast::NoAction("why".to_owned()), None) };
    for (outcomes, problems, expected) in [
        (vec![], 0, CommandOutcome::Good),
        (vec![RackOutcome::Nothing, RackOutcome::Installs], 0, CommandOutcome::Good),
        (vec![RackOutcome::Nothing, RackOutcome::Erases], 0, CommandOutcome::Erases),
        (vec![RackOutcome::Erases, RackOutcome::Refused], 0, CommandOutcome::Refused),
        (vec![RackOutcome::Unknown], 0, CommandOutcome::Refused),
        (vec![RackOutcome::Installs], 1, CommandOutcome::Refused),
        (vec![RackOutcome::Erases], 1, CommandOutcome::Refused),
    ] {
        let rows: Vec<RackRow> = outcomes.iter().map(|outcome| one(*outcome)).collect();
        let problems = vec!["a file is wrong".to_owned(); problems];
        assert_eq!(exit_code(&RackSummary::from_rows(&rows), &problems), expected, "{outcomes:?}");
    }
}

#[test]
fn table_in_the_docs_matches_the_printed_table() {
    let runs = MachineForecast::NoAction("installed with debian-12; no reinstall is ordered".to_owned());
    let rows = [
        RackRow {
            foreseen: false,
            reasons: vec![],
            ..row("storage-7", forecast(true), registered(inventory(&["sda", "sdb"]), true))
        },
        row("storage-8", forecast(true), registered(inventory(&["sda"]), true)),
        row("compute-1", runs, None),
    ];
    let said = table::format_table(&rows, &RackSummary::from_rows(&rows));
    let shown = &code_blocks(include_str!("../../../../../docs/rack.md"), "text")[0];
    assert_eq!(said.trim_end(), shown, "{said}");
}

#[test]
fn summary_mentions_unknown_durations() {
    let erases =
        |minutes| RackRow { minutes, ..row("one", forecast(false), registered(inventory(&["sda", "sdb"]), false)) };
    let said = |rows: &[RackRow]| {
        let text = table::format_table(rows, &RackSummary::from_rows(rows));
        text.lines().take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        said(&[erases(None)]),
        "Plan: 1 installation.\n1 machine loses data: 41.9 GB on 2 disks. The duration of the installations is unknown."
    );
    assert_eq!(
        said(&[erases(None), RackRow { approved: true, ..erases(Some(7)) }]),
        "Plan: 2 installations.\n2 machines lose data: 83.9 GB on 4 disks. Estimated duration: at most 7 minutes for each machine; unknown for 1 machine. 1 plan is approved."
    );
    let refused = row("one", MachineForecast::Refused("locked".to_owned()), None);
    assert_eq!(said(&[refused]), "Plan: 1 refused.");
    assert_eq!(said(&[]), "Plan: no machines.");
}

#[test]
fn rack_table_contains_no_terminal_control_characters() {
    let mut inventory = inventory(&["sda", "sdb"]);
    inventory.disks[0].serial = "S\u{1b}[2J\nS".to_owned();
    let rows = [row("one\u{202e}", forecast(false), registered(inventory, false))];
    let said = table::format_table(&rows, &RackSummary::from_rows(&rows));
    assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said:?}");
}
