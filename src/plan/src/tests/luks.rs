//! Tests of encrypted filesystems that are created, preserved, left locked, or refused.

use super::installation_identity::{claim, empty, marked, reinstall};
use super::interrupted_mkfs::next;
use super::locked_containers::{find_containers, leave_locked, refuses_to_leave_locked};
use super::*;
use crate::luks::containers_to_open;
use model::device_name::KernelName;
use model::inventory::{InspectionFailure, InspectionTarget};
use model::layout::{EncryptionSpec, KeySource};
use model::secret_text::SecretText;
use operations::{
    CheckContainers, CloseContainer, CrypttabEntry, DeviceOp, LockDisk, OpenContainer, Operation, ProvePreserved,
    SessionOp, StageName, WriteCrypttab,
};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Layout whose data filesystem is encrypted and preserved by a reinstall.
fn encrypted(options: &[&str]) -> Layout {
    encrypted_by(KeySource::Server, options)
}

pub(super) fn encrypted_by(key: KeySource, options: &[&str]) -> Layout {
    let mut layout = layout();
    let data = data(&mut layout);
    data.encrypted = Some(EncryptionSpec { key });
    data.mountoptions = options.iter().map(|option| (*option).to_owned()).collect();
    layout
}

fn data(layout: &mut Layout) -> &mut FilesystemSpec {
    layout.filesystems.iter_mut().find(|filesystem| filesystem.device.as_str().starts_with("/dev/sdb")).unwrap()
}

pub(super) fn request_with_key(mode: InstallMode) -> PlanRequest {
    let (steps, subject) = (StepList::default(), subject());
    let mut request = PlanRequest { mode, steps, subject, assigned: Default::default(), claim: None };
    request.assigned.allocation.disk_key = SecretText::new(KEY);
    request
}

pub(super) fn planned(layout: &Layout, inventory: &Inventory, mode: InstallMode) -> Result<Plan, Box<PlanRefusal>> {
    crate::make_plan(layout, inventory, request_with_key(mode), &mut counting())
}

/// Returns the machine after the installation, as a reinstall with the key finds it.
fn installed(layout: &Layout) -> Inventory {
    after(&planned(layout, &machine(), InstallMode::Install).unwrap(), machine())
}

/// Returns the machine after the installation, as a reinstall without the key finds it.
pub(super) fn locked(layout: &Layout, why: Option<&str>) -> Inventory {
    let mut inventory = installed(layout);
    let device = data(&mut layout.clone()).device.as_device();
    close(&mut inventory);
    inventory
        .failed
        .extend(why.map(|why| InspectionFailure { tried: InspectionTarget::Container(device), why: why.to_owned() }));
    inventory
}

/// Closes all containers, and removes everything in them.
fn close(inventory: &mut Inventory) {
    let gone: Vec<KernelName> = inventory.stacked.drain(..).map(|stacked| stacked.name).collect();
    for partition in inventory.disks.iter_mut().flat_map(|disk| &mut disk.table).flat_map(|table| &mut table.partitions)
    {
        partition.uses.retain(|usage| !matches!(usage, DeviceUse::Holder(name) if gone.contains(name)));
    }
}

pub(super) fn on_device(plan: &Plan) -> Vec<&DeviceOp> {
    let all = plan.stages.iter().flat_map(|stage| &stage.operations);
    all.filter_map(|operation| if let Operation::Device(operation) = operation { Some(operation) } else { None })
        .collect()
}

