//! Plans for machines that are already installed: the installed system is booted.

use super::arrays_and_groups::operations;
use super::*;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::{FilesystemContents as Inside, MemberRole};
use model::layout::RaidLevel;
use operations::{MountReadOnly, Operation, SessionOp, StageName};

fn marker(order: &str) -> InstallMarker {
    let disk = |device: &str, serial: &str| RecordedDisk {
        device: device.to_owned(),
        serial: serial.to_owned(),
        size_bytes: 20_000 * MIB,
        ..RecordedDisk::default()
    };
    InstallMarker {
        machine: "m".to_owned(),
        allocation: "a".to_owned(),
        project: String::new(),
        order: common::empty_string_as_none::non_empty(order.to_owned()),
        fencing: None,
        secret: Some(secret()),
        image: "debian-12.0.20261001".to_owned(),
        layout: "data".to_owned(),
        layout_digest: None,
        time: "2026-10-01T12:00:00Z".to_owned(),
        disks: vec![disk("/dev/sda", "S-A"), disk("/dev/sdb", "S-B")],
        received_from: None,
        preserved: Vec::new(),
        renewed: None,
        supersedes: Vec::new(),
        volumes: None,
        definition: None,
    }
}

/// Returns an installed machine with its marker on the given device.
fn marked(mut inventory: Inventory, device: &str, order: &str) -> Inventory {
    for (disk, serial) in inventory.disks.iter_mut().zip(["S-A", "S-B", "S-C"]) {
        disk.serial = serial.to_owned();
    }
    let inside = Inside { device: device.into(), marker: Some(marker(order)), ..Inside::default() };
    inventory.filesystems.push(inside);
    inventory
}

fn plan(
    layout: &Layout,
    inventory: &Inventory,
    mode: InstallMode,
    allocation: &str,
    order: &str,
) -> Result<Plan, Box<PlanRefusal>> {
    let known = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let succeeded = mode == InstallMode::Install && known.clone().any(|marker| marker.allocation == allocation);
    let (machine, allocation, order) =
        ("m".into(), allocation.into(), common::empty_string_as_none::non_empty(order.to_owned()));
    let attempt = inventory.filesystems.iter().find_map(|filesystem| record_of(filesystem.marker.as_ref()?));
    let claim = InstallClaim { machine, allocation, order, succeeded, attempt, ..InstallClaim::default() };
    let request = PlanRequest {
        mode,
        steps: StepList::default(),
        subject: subject(),
        assigned: Default::default(),
        claim: Some(claim),
    };
    super::super::make_plan(layout, inventory, request, &mut counting())
}

fn mounts(plan: &Plan) -> Vec<(&str, &str, Vec<&str>)> {
    let mounts = operations(plan, StageName::StorageMount).iter().map(|operation| match operation {
        Operation::Run(SessionOp::MountReadOnly(MountReadOnly(mount))) => {
            (mount.device.as_str(), mount.path.as_str(), mount.options.iter().map(String::as_str).collect())
        }
        other => panic!("{other:?}"),
    });
    mounts.collect()
}

#[test]
fn final_report_names_the_existing_installation() {
    let machine = marked(installed(), "/dev/sda2", "");
    let plan = plan(&layout(), &machine, InstallMode::Install, "a", "").unwrap();
    let [Operation::Run(SessionOp::Report(closing))] = operations(&plan, StageName::ReportFinal) else {
        panic!("{plan}")
    };
    assert_eq!(closing.message, "debian-12.0.20261001 is already installed; nothing was written");
    assert_eq!(closing.already, plan.already);
}

/// The firmware may also have entries of other systems that drophammer has installed.
#[test]
fn boot_entry_of_the_existing_system_is_found_by_its_esp() {
    let machine = marked(installed(), "/dev/sda2", "");
    let esp = machine.disks[0].table.as_ref().unwrap().partitions[0].guid.unwrap();
    let plan = plan(&layout(), &machine, InstallMode::Install, "a", "").unwrap();
    let [Operation::Run(SessionOp::LoadKernel(load))] = operations(&plan, StageName::BootLoad) else {
        panic!("{plan}")
    };
    assert_eq!(load.installed_esps, Some(vec![esp]));
}

