//! Approval of plans: the summary of a plan equals the approved one only if the same disks have the same fate.

use super::random_layouts_and_machines::{NAMES, any_layout, any_machine};
use super::*;
use crate::approval_summary::{ObjectFate, VERSION, predict_summary};
use model::allocation::{Allocation, ApprovedPlan};
use operations::PlanAssignment;
use proptest::prelude::*;
use serde_json::Value;

pub(super) fn request(mode: InstallMode, approved: Option<ApprovedPlan>) -> PlanRequest {
    let allocation = Allocation { id: "a-1".to_owned(), approved, ..Allocation::default() };
    let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
    PlanRequest { mode, steps: StepList::default(), subject: subject(), assigned, claim: None }
}

/// Makes the same plan with different random ids.
pub(super) fn with_ids(
    layout: &Layout,
    inventory: &Inventory,
    request: PlanRequest,
    from: u128,
) -> Result<Plan, Box<PlanRefusal>> {
    super::super::make_plan(layout, inventory, request, &mut counting_from(from))
}

pub(super) fn verdicts_of(layout: &Layout, inventory: &Inventory, mode: InstallMode) -> ApprovalSummary {
    with_ids(layout, inventory, request(mode, None), 0).unwrap().verdicts.unwrap()
}

pub(super) fn approval(verdicts: &ApprovalSummary) -> ApprovedPlan {
    let value = serde_json::to_value(verdicts).unwrap();
    ApprovedPlan { sha256: verdicts.digest(), verdicts: value, ..ApprovedPlan::default() }
}

/// Returns the summary without the contents of the disks.
fn unread(mut verdicts: ApprovalSummary) -> ApprovalSummary {
    verdicts.disks.iter_mut().for_each(|disk| disk.contents = None);
    verdicts
}

/// Gives each disk its own serial number.
pub(super) fn numbered(mut inventory: Inventory) -> Inventory {
    for disk in &mut inventory.disks {
        disk.serial = format!("S-{}", disk.name);
        disk.wwn = format!("0x5000{}", disk.name);
    }
    inventory
}

/// Selects the disks of the layout by serial number instead of kernel name.
pub(super) fn by_serial(mut layout: Layout) -> Layout {
    for disk in &mut layout.disks {
        let name = disk.device.as_str().trim_start_matches("/dev/").to_owned();
        disk.hints = [("serial".to_owned(), format!("S-{name}"))].into();
    }
    layout
}

/// Assigns the kernel names to the disks in reverse order.
pub(super) fn renamed(mut inventory: Inventory) -> Inventory {
    let names: Vec<_> = inventory.disks.iter().map(|disk| (disk.name.clone(), disk.device.clone())).rev().collect();
    for (disk, (name, device)) in inventory.disks.iter_mut().zip(names) {
        for part in disk.table.iter_mut().flat_map(|table| &mut table.partitions) {
            part.device = device.partition_path(part.number);
        }
        (disk.name, disk.device) = (name, device);
    }
    inventory
}

pub(super) fn refused(
    layout: &Layout,
    inventory: &Inventory,
    mode: InstallMode,
    approved: ApprovedPlan,
) -> Vec<String> {
    let refusal = with_ids(layout, inventory, request(mode, Some(approved)), 7).unwrap_err();
    assert!(refusal.problems.iter().all(|problem| problem.place == "approved"), "{refusal}");
    refusal.problems.iter().map(|problem| problem.message.clone()).collect()
}

