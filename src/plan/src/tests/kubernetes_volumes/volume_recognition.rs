//! Kubernetes volumes are recognized even if their device has another name, or also has other content.

use super::repeated_preparation_check::{blank, ext4, make, plan_request, records, reinstall};
use super::*;
use model::inventory::LvmLogicalVolume;
use operations::logical_volume_link;

fn member() -> DeviceSignature {
    DeviceSignature {
        kind: "linux_raid_member".into(),
        usage: "raid".into(),
        uuid: "stale".into(),
        ..DeviceSignature::default()
    }
}

/// Renames a logical volume in the group `csi` of an installed machine.
fn rename(machine: &mut Inventory, from: &str, to: &str) {
    let volume = machine.groups[0].volumes.iter_mut().find(|volume| volume.name == from).unwrap();
    to.clone_into(&mut volume.name);
    let (from, to) = (format!("/dev/mapper/csi-{from}"), format!("/dev/mapper/csi-{to}"));
    machine
        .stacked
        .iter_mut()
        .filter(|stacked| stacked.device == from)
        .for_each(|stacked| stacked.device = to.as_str().into());
}

fn deactivate(machine: &mut Inventory, name: &str) {
    let volume = machine.groups[0].volumes.iter_mut().find(|volume| volume.name == name).unwrap();
    let running = volume.running.take().unwrap();
    machine.stacked.retain(|stacked| stacked.name != running);
    machine.disks[1].uses.retain(|usage| *usage != DeviceUse::Holder(running.clone()));
}

fn remove(machine: &mut Inventory, name: &str) {
    deactivate(machine, name);
    machine.groups[0].volumes.retain(|volume| volume.name != name);
}

#[test]
fn renamed_logical_volume_is_preserved() {
    let web = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let recorded = records(&web);
    for known in [&recorded[..], &[]] {
        let mut machine = installed(&web);
        rename(&mut machine, "web", "old");
        let plan = reinstall(&machine, &web, known).unwrap();
        assert_eq!(format_volumes(&plan), ["web /dev/mapper/csi-old keep sdb"]);
        assert_eq!(prepares(&plan), [""; 0]);
        let said =
            "volume web refers to /dev/csi/web, but is kept on /dev/mapper/csi-old, which has the UUID of the volume"
                .to_owned();
        assert!(plan.warnings.contains(&said), "{plan}");
        assert_sound(&plan, &machine);
        // The volume is on a disk that the layout does not list.
        let mut machine = installed(&web);
        remove(&mut machine, "web");
        (machine.disks[2].signatures, machine.disks[2].blank) = (vec![ext4(&uid(3))], false);
        assert_eq!(format_volumes(&reinstall(&machine, &web, known).unwrap()), ["web /dev/sdc keep sdc"]);
        // Another volume has the requested name.
        let mut machine = installed(&web);
        rename(&mut machine, "web", "old");
        let mut other = machine.groups[0].volumes[0].clone();
        other.name = "web".into();
        other.size_bytes = 2 << 30;
        machine.groups[0].volumes.push(other);
        let said = reasons(reinstall(&machine, &web, known));
        assert!(
            said[0].contains("cannot use /dev/csi/web: the UUID of the volume is on /dev/mapper/csi-old"),
            "{said:?}"
        );
    }
}

#[test]
fn missing_logical_volume_is_created_only_if_new() {
    for mode in ["Filesystem", "Block"] {
        let web = [in_group("web", 3, mode, "csi", "1Gi")];
        let recorded = records(&web);
        let mut machine = installed(&web);
        remove(&mut machine, "web");
        let said = reasons(reinstall(&machine, &web, &recorded));
        let expected = "volume web cannot be prepared on /dev/csi/web: the volume was prepared on /dev/csi/web, a disk without serial number";
        assert!(said.len() == 1 && said[0].contains(expected), "{said:?}");
        assert_eq!(format_volumes(&reinstall(&machine, &web, &[]).unwrap()), ["web /dev/csi/web extend sdb"]);
    }
    // The volume is inactive and renamed, so its UUID is not visible.
    let web = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut machine = installed(&web);
    rename(&mut machine, "web", "old");
    deactivate(&mut machine, "old");
    assert!(reasons(reinstall(&machine, &web, &records(&web)))[0].contains("the volume was prepared on /dev/csi/web"));
    assert_eq!(
        format_volumes(&reinstall(&machine, &web, &[]).unwrap()),
        ["web /dev/csi/web extend sdb"],
        "the marker lists none"
    );
    let said = reasons(make(&layout(), &machine, plan_request(InstallMode::Reinstall, &web)));
    let expected = "no record shows whether the volume was prepared before, and its content may be in logical volume csi/old (linear)";
    assert!(said.len() == 1 && said[0].contains(expected), "{said:?}");
    let mut request = plan_request(InstallMode::Reinstall, &web);
    request.assigned.allocation.prepared_volumes = Some(Vec::new());
    assert!(make(&layout(), &machine, request).is_ok(), "the control plane lists none");
    remove_inactive(&mut machine, "old");
    assert!(
        make(&layout(), &machine, plan_request(InstallMode::Reinstall, &web)).is_ok(),
        "all volumes were inspected"
    );
}

fn remove_inactive(machine: &mut Inventory, name: &str) {
    machine.groups[0].volumes.retain(|volume| volume.name != name);
}