#[test]
fn container_is_created_between_device_and_filesystem() {
    let mut layout = encrypted(&[]);
    let device = data(&mut layout).device.as_device();
    let plan = planned(&layout, &machine(), InstallMode::Install).unwrap();
    let operations = on_device(&plan);
    let container = operations
        .iter()
        .find_map(|op| if let DeviceOp::CreateContainer(creation) = op { Some(&creation.0) } else { None });
    let container = container.unwrap();
    assert_eq!((&container.device, container.key.reveal()), (&device, KEY));
    assert_eq!(container.mapping.as_str(), format!("/dev/mapper/luks-{}", container.uuid));
    let at = |is: &dyn Fn(&DeviceOp) -> bool| operations.iter().position(|operation| is(operation)).unwrap();
    let made = at(&|operation| matches!(operation, DeviceOp::CreateContainer(_)));
    let formatted =
        at(&|operation| matches!(operation, DeviceOp::MakeFilesystem(make) if make.device == container.mapping));
    let closed = at(
        &|operation| matches!(operation, DeviceOp::CloseContainer(CloseContainer { mapping }) if *mapping == container.mapping),
    );
    assert!(made < formatted && formatted < closed, "{operations:?}");
    assert!(plan.fstab.iter().any(|entry| entry.source == container.mapping.as_str()), "{:?}", plan.fstab);
    let text = plan.to_string();
    for words in ["storage.encrypt", "LUKS2, key: server", "cryptsetup and the keys of", "/etc/crypttab"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for told in [text, serde_json::to_string(&plan).unwrap(), format!("{plan:?}")] {
        assert!(!told.contains(KEY));
    }
}

#[test]
fn preserves_container_with_its_key_and_recreates_nothing() {
    let mut layout = encrypted(&[]);
    let device = data(&mut layout).device.as_device();
    let inventory = installed(&layout);
    let plan = planned(&layout, &inventory, InstallMode::Reinstall).unwrap();
    assert!(!plan.warnings.iter().any(|said| said.contains("opens it")), "{:?}", plan.warnings);
    let operations = on_device(&plan);
    assert!(!operations.iter().any(|op| matches!(op, DeviceOp::CreateContainer(_))));
    let opened = operations
        .iter()
        .find_map(|op| if let DeviceOp::OpenContainer(container) = op { Some(container) } else { None });
    let OpenContainer { container, read_only } = opened.unwrap();
    assert!((&container.device, container.key.reveal(), *read_only) == (&device, KEY, false));
    assert!(
        !operations.iter().any(|op| matches!(op, DeviceOp::MakeFilesystem(make) if make.device == container.mapping))
    );
    let rehearsed = plan.stages.iter().find(|stage| stage.name == StageName::StorageRehearse).unwrap();
    assert!(format!("{rehearsed:?}").contains("OpenContainer"), "{rehearsed:?}");
    let preserved = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved))) => Some(preserved),
        _ => None,
    });
    let proven: Vec<String> = preserved.unwrap().iter().map(|preserved| format!("{:?}", preserved.identity)).collect();
    assert!(proven.iter().any(|is| is.contains("crypto_LUKS")), "{proven:?}");
    assert!(preserved.unwrap().iter().all(|preserved| !preserved.identity.is_empty()), "{proven:?}");
}

#[test]
fn unopened_optional_container_remains_locked() {
    for options in [&["nofail"][..], &["noauto"]] {
        let layout = encrypted(options);
        let inventory = locked(&layout, Some("no key"));
        refuses_to_leave_locked(&layout, &inventory);
        let plan = leave_locked(&layout, &inventory, &find_containers(&inventory)).unwrap();
        assert!(
            plan.warnings.iter().any(|said| said.contains("stays LOCKED and unchanged") && said.contains("no key"))
        );
        assert!(plan.to_string().contains("stays locked"), "{plan}");
        let operations = on_device(&plan);
        assert!(!operations.iter().any(|op| matches!(op, DeviceOp::OpenContainer(_) | DeviceOp::CreateContainer(_))));
        assert!(!plan.fstab.iter().any(|entry| entry.source.contains("luks-")), "{:?}", plan.fstab);
        let device = data(&mut layout.clone()).device.as_device();
        let mut all = plan.stages.iter().flat_map(|stage| &stage.operations);
        let is_mounted = |operation: &Operation| matches!(operation, Operation::Run(SessionOp::Mount(mount)) if mount.path == "/srv");
        assert!(!all.any(is_mounted), "{plan}");
        let of_lock = plan.stages.iter().flat_map(|stage| &stage.operations).any(|operation| match operation {
            Operation::Run(SessionOp::LockDisk(LockDisk { device: disk, untouched })) => {
                device.as_str().starts_with(disk.as_str()) && untouched.len() >= 3
            }
            _ => false,
        });
        assert!(of_lock, "both ends of the container are compared");
    }
}

