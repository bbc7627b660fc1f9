//! Reinstalls that renew some volumes of a group and preserve its other volumes.

use super::partly_kept_disks::{installed_with, operations_of, problems_of, renew};
use super::*;
use model::device_name::DevicePath;
use model::inventory::{FreeSpace, GroupAllocation, HAS_SNAPSHOT, LvmLogicalVolume, VolumeHealth, VolumeRange};
use operations::{ByteRange, CreateVolume, DeviceOp, Operation, RemoveVolumes, SessionOp, StageName, UnlockDisk};

/// Root and data in one group, as on a server with LVM on one partition.
pub(super) const ONE_GROUP: &str = "id: group
constraints: {sizes: [], images: {}}
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions: [{number: 1, label: efi, size: 500, gpttype: ef00}, {number: 2, size: 0, gpttype: 8e00}]
volumegroups:
- {name: vg0, devices: [/dev/sda2]}
logicalvolumes:
- {name: root, volumegroup: vg0, size: 4000, lvmtype: linear}
- {name: data, volumegroup: vg0, size: 8000, lvmtype: linear, preserve: true}
- {name: swap, volumegroup: vg0, size: 1000, lvmtype: linear}
filesystems:
- {path: /, device: /dev/vg0/root, format: ext4, label: root}
- {path: /boot/efi, device: /dev/sda1, format: vfat}
- {path: /srv, device: /dev/vg0/data, format: xfs, label: srv}
- {device: /dev/vg0/swap, format: swap}
";

/// The same group on a mirror of two partitions.
fn on_mirror() -> String {
    let disks = "- device: /dev/sdb
  wipeonreinstall: true
  partitions: [{number: 1, size: 500}, {number: 2, size: 0, gpttype: fd00}]
raid:
- {arrayname: /dev/md/lvm, level: \"1\", devices: [/dev/sda2, /dev/sdb2]}
volumegroups:";
    ONE_GROUP
        .replace("gpttype: 8e00", "gpttype: fd00")
        .replace("volumegroups:", disks)
        .replace("devices: [/dev/sda2]}\nlogical", "devices: [/dev/md/lvm]}\nlogical")
}

/// The same group on two physical volumes.
fn two_physical() -> String {
    let two = ONE_GROUP.replace(
        "{number: 2, size: 0, gpttype: 8e00}",
        "{number: 2, size: 9000, gpttype: 8e00}, {number: 3, size: 0, gpttype: 8e00}",
    );
    two.replace("devices: [/dev/sda2]", "devices: [/dev/sda2, /dev/sda3]")
}

/// Returns an allocation with 100 MiB of free space on each physical volume.
fn allocation(inventory: &Inventory, policy: &str, read_only: bool) -> GroupAllocation {
    let free = |physical: &inventory::LvmPhysicalVolume| FreeSpace {
        physical: physical.uuid.clone(),
        is_allocatable: true,
        bytes: 100 * MIB,
        largest_bytes: 100 * MIB,
    };
    let free = inventory.groups[0].physical.iter().map(free).collect();
    GroupAllocation { policy: policy.to_owned(), read_only, free, ..GroupAllocation::default() }
}

fn removals(plan: &Plan) -> Vec<&RemoveVolumes> {
    let removal = |operation| match operation {
        &Operation::Device(DeviceOp::RemoveVolumes(ref remove)) => Some(remove),
        _ => None,
    };
    operations_of(plan).filter_map(removal).collect()
}

fn data_of(inventory: &Inventory) -> Vec<(LvmLogicalVolume, Vec<DeviceSignature>)> {
    let volumes = inventory.groups.iter().flat_map(|group| &group.volumes).filter(|volume| volume.name == "data");
    let content = |volume: &LvmLogicalVolume| {
        let running = inventory.stacked.iter().find(|stacked| Some(&stacked.name) == volume.running.as_ref());
        running.unwrap().signatures.clone()
    };
    volumes.map(|volume| (volume.clone(), content(volume))).collect()
}

fn volume_mut<'a>(inventory: &'a mut Inventory, name: &str) -> &'a mut LvmLogicalVolume {
    inventory.groups[0].volumes.iter_mut().find(|volume| volume.name == name).unwrap()
}

