//! Adoptions that are refused because a reinstall would erase contents of the machine.

use super::*;
use model::layout::{Layout, canonical_yaml};

/// Returns the discovered layout of a recorded machine, with the id `edited`.
fn discover_recorded(machine: &str) -> Layout {
    let read = |name: &str| fs::read_to_string(format!("{FOLDER}{machine}/{name}")).unwrap();
    let inventory = serde_json::from_str(&read("inventory.json")).unwrap();
    layout_discovery::discover_layout(&inventory, Some(&read("fstab")), "edited").layout
}

/// An edited layout replaces the discovered one. A layout that erases data is refused, also if the data shares a
/// physical volume or an array with the system.
#[test]
fn an_edited_layout_is_planned() {
    let (dir, host) = prepare_host();
    let file = dir.path().join("edited.yaml");
    let alma = canonical_yaml(&discover_recorded("almalinux-uefi"));
    let debian = discover_recorded("debian-lvm");
    let unmarked = |layout: &Layout| canonical_yaml(layout).replace("    preserve: true\n", "");
    let mut removed = debian.clone();
    removed.logicalvolumes.retain(|volume| volume.name != "home");
    removed.filesystems.retain(|filesystem| filesystem.path.as_deref() != Some("/home"));
    let home = "a reinstall would erase data: /dev/mapper/web--vg-home /home";
    for (machine, text, expected, outcome) in [
        ("almalinux-uefi", alma.clone(), "layout edited", CommandOutcome::Good),
        (
            "almalinux-uefi",
            alma.replace("wipeonreinstall: false", "wipeonreinstall: true"),
            "a reinstall would erase data: /dev/sdb /data",
            CommandOutcome::Refused,
        ),
        ("almalinux-uefi", alma.replace("id: edited", "id: 5\nnonsense: 1"), "nonsense", CommandOutcome::Refused),
        ("debian-lvm", canonical_yaml(&debian), "layout edited", CommandOutcome::Good),
        ("debian-lvm", unmarked(&debian), home, CommandOutcome::Refused),
        ("debian-lvm", canonical_yaml(&removed), home, CommandOutcome::Refused),
        (
            "hetzner-home",
            unmarked(&discover_recorded("hetzner-home")),
            "a reinstall would erase data: /dev/md3 /home",
            CommandOutcome::Refused,
        ),
    ] {
        fs::write(&file, &text).unwrap();
        let options = MachineAdoptionOptions { layout: Some(file.clone()), dry_run: true, ..options(machine) };
        let (output, printed) = run(&options, &host);
        assert!(printed == outcome && output.contains(expected), "{machine}: {expected}: {output}");
    }
}

/// A partition with the type of a root filesystem, which nothing mounts.
#[test]
fn content_without_proof_is_erased_only_on_request() {
    let (dir, host) = prepare_host();
    let read = |name: &str| fs::read_to_string(format!("{FOLDER}debian-home/{name}")).unwrap();
    let mut inventory: Value = serde_json::from_str(&read("inventory.json")).unwrap();
    inventory["disks"][0]["table"]["partitions"][3]["kind"] = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709".into();
    let fstab: Vec<String> = read("fstab").lines().filter(|line| !line.contains("/home")).map(str::to_owned).collect();
    let files = [("inventory.json", inventory.to_string()), ("fstab", fstab.join("\n"))];
    let [inventory, fstab] = files.map(|(name, text)| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        Some(file)
    });
    for (give_up, expected, outcome) in [
        (None, "--give-up /dev/sda4 (DH-243)", CommandOutcome::Refused),
        (Some("/dev/sda"), "--give-up /dev/sda: ", CommandOutcome::Refused),
        (Some("/dev/sda4"), "as requested with --give-up", CommandOutcome::Good),
    ] {
        let options = MachineAdoptionOptions {
            inventory: inventory.clone(),
            fstab: fstab.clone(),
            give_up: give_up.into_iter().map(str::to_owned).collect(),
            dry_run: true,
            ..MachineAdoptionOptions::default()
        };
        let (output, printed) = run(&options, &host);
        assert!(printed == outcome && output.contains(expected), "{give_up:?}: {output}");
    }
}
