//! A machine that gets the system of another one.

use super::carrying::{carried, moved};
use super::drawn::{any_layout, blank};
use super::identity::{claim, install};
use super::judged::Judged;
use super::stacks::operations;
use super::*;
use crate::simulator::cut;
use model::allocation::Allocation;
use model::device::DevicePath;
use model::install_marker::{InstallMarker, RecordedDisk, lineage};
use model::inventory::{FilesystemContents, FirmwareType};
use model::migration::{MigratedMachine, MigrationOffer, MigrationPeer, MigrationSide, certificate_digest};
use model::storage_graph::LayoutMatch;
use operations::{DeviceOp, Operation, PlanAssignment, SessionOp, StageName};
use operations::{GrowFilesystem, MoveStands, TellPointOfNoReturn, WriteMarker};
use proptest::prelude::*;

/// Larger disks of another kind, one of which is nobody's.
pub(super) fn other() -> Inventory {
    let names = ["nvme0n1", "nvme1n1", "nvme2n1", "nvme3n1", "nvme4n1", "nvme5n1", "sda"];
    let mut other = Inventory { disks: names.map(|name| disk(name, 30_000)).into(), ..Inventory::default() };
    for (index, disk) in other.disks.iter_mut().enumerate() {
        disk.serial = format!("B{index}");
    }
    other.system.firmware = FirmwareType::Uefi;
    other
}

/// What the control plane says to it.
fn moving(layout: &Layout, other: &Inventory, carried: MigratedMachine) -> MigrationOffer {
    let disk = |(listed, disk): (&DiskSpec, &inventory::InventoryDisk)| RecordedDisk {
        device: listed.device.to_string(),
        serial: disk.serial.clone(),
        size_bytes: disk.size_bytes,
        ..RecordedDisk::default()
    };
    let disks = layout.disks.iter().zip(&other.disks).map(disk).collect();
    MigrationOffer {
        order: "o-7".to_owned(),
        part: MigrationSide::Receive,
        begun: false,
        awaits_approval: false,
        peer: None,
        carried: Some(carried),
        disks,
    }
}

fn of_other() -> InstallClaim {
    InstallClaim { machine: "m-2".to_owned(), order: None, former_machines: vec!["m-1".to_owned()], ..claim() }
}

fn receive(
    layout: &Layout,
    inventory: &Inventory,
    moving: MigrationOffer,
    claim: InstallClaim,
) -> Result<Plan, Box<PlanRefusal>> {
    receive_with(layout, inventory, Allocation { moving: Some(moving), ..Allocation::default() }, claim)
}

fn receive_with(
    layout: &Layout,
    inventory: &Inventory,
    allocation: Allocation,
    claim: InstallClaim,
) -> Result<Plan, Box<PlanRefusal>> {
    let allocation = Allocation { id: "a-1".to_owned(), hostname: "web-1".to_owned(), ..allocation };
    let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
    let (mode, subject) = (InstallMode::Install, PlanSubject { machine: "m-2".to_owned(), ..subject() });
    let request = PlanRequest { mode, steps: StepList::default(), subject, assigned, claim: Some(claim) };
    super::super::make_plan(layout, inventory, request, &mut counting_from(1 << 20))
}

