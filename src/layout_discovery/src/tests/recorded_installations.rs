use crate::reinstall_assessment::plan_reinstall;
use crate::{assess_reinstall, discover_layout, format_layout};
use model::inventory::{ArrayMember, Inventory, MemberRole};
use model::layout::{canonical_yaml, read_yaml};
use plan::{InstallClaim, MarkerWaiver};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Contents of a machine according to the documentation of its installer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedContents {
    /// Contents that a reinstall renews.
    system: Vec<String>,
    /// Contents that a reinstall must preserve.
    data: Vec<String>,
    /// Texts that must occur in notes that do not prevent a reinstall.
    #[serde(default)]
    reported: Vec<String>,
    /// Texts that must occur in the obstacles. Empty if a reinstall preserves all data.
    #[serde(default)]
    refused: Vec<String>,
}

pub(super) fn folders() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/foreign-installations"));
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

pub(super) fn folder(name: &str) -> PathBuf {
    let found = folders().into_iter().find(|folder| folder.ends_with(name));
    found.unwrap_or_else(|| panic!("no machine {name}"))
}

pub(super) fn read(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the differences between the discovered and the expected contents.
fn find_differences(folder: &Path) -> Vec<String> {
    let inventory: Inventory = serde_json::from_str(&read(folder, "inventory.json")).unwrap();
    assert_eq!(inventory.find_impossible_property(), None, "{}", folder.display());
    let fstab = fs::read_to_string(folder.join("fstab")).ok();
    let text = read(folder, "expected.yaml");
    let expected: ExpectedContents = marked_yaml::from_yaml(0, &text).unwrap();
    let found = discover_layout(&inventory, fstab.as_deref(), "found");
    let assessment = assess_reinstall(&found, &inventory);
    let mut differences = Vec::new();
    for (name, expected, found) in [("system", &expected.system, &found.system), ("data", &expected.data, &found.data)]
    {
        let sort = |items: &[String]| {
            let mut items = items.to_vec();
            items.sort();
            items
        };
        if sort(expected) != sort(found) {
            differences.push(format!("{name}: expected {expected:#?}, found {found:#?}"));
        }
    }
    let reports: Vec<&str> =
        found.notes.iter().filter(|note| !note.is_obstacle).map(|note| note.text.as_str()).collect();
    for text in expected.reported.iter().filter(|text| !reports.iter().any(|note| note.contains(text.as_str()))) {
        differences.push(format!("not reported: {text}; reported: {reports:#?}"));
    }
    let obstacles = &assessment.obstacles;
    for text in expected.refused.iter().filter(|text| !obstacles.iter().any(|note| note.contains(text.as_str()))) {
        differences.push(format!("not refused: {text}; obstacles: {obstacles:#?}"));
    }
    if expected.refused.is_empty() != obstacles.is_empty() {
        differences.push(format!("expected obstacles: {:?}, found: {obstacles:#?}", expected.refused));
    }
    differences.extend(find_output_errors(&format_layout(&found, &assessment), &canonical_yaml(&found.layout)));
    println!(
        "| {} | {} | {} | {assessment} |",
        folder.file_name().unwrap().display(),
        found.system.join(", "),
        found.data.join(", ")
    );
    differences
}

/// Returns an error if the comments change the layout that the parser reads from the YAML.
fn find_output_errors(annotated: &str, plain: &str) -> Option<String> {
    match (read_yaml(annotated), read_yaml(plain)) {
        (Ok(one), Ok(other)) if one.layout == other.layout => None,
        (Err(_), Err(_)) => None,
        (one, other) => Some(format!("the comments change the layout: {one:?}, {other:?}")),
    }
}

#[test]
fn contents_of_recorded_machines_are_assigned_to_system_and_data() {
    let mut wrong = String::new();
    for folder in folders() {
        let differences = find_differences(&folder);
        if !differences.is_empty() {
            wrong += &format!("{}:\n  {}\n", folder.display(), differences.join("\n  "));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The layout does not list the thin pool `data` and the volumes in it. A reinstall therefore preserves them, and
/// recreates only the other volumes of the group.
#[test]
fn a_thin_pool_next_to_the_system_is_preserved_without_being_listed() {
    let folder = folder("proxmox-lvm");
    let inventory: Inventory = serde_json::from_str(&read(&folder, "inventory.json")).unwrap();
    let found = discover_layout(&inventory, Some(&read(&folder, "fstab")), "found");
    let text = format_layout(&found, &assess_reinstall(&found, &inventory));
    assert!(text.contains("# volumes that are not listed are data: preserved\n  - name: pve\n"), "{text}");
    assert!(text.contains("    preserve: unlisted\n"), "{text}");
    let names: Vec<&str> = found.layout.logicalvolumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["swap", "root"]);
    assert!(found.layout.filesystems.iter().all(|filesystem| !filesystem.preserve));
}

/// A discovered layout must list all members of an array. If the array loses a member after the discovery, a reinstall
/// preserves the array, as it does with any other layout.
#[test]
fn an_array_that_degrades_after_the_discovery_is_preserved_with_a_warning() {
    let folder = folder("state-degraded-mirror");
    let degraded: Inventory = serde_json::from_str(&read(&folder, "inventory.json")).unwrap();
    let fstab = read(&folder, "fstab");
    let mut complete = degraded.clone();
    let member = ArrayMember { device: "/dev/sdc1".into(), role: MemberRole::Active(1) };
    complete.arrays[0].members.push(member);
    let mut second = complete.disks[1].clone();
    let text = serde_json::to_string(&second).unwrap().replace("sdb", "sdc");
    second = serde_json::from_str(&text).unwrap();
    second.serial = "SECOND".to_owned();
    complete.disks.push(second);
    let found = discover_layout(&complete, Some(&fstab), "found");
    let layout = read_yaml(&canonical_yaml(&found.layout)).unwrap().layout;
    let claim = InstallClaim { waiver: Some(MarkerWaiver::Operator), ..InstallClaim::default() };
    let plan = plan_reinstall(&layout, &degraded, claim, "").unwrap();
    let warned = plan.warnings.iter().any(|warning| warning.starts_with("/dev/md0 is kept DEGRADED: "));
    assert!(warned, "{:#?}", plan.warnings);
}
