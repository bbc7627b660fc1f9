//! Tests of the planner: cases of the decision table, and properties that hold for every layout on every machine.

use super::*;
use crate::simulator;
use crate::simulator::after;
use model::deploy_steps::StepList;
use model::install_marker::{AttemptRecord, AttemptSecret, InstallMarker};
use model::inventory::{self, DeviceSignature, DeviceUse, DiskTable};
use model::layout::{DiskSpec, FilesystemFormat, FilesystemSpec, PartitionSpec, PartitionType};

mod activation_rehearsal;
mod announced_attempts;
mod approval_contents;
mod array_superblock_limits;
mod arrays_and_groups;
mod arrays_over_snapshots;
mod blank_and_failed_disks;
mod blank_device_messages;
mod companion_devices;
mod completion_proof;
mod creation_trials;
mod csi_volume_groups;
mod disabled_steps;
mod disk_capacity;
mod disk_copies;
mod disk_hints;
mod disk_verdicts;
mod disks_without_serials;
mod emmc;
mod encrypted_groups;
mod erase_methods;
mod existing_installations;
mod existing_system_boot;
mod failed_mounts;
mod first_install_protection;
mod foreign_installations;
mod hibernation_images;
mod holder_release;
mod image_architecture;
mod image_finishing;
mod image_network_managers;
mod image_os_definition;
mod initramfs_storage;
mod installation_identity;
mod insufficient_space;
mod interrupted_first_installs;
mod interrupted_mkfs;
mod kubernetes_volumes;
mod locked_containers;
mod luks;
mod member_content;
mod migration_source;
mod migration_target;
mod missing_components;
mod mutated_inventories;
mod nonblank_disk_protection;
mod operation_effects;
mod order_age;
mod partly_kept_bios;
mod partly_kept_disks;
mod partly_kept_interruptions;
mod placeholder_serial_numbers;
mod plan_approval;
mod plan_preview;
mod planning_cost;
mod preserved_esp;
mod preserved_identities;
mod preserved_object_defects;
mod properties;
mod property_counts;
mod random_inventories;
mod random_layouts_and_machines;
mod random_opaque_objects;
mod raw_images;
mod recorded_disk_match;
mod recorded_machines;
mod recorded_wipe_policy;
mod refusals;
mod renewed_next_to_thin_pool;
mod renewed_volumes;
mod repeated_attempts;
mod resized_objects;
mod spanning_filesystems;
mod stale_boot_variables;
mod uninspected_objects;
mod unknown_groups;
mod unrecorded_machines;
mod unusual_disks;
mod wiped_ranges;
mod writable_extents;
mod wrong_clocks;
mod zero_proofs;

const MIB: u64 = 1 << 20;

fn filesystem(path: &str, device: &str, format: FilesystemFormat, label: &str) -> FilesystemSpec {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    FilesystemSpec {
        path: some(path),
        device: device.into(),
        format,
        label: some(label),
        mountoptions: Vec::new(),
        createoptions: Vec::new(),
        reinstall: Default::default(),
        grow: false,
        encrypted: None,
        preserve: false,
    }
}

fn partition(number: u32, label: &str, size_mib: u64, kind: PartitionType) -> PartitionSpec {
    PartitionSpec { number, label: Some(label.to_owned()), size: size_mib.into(), kind: Some(kind), preserve: false }
}

