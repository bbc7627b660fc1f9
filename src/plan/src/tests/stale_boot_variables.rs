//! Boot variables that earlier systems left: how the plan displays them, and which ones it removes.

use super::*;
use crate::pool_machine_erasure::{self, PoolAllocation};
use crate::stale_boot_variables::{self, RemovalPolicy};
use LoadOptionClass::{Boot, Driver, OsRecovery, PlatformRecovery, SysPrep};
use model::inventory::{
    FirmwareLoadOption, FirmwareType, FirmwareVariables, LoadOptionClass, LoadTarget, OtherFirmwareVariable,
    VariablePurpose,
};
use operations::{Operation, SessionOp, StageName, WriteBootEntries};

fn option(class: LoadOptionClass, number: u16, description: &str, target: LoadTarget) -> FirmwareLoadOption {
    FirmwareLoadOption {
        class,
        number,
        active: true,
        description: description.to_owned(),
        path: "path".to_owned(),
        target,
        arguments: None,
        digest: Some(format!("{description}{number}")),
    }
}

fn guid_of(inventory: &Inventory, disk: &str, number: u32) -> Uuid {
    let disk = inventory.disks.iter().find(|found| found.name == disk).unwrap();
    disk.table.as_ref().unwrap().partitions.iter().find(|part| part.number == number).unwrap().guid.unwrap()
}

/// Returns the installed machine of [`layout`] with these boot entries: a reinstall destroys sda and preserves sdb.
fn machine_with(options: impl FnOnce(&Inventory) -> Vec<FirmwareLoadOption>) -> Inventory {
    let mut inventory = installed();
    inventory.system.firmware = FirmwareType::Uefi;
    let boot_order = vec![1, 2, 3];
    inventory.firmware_variables =
        Some(FirmwareVariables { load_options: options(&inventory), boot_order, ..FirmwareVariables::default() });
    inventory
}

fn on(inventory: &Inventory, disk: &str) -> LoadTarget {
    LoadTarget::Partition(guid_of(inventory, disk, 1))
}

fn uri() -> LoadTarget {
    LoadTarget::Uri("http://198.51.100.7/boot.efi".to_owned())
}

/// Makes the plan of a reinstall whose new partitions have other GUIDs than the existing ones.
fn reinstall_from(uuids: u128, layout: &Layout, inventory: &Inventory) -> Result<Plan, Box<PlanRefusal>> {
    let (mode, steps, subject) = (InstallMode::Reinstall, StepList::default(), subject());
    let request = PlanRequest { mode, steps, subject, assigned: Default::default(), claim: None };
    crate::make_plan(layout, inventory, request, &mut counting_from(uuids))
}

fn reinstall(layout: &Layout, inventory: &Inventory) -> Result<Plan, Box<PlanRefusal>> {
    reinstall_from(1000, layout, inventory)
}

/// Returns a machine with one boot variable of each type that a tenant with root privileges can create.
fn hostile() -> Inventory {
    let mut inventory = machine_with(|inventory| {
        vec![
            option(Boot, 0, "UiApp", LoadTarget::Firmware),
            option(Boot, 1, "debian", on(inventory, "sda")),
            option(Boot, 2, "other", on(inventory, "sdb")),
            option(Boot, 3, "UEFI PXEv4", LoadTarget::Network),
            option(Boot, 4, "UEFI PXEv4", uri()),
            option(Boot, 5, "drophammer: web-1", uri()),
            option(Boot, 6, "drophammer: web-0", on(inventory, "sda")),
            option(Boot, 7, "gone", LoadTarget::Partition(Uuid::from_u128(99))),
            option(Boot, 8, "iSCSI", LoadTarget::RemoteAddress),
            option(Boot, 9, "legacy", LoadTarget::MbrPartition),
            FirmwareLoadOption {
                arguments: Some("fs0:evil.nsh".into()),
                ..option(Boot, 10, "EFI Shell", LoadTarget::Firmware)
            },
            option(Boot, 11, "broken", LoadTarget::Malformed),
            option(Driver, 0, "driver", LoadTarget::Unknown),
            option(SysPrep, 0, "prepare", on(inventory, "sdb")),
            option(SysPrep, 1, "prepare", LoadTarget::Firmware),
            option(PlatformRecovery, 0, "recovery", LoadTarget::Firmware),
            option(OsRecovery, 0, "recovery", LoadTarget::Unknown),
        ]
    });
    let found = inventory.firmware_variables.as_mut().unwrap();
    found.boot_next = Some(4);
    let other = |name: &str, purpose| OtherFirmwareVariable {
        name: name.to_owned(),
        vendor: Uuid::nil(),
        purpose,
        bytes: 8,
        digest: Some(name.to_owned()),
    };
    found.others = vec![
        other("Key0001", VariablePurpose::HotKey),
        other("OsIndications", VariablePurpose::FirmwareRequest),
        other("LoaderEntryOneShot", VariablePurpose::SystemdBoot),
        other("MokNew", VariablePurpose::ShimRequest),
        other("MokListRT", VariablePurpose::ShimKeys),
        other("DrophammerReported", VariablePurpose::Drophammer),
    ];
    inventory
}