fn planned() -> (Layout, Inventory, MigrationOffer, Plan) {
    let (layout, inventory) = moved();
    let other = other();
    let moving = moving(&layout, &other, carried(&layout, &inventory).0);
    let plan = receive(&layout, &other, moving.clone(), of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
    (layout, other, moving, plan)
}

fn all(plan: &Plan) -> impl Iterator<Item = &Operation> {
    plan.stages.iter().flat_map(|stage| &stage.operations)
}

#[test]
fn a_moved_machine_is_an_installation_that_receives() {
    let (_, other, _, plan) = planned();
    assert_printed("moved", &plan);
    properties::assert_sound(&plan, &other);
    let after = after(&plan, other);
    assert_eq!(after.disks[6].table, None);
}

/// What is received, and what is made, by path.
fn filled(plan: &Plan) -> (Vec<&str>, Vec<&str>) {
    let (mut received, mut made) = (Vec::new(), Vec::new());
    for operation in all(plan) {
        match operation {
            Operation::Run(SessionOp::Receive(receive)) => {
                received.extend(receive.devices.iter().map(|is| is.device.as_str()));
            }
            Operation::Device(DeviceOp::MakeFilesystem(make)) => made.push(make.device.as_str()),
            _ => {}
        }
    }
    (received, made)
}

/// Hardware of the same kind takes whatever goes: nothing is refused for a guess of what md or LVM leaves.
#[test]
fn whatever_goes_is_received_by_the_same_hardware_with_its_ids() {
    let judged = Judged::new("whatever_goes_is_received_by_the_same_hardware_with_its_ids");
    proptest!(ProptestConfig::with_cases(300), |(layout in any_layout())| {
        judged.case();
        let with_serials = |kind: &str| {
            let mut machine = blank();
            machine.disks.iter_mut().enumerate().for_each(|(index, disk)| disk.serial = format!("{kind}{index}"));
            machine
        };
        let Ok(first) = install(&layout, &with_serials("A"), claim()) else { return Ok(()) };
        let mut there = after(&first, with_serials("A"));
        let root = layout.filesystems.iter().find(|is| is.path.as_deref() == Some("/")).unwrap();
        let device = LayoutMatch::new(&layout, &there).present_path(&root.device).unwrap();
        let marker = all(&first).find_map(|operation| match operation {
            Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => Some(marker.clone()),
            _ => None,
        });
        there.filesystems = vec![FilesystemContents { device, marker, ..FilesystemContents::default() }];
        let Ok((carried, from)) = check_migration(&layout, &there, &claim()) else {
            judged.note("stays", true);
            return Ok(());
        };
        judged.note("moved", true);
        judged.note("moved with arrays", !carried.arrays.is_empty());
        let other = with_serials("B");
        let meant = LayoutMatch::new(&layout, &other);
        let disk = |(index, listed): (usize, &DiskSpec)| {
            let found = meant.matched_disk(index).unwrap();
            let (device, serial) = (listed.device.to_string(), found.serial.clone());
            RecordedDisk { device, serial, size_bytes: found.size_bytes, ..RecordedDisk::default() }
        };
        let disks = layout.disks.iter().enumerate().map(disk).collect();
        let (order, carried) = ("o-7".to_owned(), Some(carried));
        let moving = MigrationOffer { order, part: MigrationSide::Receive, begun: false, awaits_approval: false, peer: None, carried, disks };
        let plan = receive(&layout, &other, moving.clone(), of_other());
        let plan = plan.unwrap_or_else(|refusal| panic!("{refusal}"));
        properties::assert_sound(&plan, &other);
        assert_receives(&plan, from.len());
        let here = after(&plan, other);
        let carried = moving.carried.unwrap();
        let uuids = |inventory: &Inventory| -> Vec<Uuid> { inventory.arrays.iter().map(|array| array.uuid).collect() };
        prop_assert_eq!(uuids(&here), uuids(&there));
        for filesystem in carried.filesystems.iter().filter(|is| !is.uuid.is_empty()) {
            let has = |signatures: &[DeviceSignature]| signatures.iter().any(|is| is.uuid == filesystem.uuid);
            prop_assert!(here.all_signatures().any(|(_, signatures)| has(signatures)), "{:?}", filesystem);
        }
        let parts = |inventory: &Inventory| -> Vec<Option<Uuid>> {
            let tables = inventory.disks.iter().filter_map(|disk| disk.table.as_ref());
            tables.flat_map(|table| &table.partitions).map(|part| part.guid).collect()
        };
        prop_assert_eq!(parts(&here), parts(&there));
    });
    judged.assert_shares(&[("moved", 20), ("moved with arrays", 5), ("stays", 0)]);
}

/// Nothing of an image; each device once; nothing before the point of no return.
fn assert_receives(plan: &Plan, count: usize) {
    let (received, made) = filled(plan);
    assert_eq!(received.len(), count);
    assert!(received.iter().all(|device| !made.contains(device)), "{plan}");
    for stage in &plan.stages {
        assert!(!matches!(stage.name, StageName::ImageReach | StageName::ImageBurn | StageName::TargetFstab), "{plan}");
    }
    let copied = plan.stages.iter().position(|stage| stage.name == StageName::MoveCopy);
    assert!(copied.is_none_or(|copied| copied > plan.point_of_no_return), "{plan}");
}

#[test]
fn each_filesystem_is_received_or_made_and_never_both() {
    let (layout, _, moving, plan) = planned();
    let [Operation::Run(SessionOp::Receive(receive))] = operations(&plan, StageName::MoveCopy) else {
        panic!("{plan}")
    };
    assert_eq!((receive.order.as_str(), receive.machine.as_str()), ("o-7", "m-1"));
    let received: Vec<&str> = receive.devices.iter().map(|is| is.name.as_str()).collect();
    let made = all(&plan).filter_map(|operation| match operation {
        Operation::Device(DeviceOp::MakeFilesystem(make)) => Some(make),
        _ => None,
    });
    let made: Vec<(&str, &str)> = made.map(|make| (make.device.as_str(), make.uuid.as_str())).collect();
    let swap = &moving.carried.as_ref().unwrap().filesystems[5];
    assert_eq!(made, [("/dev/nvme5n1p2", swap.uuid.as_str())]);
    for filesystem in layout.filesystems.iter().filter(|is| is.format != FilesystemFormat::Tmpfs) {
        let is_made = filesystem.format == FilesystemFormat::Swap;
        assert_ne!(received.contains(&filesystem.device.as_str()), is_made, "{}", filesystem.device);
    }
    assert_eq!(received.len() + made.len() + 1, layout.filesystems.len());
}

#[test]
fn nothing_of_an_image_is_in_the_plan_and_nothing_is_written_too_early() {
    let (_, _, _, plan) = planned();
    for operation in all(&plan) {
        let of_image = matches!(
            operation,
            Operation::Run(
                SessionOp::ReachImage(_)
                    | SessionOp::BurnImage(_)
                    | SessionOp::BurnDisk(_)
                    | SessionOp::CreateSystem(_)
                    | SessionOp::VerifyDefinition(_)
                    | SessionOp::Finish(_)
                    | SessionOp::AdaptImage(_)
                    | SessionOp::WriteFstab(_)
                    | SessionOp::ExtendFstab(_)
            )
        );
        assert!(!of_image, "{operation:?}");
    }
    let place = |name| plan.stages.iter().position(|stage| stage.name == name).unwrap();
    assert_eq!(plan.point_of_no_return, place(StageName::ReportBegin) + 1);
    assert!(place(StageName::MoveCopy) > place(StageName::StorageFormat));
    assert!(place(StageName::MoveCopy) < place(StageName::StorageMount));
    for extents in &plan.extents {
        let is_before = extents.stages.iter().all(|stage| place(*stage) < plan.point_of_no_return);
        let is_over = extents.stages.iter().all(|stage| stage.failure_state().is_complete());
        assert_eq!(extents.disks.is_empty(), is_before || is_over, "{extents:?}");
        assert!(extents.disks.iter().all(|disk| disk.device != "/dev/sda"), "{extents:?}");
    }
}

#[test]
fn the_ids_are_those_of_the_other_machine_but_for_the_tables() {
    let (_, _, moving, plan) = planned();
    let carried = moving.carried.unwrap();
    let guids: Vec<Uuid> = carried.partitions.iter().map(|is| is.guid).collect();
    let arrays: Vec<Uuid> = carried.arrays.iter().map(|is| is.uuid).collect();
    let (mut tables, mut parts, mut made) = (Vec::new(), Vec::new(), Vec::new());
    for operation in all(&plan) {
        match operation {
            Operation::Device(DeviceOp::WriteTable(table)) => {
                tables.push(table.guid.to_string());
                parts.extend(table.partitions.iter().map(|part| part.guid));
            }
            Operation::Device(DeviceOp::CreateArray(array)) => made.push(array.uuid),
            _ => {}
        }
    }
    assert_eq!((parts, made), (guids, arrays));
    let known: Vec<&String> = carried.marker.disks.iter().filter_map(|disk| disk.guid.as_ref()).collect();
    assert!(tables.len() == 3 && tables.iter().all(|guid| !known.contains(&guid)));
    let root = carried.filesystems.iter().find(|is| is.device == "/dev/md/root").unwrap();
    assert_eq!(plan.root_uuid, root.uuid);
    let sources: Vec<&str> = plan.fstab.iter().map(|entry| entry.source.as_str()).collect();
    for filesystem in carried.filesystems.iter().filter(|is| is.format != FilesystemFormat::None) {
        assert!(sources.contains(&format!("UUID={}", filesystem.uuid).as_str()), "{sources:?}");
    }
}

/// By serial, whatever they are called here; the marker says where they are now.
#[test]
fn the_disks_are_those_of_the_move() {
    let (layout, mut other, mut moving, _) = planned();
    other.disks.reverse();
    other.disks.iter_mut().for_each(|disk| disk.wwn = format!("0x5{}", disk.serial));
    moving.disks[0] = RecordedDisk { serial: String::new(), wwn: "0x5B0".to_owned(), ..moving.disks[0].clone() };
    let plan = receive(&layout, &other, moving, of_other()).unwrap();
    let [_, Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    assert_eq!((marker.machine.as_str(), marker.allocation.as_str()), ("m-2", "a-1"));
    let disks: Vec<(&str, &str)> = marker.disks.iter().map(|is| (is.device.as_str(), is.serial.as_str())).collect();
    assert_eq!(disks[..2], [("/dev/sda", "B0"), ("/dev/sdb", "B1")]);
    assert_eq!(plan.disks[0].verdict, DiskVerdict::NotOurs);
}

/// Cheap disks share one serial number, or have none.
#[test]
fn disks_that_nothing_else_tells_apart_are_known_by_their_place() {
    for serial in ["", "0123456789"] {
        let (layout, mut other, mut moving, _) = planned();
        for (index, disk) in other.disks.iter_mut().enumerate() {
            (disk.serial, disk.by_path) = (serial.to_owned(), format!("/dev/disk/by-path/pci-{index}"));
        }
        for (index, disk) in moving.disks.iter_mut().enumerate() {
            (disk.serial, disk.by_path) = (serial.to_owned(), format!("/dev/disk/by-path/pci-{index}"));
        }
        other.disks.reverse();
        let plan = receive(&layout, &other, moving, of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!((plan.disks[0].verdict, plan.disks[1].verdict), (DiskVerdict::NotOurs, DiskVerdict::Wipe));
        assert_eq!(plan.disks[6].listed_as, Some("/dev/sda".into()));
    }
}

/// The same size is no matter, and only what is larger grows.
#[test]
fn what_is_larger_grows_and_what_is_not_does_not() {
    let grown = |plan: &Plan| -> Vec<String> {
        let grown = operations(plan, StageName::StorageMount).iter().filter_map(|operation| match operation {
            Operation::Run(SessionOp::GrowFilesystem(GrowFilesystem(mount))) => Some(mount.path.clone()),
            _ => None,
        });
        grown.collect()
    };
    let (layout, mut same, moving, plan) = planned();
    assert_eq!(grown(&plan), ["/", "/srv"]);
    // As many bytes as the other machine has.
    same.disks.iter_mut().for_each(|disk| disk.size_bytes = 20_000 * MIB);
    let mut moving = moving;
    moving.disks.iter_mut().for_each(|disk| disk.size_bytes = 20_000 * MIB);
    let sizes = receive(&layout, &same, moving.clone(), of_other()).unwrap().sizes;
    // md leaves more of its members than is known at least.
    for device in ["/dev/md/root", "/dev/vg00/srv"] {
        filesystem(&mut moving, device).size_bytes = sizes[&model::device::DevicePath::from(device)] + 4 * MIB;
    }
    let plan = receive(&layout, &same, moving, of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert_eq!(grown(&plan), Vec::<String>::new());
}

type Case = (&'static str, fn(&mut Inventory, &mut MigrationOffer, &mut InstallClaim), &'static [&'static str]);

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let cases: [Case; 20] = [
        (
            "a smaller disk",
            |other, moving, _| {
                other.disks[0].size_bytes = 10_000 * MIB;
                moving.disks[0].size_bytes = 10_000 * MIB;
            },
            &[
                "filesystems[2]: /dev/md/root has 9.95 GB (",
                "on this machine, on /dev/nvme0n1 (10.5 GB), /dev/nvme1n1 (31.5 GB), but 20.4 GB (",
            ],
        ),
        (
            "one byte less",
            |_, moving, _| filesystem(moving, "/dev/sdf1").size_bytes += 1,
            &[
                "filesystems[4]: /dev/sdf1 has 67.1 MB (67108864 bytes) on this machine, on /dev/nvme5n1 (31.5 GB), but 67.1 MB (67108865 bytes) on the source machine: its none does not fit; choose larger disks",
            ],
        ),
        (
            "larger sectors",
            |other, _, _| other.disks[5].sector_bytes = 4096,
            &[
                "filesystems[4]: /dev/sdf1 has sectors of 4096 bytes on this machine, on /dev/nvme5n1 (31.5 GB), but of 512 bytes on the source machine, for which its none was created; choose disks with sectors of 512 bytes",
            ],
        ),
        (
            "smaller sectors",
            |_, moving, _| {
                moving.carried.as_mut().unwrap().filesystems.iter_mut().for_each(|is| is.sector_bytes = 4096);
            },
            &[
                "filesystems[1]: /dev/md/efi has sectors of 512 bytes on this machine",
                "of 4096 bytes on the source machine, for which its vfat was created",
                "filesystems[4]: /dev/sdf1 has sectors of 512 bytes on this machine",
            ],
        ),
        (
            "a filesystem that does not come",
            |_, moving, _| moving.carried.as_mut().unwrap().filesystems.retain(|is| is.device != "/dev/vg00/srv"),
            &["filesystems[3]: /dev/vg00/srv must have btrfs according to the layout, but the source machine has none"],
        ),
        (
            "one that comes as another",
            |_, moving, _| filesystem(moving, "/dev/vg00/srv").format = FilesystemFormat::Ext4,
            &["filesystems[3]: /dev/vg00/srv must have btrfs according to the layout"],
        ),
        (
            "an id on a disk that stays",
            |other, moving, _| {
                let uuid = filesystem(moving, "/dev/md/efi").uuid.to_lowercase();
                other.disks[6].signatures =
                    vec![DeviceSignature { kind: "vfat".to_owned(), uuid, ..DeviceSignature::default() }];
            },
            &["moving: /dev/md/efi has the id ", "which /dev/sda has as well"],
        ),
        (
            "an array on a disk that stays",
            |other, moving, _| {
                let uuid = moving.carried.as_ref().unwrap().arrays[2].uuid.to_string();
                let kind = "linux_raid_member".to_owned();
                other.disks[6].signatures = vec![DeviceSignature { kind, uuid, ..DeviceSignature::default() }];
            },
            &["moving: /dev/md/data has the id "],
        ),
        (
            "a disk that is not there",
            |other, _, _| drop(other.disks.remove(3)),
            &["disks[3].device: device:/dev/sdd does not exist on given hardware: no disk matches its hints"],
        ),
        (
            "one disk twice",
            |_, moving, _| moving.disks[1].serial = "B0".to_owned(),
            &["disks[1].device: /dev/sdb is /dev/nvme0n1, which the layout already lists"],
        ),
        (
            "two disks with one serial",
            |other, _, _| other.disks[6].serial = "B1".to_owned(),
            &["disks[1].device: device:/dev/sdb is ambiguous"],
        ),
        (
            "another size than the control plane has seen",
            |_, moving, _| moving.disks[2].size_bytes += MIB,
            &["disks[2].device: /dev/sdc must be a disk of "],
        ),
        ("a disk without a word", |_, moving, _| drop(moving.disks.remove(4)), &["disks[4].device: "]),
        (
            "a disk of the machine that is moved",
            |other, moving, _| {
                let guid = moving.carried.as_ref().unwrap().marker.disks[0].guid.as_ref().unwrap();
                let guid = Uuid::parse_str(guid).ok();
                other.disks[0].table = Some(DiskTable { kind: "gpt".to_owned(), guid, partitions: Vec::new() });
            },
            &["disks[0].device: /dev/nvme0n1 has the partition table of m-1, whose system is migrated"],
        ),
        (
            "a disk that both machines reach, without a table",
            |other, moving, _| {
                other.disks[2].wwn = "0x5000".to_owned();
                moving.carried.as_mut().unwrap().marker.disks[4].wwn = "0x5000".to_owned();
            },
            &[
                "disks[2].device: /dev/nvme2n1 has the wwn 0x5000 of /dev/sde of m-1, whose system is migrated: both machines have access to that disk",
            ],
        ),
        (
            "the same by two ways",
            |other, moving, _| {
                for (index, place) in [(2, "pci-1"), (6, "pci-2")] {
                    (other.disks[index].wwn, other.disks[index].by_path) = ("0x5000".to_owned(), place.to_owned());
                }
                moving.carried.as_mut().unwrap().marker.disks[4].wwn = "0x5000".to_owned();
            },
            &["disks[2].device: /dev/nvme2n1 has the wwn 0x5000 of /dev/sde of m-1"],
        ),
        (
            "a disk with all names of one of the machine that is moved",
            |other, moving, _| {
                let there = &mut moving.carried.as_mut().unwrap().marker.disks[4];
                (there.model, there.serial, there.size_bytes) = ("M".to_owned(), "B3".to_owned(), 30_000 * MIB);
                other.disks[3].model = "M".to_owned();
            },
            &["disks[3].device: /dev/nvme3n1 has the serial number B3, model and size of /dev/sde of m-1"],
        ),
        (
            "nothing said yet",
            |_, moving, _| moving.carried = None,
            &["moving: the source machine has not reported its data"],
        ),
        (
            "installed by the word of the control plane",
            |_, _, claim| claim.succeeded = true,
            &["disks: allocation a-1 is installed on this machine"],
        ),
        (
            "another machine's installation",
            |other, _, _| {
                let marker = Some(InstallMarker {
                    machine: "m-9".to_owned(),
                    allocation: "a-9".to_owned(),
                    ..InstallMarker::default()
                });
                other.filesystems =
                    vec![FilesystemContents { device: "/dev/nvme0n1".into(), marker, ..FilesystemContents::default() }];
            },
            &["contains the installation of machine m-9"],
        ),
    ];
    for (name, change, expected) in cases {
        let (layout, mut other, mut moving, _) = planned();
        let mut claim = of_other();
        change(&mut other, &mut moving, &mut claim);
        let reasons = reasons(receive(&layout, &other, moving, claim)).join("\n");
        for expected in expected {
            assert!(reasons.contains(expected), "{name}: {reasons}");
        }
    }
}

/// Their own blocks are as large as those sectors, or larger.
#[test]
fn a_filesystem_with_blocks_of_its_own_goes_to_smaller_sectors() {
    let (layout, other, mut moving, _) = planned();
    for device in ["/dev/md/root", "/dev/vg00/srv", "/dev/vg00/varlib", "/dev/sdf2"] {
        filesystem(&mut moving, device).sector_bytes = 4096;
    }
    receive(&layout, &other, moving, of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
}

/// Cheap disks of two machines share names, and most have not all of them.
#[test]
fn disks_that_share_less_than_a_disk_are_two() {
    type Sharing = (&'static str, fn(&mut inventory::InventoryDisk, &mut RecordedDisk));
    let cases: [Sharing; 5] = [
        ("no wwn", |here, there| (here.wwn, there.wwn) = (String::new(), String::new())),
        ("no serial number", |_, there| {
            (there.serial, there.size_bytes, there.model) = (String::new(), 30_000 * MIB, "M".to_owned());
        }),
        ("another size", |here, there| (there.serial, there.model) = (here.serial.clone(), "M".to_owned())),
        ("another model", |here, there| {
            (there.serial, there.model, there.size_bytes) = (here.serial.clone(), "N".to_owned(), 30_000 * MIB);
        }),
        ("another wwn", |here, there| (here.wwn, there.wwn) = ("0x5000".to_owned(), "0x5001".to_owned())),
    ];
    for (name, share) in cases {
        let (layout, mut other, mut moving, _) = planned();
        other.disks[3].model = "M".to_owned();
        share(&mut other.disks[3], &mut moving.carried.as_mut().unwrap().marker.disks[3]);
        receive(&layout, &other, moving, of_other()).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
}

#[test]
fn volumes_of_kubernetes_do_not_come_along() {
    let (layout, other, moving, _) = planned();
    let with = |volumes| {
        let allocation = Allocation { volumes, moving: Some(moving.clone()), ..Allocation::default() };
        receive_with(&layout, &other, allocation, of_other())
    };
    let refused = reasons(with(serde_json::json!([{"kind": "Volume"}])));
    assert!(refused.iter().any(|reason| reason.starts_with("moving: the allocation has Kubernetes volumes")));
    with(serde_json::json!([])).unwrap();
}

#[test]
fn all_reasons_come_at_once() {
    let (layout, mut other, mut moving, _) = planned();
    filesystem(&mut moving, "/dev/sdf1").size_bytes += 1;
    filesystem(&mut moving, "/dev/vg00/srv").format = FilesystemFormat::Ext4;
    other.disks[4].read_only = true;
    assert_eq!(reasons(receive(&layout, &other, moving, of_other())).len(), 3);
}

fn filesystem<'a>(moving: &'a mut MigrationOffer, device: &str) -> &'a mut model::migration::MigratedFilesystem {
    let carried = moving.carried.as_mut().unwrap();
    carried.filesystems.iter_mut().find(|is| is.device == device).unwrap()
}

/// The power goes after each operation. What came from the other machine has its marker, and is neither booted nor in the way.
#[test]
fn after_a_cut_at_any_operation_all_begins_again() {
    let (layout, other, moving, plan) = planned();
    let [Operation::Run(SessionOp::TellPointOfNoReturn(TellPointOfNoReturn { disks, .. }))] =
        operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let claim = InstallClaim { begun_on: disks.clone(), attempt: record_of(&written(&plan)), ..of_other() };
    let moving = MigrationOffer { begun: true, ..moving };
    let received = all(&plan).position(|operation| matches!(operation, Operation::Run(SessionOp::Receive(_)))).unwrap();
    for done in 0..=all(&plan).count() {
        let mut after = cut(&plan, other.clone(), done);
        if done > received {
            let root = after
                .stacked
                .iter()
                .find(|is| is.device == "/dev/md/root" || is.signatures.iter().any(|is| is.uuid == plan.root_uuid));
            let device = root.unwrap().device.clone();
            let marker = Some(moving.carried.as_ref().unwrap().marker.clone());
            after.filesystems = vec![FilesystemContents { device, marker, ..FilesystemContents::default() }];
        }
        let again = receive(&layout, &after, moving.clone(), claim.clone());
        let again = again.unwrap_or_else(|refusal| panic!("{done} operations: {refusal}"));
        assert_eq!(again.already, None, "{done}");
        assert_eq!(verdicts(&again)[..6], [DiskVerdict::Wipe; 6], "{done}");
        assert_eq!(
            again.warnings.iter().any(|line| line.contains("an earlier attempt to migrate it to this machine")),
            done > received
        );
        properties::assert_sound(&again, &after);
    }
}

/// Its own marker is the last that it writes: then only the report was lost.
#[test]
fn a_marker_of_its_own_is_believed_once_it_has_begun() {
    let (layout, other, moving, plan) = planned();
    let [Operation::Run(SessionOp::TellPointOfNoReturn(TellPointOfNoReturn { disks, .. }))] =
        operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let [_, Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let mut after = after(&plan, other);
    let root = after.stacked.iter().find(|is| is.signatures.iter().any(|is| is.uuid == plan.root_uuid)).unwrap();
    let device = root.device.clone();
    after.filesystems =
        vec![FilesystemContents { device, marker: Some(marker.clone()), ..FilesystemContents::default() }];
    let begun = InstallClaim { begun_on: disks.clone(), attempt: record_of(marker), ..of_other() };
    let again = receive(&layout, &after, moving.clone(), begun.clone()).unwrap();
    assert_eq!(again.already.as_ref(), Some(marker));
    // The control plane takes a success of no boot that it has not let begin, and it is told of the same tables.
    assert_eq!((again.stages[0].name, again.point_of_no_return), (StageName::ReportBegin, again.stages.len()));
    let [
        Operation::Run(SessionOp::TellPointOfNoReturn(TellPointOfNoReturn {
            allocation,
            disks: told,
            secret_digest,
            ..
        })),
    ] = &again.stages[0].operations[..]
    else {
        panic!("{again}")
    };
    assert_eq!((allocation.as_str(), told), ("a-1", disks));
    assert_eq!(
        secret_digest.as_ref(),
        record_of(marker).map(|record| record.secret_digest).as_ref(),
        "the same attempt"
    );
    assert!(again.to_string().contains("records that this boot has received everything"), "{again}");
    properties::assert_sound(&again, &after);
    // One of an earlier move is not: the tables are others.
    let older =
        |record: RecordedDisk| RecordedDisk { guid: Some("00000000-0000-0000-0000-000000000009".to_owned()), ..record };
    let claim = InstallClaim { begun_on: begun.begun_on.iter().cloned().map(older).collect(), ..begun.clone() };
    assert_eq!(receive(&layout, &after, moving.clone(), claim).map(|plan| plan.already).unwrap_or_default(), None);
    // Nor is one whose secret is not that of the attempt: the sender, or an earlier system, has written it.
    for attempt in [None, record_of(&InstallMarker { secret: Some(secret()), ..InstallMarker::default() })] {
        let claim = InstallClaim { attempt, ..begun.clone() };
        assert_eq!(receive(&layout, &after, moving.clone(), claim).unwrap().already, None);
    }
    // Without an attempt that has begun, nothing proves that it is older than what comes.
    let unknown = receive(&layout, &after, moving, of_other()).unwrap_err().to_string();
    assert!(unknown.contains("does not list it as replaced"), "{unknown}");
}

/// Its own system may have written in between: then all is received anew.
#[test]
fn a_marker_of_its_own_is_not_believed_once_the_other_machine_has_booted_again() {
    let (layout, other, moving, plan) = planned();
    let [Operation::Run(SessionOp::TellPointOfNoReturn(TellPointOfNoReturn { disks, .. }))] =
        operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let [_, Operation::Run(SessionOp::WriteMarker(WriteMarker(own)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let mut now = after(&plan, other);
    let root = now.stacked.iter().find(|is| is.signatures.iter().any(|is| is.uuid == plan.root_uuid)).unwrap();
    let claim = InstallClaim { begun_on: disks.clone(), attempt: record_of(own), ..of_other() };
    let device = root.device.clone();
    let peer = |certificate: &str| {
        Some(MigrationPeer { certificate: certificate.to_owned(), address: String::new(), approved: true })
    };
    for (received_from, peer, is_booted) in [
        (None, None, true),
        (Some("one"), None, true),
        (Some("one"), peer("one"), true),
        (Some("one"), peer("two"), false),
        (None, peer("one"), false),
    ] {
        let received_from = received_from.map(certificate_digest);
        let marker = Some(InstallMarker { received_from: received_from.clone(), ..own.clone() });
        now.filesystems = vec![FilesystemContents { device: device.clone(), marker, ..FilesystemContents::default() }];
        let moving = MigrationOffer { peer: peer.clone(), ..moving.clone() };
        let plan = receive(&layout, &now, moving, claim.clone()).unwrap_or_else(|refusal| panic!("{refusal}"));
        assert_eq!(plan.already.is_some(), is_booted, "{received_from:?} {peer:?}");
        let receives = all(&plan).any(|operation| matches!(operation, Operation::Run(SessionOp::Receive(_))));
        assert_eq!(receives, !is_booted, "{plan}");
    }
}

/// The control plane may have forgotten. What each installation replaced tells; the clocks of both machines do not.
#[test]
fn a_move_that_was_finished_here_after_what_comes_is_not_overwritten() {
    let (layout, other, moving, plan) = planned();
    let [Operation::Run(SessionOp::TellPointOfNoReturn(TellPointOfNoReturn { disks, .. }))] =
        operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let [_, Operation::Run(SessionOp::WriteMarker(WriteMarker(own)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let here = after(&plan, other);
    let root = here.stacked.iter().find(|is| is.signatures.iter().any(|is| is.uuid == plan.root_uuid)).unwrap();
    let (began, before, later) = (&disks[..], "2026-10-31T23:59:59Z", "2026-11-02T00:00:00Z");
    let other_tables: Vec<RecordedDisk> = began
        .iter()
        .map(|disk| {
            let guid = disk.guid.as_ref().map(|_| "00000000-0000-0000-0000-000000000009".to_owned());
            RecordedDisk { guid, guid_before: disk.guid.clone(), ..disk.clone() }
        })
        .collect();
    for (name, machine, time, begun_on, is_replaced, is_refused) in [
        ("finished, and the database is older", "m-2", later, &[][..], false, true),
        ("finished by a machine whose clock has no battery", "m-2", "1970-01-01T00:00:07Z", &[][..], false, true),
        ("with the same clock", "m-2", "2026-11-01T00:00:00Z", &[][..], false, true),
        ("there and back again", "m-2", before, &[][..], true, false),
        ("there and back again, with a clock that is ahead", "m-2", "2099-01-01T00:00:00Z", &[][..], true, false),
        ("cut off before the database was restored", "m-1", "2026-11-01T00:00:00Z", &[][..], false, false),
        ("cut off with its tables", "m-1", "2026-11-01T00:00:00Z", began, false, false),
        ("begun again, and cut off before its tables", "m-2", later, &other_tables[..], false, false),
    ] {
        let (mut now, mut moving) = (here.clone(), moving.clone());
        let (machine, time) = (machine.to_owned(), time.to_owned());
        let marker = InstallMarker { machine, time, ..own.clone() };
        if is_replaced {
            let carried = &mut moving.carried.as_mut().unwrap().marker;
            carried.supersedes = lineage::collect_superseded(std::iter::once(&marker));
        }
        let filesystem =
            FilesystemContents { device: root.device.clone(), marker: Some(marker), ..FilesystemContents::default() };
        now.filesystems = vec![filesystem];
        let attempt = record_of(own).filter(|_| !begun_on.is_empty());
        let claim = InstallClaim { begun_on: begun_on.to_vec(), attempt, ..of_other() };
        let made = receive(&layout, &now, moving, claim);
        let reasons = made.map(|_| ()).err().map(|refusal| refusal.to_string()).unwrap_or_default();
        assert_eq!(!reasons.is_empty(), is_refused, "{name}: {reasons}");
        for words in ["of machine m-2, allocation a-1, dated ", "does not list it as replaced", "wipefs -a"] {
            assert!(!is_refused || reasons.contains(words), "{name}: {reasons}");
        }
    }
    // Once the attempt is known by its tables, it is booted.
    let mut now = here.clone();
    let marker = Some(InstallMarker { time: later.to_owned(), ..own.clone() });
    now.filesystems = vec![FilesystemContents { device: root.device.clone(), marker, ..FilesystemContents::default() }];
    let claim = InstallClaim { begun_on: disks.clone(), attempt: record_of(own), ..of_other() };
    assert!(receive(&layout, &now, moving, claim).unwrap().already.is_some());
}

/// Returns the marker that the plan writes.
fn written(plan: &Plan) -> InstallMarker {
    let found = all(plan).find_map(|operation| match operation {
        Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => Some(marker.clone()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{plan}"))
}

/// A machine that moved there and back keeps its proof, whichever version the other marker is of.
#[test]
fn the_marker_of_a_received_machine_lists_what_it_replaced() {
    let (layout, other, moving, plan) = planned();
    let carried = &moving.carried.as_ref().unwrap().marker;
    assert!(written(&plan).has_superseded(carried) && !carried.has_superseded(&written(&plan)));
    // What was on this machine before is replaced as well.
    let before = InstallMarker { machine: "m-2".to_owned(), allocation: "a-0".to_owned(), ..InstallMarker::default() };
    let filesystem = FilesystemContents {
        device: "/dev/sda1".into(),
        marker: Some(before.clone()),
        ..FilesystemContents::default()
    };
    let now = Inventory { filesystems: vec![filesystem], ..other };
    let again = receive(&layout, &now, moving.clone(), of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert!(written(&again).has_superseded(&before) && written(&again).has_superseded(carried));
}

/// The order may be taken back while the copy is adapted, which takes minutes: then the other machine has the system again.
#[test]
fn a_move_that_was_taken_back_leaves_nothing_that_boots() {
    let (_, _, _, plan) = planned();
    let [Operation::Run(asked), Operation::Run(SessionOp::WriteMarker(_))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    assert_eq!(*asked, SessionOp::MoveStands(MoveStands { order: "o-7".to_owned() }));
    let closing = |plan: &Plan| match operations(plan, StageName::ReportFinal) {
        [Operation::Run(SessionOp::Report(closing))] => closing.clone(),
        operations => panic!("{operations:?}"),
    };
    let wiped: Vec<DevicePath> = all(&plan)
        .filter_map(|operation| match operation {
            Operation::Device(DeviceOp::WipeDisk(wipe)) => Some(wipe.device.clone()),
            _ => None,
        })
        .collect();
    assert_eq!((wiped.len(), closing(&plan).taken_back), (6, wiped));
    // What an image was written to stays: nobody else has it.
    let (layout, blank) = (super::stacks::layout(), super::stacks::five());
    let installed = install(&layout, &blank, claim()).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert_eq!(closing(&installed).taken_back, Vec::<DevicePath>::new());
    assert!(matches!(operations(&installed, StageName::TargetMarker), [Operation::Run(SessionOp::WriteMarker(_))]));
}

#[test]
fn a_plan_that_receives_is_approved_as_an_installation() {
    let (layout, other, moving, plan) = planned();
    let verdicts = plan.verdicts.unwrap();
    assert_eq!((verdicts.mode, verdicts.disks.len()), (InstallMode::Install, 6));
    assert!(verdicts.things.iter().all(|thing| thing.fate == approval_summary::ObjectFate::Made));
    let again = receive(&layout, &other, moving, of_other()).unwrap().verdicts.unwrap();
    assert_eq!(again.digest(), verdicts.digest());
}
