//! Tests of plans that are made from files.

use super::*;
use model::inventory::DeviceUse;

#[test]
fn reinstall_preview_ignores_mounts_of_running_system() {
    let mut running = read_inventory(&testdata("inventories/installed-default.json")).unwrap();
    let disk = running.disks.iter_mut().find(|disk| disk.table.is_some()).unwrap();
    let [efi, root, varlib, ..] = &mut disk.table.as_mut().unwrap().partitions[..] else { panic!("three partitions") };
    efi.uses.push(DeviceUse::Mounted("/boot/efi".to_owned()));
    root.uses.push(DeviceUse::Mounted("/".to_owned()));
    varlib.uses.extend([DeviceUse::Mounted("/var/lib".to_owned()), DeviceUse::Swap]);
    let dir = tempfile::tempdir().unwrap();
    let (path, layout) = (dir.path().join("running.json"), dir.path().join("layout.yaml"));
    std::fs::write(&path, serde_json::to_string(&running).unwrap()).unwrap();
    let text = std::fs::read_to_string(testdata("layouts/default.yaml")).unwrap();
    let outcome = |text: &str, reinstall, at_rest| {
        std::fs::write(&layout, text).unwrap();
        let (layout, inventory) = (Some(layout.clone()), Some(path.clone()));
        run_plan(&PlanArgs { layout, inventory, reinstall, at_rest, ..options() }).unwrap()
    };
    assert_eq!(outcome(&text, true, false), CommandOutcome::Good);
    // If a filesystem on a disk to be wiped is mounted, the plan is refused, unless `at_rest` assumes a reboot before
    // the wipe.
    assert_eq!(outcome(&text, false, false), CommandOutcome::Refused);
    assert_eq!(outcome(&text, false, true), CommandOutcome::Good);
    let disk = running.disks.iter_mut().find(|disk| disk.table.is_some()).unwrap();
    disk.uses.push(DeviceUse::Holder("dm-7".into()));
    std::fs::write(&path, serde_json::to_string(&running).unwrap()).unwrap();
    assert_eq!(outcome(&text, true, false), CommandOutcome::Refused);
    assert_eq!(outcome(&text, false, true), CommandOutcome::Refused);
}

fn options() -> PlanArgs {
    PlanArgs {
        layout: Some(testdata("layouts/default.yaml")),
        inventory: Some(testdata("inventories/installed-default.json")),
        json: true,
        ..PlanArgs::default()
    }
}

fn testdata(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata").join(name)
}

/// Runs `drophammer plan` with a modified inventory.
fn planned_with(change: impl Fn(&mut serde_json::Value), options: PlanArgs) -> CommandOutcome {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("changed.json");
    let mut inventory = serde_json::from_str(&read_text(options.inventory.as_ref().unwrap()).unwrap()).unwrap();
    change(&mut inventory);
    std::fs::write(&path, inventory.to_string()).unwrap();
    run_plan(&PlanArgs { inventory: Some(path), ..options }).unwrap()
}

#[test]
fn preview_without_marker_requires_the_option() {
    // The inventory lists the contents of the filesystem, and they do not include a marker.
    let looked = |inventory: &mut serde_json::Value| {
        inventory["filesystems"] = serde_json::json!([{"device": "/dev/sda2", "size_bytes": 1, "used_bytes": 1}]);
    };
    let reinstall = || PlanArgs { reinstall: true, ..options() };
    assert_eq!(planned_with(looked, reinstall()), CommandOutcome::Refused);
    assert_eq!(planned_with(looked, PlanArgs { without_marker: true, ..reinstall() }), CommandOutcome::Good);
}

#[test]
fn the_detailed_exit_code_distinguishes_lost_data() {
    let blank = |inventory: &mut serde_json::Value| {
        let disk = inventory["disks"][0].as_object_mut().unwrap();
        ["table", "signatures", "uses"].iter().for_each(|field| drop(disk.remove(*field)));
        disk.insert("blank".to_owned(), true.into());
    };
    let detailed = || PlanArgs { detailed_exitcode: true, at_rest: true, ..options() };
    assert_eq!(planned_with(|_| {}, detailed()), CommandOutcome::Erases);
    assert_eq!(planned_with(blank, detailed()), CommandOutcome::Changes);
    assert_eq!(planned_with(blank, PlanArgs { detailed_exitcode: false, ..detailed() }), CommandOutcome::Good);
    let sectors = |inventory: &mut serde_json::Value| inventory["disks"][0]["sector_bytes"] = 0.into();
    assert_eq!(planned_with(sectors, detailed()), CommandOutcome::Refused);
}

/// Each input of a plan is invalid in turn. All problems have a code, as text and as JSON.
#[test]
fn all_problems_of_the_inputs_have_codes() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.yaml");
    for (text, code) in [("id: [a\n", "DH-200"), ("id: a\ndisks: 5\nraid: 6\n", "DH-200"), ("", "DH-200")] {
        std::fs::write(&bad, text).unwrap();
        assert_coded(|| PlanArgs { layout: Some(bad.clone()), ..options() }, code);
    }
    std::fs::write(&bad, "id: x\nallocation: 5\n").unwrap();
    assert_coded(|| PlanArgs { allocation: Some(bad.clone()), ..options() }, "DH-235");
    std::fs::write(&bad, "name: CUSTOM_A\nsteps: 5\n").unwrap();
    assert_coded(|| PlanArgs { template: vec![bad.clone()], ..options() }, "DH-705");
}

fn assert_coded(options: impl Fn() -> PlanArgs, code: &str) {
    let (text, outcome) = plan_output(&PlanArgs { json: false, ..options() }).unwrap();
    assert!(outcome == CommandOutcome::Refused && !text.is_empty());
    assert!(text.lines().all(|line| line.ends_with(&format!("({code})"))), "{text}");
    let (text, _) = plan_output(&PlanArgs { json: true, ..options() }).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let problems = json["problems"].as_array().unwrap();
    assert!(!problems.is_empty() && problems.iter().all(|problem| problem["code"] == code), "{text}");
}

#[test]
fn a_plan_begins_with_its_summary() {
    let text = plan_output(&PlanArgs { json: false, at_rest: true, ..options() }).unwrap().0;
    let summary = text.lines().next().unwrap();
    assert!(summary.contains("of data is lost") && text.matches(summary).count() == 2, "{text}");
}

#[test]
fn impossible_inventory_is_refused() {
    let sectors = |inventory: &mut serde_json::Value| inventory["disks"][0]["sector_bytes"] = 0.into();
    assert_eq!(planned_with(|_| {}, options()), CommandOutcome::Good);
    assert_eq!(planned_with(sectors, options()), CommandOutcome::Refused);
}