/// Returns the variables that the plan removes, in the order of its operations: the name of each variable, and whether
/// its removal is required.
fn removed(plan: &Plan) -> Vec<(String, bool)> {
    let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    let removals = operations.filter_map(|operation| match operation {
        Operation::Run(SessionOp::RemoveVariables(removal)) => Some(removal),
        _ => None,
    });
    removals
        .flat_map(|removal| removal.variables.iter().map(|variable| (variable.name.clone(), removal.required)))
        .collect()
}

fn names(removed: &[(String, bool)]) -> Vec<&str> {
    removed.iter().map(|(name, _)| name.as_str()).collect()
}

fn clean() -> Layout {
    Layout { cleanfirmware: true, ..layout() }
}

#[test]
fn removes_only_boot_entries_of_destroyed_partitions_by_default() {
    let plan = reinstall(&layout(), &hostile()).unwrap();
    let removed = removed(&plan);
    assert_eq!(names(&removed), ["Boot0001", "Boot0006"]);
    assert!(removed.iter().all(|(_, required)| !required));
    let text = plan.to_string();
    for line in [
        "firmware boot variables: boot order 0001,0002,0003",
        "  Boot0000      firmware  firmware program: UiApp  path",
        "  Boot0001      REMOVE    starts from /dev/sda1, whose contents are destroyed: debian  path",
        "  Boot0002      keep      starts from /dev/sdb1: other  path",
        "  Boot0004      foreign   starts a URI: UEFI PXEv4  path",
        "  Boot0010",
        "  Driver0000    foreign   runs before every boot entry; starts an unknown program: driver  path",
        "  BootNext      foreign   takes precedence over the boot order for one boot: Boot0004",
        "  MokListRT     foreign   keys that shim trusts",
        "boot variables of foreign origin will remain in the firmware: Boot0004, Boot0005, Boot0007",
        "cleanfirmware: true in the layout removes",
    ] {
        assert!(line == "  Boot0010" || text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn cleanfirmware_preserves_entries_of_preserved_systems_and_firmware() {
    let plan = reinstall(&clean(), &hostile()).unwrap();
    let removed = removed(&plan);
    let before = ["Boot0001", "Boot0004", "Boot0007", "Boot0008", "Boot0009", "Boot000A", "Boot000B"];
    let rest = ["Driver0000", "SysPrep0001", "BootNext", "OsIndications"];
    assert_eq!(names(&removed), [&before[..], &rest, &["Boot0005", "Boot0006"]].concat());
    let stages: Vec<StageName> = plan.stages.iter().map(|stage| stage.name).collect();
    let wipe = stages.iter().position(|stage| *stage == StageName::StorageWipe).unwrap();
    assert_eq!(stages[wipe + 1], StageName::BootClean);
    assert!(removed.iter().take(before.len() + rest.len()).all(|(_, required)| *required));
}

#[test]
fn pool_erasure_removes_every_variable_of_the_last_tenant() {
    let plan =
        pool_machine_erasure::plan_emptying(&hostile(), PoolAllocation::Unallocated, &[], subject()).unwrap().unwrap();
    let removed = removed(&plan);
    let expected = [
        "Boot0001",
        "Boot0002",
        "Boot0004",
        "Boot0005",
        "Boot0006",
        "Boot0007",
        "Boot0008",
        "Boot0009",
        "Boot000A",
        "Boot000B",
        "Driver0000",
        "SysPrep0000",
        "SysPrep0001",
        "BootNext",
        "OsIndications",
        "LoaderEntryOneShot",
        "MokNew",
    ];
    assert_eq!(names(&removed), expected);
    assert!(removed.iter().all(|(_, required)| *required));
    assert_eq!(plan.stages.last().map(|stage| stage.name), Some(StageName::BootClean));
    assert!(
        plan.to_string()
            .contains("boot variables of foreign origin will remain in the firmware: OsRecovery0000, MokListRT")
    );
}

#[test]
fn booted_uri_entry_is_preserved_and_reported() {
    let mut inventory = hostile();
    inventory.firmware_variables.as_mut().unwrap().boot_current = Some(4);
    let plan =
        pool_machine_erasure::plan_emptying(&inventory, PoolAllocation::Unallocated, &[], subject()).unwrap().unwrap();
    assert!(!names(&removed(&plan)).contains(&"Boot0004"));
    let text = plan.to_string();
    assert!(
        text.contains("starts the URI from which the machine has booted")
            && text.contains("will remain in the firmware: Boot0004")
    );
}

#[test]
fn boot_next_is_removed_with_its_entry() {
    for (next, is_removed) in [(1, true), (2, false), (0x77, false)] {
        let mut inventory = hostile();
        inventory.firmware_variables.as_mut().unwrap().boot_next = Some(next);
        let plan = reinstall(&layout(), &inventory).unwrap();
        assert_eq!(names(&removed(&plan)).contains(&"BootNext"), is_removed, "{next}");
    }
}

#[test]
fn entry_for_possibly_preserved_partition_is_kept() {
    let mut copied = hostile();
    let table = copied.disks[0].table.clone();
    copied.disks[2].table = table;
    let plan = stale_boot_variables::plan_variables(&copied, None, RemovalPolicy::Foreign).unwrap();
    assert!(!plan.variables[1].removed, "nothing is destroyed");
    let mut unread = hostile();
    unread.disks[2].unreadable = Some("read error".to_owned());
    let plan = reinstall(&clean(), &unread).unwrap();
    let removed = removed(&plan);
    assert!(!names(&removed).contains(&"Boot0007") && !names(&removed).contains(&"Boot0009"), "{removed:?}");
    assert!(plan.to_string().contains("may start from a partition of /dev/sdc, which cannot be read"));
    let mut mbr = hostile();
    mbr.disks[2].table = Some(DiskTable { kind: "dos".into(), ..DiskTable::default() });
    let plan = reinstall(&clean(), &mbr).unwrap();
    assert!(!names(&self::removed(&plan)).contains(&"Boot0009"));
}

#[test]
fn unreadable_variables_cause_a_warning() {
    let with = |variables: Option<FirmwareVariables>| Inventory { firmware_variables: variables, ..hostile() };
    let unreadable =
        || Some(FirmwareVariables { unreadable: Some("not mounted".into()), ..FirmwareVariables::default() });
    let too_many = || Some(FirmwareVariables { omitted: 9, ..FirmwareVariables::default() });
    for (variables, words) in [
        (unreadable(), "not mounted; mount efivarfs"),
        (too_many(), "the firmware has 9 more boot variables than are supported"),
        (None, "the inventory does not contain the boot variables"),
    ] {
        let refused = reasons(reinstall(&clean(), &with(variables)));
        assert!(
            refused.len() == 1 && refused[0].starts_with("cleanfirmware: boot variables cannot be removed"),
            "{refused:?}"
        );
        assert!(refused[0].contains(words), "{refused:?}");
    }
    let bios = Inventory { system: Default::default(), ..with(None) };
    assert!(reinstall(&clean(), &bios).is_ok());
    for (variables, words) in [
        (unreadable(), "the firmware's boot variables: not mounted"),
        (too_many(), "9 of the firmware's boot variables were not read"),
    ] {
        let inventory = with(variables);
        let install = reinstall(&layout(), &inventory).unwrap();
        let pool = pool_machine_erasure::plan_emptying(&inventory, PoolAllocation::Unallocated, &[], subject())
            .unwrap()
            .unwrap();
        for plan in [install, pool] {
            assert!(plan.warnings.iter().any(|warning| warning.contains(words)), "{plan}");
        }
    }
}

#[test]
fn variable_texts_are_sanitized_and_truncated() {
    let hostile = format!("\u{1b}[2J\u{202e}{}\nBoot9999  own", "x".repeat(5000));
    let inventory = machine_with(|_| vec![option(Boot, 1, &hostile, uri())]);
    let text = reinstall(&layout(), &inventory).unwrap().to_string();
    let line = text.lines().find(|line| line.contains("Boot0001")).unwrap();
    assert!(line.len() < 300 && !line.contains(['\u{1b}', '\u{202e}']), "{line}");
    assert!(!text.contains("\nBoot9999"), "{text}");
}

/// The next plan finds no variables, because the first plan has removed them.
#[test]
fn second_plan_removes_no_variables() {
    for layout in [layout(), clean()] {
        let first = reinstall(&layout, &hostile()).unwrap();
        let found = after(&first, hostile());
        let second = reinstall_from(2000, &layout, &found).unwrap();
        assert_eq!(removed(&second), [], "{second}");
    }
}

/// The entries of drophammer itself: one for the system that is replaced, one for a system on the preserved disk, one
/// for a partition that does not exist.
#[test]
fn entries_of_preserved_systems_are_not_replaced() {
    let inventory = machine_with(|found| {
        let absent = LoadTarget::Partition(Uuid::from_u128(99));
        [on(found, "sda"), on(found, "sdb"), absent]
            .into_iter()
            .zip(1..)
            .map(|(target, number)| option(Boot, number, "drophammer: web-1", target))
            .collect()
    });
    let preserved = |plan: &Plan| {
        let entries = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
            Operation::Run(SessionOp::WriteBootEntries(WriteBootEntries { preserved, .. })) => Some(preserved.clone()),
            _ => None,
        });
        entries.unwrap()
    };
    let plan = reinstall(&layout(), &inventory).unwrap();
    assert_eq!(preserved(&plan), [guid_of(&inventory, "sdb", 1)]);
    assert!(plan.to_string().contains("Boot0002      keep"), "{plan}");
    // The image on sda is bootable as it is, and only its own entry is written.
    let (disk, subject) = (&inventory.disks[0], subject());
    let raw = crate::plan_boot_entry(&inventory, disk, subject).unwrap().unwrap();
    assert_eq!(preserved(&raw), [guid_of(&inventory, "sdb", 1)]);
    // A disk that cannot be read may contain any partition.
    let mut unread = inventory.clone();
    unread.disks[2].unreadable = Some("Input/output error".to_owned());
    assert_eq!(preserved(&reinstall(&layout(), &unread).unwrap()).len(), 2);
}
