//! Trials in memory before anything is destroyed.

use super::arrays_and_groups::{five, layout};
use super::*;
use crate::creation_trials;
use crate::planned_devices::DeviceSize;
use model::allocation::{AllocatedImage, Allocation, FinisherChoice};
use model::image_boot_contents::BootContents;
use model::layout::RaidLevel;
use operations::{ArraySlot, CreateArray, DeviceOp, Operation, PlanAssignment};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn trials(plan: &Plan) -> Vec<&Operation> {
    let before = plan.stages[..plan.point_of_no_return].iter();
    let all = before.flat_map(|stage| stage.operations.iter());
    all.filter(|operation| {
        matches!(operation, Operation::Device(DeviceOp::TryArray(_)) | Operation::Device(DeviceOp::TryFilesystem(_)))
    })
    .collect()
}

#[test]
fn array_trial_uses_members_of_the_real_size() {
    let mut layout = layout();
    assert!(trials(&make(&layout, &five(), InstallMode::Install).unwrap()).is_empty());
    layout.raid[0].createoptions = words("--metadata=1.0");
    layout.raid[2].createoptions = words("--metadata 1.2 --bitmap=internal");
    let plan = make(&layout, &five(), InstallMode::Install).unwrap();
    let [Operation::Device(DeviceOp::TryArray(trial))] = trials(&plan)[..] else { panic!("{plan}") };
    let made = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Device(DeviceOp::CreateArray(array)) if array.device == "/dev/md/data" => Some(array),
        _ => None,
    });
    let made = made.unwrap();
    assert_ne!(trial.make.uuid, made.uuid);
    assert_eq!(CreateArray { uuid: made.uuid, ..trial.make.clone() }, *made);
    assert_eq!(trial.member_bytes, [20_000 << 20; 3]);
    assert_eq!(trial.sector_bytes, 512);
    assert!(plan.to_string().contains("try to create raid1 --bitmap=internal for md/data in memory"), "{plan}");
}

#[test]
fn absent_member_is_missing_in_the_trial() {
    let mut layout = layout();
    layout.raid[1].createoptions = words("--bitmap=internal");
    let mut after = after(&make(&layout, &five(), InstallMode::Install).unwrap(), five());
    blank_and_failed_disks::unplug(&mut after, "sdb");
    let plan = make(&layout, &after, InstallMode::Reinstall).unwrap();
    let [Operation::Device(DeviceOp::TryArray(trial))] = trials(&plan)[..] else { panic!("{plan}") };
    assert_eq!(trial.make.devices, [ArraySlot::Device("/dev/sda2".into()), ArraySlot::Missing]);
    assert_eq!(serde_json::to_value(&trial.make).unwrap()["devices"], serde_json::json!(["/dev/sda2", "missing"]));
    assert!(trial.member_bytes[0] > 0 && trial.member_bytes[1] == 0, "{:?}", trial.member_bytes);
}

#[test]
fn preserved_objects_are_not_tried() {
    let mut layout = layout();
    layout.raid[2].createoptions = words("--bitmap=internal");
    let installed = after(&make(&layout, &five(), InstallMode::Install).unwrap(), five());
    assert!(trials(&make(&layout, &installed, InstallMode::Reinstall).unwrap()).is_empty());
}

#[test]
fn filesystem_trial_uses_the_real_size_and_another_uuid() {
    let mut layout = layout();
    let root = layout.filesystems.iter_mut().find(|filesystem| filesystem.path.as_deref() == Some("/")).unwrap();
    root.createoptions = words("-m 0");
    let plan = make(&layout, &five(), InstallMode::Install).unwrap();
    let [Operation::Device(DeviceOp::TryFilesystem(trial))] = trials(&plan)[..] else { panic!("{plan}") };
    assert_eq!((trial.make.device.as_str(), trial.mount.as_deref()), ("/dev/md/root", Some(&[][..])));
    assert_ne!(trial.make.uuid, plan.root_uuid);
    assert!(trial.size_bytes > 10_000 << 20, "{}", trial.size_bytes);
}