#[test]
fn summary_has_the_documented_form() {
    let mut inventory = numbered(machine());
    inventory.disks[0].wwn.clear();
    let verdicts = verdicts_of(&layout(), &inventory, InstallMode::Install);
    let text = serde_json::to_string(&verdicts).unwrap();
    // The fields are sorted by name, so that the text is canonical.
    fn is_sorted(value: &Value, text: &str) {
        match value {
            Value::Object(map) => {
                let mut sorted: Vec<&String> = map.keys().collect();
                sorted.sort();
                let places: Vec<usize> = sorted.iter().map(|key| text.find(&format!("\"{key}\":")).unwrap()).collect();
                assert!(places.is_sorted(), "{text}");
                map.values().for_each(|value| is_sorted(value, &serde_json::to_string(value).unwrap()));
            }
            Value::Array(all) => all.iter().for_each(|value| is_sorted(value, &value.to_string())),
            _ => {}
        }
    }
    is_sorted(&serde_json::from_str(&text).unwrap(), &text);
    let expected = [
        r#"{"allocation":"a-1","disks":[{"contents":["disk: data of no known kind"],"device":"","model":"","#,
        r#""partitions":["1 efi 500","2 root 5000","3 swap rest"],"place":"","#,
        r#""serial":"S-sda","size_bytes":20971520000,"verdict":"wipe","wwn":""},"#,
        r#"{"contents":["disk: data of no known kind"],"device":"","model":"","partitions":["1 srv rest"],"place":"","#,
        r#""serial":"S-sdb","size_bytes":8388608000,"verdict":"wipe","wwn":"0x5000sdb"}],"image":"debian-12.0.20261101","#,
    ]
    .concat();
    assert!(text.starts_with(&expected), "{text}");
    let rest = r#""mode":"install","things":[{"fate":"made","name":"ext4 /","on":["serial S-sda"]},"#;
    assert!(text.contains(rest) && text.ends_with(r#""torn":[],"version":2}"#) && VERSION == 2, "{text}");
    assert_eq!(serde_json::from_str::<ApprovalSummary>(&text).unwrap(), verdicts);
    assert!(!text.contains("tmpfs"), "{text}");
}

#[test]
fn summary_excludes_ids_kernel_names_and_unlisted_disks() {
    for mode in [InstallMode::Install, InstallMode::Reinstall] {
        let inventory = numbered(installed());
        let found = by_serial(layout());
        let plan = |inventory: &Inventory, from| with_ids(&found, inventory, request(mode, None), from).unwrap();
        let one = plan(&inventory, 0);
        let two = plan(&inventory, 4000);
        assert_ne!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&two).unwrap());
        assert_eq!(one.verdicts, two.verdicts);
        let three = plan(&renamed(inventory.clone()), 0);
        assert_eq!(one.verdicts, three.verdicts, "{mode:?}");
        let mut without = inventory.clone();
        without.disks.retain(|disk| disk.name.as_str() != "sdc");
        assert_eq!(one.verdicts, plan(&without, 0).verdicts);
    }
}

#[test]
fn summary_ignores_only_the_order_of_mirror_members() {
    let two = Inventory { disks: numbered(machine()).disks[..2].to_vec(), ..Inventory::default() };
    let both =
        |layout: &Layout| [two.clone(), renamed(two.clone())].map(|is| verdicts_of(layout, &is, InstallMode::Install));
    let [one, other] = both(&layout());
    assert_ne!(one.digest(), other.digest());
    let mut mirror =
        Layout { filesystems: vec![filesystem("/", "/dev/md/r", FilesystemFormat::Ext4, "r")], ..layout() };
    mirror.disks.iter_mut().for_each(|disk| disk.partitions = vec![partition(1, "r", 0, PartitionType::Linux)]);
    mirror.raid = vec![super::arrays_and_groups::raid(
        "/dev/md/r",
        &["/dev/sda1", "/dev/sdb1"],
        model::layout::RaidLevel::Raid1,
        0,
    )];
    let [one, other] = both(&mirror);
    assert_eq!(one, other);
    assert_eq!(one.things[0].on, ["serial S-sda", "serial S-sdb"]);
}

