//! Tests that an approval covers everything that the operator saw of each disk: its identity, its content, and the
//! objects that lose members.

use super::plan_approval::{approval, by_serial, numbered, refused, renamed, request, verdicts_of, with_ids};
use super::random_layouts_and_machines::{any_layout, any_machine};
use super::*;
use model::inventory::{ArrayMember, DiskTable, InventoryDisk, MdArray, MemberRole};
use proptest::prelude::*;

type Change = (&'static str, fn(&mut InventoryDisk), &'static str);

const CHANGES: [Change; 8] = [
    (
        "another table",
        |disk| disk.table.as_mut().unwrap().guid = Some(Uuid::from_u128(77)),
        "table gpt 00000000-0000-0000-0000-00000000004d",
    ),
    (
        "a partition more",
        |disk| disk.table.as_mut().unwrap().partitions.push(part(9)),
        "partition 9: 1048576 bytes at 0",
    ),
    ("another label", |disk| first(disk).label = "theirs".to_owned(), "\"theirs\""),
    ("another filesystem", |disk| first(disk).signatures[0].uuid = "9999".to_owned(), "UUID 9999"),
    ("another format", |disk| first(disk).signatures[0].kind = "xfs".to_owned(), "partition 1 has xfs"),
    ("a second signature", |disk| disk.signatures = vec![signature("zfs_member")], "disk: zfs_member"),
    (
        "a read error",
        |disk| disk.unreadable = Some("/dev/sda: sector 7".to_owned()),
        "not all can be read: disk: sector 7",
    ),
    ("another model", |disk| disk.model = "SAMSUNG".to_owned(), "approved model \"\", found \"SAMSUNG\""),
];

fn part(number: u32) -> inventory::DiskPartition {
    inventory::DiskPartition { number, size_bytes: MIB, ..inventory::DiskPartition::default() }
}

fn first(disk: &mut InventoryDisk) -> &mut inventory::DiskPartition {
    &mut disk.table.as_mut().unwrap().partitions[0]
}

fn signature(kind: &str) -> DeviceSignature {
    DeviceSignature { kind: kind.to_owned(), usage: "filesystem".to_owned(), ..DeviceSignature::default() }
}

#[test]
fn refuses_wiped_disk_with_other_content_than_approved() {
    let inventory = numbered(installed());
    let approved = verdicts_of(&layout(), &inventory, InstallMode::Install);
    for (what, change, words) in CHANGES {
        let mut other = inventory.clone();
        change(&mut other.disks[0]);
        let said = refused(&layout(), &other, InstallMode::Install, approval(&approved)).join("\n");
        assert!(said.contains("disk serial S-sda: approved ") && said.contains(words), "{what}: {said}");
        assert_ne!(verdicts_of(&layout(), &other, InstallMode::Install).digest(), approved.digest(), "{what}");
    }
}

/// Mounts, used space and kernel names are not part of an approval, because they change without a write by the agent.
#[test]
fn approval_ignores_mounts_used_space_and_kernel_names() {
    let inventory = numbered(installed());
    let layout = by_serial(layout());
    let mut running = renamed(inventory.clone());
    running.disks.reverse();
    running.disks[0].uses = vec![inventory::DeviceUse::Mounted("/mnt".to_owned())];
    running.disks[0].diskseq = 77;
    running
        .filesystems
        .push(inventory::FilesystemContents { used_bytes: 7, ..inventory::FilesystemContents::default() });
    let untouched = running.disks.iter_mut().find(|disk| disk.serial == "S-sdc").unwrap();
    untouched.signatures = vec![signature("xfs")];
    untouched.uses.clear();
    running.disks.iter_mut().for_each(|disk| disk.uses.clear());
    assert_eq!(
        verdicts_of(&layout, &running, InstallMode::Install),
        verdicts_of(&layout, &inventory, InstallMode::Install)
    );
}

/// Disks of the same size may share a serial number or a placeholder, as with cheap USB bridges.
#[test]
fn refuses_swapped_disks_that_share_a_serial_number() {
    for serial in ["S-1", "0000000000", ""] {
        let mut inventory = machine();
        for (index, disk) in inventory.disks.iter_mut().enumerate() {
            (disk.serial, disk.size_bytes) = (serial.to_owned(), 20_000 * MIB);
            disk.by_path = format!("/dev/disk/by-path/pci-0000:00:1f.2-ata-{index}");
        }
        let mut mirrored = layout();
        mirrored.disks.iter_mut().for_each(|disk| disk.wipeonreinstall = true);
        let approved = verdicts_of(&mirrored, &inventory, InstallMode::Install);
        assert_eq!(approved.disks[0].place, "/dev/disk/by-path/pci-0000:00:1f.2-ata-0");
        let mut swapped = inventory.clone();
        swapped.disks[0].by_path = inventory.disks[2].by_path.clone();
        swapped.disks[2].by_path = inventory.disks[0].by_path.clone();
        assert_ne!(verdicts_of(&mirrored, &swapped, InstallMode::Install).digest(), approved.digest(), "{serial:?}");
        let said = refused(&mirrored, &swapped, InstallMode::Install, approval(&approved)).join("\n");
        assert!(said.contains("ata-0, 21.0 GB") && said.contains("approved wiped, found not written"), "{said}");
        // If the `by-path` link is unknown, the SCSI address identifies the slot.
        for disk in &mut inventory.disks {
            disk.hctl = format!("0:0:{}:0", disk.by_path.chars().last().unwrap());
            disk.by_path.clear();
        }
        assert_eq!(verdicts_of(&mirrored, &inventory, InstallMode::Install).disks[0].place, "0:0:0:0");
    }
}