/// A `Block` volume on LVM does not contain its Kubernetes UUID. The record contains its LVM UUID.
#[test]
fn recorded_lvm_uuid_identifies_its_block_volume() {
    let block = [in_group("bare", 3, "Block", "csi", "1Gi")];
    let mut machine = installed(&block);
    machine.groups[0].uuid = "g-g".into();
    let volumes = machine.groups[0].volumes.iter_mut();
    volumes.for_each(|volume| volume.uuid = format!("l-{}", volume.name));
    let mut recorded = records(&block);
    recorded[0].path = logical_volume_link("g-g", "l-bare");
    assert_eq!(format_volumes(&reinstall(&machine, &block, &recorded).unwrap()), ["bare /dev/csi/bare keep sdb"]);
    rename(&mut machine, "bare", "old");
    let plan = reinstall(&machine, &block, &recorded).unwrap();
    assert_eq!(format_volumes(&plan), ["bare /dev/csi/old keep sdb"]);
    assert_eq!(plan.volumes[0].path.as_deref(), Some(recorded[0].path.as_str()));
    // A different logical volume has the requested name now.
    let other = LvmLogicalVolume {
        name: "bare".into(),
        uuid: "l-other".into(),
        size_bytes: 2 << 30,
        ..LvmLogicalVolume::default()
    };
    machine.groups[0].volumes.push(other);
    assert_eq!(format_volumes(&reinstall(&machine, &block, &recorded).unwrap()), ["bare /dev/csi/old keep sdb"]);
}

#[test]
fn second_signature_does_not_hide_a_volume() {
    let volume = [discover("data", 1, json!({}))];
    let mut machine = installed(&volume);
    machine.disks[2].signatures.push(member());
    let said = reasons(reinstall(&machine, &volume, &[]));
    let expected = format!(
        "volumes[data]: volume data has its UUID on /dev/sdc, which has several signatures: {} and {}; if linux_raid_member is the stale signature, remove it in the rescue shell: wipefs --all --types linux_raid_member /dev/sdc",
        content_descriptions::describe_signature(&machine.disks[2].signatures[0]),
        content_descriptions::describe_signature(&member())
    );
    assert_eq!(said, [expected]);
    // The result is the same for a renamed logical volume on which the additional signature is found first.
    let web = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut machine = installed(&web);
    rename(&mut machine, "web", "old");
    machine.stacked.iter_mut().find(|is| is.device == "/dev/mapper/csi-old").unwrap().signatures.insert(0, member());
    let said = reasons(reinstall(&machine, &web, &[]));
    assert!(said[0].contains("has its UUID on /dev/mapper/csi-old, which has several signatures"), "{said:?}");
    // A partition has the UUID of a volume that is now listed in the other mode.
    let block = [raw("data", 1, "Block", "/dev/sdc")];
    let machine = installed(&block);
    let filesystem = [raw("data", 1, "Filesystem", "/dev/sdd")];
    let said = reasons(reinstall(&machine, &filesystem, &[]));
    assert!(said[0].contains("is on /dev/sdc1 in another mode"), "{said:?}");
}

/// If an array has its superblock at the end, its content is also visible on its members, which is not a second copy.
#[test]
fn array_content_on_members_is_no_second_copy() {
    let mut layout = layout();
    layout.disks.extend(["/dev/sdc", "/dev/sdd"].map(whole));
    layout.raid.push(raid("/dev/md/data", &["/dev/sdc", "/dev/sdd"], RaidLevel::Raid1, 0));
    let volume = [raw("array", 1, "Filesystem", "/dev/md/data")];
    let plan = super::planned(&layout, &machine(), InstallMode::Install, &volume).unwrap();
    let mut inventory = after(&plan, machine());
    mark(&mut inventory);
    inventory.disks[2..4].iter_mut().for_each(|disk| disk.signatures.push(ext4(&uid(1))));
    let again = super::planned(&layout, &inventory, InstallMode::Reinstall, &volume).unwrap();
    assert!(format_volumes(&again)[0].contains(" keep sdc,sdd"), "{again}");
    // The array is inactive, and the layout does not list it.
    inventory.stacked.retain(|stacked| stacked.kind != inventory::StackedDeviceKind::Array);
    inventory.arrays[0].running = None;
    inventory.disks[2..4].iter_mut().for_each(|disk| disk.uses.clear());
    inventory.disks.push(blank("sde", 500));
    let said = reasons(reinstall(&inventory, &[discover("array", 1, json!({}))], &[]));
    assert!(said[0].contains("on several devices: /dev/sdc, /dev/sdd"), "{said:?}");
}

#[test]
fn refuses_copy_on_a_wiped_disk_unless_discarded() {
    let mut layout = layout();
    layout.disks.push(DiskSpec { wipeonreinstall: true, ..whole("/dev/sdc") });
    let volume = [raw("data", 1, "Filesystem", "/dev/sdd")];
    let mut machine = after(&super::planned(&layout, &machine(), InstallMode::Install, &volume).unwrap(), machine());
    mark(&mut machine);
    machine.disks[2].signatures.push(ext4(&uid(1)));
    let again = |give_up: &[&str]| {
        let mut request = plan_request(InstallMode::Reinstall, &volume);
        request.claim.as_mut().unwrap().give_up = give_up.iter().map(|serial| (*serial).to_owned()).collect();
        make(&layout, &machine, request)
    };
    let said = reasons(again(&[]));
    assert!(said[0].contains("has its UUID") && said[0].contains("on several devices: /dev/sdc, /dev/sdd"), "{said:?}");
    assert_eq!(format_volumes(&again(&["serial of sdc"]).unwrap()), ["data /dev/sdd keep sdd"]);
}