#[test]
fn refuses_each_difference_from_the_approval_by_name() {
    let inventory = numbered(installed());
    let before = verdicts_of(&layout(), &inventory, InstallMode::Reinstall);
    assert!(with_ids(&layout(), &inventory, request(InstallMode::Reinstall, Some(approval(&before))), 9).is_ok());

    type Change = (&'static str, fn(&mut ApprovalSummary), &'static str);
    let changes: [Change; 12] = [
        ("machine", |is| is.machine = "m-9".to_owned(), "machine: approved m-9, found 4c4c4544-0051-3010"),
        ("allocation", |is| is.allocation = "a-0".to_owned(), "allocation: approved a-0, found a-1"),
        ("image", |is| is.image = "debian-11".to_owned(), "image: approved debian-11, found debian-12.0.20261101"),
        ("layout", |is| is.layout = "old".to_owned(), "layout: approved old, found data"),
        (
            "digest",
            |is| is.layout_digest = "sha256:0".to_owned(),
            "layout data has changed: approved sha256:0, found sha256:",
        ),
        ("mode", |is| is.mode = InstallMode::Install, "approved an installation, found a reinstall"),
        ("wiped", |is| is.disks[0].verdict = DiskVerdict::Keep, "disk serial S-sda: approved kept, found wiped"),
        ("kept", |is| is.disks[1].verdict = DiskVerdict::Wipe, "disk serial S-sdb: approved wiped, found kept"),
        (
            "another disk",
            |is| is.disks[1].serial = "S-9".to_owned(),
            "disk serial S-9: approved kept, found not written\ndisk serial S-sdb: approved not written, found kept",
        ),
        ("size", |is| is.disks[1].size_bytes = 1, "disk serial S-sdb: approved kept, found not written"),
        (
            "partitions",
            |is| is.disks[0].partitions = vec!["1 root rest".to_owned()],
            "disk serial S-sda: approved wiped with partitions \"1 root rest\", found wiped with \"1 efi 500, 2 root 5000, 3 swap rest\"",
        ),
        (
            "thing",
            |is| {
                is.things
                    .iter_mut()
                    .filter(|thing| thing.fate == ObjectFate::Kept)
                    .for_each(|is| is.fate = ObjectFate::Made)
            },
            "ext4 /srv on serial S-sdb: approved made, found kept",
        ),
    ];
    for (what, change, words) in changes {
        let mut other = before.clone();
        change(&mut other);
        assert_ne!(other.digest(), before.digest(), "{what}");
        let said = refused(&layout(), &inventory, InstallMode::Reinstall, approval(&other));
        assert!(said[0].starts_with("the plan differs from the approved plan (sha256:"), "{said:?}");
        assert!(said.join("\n").contains(words), "{what}: {said:?}");
        let others = if what == "another disk" || what == "size" { 3 } else { 2 };
        assert_eq!(said.len(), others, "{what}: {said:?}");
    }
}

#[test]
fn refuses_replaced_disk_as_not_approved() {
    let inventory = numbered(installed());
    let approved = approval(&verdicts_of(&layout(), &inventory, InstallMode::Reinstall));
    let mut replaced = inventory.clone();
    super::installation_identity::empty(&mut replaced.disks[1], "S-new");
    let said = refused(&layout(), &replaced, InstallMode::Reinstall, approved.clone()).join("\n");
    for words in [
        "disk serial S-new: approved not written, found recreated, because it is blank",
        "disk serial S-sdb: approved kept, found not written",
        "ext4 /srv on serial S-new: approved absent, found made",
    ] {
        assert!(said.contains(words), "{said}");
    }
    // The approval of a reinstall does not approve an installation.
    let said = refused(&layout(), &inventory, InstallMode::Install, approved).join("\n");
    assert!(said.contains("approved a reinstall, found an installation"), "{said}");
    assert!(said.contains("disk serial S-sdb: approved kept, found wiped"), "{said}");
}

#[test]
fn refuses_approval_that_cannot_be_compared() {
    let inventory = numbered(installed());
    let good = approval(&verdicts_of(&layout(), &inventory, InstallMode::Reinstall));
    let with = |name: &str, value: Value| {
        let mut verdicts = good.verdicts.clone();
        verdicts[name] = value;
        ApprovedPlan { verdicts, ..good.clone() }
    };
    for (approved, words) in [
        (
            ApprovedPlan { sha256: "sha256:0".to_owned(), ..good.clone() },
            "the approval is corrupt: it records the hash sha256:0, but",
        ),
        (with("image", "other".into()), "the approval is corrupt"),
        (with("version", 1.into()), "the approval has version 1, but this drophammer requires version 2"),
        (with("version", 3.into()), "the approval has version 3, but this drophammer requires"),
        (with("version", Value::Null), "the approval has no version"),
        (with("more", 1.into()), "cannot parse the approval: unknown field \"more\""),
        (with("disks", 7.into()), "cannot parse the approval"),
        (ApprovedPlan { verdicts: Value::Null, ..good.clone() }, "the approval has no version"),
    ] {
        let said = refused(&layout(), &inventory, InstallMode::Reinstall, approved);
        assert!(said.len() == 1 && said[0].contains(words) && said[0].ends_with("approve this plan again"), "{said:?}");
    }
}