#[test]
fn filesystems_are_tried_for_old_kernels_in_the_manifest() {
    let tried = |kernels: &[&str]| {
        let kernels = kernels.iter().map(|path| (*path).to_owned()).collect();
        let contents = BootContents { kernels, init: Some("/sbin/init".to_owned()), ..BootContents::default() };
        let image = AllocatedImage { contents: Some(contents), ..AllocatedImage::default() };
        let allocation = Allocation { image, finish: Some(FinisherChoice::None), ..Allocation::default() };
        let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
        let (mode, steps) = (InstallMode::Install, StepList::default());
        let request = PlanRequest { mode, steps, subject: subject(), assigned, claim: None };
        let plan = crate::make_plan(&layout(), &five(), request, &mut counting()).unwrap();
        let kernel = |operation: &Operation| match operation {
            Operation::Device(DeviceOp::TryFilesystem(trial)) => {
                trial.mounted_by.clone().map(|kernel| (kernel.path, kernel.version))
            }
            _ => None,
        };
        trials(&plan).into_iter().filter_map(kernel).collect::<Vec<_>>()
    };
    let old = tried(&["/boot/vmlinuz-4.18.0-553.el8_10.x86_64"]);
    assert!(old.contains(&("/".to_owned(), "4.18.0-553.el8_10.x86_64".to_owned())), "{old:?}");
    assert_eq!(tried(&["/boot/vmlinuz-6.1.0-31-amd64"]), []);
    assert_eq!(tried(&["/boot/vmlinuz"]), []);
}

/// The create option makes the array's size unknown. A trial of a device on the array may fail only because of a wrong
/// estimate, so further estimates are tried.
#[test]
fn tries_several_sizes_if_the_size_is_unknown() {
    let mut layout = layout();
    layout.raid[2].createoptions = words("--size=15G");
    layout.filesystems[0].createoptions = words("-m reflink=0");
    layout.filesystems[3].createoptions = words("-b 10G");
    let plan = make(&layout, &five(), InstallMode::Install).unwrap();
    let found = trials(&plan).into_iter().filter_map(|operation| match operation {
        Operation::Device(DeviceOp::TryFilesystem(trial)) => {
            Some((trial.make.device.as_str(), trial.size_bytes, trial.or_size_bytes.as_slice()))
        }
        _ => None,
    });
    let others = [20_000 << 20, 16 << 30, 1 << 30, 256 << 20, 64 << 20];
    // A volume with an explicit size has that size in every group.
    let expected = [("/dev/vg00/srv", 4 << 30, &others[..]), ("/dev/vg00/varlib", 400 << 20, &[])];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let tried_arrays = trials(&plan).into_iter().filter_map(|operation| match operation {
        Operation::Device(DeviceOp::TryArray(trial)) => Some(trial.or_member_bytes.len()),
        _ => None,
    });
    assert_eq!(tried_arrays.collect::<Vec<_>>(), [0]);
}

#[test]
fn nested_array_of_unknown_size_is_tried_repeatedly() {
    let devices = ["/dev/md1", "missing", "/dev/sdc", "/dev/md2"];
    let made = CreateArray {
        device: "/dev/md/top".into(),
        level: RaidLevel::Raid6,
        metadata: "1.2".to_owned(),
        uuid: uuid::Uuid::nil(),
        devices: ArraySlot::parse_list(devices),
        spares: 0,
        createoptions: words("--size=6G"),
    };
    let sizes = [DeviceSize::AtMost(8 << 30), DeviceSize::Known(9 << 30), DeviceSize::AtMost(2 << 30)];
    let trial = creation_trials::array_trial(&made, &sizes, 512).unwrap();
    assert_eq!(trial.member_bytes, [4 << 30, 0, 9 << 30, 2 << 30]);
    let firsts: Vec<u64> = trial.or_member_bytes.iter().map(|members| members[0]).collect();
    assert_eq!(firsts, [8 << 30, 1 << 30, 256 << 20, 64 << 20]);
    assert_eq!(trial.or_member_bytes[0], [8 << 30, 0, 9 << 30, 2 << 30]);
}
