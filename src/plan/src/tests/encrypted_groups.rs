//! Tests of encrypted groups that are created, preserved, left locked, or refused.

use super::arrays_and_groups::{group, volume};
use super::locked_containers::{find_containers, leave_locked, refuses_to_leave_locked, request_leaving_locked};
use super::luks::{on_device, planned, request_with_key};
use super::*;
use crate::luks::containers_to_open;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{InspectionFailure, InspectionTarget};
use model::layout::{EncryptionSpec, KeySource, LvmType};
use operations::{
    CheckContainers, CloseContainer, CrypttabEntry, DeactivateGroup, DeviceOp, DiskHolder, LockDisk, LuksContainer,
    Operation, ProvePreserved, ReleaseDiskHolder, SessionOp, StageName, StopInspectedDevices, WriteCrypttab,
};

/// Layout with two filesystems in a group on two preserved disks. Each physical volume is in a separate container.
fn encrypted(options: &[&str]) -> Layout {
    let mut layout = layout();
    layout.disks.push(DiskSpec { device: "/dev/sdc".into(), partitions: Vec::new(), ..layout.disks[1].clone() });
    layout.volumegroups = vec![group("vault", &["/dev/sdb1", "/dev/sdc"])];
    layout.volumegroups[0].encrypted = Some(EncryptionSpec { key: KeySource::Server });
    layout.logicalvolumes =
        vec![volume("srv", "vault", 400, LvmType::Linear), volume("log", "vault", 200, LvmType::Linear)];
    layout.filesystems.remove(0);
    for name in ["srv", "log"] {
        let mut made = filesystem(&format!("/{name}"), &format!("/dev/vault/{name}"), FilesystemFormat::Ext4, name);
        made.mountoptions = options.iter().map(|option| (*option).to_owned()).collect();
        layout.filesystems.push(made);
    }
    layout
}

fn installed(layout: &Layout) -> Inventory {
    let mut inventory = after(&planned(layout, &machine(), InstallMode::Install).unwrap(), machine());
    inventory.groups.iter_mut().for_each(|group| group.uuid = format!("uuid-of-{}", group.name));
    inventory
}

/// Returns the inventory of a reinstall that could not open all containers.
fn locked(layout: &Layout, why: Option<&str>) -> Inventory {
    let mut inventory = installed(layout);
    inventory.groups.clear();
    let gone: Vec<KernelName> = inventory.stacked.drain(..).map(|stacked| stacked.name).collect();
    let forget = |uses: &mut Vec<DeviceUse>| {
        uses.retain(|device_use| !matches!(device_use, DeviceUse::Holder(name) if gone.contains(name)))
    };
    for disk in &mut inventory.disks {
        forget(&mut disk.uses);
        disk.table.iter_mut().flat_map(|table| &mut table.partitions).for_each(|part| forget(&mut part.uses));
    }
    let failed =
        |why: &str| InspectionFailure { tried: InspectionTarget::Container("/dev/sdc".into()), why: why.to_owned() };
    inventory.failed.extend(why.map(failed));
    inventory
}

fn crypttab(plan: &Plan) -> Vec<CrypttabEntry> {
    let all = plan.stages.iter().flat_map(|stage| &stage.operations);
    let tables = all.filter_map(|is| {
        if let Operation::Run(SessionOp::WriteCrypttab(WriteCrypttab(is))) = is { Some(is) } else { None }
    });
    tables.flatten().cloned().collect()
}