#[test]
fn the_root_volume_is_renewed_next_to_preserved_data_in_the_same_group() {
    for yaml in [ONE_GROUP.to_owned(), on_mirror()] {
        let installed = installed_with(&yaml);
        let plan = renew(&yaml, &installed).unwrap();
        properties::assert_sound(&plan, &installed);
        let [remove] = removals(&plan)[..] else { panic!("{plan}") };
        let names = |volumes: &[operations::ExpectedVolume]| {
            volumes.iter().map(|volume| volume.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            (names(&remove.removed), names(&remove.preserved)),
            (vec!["root".into(), "swap".into()], vec!["data".into()])
        );
        let created = operations_of(&plan).filter_map(|operation| match operation {
            Operation::Device(DeviceOp::CreateVolume(CreateVolume { name, .. })) => Some(name.as_str()),
            _ => None,
        });
        assert_eq!(created.collect::<Vec<_>>(), ["root", "swap"]);
        let reinstalled = after(&plan, installed.clone());
        assert_eq!((data_of(&installed), data_of(&installed).len()), (data_of(&reinstalled), 1));
        assert_eq!(data_of(&installed)[0].1[0].kind, "xfs");
        let again = renew(&yaml, &reinstalled).unwrap();
        assert_eq!(data_of(&after(&again, reinstalled.clone())), data_of(&installed));
        let text = plan.to_string();
        for line in ["remove root, swap of vg0", "preserve data", "remove vg0/root linear", "make vg0/root linear"] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}

#[test]
fn the_group_is_activated_before_its_volumes_are_removed_and_not_taken_down_afterwards() {
    let plan = renew(&on_mirror(), &installed_with(&on_mirror())).unwrap();
    let operations = arrays_and_groups::operations(&plan, StageName::StorageLvm);
    let unlocked = operations.iter().map_while(|operation| match operation {
        Operation::Run(SessionOp::UnlockDisk(UnlockDisk { device, .. })) => Some(device.as_str()),
        _ => None,
    });
    assert_eq!(unlocked.collect::<Vec<_>>(), ["/dev/sda2", "/dev/sdb2"]);
    let names = operations.iter().skip(2).map(|operation| match operation {
        Operation::Device(DeviceOp::StopInspectedDevices(_)) => "take down",
        Operation::Device(DeviceOp::AssembleArray(_)) => "assemble",
        Operation::Device(DeviceOp::RemoveVolumes(_)) => "remove",
        Operation::Device(DeviceOp::CreateVolume(_)) => "create",
        other => panic!("{other:?}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), ["take down", "assemble", "remove", "create", "create"]);
    let late = arrays_and_groups::operations(&plan, StageName::StorageMountPreserved);
    let [Operation::Device(DeviceOp::ActivateGroup(group)), Operation::Run(SessionOp::Mount(mount))] = late else {
        panic!("{late:?}")
    };
    assert_eq!((group.volumes.as_slice(), mount.path.as_str()), (&["data".to_owned()][..], "/srv"));
}

#[test]
fn no_stage_may_write_the_preserved_volume_before_it_is_activated() {
    let installed = installed_with(ONE_GROUP);
    let plan = renew(ONE_GROUP, &installed).unwrap();
    let part = &installed.disks[0].table.as_ref().unwrap().partitions[1];
    let [range] = data_of(&installed)[0].0.ranges[..].to_vec().try_into().unwrap_or_else(|all| panic!("{all:?}"));
    let data = ByteRange { start: part.start_bytes + range.start_bytes, length: range.size_bytes };
    let closed = plan.extents.iter().take_while(|extents| !extents.stages.contains(&StageName::StorageMountPreserved));
    let closed: Vec<_> = closed.flat_map(|extents| &extents.disks).flat_map(|disk| &disk.ranges).collect();
    assert!(closed.len() > 2, "{:?}", plan.extents);
    for open in closed {
        assert!(open.start + open.length <= data.start || data.start + data.length <= open.start, "{open:?} {data:?}");
    }
    // If the location of the volume is unknown, the whole physical volume is listed.
    let mut unknown = installed.clone();
    volume_mut(&mut unknown, "data").ranges.clear();
    let plan = renew(ONE_GROUP, &unknown).unwrap();
    let last = plan.extents.iter().find(|extents| extents.stages.contains(&StageName::StorageFormat)).unwrap();
    assert!(last.disks[0].ranges.iter().any(|open| open.start <= data.start && data.start < open.start + open.length));
}

#[test]
fn volumes_that_the_layout_does_not_list_are_preserved() {
    let mut installed = installed_with(ONE_GROUP);
    let other = LvmLogicalVolume {
        name: "pool".to_owned(),
        kind: "thin-pool".to_owned(),
        size_bytes: 1000 * MIB,
        running: None,
        ..LvmLogicalVolume::default()
    };
    installed.groups[0].volumes.push(other.clone());
    let plan = renew(ONE_GROUP, &installed).unwrap();
    assert!(removals(&plan)[0].preserved.iter().any(|volume| volume.name == "pool"));
    let reinstalled = after(&plan, installed);
    assert!(reinstalled.groups[0].volumes.contains(&other));
}

#[test]
fn a_volume_that_does_not_fit_next_to_the_preserved_ones_is_refused_with_numbers() {
    let installed = installed_with(ONE_GROUP);
    // 19,498 MiB are in the group: 8000 preserved, 5000 removed, and 6492 free in whole extents.
    let free = installed.groups[0].free_bytes.unwrap() / MIB;
    let too_large = ONE_GROUP.replace("size: 4000", &format!("size: {}", free + 5000));
    let found = problems_of(&too_large, &installed);
    let expected = "vg:vg0 is not big enough for lv:swap required:1000MiB, existing:0MiB";
    assert!(found.len() == 1 && found[0].contains(expected), "{found:#?}");
    assert!(found[0].contains("preserved volumes are neither shrunk nor moved"), "{found:#?}");
    let fits = ONE_GROUP.replace("size: 4000", &format!("size: {}", free + 4000));
    renew(&fits, &installed).unwrap();
    let grown = ONE_GROUP.replace("size: 8000", "size: 9000");
    let found = problems_of(&grown, &installed);
    assert!(
        found[0].contains("/dev/vg0/data must be preserved, and must be linear 9000 MiB, but is linear 8000 MiB"),
        "{found:#?}"
    );
    let rest = ONE_GROUP.replace("size: 1000", "size: 0");
    let reinstalled = renew(&rest, &installed).unwrap();
    assert_eq!(reinstalled.sizes[&DevicePath::from("/dev/vg0/swap")] / MIB, free + 1000);
}

#[test]
fn volumes_on_which_others_depend_are_refused_with_their_names() {
    let with = |kind: &str, entangled: Option<&str>, other: &str| {
        let mut installed = installed_with(ONE_GROUP);
        let root = volume_mut(&mut installed, "root");
        (root.kind, root.entangled) = (kind.to_owned(), entangled.map(str::to_owned));
        let (name, kind) = (format!("my{other}"), other.to_owned());
        installed.groups[0].volumes.push(LvmLogicalVolume { name, kind, ..LvmLogicalVolume::default() });
        problems_of(ONE_GROUP, &installed)
    };
    for (kind, entangled, other, expected) in [
        (
            "linear",
            Some(HAS_SNAPSHOT),
            "snapshot",
            "vg0/root cannot be removed: the volume has snapshots, which would be removed together with the volume: \
            vg0/mysnapshot",
        ),
        ("thin-pool", None, "thin", "the volume is a thin pool with the volumes vg0/mythin"),
        ("thin", None, "thin-pool", "the volume is a thin volume in a pool (vg0/mythin-pool)"),
        ("cache", None, "linear", "the volume has the type cache, which depends on hidden volumes"),
        ("snapshot", None, "linear", "the volume is a snapshot"),
        ("linear", Some("is being moved, and so on"), "linear", "the volume is being moved, and so on"),
    ] {
        let found = with(kind, entangled, other);
        assert!(found.len() == 1 && found[0].contains(expected), "{kind}: {found:#?}");
    }
}

#[test]
fn a_group_that_lacks_members_or_cannot_be_changed_is_refused() {
    let two = two_physical();
    let installed = installed_with(&two);
    renew(&two, &installed).unwrap();
    let mut missing = installed.clone();
    missing.groups[0].physical[1].device = None;
    let found = problems_of(&two, &missing);
    assert!(!found.is_empty() && found.iter().any(|why| why.contains("a missing device")), "{found:#?}");
    let allocation = |policy: &str, read_only: bool| allocation(&installed, policy, read_only);
    let mut changed = installed.clone();
    changed.groups[0].allocation = Some(allocation("normal", true));
    assert!(problems_of(&two, &changed)[0].contains("the metadata of the group is read-only"));
    changed.groups[0].allocation = Some(allocation("normal", false));
    renew(&two, &changed).unwrap();
    let larger = two.replace("size: 4000", "size: 4100");
    renew(&larger, &changed).unwrap();
    changed.groups[0].allocation = Some(allocation("contiguous", false));
    let found = problems_of(&larger, &changed);
    assert!(
        found[0].contains("allocates contiguously, and its largest free area after the removal has 4000 MiB"),
        "{found:#?}"
    );
    changed.groups[0].allocation = Some(GroupAllocation { free: Vec::new(), ..allocation("normal", false) });
    let found = problems_of(&two, &changed);
    assert!(found[0].contains("required:4000MiB, existing:0MiB"), "{found:#?}");
}

#[test]
fn only_the_data_of_preserved_volumes_must_be_complete() {
    for (name, health, refused) in [
        ("root", VolumeHealth::Lost, None),
        ("swap", VolumeHealth::Degraded, None),
        ("data", VolumeHealth::Lost, Some("vg:vg0 must be preserved, but data of the volumes data is missing")),
    ] {
        let mut installed = installed_with(ONE_GROUP);
        volume_mut(&mut installed, name).health = health;
        match (refused, renew(ONE_GROUP, &installed)) {
            (None, Ok(plan)) => assert!(!plan.to_string().contains("DEGRADED"), "{plan}"),
            (Some(why), Err(found)) => assert!(found.iter().any(|is| is.to_string().contains(why)), "{found:#?}"),
            (_, other) => panic!("{name}: {other:?}"),
        }
    }
}

/// While `lvcreate` clears the superblocks of a new raid1 volume, they are visible as volumes.
#[test]
fn visible_parts_of_an_interrupted_raid1_volume_are_removed_with_it() {
    let yaml = two_physical().replace("size: 4000, lvmtype: linear", "size: 4000, lvmtype: raid1");
    let yaml = yaml.replace("swap, volumegroup: vg0, size: 1000", "swap, volumegroup: vg0, size: 0");
    let mut whole = installed_with(&yaml);
    whole.groups[0].allocation = Some(allocation(&whole, "normal", false));
    let physical: Vec<String> = whole.groups[0].physical.iter().map(|physical| physical.uuid.clone()).collect();
    let range = |on: usize, start: u64, mib: u64| VolumeRange {
        physical: physical[on].clone(),
        start_bytes: start * MIB,
        size_bytes: mib * MIB,
    };
    volume_mut(&mut whole, "root").ranges = vec![range(0, 1, 4), range(0, 5, 4000), range(1, 1, 4), range(1, 5, 4000)];
    volume_mut(&mut whole, "swap").ranges = vec![range(0, 4005, 1000)];
    let mut cut = whole.clone();
    volume_mut(&mut cut, "root").health = VolumeHealth::Lost;
    let others = ["root_rmeta_", "root_rmeta_0a", "roots_rmeta_0", "data_rmeta_0"];
    for (on, name) in ["root_rmeta_0", "root_rmeta_1"].iter().enumerate().chain(others.iter().map(|name| (0, name))) {
        let (name, uuid, kind) = ((*name).to_owned(), format!("uuid of {name}"), "linear".to_owned());
        let ranges = vec![range(on, 1, 4)];
        let part = LvmLogicalVolume { name, uuid, kind, size_bytes: 4 * MIB, ranges, ..LvmLogicalVolume::default() };
        cut.groups[0].volumes.push(part);
    }
    let names = |volumes: &[operations::ExpectedVolume]| -> Vec<String> {
        volumes.iter().map(|volume| volume.name.clone()).collect()
    };
    let (before, plan) = (renew(&yaml, &whole).unwrap(), renew(&yaml, &cut).unwrap());
    let [remove] = removals(&plan)[..] else { panic!("{plan}") };
    assert_eq!(names(&remove.removed), ["root", "swap", "root_rmeta_0", "root_rmeta_1"]);
    assert_eq!(names(&remove.preserved), [&["data"][..], &others].concat());
    // The parts are included in the ranges of the volume, and are not counted again.
    assert_eq!(plan.sizes, before.sizes);
}

#[test]
fn a_striped_volume_is_renewed_only_if_the_location_of_the_removed_volumes_is_known() {
    let two = two_physical().replace("size: 4000, lvmtype: linear", "size: 4000, lvmtype: striped");
    let mut unknown = installed_with(&two);
    let found = problems_of(&two, &unknown);
    assert!(found[0].contains("does not contain the location of the removed volumes"), "{found:#?}");
    unknown.groups[0].allocation = Some(allocation(&unknown, "normal", false));
    renew(&two, &unknown).unwrap();
    volume_mut(&mut unknown, "root").ranges.clear();
    let found = problems_of(&two, &unknown);
    assert!(found[0].contains("does not contain the location of the removed volumes"), "{found:#?}");
}