/// Layout with the system on sda, and data on sdb that a reinstall preserves.
fn layout() -> Layout {
    Layout {
        id: "data".to_owned(),
        filesystems: vec![
            filesystem("/srv", "/dev/sdb1", FilesystemFormat::Ext4, "srv"),
            filesystem("/boot/efi", "/dev/sda1", FilesystemFormat::Vfat, "efi"),
            filesystem("", "/dev/sda3", FilesystemFormat::Swap, ""),
            filesystem("/", "/dev/sda2", FilesystemFormat::Ext4, "root"),
            filesystem("/tmp", "tmpfs", FilesystemFormat::Tmpfs, ""),
        ],
        disks: vec![
            DiskSpec {
                hints: Default::default(),
                device: "/dev/sda".into(),
                wipeonreinstall: true,
                image: false,
                partitions: vec![
                    partition(1, "efi", 500, PartitionType::Boot),
                    partition(2, "root", 5000, PartitionType::Linux),
                    partition(3, "swap", 0, PartitionType::Linux),
                ],
            },
            DiskSpec {
                hints: Default::default(),
                device: "/dev/sdb".into(),
                wipeonreinstall: false,
                image: false,
                partitions: vec![partition(1, "srv", 0, PartitionType::Linux)],
            },
        ],
        ..Layout::default()
    }
}

fn disk(name: &str, size_mib: u64) -> inventory::InventoryDisk {
    inventory::InventoryDisk {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        size_bytes: size_mib * MIB,
        sector_bytes: 512,
        ..inventory::InventoryDisk::default()
    }
}

fn machine() -> Inventory {
    Inventory { disks: vec![disk("sda", 20_000), disk("sdb", 8_000), disk("sdc", 9_000)], ..Inventory::default() }
}

fn counting() -> impl FnMut() -> Uuid {
    counting_from(0)
}

/// Returns UUIDs that differ from those of an earlier plan for the same machine.
fn counting_from(mut next: u128) -> impl FnMut() -> Uuid {
    move || {
        next += 1;
        Uuid::from_u128(next << 96 | next)
    }
}

/// Returns a secret that no plan with ids of [`counting`] generates.
fn secret() -> AttemptSecret {
    AttemptSecret::generate(&mut counting_from(0x5ec))
}

/// Returns the record of the attempt that wrote this marker, for any image.
fn record_of(marker: &InstallMarker) -> Option<AttemptRecord> {
    let secret_digest = marker.secret.as_ref()?.digest()?;
    Some(AttemptRecord { secret_digest, image: None })
}

fn subject() -> PlanSubject {
    PlanSubject {
        machine: "4c4c4544-0051-3010".to_owned(),
        name: "storage-7".to_owned(),
        image: "debian-12.0.20261101".to_owned(),
        url: "http://10.0.0.1/debian-12.tar.zst".to_owned(),
    }
}

fn make(layout: &Layout, inventory: &Inventory, mode: InstallMode) -> Result<Plan, Box<PlanRefusal>> {
    super::make_plan(
        layout,
        inventory,
        PlanRequest { mode, steps: StepList::default(), subject: subject(), assigned: Default::default(), claim: None },
        &mut counting(),
    )
}

/// Compares a string with `testdata/plans/NAME.txt`, or writes that file if UPDATE_PLANS is set in the
/// environment.
fn assert_printed(name: &str, text: &impl ToString) {
    let path =
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(format!("testdata/plans/{name}.txt"));
    let text = text.to_string();
    if std::env::var_os("UPDATE_PLANS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default(), "{name}\n{text}");
}

/// Reads an inventory from `testdata`.
fn recorded_inventory(path: &str) -> Inventory {
    let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata").join(path);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Parses a layout, which must be valid.
fn layout_of(yaml: &str) -> Layout {
    model::layout::read_yaml(yaml).unwrap().layout
}

fn reasons(result: Result<Plan, Box<PlanRefusal>>) -> Vec<String> {
    let refusal = result.unwrap_err();
    let uncoded = refusal.problems.iter().find(|problem| problem.code.is_none_or(|code| code == ErrorCode::Plan));
    assert_eq!(uncoded, None, "each problem has a specific code");
    refusal.problems.iter().map(ToString::to_string).collect()
}

fn installed() -> Inventory {
    after(&make(&layout(), &machine(), InstallMode::Install).unwrap(), machine())
}

fn verdicts(plan: &Plan) -> Vec<DiskVerdict> {
    plan.disks.iter().map(|disk| disk.verdict).collect()
}