/// The next attempt of the same order finds objects that the interrupted attempt created.
#[test]
fn continued_attempt_matches_the_approval_of_its_order() {
    let before = numbered(installed());
    let mut empty = before.clone();
    super::installation_identity::empty(&mut empty.disks[1], "S-sdb");
    let approved = approval(&verdicts_of(&layout(), &empty, InstallMode::Reinstall));
    let started = |inventory: &Inventory, has_begun: bool| {
        let waiver = Some(if has_begun { MarkerWaiver::Begun } else { MarkerWaiver::Operator });
        let mut request = request(InstallMode::Reinstall, Some(approved.clone()));
        request.claim = Some(InstallClaim { waiver, ..InstallClaim::default() });
        with_ids(&layout(), inventory, request, 3)
    };
    assert!(started(&empty, false).is_ok());
    // The attempt has recreated the disk, which is preserved from then on.
    assert!(started(&before, true).is_ok());
    let said = started(&before, false).unwrap_err().to_string();
    assert!(said.contains("approved recreated, because it is blank, found kept"), "{said}");
    // A plan that wipes more than was approved is refused, even after a started attempt.
    let mut preserved = verdicts_of(&layout(), &before, InstallMode::Reinstall);
    preserved.disks[0].verdict = DiskVerdict::Keep;
    let mut request = request(InstallMode::Reinstall, Some(approval(&preserved)));
    request.claim = Some(InstallClaim { waiver: Some(MarkerWaiver::Begun), ..InstallClaim::default() });
    let said = with_ids(&layout(), &before, request, 3).unwrap_err().to_string();
    assert!(said.contains("disk serial S-sda: approved kept, found wiped"), "{said}");
}

#[test]
fn other_refusals_do_not_mention_the_approval() {
    let inventory = numbered(machine());
    let approved = approval(&verdicts_of(&layout(), &inventory, InstallMode::Install));
    let mut small = inventory;
    small.disks[0].size_bytes = 100 * MIB;
    let refusal = with_ids(&layout(), &small, request(InstallMode::Install, Some(approved)), 0).unwrap_err();
    assert!(refusal.problems.iter().all(|problem| problem.place != "approved"), "{refusal}");
}

#[test]
fn number_of_reported_differences_is_limited() {
    let inventory = numbered(installed());
    let mut other = verdicts_of(&layout(), &inventory, InstallMode::Reinstall);
    let disk = other.disks[0].clone();
    other.disks.extend(
        (0..100).map(|number| approval_summary::ApprovedDisk { serial: format!("X{number:03}"), ..disk.clone() }),
    );
    let said = refused(&layout(), &inventory, InstallMode::Reinstall, approval(&other));
    assert_eq!((said.len(), said.last().unwrap().as_str()), (22, "and 80 other differences"));
}

/// Control planes remove terminal control characters from the text that they receive from machines.
#[test]
fn serial_numbers_are_compared_in_sanitized_form() {
    let mut raw = numbered(machine());
    raw.disks[0].serial = " S\u{1b}[2J\n1 ".to_owned();
    let mut preserved = raw.clone();
    preserved.disks[0].serial = common::format::replace_hidden(&raw.disks[0].serial);
    assert_ne!(raw.disks[0].serial, preserved.disks[0].serial);
    assert_eq!(
        verdicts_of(&layout(), &raw, InstallMode::Install),
        verdicts_of(&layout(), &preserved, InstallMode::Install)
    );
}

/// Disks without any identifier are identified by their name in the layout.
#[test]
fn disks_without_serial_number_are_identified_by_layout_name() {
    let verdicts = verdicts_of(&layout(), &machine(), InstallMode::Install);
    assert_eq!(verdicts.disks[0].device, "/dev/sda");
    assert_eq!(verdicts.disks[0].name(), "/dev/sda, 21.0 GB, which has no serial number of its own");
}