fn format_problems(refusal: &PlanRefusal) -> Vec<String> {
    refusal.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn creates_containers_before_the_group_and_closes_afterwards() {
    let plan = planned(&encrypted(&[]), &machine(), InstallMode::Install).unwrap();
    let operations = on_device(&plan);
    let containers: Vec<&LuksContainer> = operations
        .iter()
        .filter_map(
            |operation| if let DeviceOp::CreateContainer(operation) = operation { Some(&operation.0) } else { None },
        )
        .collect();
    let on: Vec<&str> = containers.iter().map(|container| container.device.as_str()).collect();
    assert_eq!(on, ["/dev/sdb1", "/dev/sdc"]);
    let mappings: Vec<DevicePath> = containers.iter().map(|container| container.mapping.clone()).collect();
    let at = |is: &dyn Fn(&DeviceOp) -> bool| operations.iter().position(|operation| is(operation)).unwrap();
    let order = [
        at(&|is| matches!(is, DeviceOp::CreateContainer(is) if is.0.mapping == mappings[1])),
        at(&|operation| matches!(operation, DeviceOp::CreateGroup(group) if group.devices == mappings)),
        at(&|operation| matches!(operation, DeviceOp::CreateVolume(volume) if volume.physical == mappings)),
        at(
            &|operation| matches!(operation, DeviceOp::DeactivateGroup(DeactivateGroup { devices, .. }) if *devices == mappings),
        ),
        at(
            &|operation| matches!(operation, DeviceOp::CloseContainer(CloseContainer { mapping }) if *mapping == mappings[0]),
        ),
    ];
    assert!(order.is_sorted(), "{operations:?}");
    assert!(plan.fstab.iter().filter(|entry| entry.path == "/srv").all(|entry| entry.source.starts_with("UUID=")));
    let table = crypttab(&plan);
    assert_eq!(table.len(), 2);
    assert!(table.iter().all(|entry| entry.options == ["luks"] && entry.needed_at.as_deref() == Some("/srv")));
    let text = plan.to_string();
    assert!(text.contains("sdb1: LUKS2, key: server, opened as") && !text.contains("storage.encrypt"), "{text}");
    // The container occupies 16 MiB of each device.
    let mut layout = encrypted(&[]);
    layout.logicalvolumes[1].size = 0_u64.into();
    let plan = planned(&layout, &machine(), InstallMode::Install).unwrap();
    let whole = |mib: u64| (mib - 16 - 1) / 4 * 4;
    let sdb1 = plan.sizes[&DevicePath::from("/dev/sdb1")] / MIB;
    assert_eq!(plan.sizes[&DevicePath::from("/dev/vault/log")] / MIB, whole(sdb1) + whole(9_000) - 400);
}

#[test]
fn preserves_encrypted_group_with_its_key_and_content() {
    let layout = encrypted(&[]);
    let plan = planned(&layout, &installed(&layout), InstallMode::Reinstall).unwrap();
    assert!(!plan.warnings.iter().any(|said| said.contains("vault")), "{:?}", plan.warnings);
    let operations = on_device(&plan);
    let is_made = |operation: &&DeviceOp| matches!(operation, DeviceOp::CreateContainer(_) | DeviceOp::CreateGroup(_));
    assert!(!operations.iter().any(is_made));
    let place = |is: &dyn Fn(&DeviceOp) -> bool| operations.iter().rposition(|operation| is(operation)).unwrap();
    let down = place(
        &|operation| matches!(operation, DeviceOp::StopInspectedDevices(StopInspectedDevices { devices }) if *devices == ["/dev/sdb1", "/dev/sdc"]),
    );
    let opened = place(&|operation| matches!(operation, DeviceOp::OpenContainer(open) if !open.read_only));
    let active =
        place(&|operation| matches!(operation, DeviceOp::ActivateGroup(group) if group.volumes == ["srv", "log"]));
    let inactive = place(&|operation| matches!(operation, DeviceOp::DeactivateGroup(_)));
    let closed = operations.iter().position(|operation| matches!(operation, DeviceOp::CloseContainer(_))).unwrap();
    assert!([down, opened, active, inactive, closed].is_sorted(), "{operations:?}");
    let rehearsed = plan.stages.iter().find(|stage| stage.name == StageName::StorageRehearse).unwrap();
    let [Operation::Run(SessionOp::Rehearse(rehearsal))] = &rehearsed.operations[..] else { panic!("{rehearsed:?}") };
    assert_eq!(rehearsal.over, ["/dev/sdb1", "/dev/sdc"]);
    let preserved = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved))) => Some(preserved),
        _ => None,
    });
    let preserved: Vec<String> = preserved.unwrap().iter().map(|preserved| preserved.object.to_string()).collect();
    for object in ["volume group vault", "filesystem at /srv", "filesystem at /log", "filesystem on /dev/sdb1"] {
        assert!(preserved.iter().any(|is| is == object), "{object}: {preserved:?}");
    }
    assert!(plan.to_string().contains("volume group vault: UUID uuid-of-vault"), "{plan}");
    assert_eq!(crypttab(&plan).len(), 2);
}