#[test]
fn refuses_unopened_container_that_the_new_system_requires() {
    let layout = encrypted(&["noatime"]);
    let refusal =
        planned(&layout, &locked(&layout, Some("no key was provided for `key: server`")), InstallMode::Reinstall)
            .unwrap_err();
    let said: Vec<String> = refusal.problems.iter().map(ToString::to_string).collect();
    assert!(
        said.len() == 1 && said[0].contains("no key was provided for `key: server`") && said[0].contains("add nofail"),
        "{said:?}"
    );
}

#[test]
fn offline_plan_warns_that_the_container_was_not_opened() {
    let layout = encrypted(&[]);
    let plan = planned(&layout, &locked(&layout, None), InstallMode::Reinstall).unwrap();
    assert!(
        plan.warnings.iter().any(|said| said.contains("the machine will open it with its key")),
        "{:?}",
        plan.warnings
    );
    assert!(plan.fstab.iter().any(|entry| entry.source.starts_with("/dev/mapper/luks-")), "{:?}", plan.fstab);
}

#[test]
fn refuses_container_or_content_that_differs_from_the_layout() {
    // The layout requires encryption, but the device is not encrypted.
    let plain = layout();
    let refusal = planned(&encrypted(&[]), &installed(&plain), InstallMode::Reinstall).unwrap_err();
    assert!(
        refusal.problems.iter().any(|problem| problem.message.contains("in LUKS, but there is")),
        "{:?}",
        refusal.problems
    );
    // The device is encrypted, but the layout does not require it.
    let refusal = planned(&plain, &installed(&encrypted(&[])), InstallMode::Reinstall).unwrap_err();
    assert!(refusal.problems.iter().any(|problem| problem.message.contains("crypto_LUKS")), "{:?}", refusal.problems);
    // The container has a different filesystem.
    let mut other = encrypted(&[]);
    data(&mut other).format =
        if data(&mut other).format == FilesystemFormat::Xfs { FilesystemFormat::Ext4 } else { FilesystemFormat::Xfs };
    let refusal = planned(&other, &installed(&encrypted(&[])), InstallMode::Reinstall).unwrap_err();
    assert!(
        refusal.problems.iter().any(|problem| problem.message.contains("must be preserved, and must contain")),
        "{:?}",
        refusal.problems
    );
}

#[test]
fn only_preserved_containers_are_opened_before_planning() {
    let layout = encrypted(&[]);
    let inventory = locked(&layout, None);
    let mut allocation = request_with_key(InstallMode::Reinstall).assigned.allocation;
    assert!(
        containers_to_open(&layout, &inventory, &allocation).is_empty(),
        "an installation does not open containers"
    );
    allocation.reinstall = true;
    let [container] = &containers_to_open(&layout, &inventory, &allocation).concat()[..] else { panic!("one") };
    assert_eq!(container.key.reveal(), KEY);
    let mut wiped = layout.clone();
    wiped.disks.iter_mut().for_each(|disk| disk.wipeonreinstall = true);
    assert!(containers_to_open(&wiped, &inventory, &allocation).is_empty());
}

pub(super) fn crypttab(plan: &Plan) -> Vec<CrypttabEntry> {
    let all = plan.stages.iter().flat_map(|stage| &stage.operations);
    let tables = all.filter_map(|is| {
        if let Operation::Run(SessionOp::WriteCrypttab(WriteCrypttab(entries))) = is { Some(entries) } else { None }
    });
    tables.flatten().cloned().collect()
}