#[test]
fn approval_lists_removed_array_members() {
    let mut inventory = numbered(machine());
    let approved = verdicts_of(&layout(), &inventory, InstallMode::Install);
    let member = |device: &str, place| ArrayMember { device: device.into(), role: MemberRole::Active(place) };
    inventory.arrays.push(MdArray {
        uuid: Uuid::from_u128(5),
        name: "customers".to_owned(),
        level: "raid1".to_owned(),
        raid_devices: 2,
        members: vec![member("/dev/sdb", 0), member("/dev/sdc", 1)],
        ..MdArray::default()
    });
    let dismantled = verdicts_of(&layout(), &inventory, InstallMode::Install);
    assert_eq!(dismantled.dismantled, ["raid1 \"customers\" of (serial S-sdb), (serial S-sdc)"]);
    assert_ne!(dismantled.digest(), approved.digest());
    let said = refused(&layout(), &inventory, InstallMode::Install, approval(&approved)).join("\n");
    assert!(said.contains("only the current plan removes members from an object: raid1 \"customers\""), "{said}");
    assert!(with_ids(&layout(), &inventory, request(InstallMode::Install, Some(approval(&dismantled))), 9).is_ok());
    inventory.arrays.clear();
    let said = refused(&layout(), &inventory, InstallMode::Install, approval(&dismantled)).join("\n");
    assert!(said.contains("only the approved plan removes members from an object: raid1"), "{said}");
}

/// After an interrupted attempt, the content of the wiped disks may differ from the approved content.
#[test]
fn continued_attempt_accepts_changed_content_on_wiped_disks() {
    let inventory = numbered(installed());
    let approved = approval(&verdicts_of(&layout(), &inventory, InstallMode::Reinstall));
    let started = |inventory: &Inventory| {
        let mut request = request(InstallMode::Reinstall, Some(approved.clone()));
        request.claim = Some(InstallClaim { waiver: Some(MarkerWaiver::Begun), ..InstallClaim::default() });
        with_ids(&layout(), inventory, request, 3)
    };
    let mut erased = inventory.clone();
    erased.disks[0].table = None;
    assert!(started(&erased).is_ok());
    let mut other = inventory;
    other.disks[1].table.as_mut().unwrap().guid = Some(Uuid::from_u128(77));
    let said = started(&other).unwrap_err().to_string();
    assert!(said.contains("disk serial S-sdb: approved with table gpt"), "{said}");
}

/// Returns the lines of the disks that a plan writes or preserves, as printed for the operator, without kernel names.
fn rows(plan: &Plan) -> Vec<String> {
    let ours = plan.disks.iter().filter(|disk| disk.verdict != DiskVerdict::NotOurs);
    let row = |disk: &DiskPlan| {
        let now = disk.now.replace(disk.name.as_str(), "disk");
        format!("{} {} {} {:?} {now}", disk.serial, disk.size_bytes, disk.model, disk.verdict)
    };
    let mut rows: Vec<String> = ours.map(row).collect();
    rows.sort();
    rows
}

fn changed(mut inventory: Inventory, which: usize, how: u8) -> Inventory {
    let count = inventory.disks.len();
    let disk = &mut inventory.disks[which % count];
    let part = disk.table.as_mut().and_then(|table| table.partitions.first_mut());
    match (how, part) {
        (0, _) => disk.model.push('X'),
        (1, _) => disk.signatures.push(signature("xfs")),
        (2, _) => disk.unreadable = Some("EIO".to_owned()),
        (3, _) => disk.blank = !disk.blank,
        (4, Some(part)) => part.signatures.push(signature("ext4")),
        (5, Some(part)) => part.blank = !part.blank,
        (6, Some(part)) => part.signatures.clear(),
        (7, _) => disk.table = Some(DiskTable { kind: "dos".to_owned(), ..DiskTable::default() }),
        (8, _) => disk.size_bytes += MIB,
        _ => inventory.disks.reverse(),
    }
    inventory
}

#[test]
fn plans_that_print_differently_have_different_digests() {
    proptest!(ProptestConfig::with_cases(300), |(
        layout in any_layout(),
        machine in any_machine(),
        again in any::<bool>(),
        which in 0usize..6,
        how in 0u8..11,
    )| {
        let mode = if again { InstallMode::Reinstall } else { InstallMode::Install };
        let machine = numbered(machine);
        let other = changed(machine.clone(), which, how);
        let plan = |inventory: &Inventory| with_ids(&layout, inventory, request(mode, None), 0);
        let (Ok(one), Ok(two)) = (plan(&machine), plan(&other)) else { return Ok(()) };
        let digest = |plan: &Plan| plan.verdicts.as_ref().unwrap().digest();
        if rows(&one) != rows(&two) {
            prop_assert_ne!(digest(&one), digest(&two), "{:?} {:?}", rows(&one), rows(&two));
        }
        let mut reordered = machine;
        reordered.disks.reverse();
        if let Ok(three) = plan(&reordered) {
            prop_assert_eq!(digest(&one), digest(&three));
        }
    });
}