/// If the layout uses no volume of a group, the group is not written, and its containers are opened read-only.
#[test]
fn opens_containers_of_unused_groups_read_only() {
    let mut layout = encrypted(&[]);
    let inventory = installed(&layout);
    layout.logicalvolumes.clear();
    layout.filesystems.retain(|filesystem| !filesystem.device.as_str().starts_with("/dev/vault"));
    let plan = planned(&layout, &inventory, InstallMode::Reinstall).unwrap();
    let operations = on_device(&plan);
    let opened =
        operations.iter().filter(|operation| matches!(operation, DeviceOp::OpenContainer(open) if open.read_only));
    assert_eq!(opened.count(), 2);
    assert!(!operations.iter().any(|operation| matches!(operation, DeviceOp::ActivateGroup(_))));
    assert!(crypttab(&plan).iter().all(|entry| entry.options == ["luks", "nofail"] && entry.needed_at.is_none()));
}

#[test]
fn unopened_optional_group_remains_locked_as_a_whole() {
    let layout = encrypted(&["nofail"]);
    let inventory = locked(&layout, Some("no key"));
    refuses_to_leave_locked(&layout, &inventory);
    let containers = find_containers(&inventory);
    // All containers of the group must be listed.
    let refusal = leave_locked(&layout, &inventory, &containers[..1]).unwrap_err();
    let said = &format_problems(&refusal)[0];
    assert!(containers.iter().all(|uuid| said.contains(&format!("--leave-locked {uuid}"))), "{said}");
    let plan = leave_locked(&layout, &inventory, &containers).unwrap();
    let warned = |said: &String| said.contains("vg:vault stays LOCKED and unchanged") && said.contains("no key");
    assert!(plan.warnings.iter().any(warned), "{:?}", plan.warnings);
    let is_touched = |operation: &&DeviceOp| {
        matches!(
            operation,
            DeviceOp::OpenContainer(_)
                | DeviceOp::CreateContainer(_)
                | DeviceOp::ActivateGroup(_)
                | DeviceOp::DeactivateGroup(_)
        )
    };
    assert!(!on_device(&plan).iter().any(is_touched), "{plan}");
    assert!(!plan.fstab.iter().any(|entry| ["/srv", "/log"].contains(&entry.path.as_str())), "{:?}", plan.fstab);
    assert!(crypttab(&plan).is_empty() && plan.to_string().contains("stays locked"), "{plan}");
    for (device, least) in [("/dev/sdb", 3), ("/dev/sdc", 2)] {
        let mut all = plan.stages.iter().flat_map(|stage| &stage.operations);
        let compared = |operation: &Operation| matches!(operation, Operation::Run(SessionOp::LockDisk(LockDisk { device: disk, untouched })) if *disk == device && untouched.len() >= least);
        assert!(all.any(compared), "both ends of the content of {device} are compared");
    }
    // A Kubernetes volume in the locked group is refused.
    let mut request = request_leaving_locked(&containers);
    request.assigned.allocation.hostname = "node-1".to_owned();
    request.assigned.allocation.volumes = serde_json::json!([{
        "kind": "Volume",
        "metadata": {"name": "v1", "uid": "11111111-2222-4333-8444-555555555555"},
        "spec": {"nodeName": "node-1", "storageClassName": "x", "mode": "Block", "lvmLogicalVolume": {"vgName": "vault", "size": "64Mi"}},
    }]);
    let refusal = crate::make_plan(&layout, &inventory, request, &mut counting()).unwrap_err();
    assert!(format_problems(&refusal).iter().any(|said| said.contains("vg:vault")), "{:?}", format_problems(&refusal));
}

/// A group cannot stay locked if one of its disks is missing: that disk may be present under another name, and would
/// be wiped.
#[test]
fn refuses_locked_group_with_a_missing_disk() {
    let layout = encrypted(&["nofail"]);
    for why in [Some("no passphrase"), None] {
        let mut inventory = locked(&layout, why);
        inventory.disks.retain(|disk| disk.name.as_str() != "sdc");
        inventory.failed.clear();
        let tried = InspectionTarget::Container("/dev/sdb1".into());
        inventory.failed.extend(why.map(|why| InspectionFailure { tried, why: why.to_owned() }));
        let refusal = planned(&layout, &inventory, InstallMode::Reinstall).unwrap_err();
        assert!(
            format_problems(&refusal).iter().any(|said| said.contains("vg:vault requires")),
            "{:?}",
            format_problems(&refusal)
        );
    }
}