#[test]
fn same_allocation_is_not_installed_again() {
    let machine = marked(installed(), "/dev/sda2", "");
    let plan = plan(&layout(), &machine, InstallMode::Install, "a", "").unwrap();
    assert_printed("already", &plan);
    assert_eq!(plan.already.as_ref().map(|marker| marker.time.as_str()), Some("2026-10-01T12:00:00Z"));
    assert_eq!(plan.point_of_no_return, plan.stages.len());
    assert!(!plan.stages.iter().any(|stage| stage.name.is_destructive()));
    assert_eq!(mounts(&plan), [("/dev/sda2", "/", vec!["ro", "noload"])]);
    assert_eq!(verdicts(&plan), [DiskVerdict::Keep, DiskVerdict::Keep, DiskVerdict::NotOurs]);
}

/// Either a previous tenant has written the id of the next allocation into a marker on the disk, or the server has
/// lost its records.
#[test]
fn refuses_marker_that_the_control_plane_does_not_confirm() {
    let machine = super::installation_identity::marked();
    let plan = |claim| super::installation_identity::install(&layout(), &machine, claim);
    let claim = || super::installation_identity::claim();
    let expected = "disks: /dev/sda2 on sda has the marker (/etc/metal/drophammer.json) of machine m-1, allocation a-1, image , dated 2026-11-01T00:00:00Z, but the control plane does not report this allocation as installed. The installation is neither booted nor erased. If the control plane has lost its records, register the installation with drophammer machine adopt m-1; if the installation is not needed, erase the disk (wipefs -a in the rescue shell, on each of its partitions and on the disk itself)";
    assert_eq!(reasons(plan(claim())), [expected]);
    let installed = machine.filesystems[0].marker.clone();
    for believed in [InstallClaim { succeeded: true, ..claim() }, InstallClaim { installed, ..claim() }] {
        assert!(plan(believed).unwrap().already.is_some());
    }
}

#[test]
fn marker_of_another_allocation_does_not_prevent_installation() {
    let machine = marked(installed(), "/dev/sda2", "");
    assert_eq!(plan(&layout(), &machine, InstallMode::Install, "b", "").unwrap().already, None);
    // An offline plan does not belong to an allocation, so it ignores the marker.
    assert_eq!(make(&layout(), &machine, InstallMode::Install).unwrap().already, None);
}

#[test]
fn order_is_executed_once() {
    let done = marked(installed(), "/dev/sda2", "o-1");
    let again = plan(&layout(), &done, InstallMode::Reinstall, "a", "o-1").unwrap();
    assert_eq!(again.already.as_ref().and_then(|marker| marker.order.as_deref()), Some("o-1"));
    let next = plan(&layout(), &done, InstallMode::Reinstall, "a", "o-2").unwrap();
    assert_eq!(next.already, None);
    // The marker of a first installation has no order, and a request without an order does not match it.
    let first = marked(installed(), "/dev/sda2", "");
    assert_eq!(plan(&layout(), &first, InstallMode::Reinstall, "a", "").unwrap().already, None);
}

#[test]
fn existing_root_is_mounted_without_journal_replay() {
    for (format, options) in
        [("ext3", vec!["ro", "noload"]), ("xfs", vec!["ro", "norecovery"]), ("btrfs", vec!["ro", "rescue=nologreplay"])]
    {
        let mut machine = marked(installed(), "/dev/sda2", "");
        machine.disks[0].table.as_mut().unwrap().partitions[1].signatures[0].kind = format.to_owned();
        let plan = plan(&layout(), &machine, InstallMode::Install, "a", "").unwrap();
        assert_eq!(mounts(&plan)[0].2, options, "{format}");
    }
}

