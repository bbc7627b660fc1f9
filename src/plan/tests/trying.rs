//! What is tried in memory before anything is destroyed.

use super::stacks::{five, layout};
use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn trials(plan: &Plan) -> Vec<&Operation> {
    let before = plan.stages[..plan.point_of_no_return].iter();
    let all = before.flat_map(|stage| stage.operations.iter());
    all.filter(|operation| {
        matches!(operation, Operation::Device(OnDevice::TryArray(_)) | Operation::Device(OnDevice::TryFilesystem(_)))
    })
    .collect()
}

#[test]
fn an_array_with_options_is_tried_with_members_as_large_as_its_own() {
    let mut layout = layout();
    assert!(trials(&make(&layout, &five(), Mode::Install).unwrap()).is_empty());
    layout.raid[0].createoptions = words("--metadata=1.0");
    layout.raid[2].createoptions = words("--metadata 1.2 --bitmap=internal");
    let plan = make(&layout, &five(), Mode::Install).unwrap();
    let [Operation::Device(OnDevice::TryArray(trial))] = trials(&plan)[..] else { panic!("{plan}") };
    let made = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Device(OnDevice::CreateArray(array)) if array.device == "/dev/md/data" => Some(array),
        _ => None,
    });
    let made = made.unwrap();
    assert_ne!(trial.make.uuid, made.uuid);
    assert_eq!(CreateArray { uuid: made.uuid, ..trial.make.clone() }, *made);
    assert_eq!(trial.member_bytes, [20_000 << 20; 3]);
    assert_eq!(trial.sector_bytes, 512);
    assert!(plan.to_string().contains("try raid1 --bitmap=internal for md/data in memory"), "{plan}");
}

#[test]
fn a_member_that_is_absent_stays_missing_in_the_trial() {
    let mut layout = layout();
    layout.raid[1].createoptions = words("--bitmap=internal");
    let mut after = after(&make(&layout, &five(), Mode::Install).unwrap(), five());
    degraded::unplug(&mut after, "sdb");
    let plan = make(&layout, &after, Mode::Reinstall).unwrap();
    let [Operation::Device(OnDevice::TryArray(trial))] = trials(&plan)[..] else { panic!("{plan}") };
    assert_eq!(trial.make.devices, [Member::Device("/dev/sda2".to_owned()), Member::Missing]);
    assert_eq!(serde_json::to_value(&trial.make).unwrap()["devices"], serde_json::json!(["/dev/sda2", "missing"]));
    assert!(trial.member_bytes[0] > 0 && trial.member_bytes[1] == 0, "{:?}", trial.member_bytes);
}

#[test]
fn what_is_kept_is_not_tried() {
    let mut layout = layout();
    layout.raid[2].createoptions = words("--bitmap=internal");
    let installed = after(&make(&layout, &five(), Mode::Install).unwrap(), five());
    assert!(trials(&make(&layout, &installed, Mode::Reinstall).unwrap()).is_empty());
}

#[test]
fn a_filesystem_with_options_is_tried_in_its_size_under_another_uuid() {
    let mut layout = layout();
    let root = layout.filesystems.iter_mut().find(|filesystem| filesystem.path.as_deref() == Some("/")).unwrap();
    root.createoptions = words("-m 0");
    let plan = make(&layout, &five(), Mode::Install).unwrap();
    let [Operation::Device(OnDevice::TryFilesystem(trial))] = trials(&plan)[..] else { panic!("{plan}") };
    assert_eq!((trial.make.device.as_str(), trial.mount.as_deref()), ("/dev/md/root", Some(&[][..])));
    assert_ne!(trial.make.uuid, plan.root_uuid);
    assert!(trial.size_bytes > 10_000 << 20, "{}", trial.size_bytes);
}