#[test]
fn refuses_unopened_group_that_the_new_system_requires() {
    let layout = encrypted(&[]);
    let refusal =
        planned(&layout, &locked(&layout, Some("no key was provided for `key: server`")), InstallMode::Reinstall)
            .unwrap_err();
    let [one] = &format_problems(&refusal)[..] else { panic!("{:?}", format_problems(&refusal)) };
    for words in [
        "mounts /dev/vault/srv at /srv",
        "/dev/sdc cannot be opened: no key was provided for `key: server`",
        "add nofail",
    ] {
        assert!(one.contains(words), "{words}: {one}");
    }
    // Encrypted swap is refused despite `nofail`, because the absence of swap would not be noticed.
    let mut swaps = encrypted(&["nofail"]);
    swaps.filesystems.last_mut().unwrap().format = FilesystemFormat::Swap;
    (swaps.filesystems.last_mut().unwrap().path, swaps.filesystems.last_mut().unwrap().mountoptions) = (None, vec![]);
    let refusal = planned(&swaps, &locked(&swaps, Some("no key")), InstallMode::Reinstall).unwrap_err();
    assert!(
        format_problems(&refusal)[0].contains("the new system swaps to /dev/vault/log"),
        "{:?}",
        format_problems(&refusal)
    );
}

#[test]
fn offline_plan_warns_that_the_group_was_not_opened() {
    let layout = encrypted(&[]);
    let plan = planned(&layout, &locked(&layout, None), InstallMode::Reinstall).unwrap();
    let says = |said: &String| {
        said.contains("vg:vault: the group was not opened for this plan; the machine will open the group")
    };
    assert!(plan.warnings.iter().any(says), "{:?}", plan.warnings);
    assert!(on_device(&plan).iter().any(|operation| matches!(operation, DeviceOp::ActivateGroup(_))));
    assert!(format!("{:?}", plan.verdicts.unwrap()).contains("group vault"));
}

#[test]
fn refuses_group_encrypted_differently_than_the_layout() {
    let (sealed, mut plain) = (encrypted(&[]), encrypted(&[]));
    plain.volumegroups[0].encrypted = None;
    let refusal = planned(&sealed, &installed(&plain), InstallMode::Reinstall).unwrap_err();
    assert!(
        format_problems(&refusal)[0].contains("must be preserved on /dev/sdb1 in LUKS, but there is"),
        "{:?}",
        format_problems(&refusal)
    );
    let refusal = planned(&plain, &installed(&sealed), InstallMode::Reinstall).unwrap_err();
    assert!(
        format_problems(&refusal).iter().any(|said| said.contains("vg:vault must be preserved on")),
        "{:?}",
        format_problems(&refusal)
    );
    let mut other = sealed.clone();
    other.volumegroups[0].name = "other".to_owned();
    other.logicalvolumes.iter_mut().for_each(|volume| volume.volumegroup = "other".to_owned());
    for filesystem in
        other.filesystems.iter_mut().filter(|filesystem| filesystem.device.as_str().starts_with("/dev/vault"))
    {
        filesystem.device = filesystem.device.as_str().replace("vault", "other").as_str().into();
    }
    let refusal = planned(&other, &installed(&sealed), InstallMode::Reinstall).unwrap_err();
    assert!(format_problems(&refusal)[0].contains("vg:other must be preserved on"), "{:?}", format_problems(&refusal));
    // The device has only enough space for the headers of the container.
    let mut small = machine();
    small.disks[2].size_bytes = 16 * MIB;
    let refusal = planned(&sealed, &small, InstallMode::Install).unwrap_err();
    assert!(format_problems(&refusal)[0].contains("LUKS2 headers"), "{:?}", format_problems(&refusal));
}