/// If the kernel names of the disks have changed, a separate /boot is found by the disks in the marker.
#[test]
fn separate_boot_filesystem_is_found_by_recorded_disks() {
    let mut layout = layout();
    layout.filesystems[0].path = Some("/boot".to_owned());
    let machine = marked(after(&make(&layout, &machine(), InstallMode::Install).unwrap(), machine()), "/dev/sda2", "");
    let before = plan(&layout, &machine, InstallMode::Install, "a", "").unwrap();
    assert_eq!(mounts(&before)[1], ("/dev/sdb1", "/boot", vec!["ro", "noload"]));
    let text = serde_json::to_string(&machine).unwrap();
    let text = text.replace("sda", "sdX").replace("sdb", "sda").replace("sdX", "sdb");
    // The marker contains the kernel names at the time of the installation.
    let mut swapped: Inventory = serde_json::from_str(&text).unwrap();
    swapped.filesystems[0].marker = Some(marker(""));
    let plan = plan(&layout, &swapped, InstallMode::Install, "a", "").unwrap();
    let devices: Vec<(&str, &str)> = mounts(&plan).iter().map(|(device, path, _)| (*device, *path)).collect();
    assert_eq!(devices, [("/dev/sdb2", "/"), ("/dev/sda1", "/boot")]);
}

#[test]
fn boot_filesystem_is_mounted_from_the_running_array() {
    let mut layout = super::arrays_and_groups::layout();
    layout.filesystems[1] = filesystem("/boot", "/dev/md/efi", FilesystemFormat::Ext4, "boot");
    let five = super::arrays_and_groups::five();
    let machine = after(&make(&layout, &five, InstallMode::Install).unwrap(), five);
    let root = machine.arrays[1].running.clone().unwrap();
    let inside = Inside {
        device: format!("/dev/{root}").into(),
        marker: Some(InstallMarker { disks: vec![], ..marker("") }),
        ..Inside::default()
    };
    let mut machine = Inventory { filesystems: vec![inside], ..machine };
    let boot = format!("/dev/{}", machine.arrays[0].running.clone().unwrap());
    machine.arrays[0].members[1].role = MemberRole::Faulty;
    let found = plan(&layout, &machine, InstallMode::Install, "a", "").unwrap();
    assert_eq!(mounts(&found)[1].0, boot);
    assert_eq!(layout.raid[0].level, RaidLevel::Raid1);
    machine.arrays[0].running = None;
    let reasons = reasons(plan(&layout, &machine, InstallMode::Install, "a", ""));
    assert!(
        reasons[0].contains("cannot be booted from the ramdisk: /boot is on /dev/md/efi, which is absent"),
        "{reasons:?}"
    );
}

/// An installed system whose filesystem cannot be mounted is neither booted nor wiped.
#[test]
fn refuses_to_install_over_an_unmountable_root() {
    let mut machine = marked(installed(), "/dev/sda2", "");
    machine.disks[0].table.as_mut().unwrap().partitions[1].signatures[0].kind = "zfs_member".to_owned();
    let reasons = reasons(plan(&layout(), &machine, InstallMode::Install, "a", ""));
    assert_eq!(
        reasons,
        [
            "filesystems: this allocation is already installed, but its system cannot be booted from the ramdisk: / is on /dev/sda2, which contains zfs_member \"root\" and cannot be mounted without writing to it. Nothing will be installed. Boot the system from its disk. To install the system again, order a reinstall"
        ]
    );
}

/// If the control plane reports the allocation as installed, erasing the disk is not a remedy, because the plan would
/// be refused again.
#[test]
fn refusal_of_unbootable_system_names_the_remaining_remedy() {
    let cases = [
        (InstallMode::Install, "", "order a reinstall"),
        (InstallMode::Reinstall, "o", "erase the disk that contains /"),
    ];
    for (mode, order, remedy) in cases {
        let mut machine = marked(installed(), "/dev/sda2", order);
        machine.disks[0].table.as_mut().unwrap().partitions[1].signatures.clear();
        let reasons = reasons(plan(&layout(), &machine, mode, "a", order));
        assert!(
            reasons[0].contains("lacks a filesystem signature. Nothing will be installed. Boot the system"),
            "{reasons:?}"
        );
        assert!(reasons[0].ends_with(&format!("To install the system again, {remedy}")), "{reasons:?}");
    }
}