fn checked(plan: &Plan) -> usize {
    let all = plan.stages.iter().flat_map(|stage| &stage.operations);
    let checks = all.filter_map(|is| {
        if let Operation::Run(SessionOp::CheckContainers(CheckContainers(all))) = is { Some(all) } else { None }
    });
    checks.flatten().count()
}

#[test]
fn tpm_plan_describes_unlocking_and_writes_no_key() {
    let layout = encrypted_by(KeySource::Tpm2, &["noatime"]);
    let with = planned(&layout, &machine(), InstallMode::Install).unwrap();
    let mut request = request_with_key(InstallMode::Install);
    request.assigned.allocation.disk_key = SecretText::default();
    let without = crate::make_plan(&layout, &machine(), request.clone(), &mut counting()).unwrap();
    // The plan is made offline.
    request.assigned.allocation.disk_key_withheld = true;
    let untold = crate::make_plan(&layout, &machine(), request, &mut counting()).unwrap();
    for (plan, words) in [
        (&with, "key: tpm2 and disk_key"),
        (&untold, "key: tpm2 and disk_key"),
        (&without, "key: tpm2 only (no disk_key specified)"),
    ] {
        let text = plan.to_string();
        for words in [words, "cryptsetup, a TPM 2 and the keys of sdb1 (tpm2)"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let [entry] = &crypttab(plan)[..] else { panic!("one line: {plan}") };
        assert_eq!(entry.options, ["luks", "tpm2-device=auto"]);
        assert!(entry.key.is_empty() && entry.is_by_tpm());
        for told in [text, serde_json::to_string(plan).unwrap(), format!("{plan:?}")] {
            assert!(!told.contains(KEY));
        }
    }
}

#[test]
fn preserves_container_that_the_tpm_opens_without_key() {
    let layout = encrypted_by(KeySource::Tpm2, &["nofail"]);
    let plan = planned(&layout, &installed(&layout), InstallMode::Reinstall).unwrap();
    assert!(!plan.warnings.iter().any(|said| said.contains("disk_key")), "{:?}", plan.warnings);
    assert_eq!(crypttab(&plan)[0].options, ["luks", "tpm2-device=auto", "nofail"]);
    assert_eq!(checked(&plan), 1);
}

#[test]
fn warns_about_container_that_only_disk_key_opens() {
    let layout = encrypted_by(KeySource::Tpm2, &[]);
    let mut inventory = installed(&layout);
    let device = data(&mut layout.clone()).device.as_device();
    inventory.failed.push(InspectionFailure { tried: InspectionTarget::Sealed(device), why: "no TPM 2".to_owned() });
    let plan = planned(&layout, &inventory, InstallMode::Reinstall).unwrap();
    let warned = plan.warnings.iter().find(|said| said.contains("can only be opened with disk_key"));
    assert!(warned.is_some_and(|said| said.contains("systemd-cryptenroll") && said.contains("no TPM 2")), "{plan}");
    let operations = on_device(&plan);
    assert!(operations.iter().any(|op| matches!(op, DeviceOp::OpenContainer(_))));
    assert!(!operations.iter().any(|op| matches!(op, DeviceOp::CreateContainer(_))), "no container is created");
    assert!(crypttab(&plan)[0].key.is_empty());
    assert_eq!(checked(&plan), 0, "the TPM is not required if it does not open the container");
}

/// The mapping was opened by an earlier inspection in the ramdisk, or belongs to a copy of the container on an
/// unlisted disk.
#[test]
fn refuses_mapping_opened_with_another_key() {
    for key in [KeySource::Server, KeySource::Tpm2] {
        let layout = encrypted_by(key, &[]);
        let mut inventory = installed(&layout);
        let device = data(&mut layout.clone()).device.as_device();
        let tried = InspectionTarget::Container(device);
        inventory.failed.push(InspectionFailure { tried, why: "no such key".to_owned() });
        let refusal = planned(&layout, &inventory, InstallMode::Reinstall).unwrap_err();
        assert!(
            refusal.problems.iter().any(|problem| problem.message.contains("no such key")),
            "{:?}",
            refusal.problems
        );
    }
}

/// Mappings are named by the UUID of their container. The second container with this UUID could therefore not be
/// opened after the first write.
#[test]
fn refuses_copy_of_a_preserved_container() {
    let layout = encrypted(&[]);
    let mut inventory = installed(&layout);
    let device = data(&mut layout.clone()).device.as_device();
    let preserved = inventory.disks.iter().find(|disk| device.as_str().starts_with(disk.device.as_str())).unwrap();
    let mut table = preserved.table.clone().unwrap();
    let free = inventory.disks.iter().position(|disk| disk.table.is_none()).expect("an unused disk");
    let name = inventory.disks[free].device.clone();
    for partition in &mut table.partitions {
        partition.device = name.partition_path(partition.number);
        partition.uses.clear();
    }
    inventory.disks[free].table = Some(table);
    let refusal = planned(&layout, &inventory, InstallMode::Reinstall).unwrap_err();
    let said = |problem: &&common::diagnostic::Diagnostic| {
        problem.message.contains("have the same UUID") && problem.message.contains("crypto_LUKS")
    };
    assert_eq!(refusal.problems.iter().filter(said).count(), 1, "{:?}", refusal.problems);
}

/// The key of an unfinished container may be lost, for example a random key that was not enrolled in the TPM yet. The
/// container never contained data, so it is recreated.
#[test]
fn unfinished_container_is_recreated_on_the_same_disk() {
    let layout = encrypted_by(KeySource::Tpm2, &["nofail"]);
    let mut before = marked();
    empty(&mut before.disks[1], "NEW");
    let first = reinstall(&layout, &before, claim()).unwrap();
    let made = |plan: &Plan| on_device(plan).iter().any(|operation| matches!(operation, DeviceOp::CreateContainer(_)));
    assert!(made(&first), "{first}");
    let mut cut = after(&first, before);
    cut.filesystems.clear();
    close(&mut cut);
    cut.failed.push(InspectionFailure {
        tried: InspectionTarget::Container("/dev/sdb1".into()),
        why: "no token opens it".to_owned(),
    });
    let again = reinstall(&layout, &cut, next(&first)).unwrap();
    assert!(made(&again) && !again.to_string().contains("LOCKED"), "{again}");
    // Another disk in the same slot is not recreated.
    cut.disks[1].serial = "Z9".to_owned();
    let refusal = reinstall(&layout, &cut, next(&first));
    assert!(refusal.as_ref().map_or(true, |plan| !made(plan)), "{refusal:?}");
}

#[test]
fn refuses_preserved_container_that_contains_only_zeros() {
    let layout = encrypted(&[]);
    let mut inventory = installed(&layout);
    for stacked in inventory.stacked.iter_mut().filter(|stacked| stacked.device.as_str().contains("luks-")) {
        (stacked.signatures, stacked.blank) = (vec![], true);
    }
    let refusal = planned(&layout, &inventory, InstallMode::Reinstall).unwrap_err();
    assert!(
        refusal.problems.iter().any(|problem| problem.message.contains("holds only zeros")),
        "{:?}",
        refusal.problems
    );
}

#[test]
fn disk_key_also_opens_a_tpm_container() {
    let layout = encrypted_by(KeySource::Tpm2, &[]);
    let inventory = locked(&layout, None);
    let mut allocation = request_with_key(InstallMode::Reinstall).assigned.allocation;
    allocation.reinstall = true;
    assert_eq!(containers_to_open(&layout, &inventory, &allocation)[0][0].key.reveal(), KEY);
    allocation.disk_key = SecretText::default();
    assert_eq!(containers_to_open(&layout, &inventory, &allocation).len(), 1, "the TPM may open the container");
}