#[test]
fn opens_all_containers_of_a_preserved_group_together() {
    let layout = encrypted(&[]);
    let inventory = locked(&layout, None);
    let mut allocation = request_with_key(InstallMode::Reinstall).assigned.allocation;
    assert!(
        containers_to_open(&layout, &inventory, &allocation).is_empty(),
        "an installation does not open containers"
    );
    allocation.reinstall = true;
    let [together] = &containers_to_open(&layout, &inventory, &allocation)[..] else { panic!("one group") };
    let devices: Vec<&str> = together.iter().map(|container| container.device.as_str()).collect();
    assert_eq!(devices, ["/dev/sdb1", "/dev/sdc"]);
    let mut wiped = layout.clone();
    wiped.disks.iter_mut().for_each(|disk| disk.wipeonreinstall = true);
    assert!(containers_to_open(&wiped, &inventory, &allocation).iter().all(Vec::is_empty));
}

/// After the mainboard was replaced, the TPM does not open one of the two containers.
#[test]
fn warns_about_container_that_only_disk_key_opens() {
    let mut layout = encrypted(&[]);
    layout.volumegroups[0].encrypted = Some(EncryptionSpec { key: KeySource::Tpm2 });
    let mut inventory = installed(&layout);
    let why = "the TPM does not unseal it".to_owned();
    inventory.failed.push(InspectionFailure { tried: InspectionTarget::Sealed("/dev/sdc".into()), why });
    let plan = planned(&layout, &inventory, InstallMode::Reinstall).unwrap();
    let warned: Vec<&String> =
        plan.warnings.iter().filter(|said| said.contains("can only be opened with disk_key")).collect();
    assert!(warned.len() == 1 && warned[0].starts_with("/dev/sdc "), "{:?}", plan.warnings);
    let checked = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(SessionOp::CheckContainers(CheckContainers(containers))) => Some(containers),
        _ => None,
    });
    let checked: Vec<&str> = checked.unwrap().iter().map(|container| container.device.as_str()).collect();
    assert_eq!(checked, ["/dev/sdb1"]);
    assert!(crypttab(&plan).iter().all(|entry| entry.is_by_tpm() && entry.key.is_empty()));
}

/// By default, systemd waits only 90 s for a device, which may be too short for entering a passphrase.
#[test]
fn filesystem_behind_a_passphrase_has_no_device_timeout() {
    let mut layout = encrypted(&["noatime"]);
    layout.volumegroups[0].encrypted = Some(EncryptionSpec { key: KeySource::Prompt });
    let plan = planned(&layout, &machine(), InstallMode::Install).unwrap();
    let srv = plan.fstab.iter().find(|entry| entry.path == "/srv").unwrap();
    assert_eq!(srv.options, ["noatime", "x-systemd.device-timeout=0"]);
    assert!(crate::luks::needs_passphrase(&plan));
    let mut request = request_with_key(InstallMode::Install);
    request.assigned.allocation.prompt_key = model::secret_text::SecretText::new("correct horse");
    let plan = crate::make_plan(&layout, &machine(), request, &mut counting()).unwrap();
    assert!(!crate::luks::needs_passphrase(&plan));
    assert!(crypttab(&plan).iter().all(|entry| entry.key.is_empty()), "the new system prompts for the passphrase");
    assert!(!format!("{plan:?}{plan}").contains("correct horse"));
    // The installed system contains the key, so no passphrase is requested.
    let plan = planned(&encrypted(&["noatime"]), &machine(), InstallMode::Install).unwrap();
    assert!(!crate::luks::needs_passphrase(&plan) && crypttab(&plan).iter().all(|entry| !entry.key.is_empty()));
    assert_eq!(plan.fstab.iter().find(|entry| entry.path == "/srv").unwrap().options, ["noatime"]);
}

/// A disk from an old system has an open container, with an active group in it.
#[test]
fn releases_old_encrypted_group_from_the_top_before_wiping() {
    let layout = encrypted(&[]);
    let plan = planned(&layout, &installed(&layout), InstallMode::Install).unwrap();
    let releases: Vec<String> = on_device(&plan)
        .into_iter()
        .filter_map(|operation| match operation {
            DeviceOp::Release(ReleaseDiskHolder(DiskHolder::Volume { name, .. })) => Some(name.clone()),
            DeviceOp::Release(ReleaseDiskHolder(DiskHolder::Mapping { .. })) => Some("container".to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(releases.len(), 4, "{releases:?}");
    let first = releases.iter().position(|release| release == "container").unwrap();
    assert!(first > 0 && releases[releases.len() - 1] == "container", "{releases:?}");
}
