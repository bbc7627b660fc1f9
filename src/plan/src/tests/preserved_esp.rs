//! EFI system partitions on partly kept disks: either preserved with the entries of other systems, or renewed.

use super::partly_kept_disks::{MIRRORED, installed_with, operations_of, renew};
use super::*;
use model::inventory::{FirmwareLoadOption, FirmwareVariables, LoadOptionClass, LoadTarget};
use operations::{DeviceOp, Esp, FinishInputs, MountFilesystem, Operation, SessionOp, WriteBootEntries};

/// Returns the layout whose ESP is preserved, and the layout whose ESP is renewed.
fn layouts() -> [(String, bool); 2] {
    let preserved =
        MIRRORED.replace("device: /dev/sda1, format: vfat", "device: /dev/sda1, format: vfat, preserve: true");
    [(preserved, true), (MIRRORED.to_owned(), false)]
}

/// Returns the machine with a boot entry of another system on the ESP.
fn installed(yaml: &str) -> Inventory {
    let mut inventory = installed_with(yaml);
    let esp = inventory.disks[0].table.as_ref().unwrap().partitions[0].guid.unwrap();
    let entry = FirmwareLoadOption {
        class: LoadOptionClass::Boot,
        number: 7,
        active: true,
        description: "other system".to_owned(),
        path: "path".to_owned(),
        target: LoadTarget::Partition(esp),
        arguments: None,
        digest: Some("digest".to_owned()),
    };
    let (load_options, boot_order) = (vec![entry], vec![7]);
    inventory.firmware_variables = Some(FirmwareVariables { load_options, boot_order, ..FirmwareVariables::default() });
    inventory
}

fn removed_entries(plan: &Plan) -> Vec<String> {
    let removals = operations_of(plan).filter_map(|operation| match operation {
        Operation::Run(SessionOp::RemoveVariables(removal)) => Some(&removal.variables),
        _ => None,
    });
    removals.flatten().map(|variable| variable.name.clone()).collect()
}

fn finishing(plan: &Plan) -> &FinishInputs {
    let finish = operations_of(plan).find_map(|operation| match operation {
        Operation::Run(SessionOp::Finish(inputs)) => Some(inputs),
        _ => None,
    });
    finish.unwrap()
}

#[test]
fn a_preserved_esp_keeps_foreign_entries_and_a_renewed_one_loses_them() {
    for (yaml, is_preserved) in layouts() {
        let installed = installed(&yaml);
        let plan = renew(&yaml, &installed).unwrap();
        properties::assert_sound(&plan, &installed);
        let made = operations_of(&plan).any(|operation| {
            matches!(operation, Operation::Device(DeviceOp::MakeFilesystem(make)) if make.device == "/dev/sda1")
        });
        assert_eq!(made, !is_preserved);
        let expected: &[&str] = if is_preserved { &[] } else { &["Boot0007"] };
        assert_eq!(removed_entries(&plan), expected);
        let text = plan.to_string();
        let lines: &[&str] = match is_preserved {
            true => &["vfat: UUID", "mounted at /boot/efi"],
            false => &["remove sda1 \"efi\"", "make sda1"],
        };
        assert!(lines.iter().all(|line| text.contains(line)), "{lines:?}\n{text}");
        let esp = |inventory: &Inventory| inventory.disks[0].table.as_ref().unwrap().partitions[0].clone();
        let reinstalled = after(&plan, installed.clone());
        assert_eq!(esp(&installed) == esp(&reinstalled), is_preserved);
        // The entry keeps its GUID either way, so the firmware finds the partition again.
        assert_eq!(esp(&installed).guid, esp(&reinstalled).guid);
    }
}

#[test]
fn the_loader_of_the_new_system_is_written_through_the_mount_point_of_a_preserved_esp() {
    for (yaml, is_preserved) in layouts() {
        let installed = installed(&yaml);
        let plan = renew(&yaml, &installed).unwrap();
        let part = installed.disks[0].table.as_ref().unwrap().partitions[0].clone();
        let [Esp { device, guid, path, .. }] = finishing(&plan).esps.as_slice() else { panic!("{plan}") };
        assert_eq!((device, Some(*guid), path.as_deref()), (&part.device, part.guid, Some("/boot/efi")));
        // The installer of the image may write a renewed partition directly, but not a preserved one.
        assert_eq!(finishing(&plan).devices.contains(&part.device), !is_preserved);
        let mounted = operations_of(&plan).any(|operation| {
            matches!(operation, Operation::Run(SessionOp::Mount(MountFilesystem { path, .. })) if path == "/boot/efi")
        });
        assert!(mounted);
        let entries = operations_of(&plan).find_map(|operation| match operation {
            Operation::Run(SessionOp::WriteBootEntries(WriteBootEntries { esps, .. })) => Some(esps),
            _ => None,
        });
        assert_eq!(entries.unwrap()[0].guid, part.guid.unwrap());
    }
}

#[test]
fn files_of_the_image_are_added_to_a_preserved_esp_only_on_request() {
    let (yaml, _) = &layouts()[0];
    let merged = yaml.replace("format: vfat, preserve: true", "format: vfat, preserve: true, reinstall: merge");
    for (yaml, expected) in [(yaml, false), (&merged, true)] {
        let plan = renew(yaml, &installed(yaml)).unwrap();
        let burn = operations_of(&plan).find_map(|operation| match operation {
            Operation::Run(SessionOp::BurnImage(burn)) => Some(burn),
            _ => None,
        });
        let burn = burn.unwrap();
        assert_eq!(
            (burn.merged.contains(&"/boot/efi".to_owned()), burn.hidden.contains(&"/boot/efi".to_owned())),
            (expected, !expected)
        );
    }
}

#[test]
fn a_preserved_esp_may_contain_files_of_other_systems() {
    for (yaml, is_preserved) in layouts() {
        let plan = renew(&yaml, &installed(&yaml)).unwrap();
        assert_eq!(finishing(&plan).esps.iter().map(|esp| esp.preserved).collect::<Vec<_>>(), [is_preserved]);
    }
}