/// The prediction uses an inventory from before the installation, and assumes the content that the layout specifies.
#[test]
fn predicts_reinstall_summary_before_the_installation() {
    let before = numbered(machine());
    let after = numbered(installed());
    let said = predict_summary(&layout(), &before, &request(InstallMode::Reinstall, None)).unwrap();
    assert_eq!(said, unread(verdicts_of(&layout(), &after, InstallMode::Reinstall)));
    // The approved plan did not include the content of the disks, so the approval covers only the verdicts.
    assert!(with_ids(&layout(), &after, request(InstallMode::Reinstall, Some(approval(&said))), 5).is_ok());
    let said = predict_summary(&layout(), &before, &request(InstallMode::Install, None)).unwrap();
    assert_eq!(said, unread(verdicts_of(&layout(), &after, InstallMode::Install)));
    let mut without = before;
    without.disks.remove(1);
    let why = predict_summary(&layout(), &without, &request(InstallMode::Reinstall, None)).unwrap_err();
    assert!(why[0].to_string().contains("disks[1].device: device:/dev/sdb does not exist"), "{why:?}");
    let mut keeps_all = layout();
    keeps_all.disks.iter_mut().for_each(|disk| disk.wipeonreinstall = false);
    assert!(predict_summary(&keeps_all, &after, &request(InstallMode::Reinstall, None)).is_err());
}

/// Installs and reinstalls random layouts: the summary predicted before the installation equals the summary of the
/// actual plan.
#[test]
fn predicted_summary_equals_the_actual_summary() {
    proptest!(ProptestConfig::with_cases(200), |(layout in any_layout())| {
        let before = numbered(super::random_layouts_and_machines::blank());
        let Ok(plan) = make(&layout, &before, InstallMode::Install) else { return Ok(()) };
        let after = after(&plan, before.clone());
        let Ok(found) = with_ids(&layout, &after, request(InstallMode::Reinstall, None), 0) else { return Ok(()) };
        // A preserved disk that is blank would be recreated, contrary to the prediction, and the agent would refuse
        // the plan.
        prop_assume!(found.disks.iter().all(|disk| disk.verdict != DiskVerdict::Make));
        let said = predict_summary(&layout, &before, &request(InstallMode::Reinstall, None));
        prop_assert_eq!(said.unwrap(), unread(found.verdicts.unwrap()));
    });
}

/// A plan always matches its own approval. It must be refused if a disk that it writes or preserves is another disk
/// than the approved one.
#[test]
fn plan_matches_only_its_own_approval() {
    proptest!(ProptestConfig::with_cases(300), |(
        layout in any_layout(),
        machine in any_machine(),
        again in any::<bool>(),
        which in any::<prop::sample::Index>(),
    )| {
        let mode = if again { InstallMode::Reinstall } else { InstallMode::Install };
        let machine = numbered(machine);
        let Ok(plan) = with_ids(&layout, &machine, request(mode, None), 0) else { return Ok(()) };
        let verdicts = plan.verdicts.unwrap();
        let approved = request(mode, Some(approval(&verdicts)));
        let other = with_ids(&layout, &machine, approved.clone(), 99).unwrap();
        prop_assert_eq!(other.verdicts.as_ref(), Some(&verdicts));
        prop_assert_eq!(other.disks.iter().map(|disk| disk.verdict).collect::<Vec<_>>(), plan.disks.iter().map(|disk| disk.verdict).collect::<Vec<_>>());

        let mut replaced = machine;
        let name = NAMES[which.index(NAMES.len())];
        let Some(disk) = replaced.disks.iter_mut().find(|disk| disk.name.as_str() == name) else { return Ok(()) };
        let was = disk.serial.clone();
        "S-new".clone_into(&mut disk.serial);
        let is_torn = verdicts.dismantled.iter().any(|dismantled| dismantled.contains(&was));
        let is_told = is_torn || verdicts.disks.iter().any(|disk| disk.serial == was);
        let refusal = with_ids(&layout, &replaced, approved, 99);
        prop_assert_eq!(refusal.is_err(), is_told);
    });
}
