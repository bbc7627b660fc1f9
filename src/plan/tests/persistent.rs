//! Volumes of Kubernetes: what becomes of each, and that nothing else is written for them.

mod leaving;
mod many;

use super::drawn::{NAMES, any_layout, any_machine};
use super::effect::effect;
use super::judged::Judged;
use super::properties::assert_sound;
use super::stacks::{group, volume as logical, whole};
use super::*;
use crate::allocation::Allocation;
use crate::inventory::{Filesystem as Inside, SparseFile};
use crate::layout::LvmType;
use proptest::prelude::*;
use serde_json::{Value, json};

fn uid(number: u8) -> String {
    format!("9474cda7-0dbe-40fc-9842-3cb0404a72{number:02x}")
}

fn resource(name: &str, number: u8, mode: &str, source: Value) -> Value {
    let mut spec = json!({"nodeName": "node-1", "storageClassName": "fast", "mode": mode});
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    json!({"kind": "Volume", "metadata": {"name": name, "uid": uid(number)}, "spec": spec})
}

fn raw(name: &str, number: u8, mode: &str, path: &str) -> Value {
    resource(name, number, mode, json!({"rawBlockDevice": {"devicePath": path}}))
}

fn in_group(name: &str, number: u8, mode: &str, group: &str, size: &str) -> Value {
    resource(name, number, mode, json!({"lvmLogicalVolume": {"vgName": group, "size": size}}))
}

fn sparse(name: &str, number: u8, mode: &str, size: &str) -> Value {
    resource(name, number, mode, json!({"sparseLoopDevice": {"size": size}}))
}

fn discover(name: &str, number: u8, hints: Value) -> Value {
    resource(name, number, "Filesystem", json!({"rawBlockDevice": {"discover": hints}}))
}

fn with_class(mut list: Vec<Value>, parameters: Value) -> Value {
    list.push(json!({"kind": "StorageClass", "metadata": {"name": "fast"}, "parameters": parameters}));
    Value::Array(list)
}

fn list(volumes: &[Value]) -> Value {
    with_class(volumes.to_vec(), json!({"fsType": "ext4"}))
}

fn request(mode: Mode, volumes: Value, claim: Option<Claim>) -> Request {
    let allocation = Allocation { hostname: "node-1".to_owned(), volumes, ..Allocation::default() };
    let assigned = Assigned { allocation, ..Assigned::default() };
    Request { mode, steps: Steps::default(), subject: subject(), assigned, claim }
}

fn planned(layout: &Layout, machine: &Inventory, mode: Mode, volumes: &[Value]) -> Result<Plan, Box<Refusal>> {
    super::super::make(layout, machine, request(mode, list(volumes), None), &mut counting_from(3000))
}

/// System on sda, a kept group with a volume for /var/lib on sdb; sdc and sdd are no disks of the layout.
fn layout() -> Layout {
    let mut layout = super::layout();
    layout.id = "kube".to_owned();
    layout.disks[1] = whole("/dev/sdb");
    layout.volumegroups = vec![group("csi", &["/dev/sdb"])];
    layout.logicalvolumes = vec![logical("varlib", "csi", 1000, LvmType::Linear)];
    layout.filesystems[0] = filesystem("/var/lib", "/dev/csi/varlib", Format::Ext4, "varlib");
    layout
}

fn machine() -> Inventory {
    let mut machine = super::machine();
    machine.disks.push(disk("sdd", 400));
    for disk in &mut machine.disks[2..] {
        (disk.blank, disk.serial) = (true, format!("serial of {}", disk.name));
    }
    machine
}

fn four() -> Vec<Value> {
    vec![
        raw("data", 1, "Filesystem", "/dev/sdc"),
        raw("block", 2, "Block", "/dev/sdd"),
        in_group("web", 3, "Filesystem", "csi", "1Gi"),
        sparse("small", 4, "Block", "10Mi"),
    ]
}

/// As the next run finds it: files of sparse volumes are there too.
fn installed(volumes: &[Value]) -> Inventory {
    let plan = planned(&layout(), &machine(), Mode::Install, volumes).unwrap();
    let mut inventory = after(&plan, machine());
    let device = "/dev/mapper/csi-varlib".into();
    let files = plan.volumes.iter().filter(|volume| volume.kind.starts_with("sparse"));
    let sparse = files.map(|volume| SparseFile { uid: volume.uid, size_bytes: 10 * MIB }).collect();
    inventory.filesystems.push(Inside { device, sparse, ..Inside::default() });
    // Of the system on sda2. It records no disks: they change their names here.
    let marker = Some(crate::marker::Marker { disks: Vec::new(), ..super::identity::marker(&inventory) });
    inventory.filesystems.push(Inside { device: "/dev/sda2".into(), marker, ..Inside::default() });
    inventory
}

fn shown(plan: &Plan) -> Vec<String> {
    let line = |volume: &PersistentVolume| {
        let (verdict, disks) = (json!(volume.verdict), volume.disks.join(","));
        format!("{} {} {} {}", volume.name, volume.device, verdict.as_str().unwrap(), disks)
    };
    plan.volumes.iter().map(line).collect()
}

fn prepares(plan: &Plan) -> Vec<String> {
    let operations = super::stacks::operations(plan, StageName::StorageVolumes);
    operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::Device(OnDevice::PreparePersistent(volume)) => Some(volume.name.clone()),
            _ => None,
        })
        .collect()
}

#[test]
fn an_installation_makes_them_and_a_reinstall_writes_none() {
    let first = planned(&layout(), &machine(), Mode::Install, &four()).unwrap();
    assert_eq!(
        shown(&first),
        [
            "data /dev/sdc make sdc",
            "block /dev/sdd make sdd",
            "web /dev/csi/web make sdb",
            "small /var/lib/metalk8s/storage/sparse/9474cda7-0dbe-40fc-9842-3cb0404a7204 make sdb",
        ]
    );
    assert_eq!(prepares(&first), ["data", "block", "web"]);
    let words: Vec<Verdict> = first.disks.iter().map(|disk| disk.verdict).collect();
    assert_eq!(words, [Verdict::Wipe, Verdict::Wipe, Verdict::Volumes, Verdict::Volumes]);
    assert_eq!((first.summary.volumes.len(), first.summary.untouched.len()), (2, 0));
    assert_sound(&first, &machine());
    assert_printed("volumes-install", &first);

    let inventory = installed(&four());
    let again = planned(&layout(), &inventory, Mode::Reinstall, &four()).unwrap();
    assert!(shown(&again).iter().all(|line| line.contains(" keep ")), "{again}");
    assert_eq!(prepares(&again), [""; 0]);
    assert_sound(&again, &inventory);
    // Their disks stay locked, and are compared when all is over.
    let operations = again.stages.iter().flat_map(|stage| &stage.operations);
    let unlocked = operations.clone().filter(|operation| match operation {
        Operation::Run(OfRun::UnlockDisk { device, .. }) => ["/dev/sdc", "/dev/sdd"].contains(&device.as_str()),
        _ => false,
    });
    assert_eq!(unlocked.count(), 0);
    let proves = operations.filter_map(|operation| match operation {
        Operation::Run(OfRun::ProveKept(kept)) => Some(kept.iter().map(|kept| kept.object.to_string())),
        _ => None,
    });
    let proven: Vec<String> = proves.flatten().collect();
    for object in ["disk /dev/sdc", "disk /dev/sdd", "volume group csi"] {
        assert!(proven.iter().any(|is| is == object), "{object}: {proven:?}");
    }
}

#[test]
fn a_volume_that_is_new_is_added_in_the_free_space_of_a_kept_group() {
    let inventory = installed(&four());
    let mut volumes = four();
    volumes.extend([
        in_group("more", 5, "Filesystem", "csi", "500M"),
        in_group("bare", 6, "Block", "csi", "1Gi"),
        sparse("file", 7, "Filesystem", "20Mi"),
    ]);
    let plan = planned(&layout(), &inventory, Mode::Reinstall, &volumes).unwrap();
    assert_eq!(
        shown(&plan)[4..],
        [
            "more /dev/csi/more extend sdb",
            "bare /dev/csi/bare extend sdb",
            "file /var/lib/metalk8s/storage/sparse/9474cda7-0dbe-40fc-9842-3cb0404a7207 extend sdb",
        ]
    );
    assert_eq!(prepares(&plan), ["more", "bare"]);
    assert_sound(&plan, &inventory);
    assert_printed("volumes-extend", &plan);
    // What is added is no part of what is proven.
    let kept = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(OfRun::ProveKept(kept)) => Some(kept.clone()),
        _ => None,
    });
    let reinstalled = after(&plan, inventory.clone());
    let proofs = super::super::kept::compare(&kept.clone().unwrap(), &reinstalled);
    assert_eq!(super::super::kept::differences(&proofs), [""; 0]);
    // And it is proven by the next one.
    let next = planned(&layout(), &reinstalled, Mode::Reinstall, &volumes[..6]).unwrap();
    assert!(shown(&next).iter().all(|line| line.contains(" keep ")), "{next}");
    // Only these names: what somebody else has made meanwhile has changed the group.
    let mut meddled = reinstalled;
    let theirs = crate::inventory::LogicalVolume { name: "theirs".into(), ..Default::default() };
    meddled.groups[0].volumes.push(theirs);
    let proofs = super::super::kept::compare(&kept.unwrap(), &meddled);
    assert!(super::super::kept::differences(&proofs)[0].contains("volume theirs was nothing"), "{proofs:?}");
}

/// Nothing of the layout is in the group, so that nothing of it comes back.
#[test]
fn a_group_without_volumes_of_the_layout_is_extended_too() {
    let mut layout = layout();
    layout.logicalvolumes.clear();
    layout.filesystems.remove(0);
    let first = planned(&layout, &machine(), Mode::Install, &[]).unwrap();
    let inventory = after(&first, machine());
    let volumes = [in_group("pvc", 1, "Filesystem", "csi", "1Gi")];
    let plan = planned(&layout, &inventory, Mode::Reinstall, &volumes).unwrap();
    assert_eq!(shown(&plan), ["pvc /dev/csi/pvc extend sdb"]);
    assert_sound(&plan, &inventory);
    let words: Vec<String> = plan.to_string().lines().map(|line| line.trim().to_owned()).collect();
    for expected in [
        "sdb writable again",
        "take down what was assembled on sdb to look inside",
        "volume pvc: csi/pvc in free space of sdb, ext4",
        "deactivate csi",
    ] {
        assert!(words.iter().any(|line| line.ends_with(expected)), "{expected}\n{plan}");
    }
}

fn refused(layout: &Layout, machine: &Inventory, mode: Mode, volumes: &[Value]) -> Vec<String> {
    reasons(planned(layout, machine, mode, volumes))
}

#[test]
fn what_is_not_blank_is_refused_by_the_name_of_the_volume() {
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc"), raw("block", 2, "Block", "/dev/sdd")];
    let is = |change: &dyn Fn(&mut crate::inventory::Disk)| {
        let mut machine = machine();
        change(&mut machine.disks[2]);
        refused(&layout(), &machine, Mode::Install, &volumes)
    };
    let signature = |kind: &str| Signature { kind: kind.into(), usage: "filesystem".into(), ..Signature::default() };
    for (said, expected) in [
        (is(&|disk| disk.signatures.push(signature("xfs"))), "names /dev/sdc, which is not blank: there is xfs"),
        (
            is(&|disk| disk.table = Some(Table { kind: "gpt".into(), ..Table::default() })),
            "names /dev/sdc, which is not blank: there is GPT 0 partitions",
        ),
        (is(&|disk| disk.blank = false), "names /dev/sdc, which is not blank: there is data of no known kind"),
        (is(&|disk| disk.uses.push(Use::Swap)), "names /dev/sdc, which is in use"),
        (is(&|disk| disk.read_only = true), "names /dev/sdc, which is read-only: it cannot be written"),
        (is(&|disk| disk.unreadable = Some("EIO".into())), "names /dev/sdc, and what is on it cannot be read: EIO"),
        (
            is(&|disk| disk.signatures.push(Signature { uuid: uid(1), ..signature("xfs") })),
            "is to be ext4, and /dev/sdc has its UUID and is xfs",
        ),
    ] {
        assert_eq!(said, [format!("volumes[data]: volume data {expected}")]);
    }
}

#[test]
fn what_a_volume_cannot_lie_on_is_refused() {
    let cases = [
        (raw("v", 1, "Block", "/dev/sdz"), "names /dev/sdz, which does not exist on given hardware: its disks are"),
        (raw("v", 1, "Block", "/dev/sda2"), "names /dev/sda2, on which the layout or another volume puts something"),
        (raw("v", 1, "Block", "/dev/sda"), "names /dev/sda, on which the layout or another volume puts something"),
        (raw("v", 1, "Block", "/dev/csi/varlib"), "names /dev/csi/varlib, on which the layout or another volume puts"),
        (in_group("v", 1, "Block", "other", "1Gi"), "is to be in vg:other, which is no group of the layout"),
        (in_group("varlib", 1, "Block", "csi", "1Gi"), "is called like a volume that the layout has in vg:csi"),
        (in_group("v", 1, "Block", "csi", "1Ti"), "needs 1048576 MiB in vg:csi, which has 6996 MiB left"),
        (raw("v", 1, "Filesystem", "/dev/sdc1"), "names /dev/sdc1, which does not exist on given hardware"),
    ];
    for (volume, expected) in cases {
        let said = refused(&layout(), &machine(), Mode::Install, &[volume]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(expected), "{said:?}");
    }
    let twice = [raw("a", 1, "Block", "/dev/sdc"), raw("b", 2, "Block", "/dev/sdc")];
    assert!(refused(&layout(), &machine(), Mode::Install, &twice)[0].contains("which another volume has"));
    let mut elsewhere = raw("v", 1, "Block", "/dev/sdc");
    elsewhere["spec"]["nodeName"] = json!("node-2");
    let said = refused(&layout(), &machine(), Mode::Install, &[elsewhere]);
    assert_eq!(said, ["volumes[v]: volume v is of the node node-2, and this machine is node-1"]);
    let xfs = with_class(vec![sparse("v", 1, "Filesystem", "200Mi")], json!({"fsType": "xfs"}));
    let said = reasons(super::super::make(&layout(), &machine(), request(Mode::Install, xfs, None), &mut counting()));
    assert!(said[0].contains("has 210 MB on ") && said[0].contains("xfs needs 315 MB"), "{said:?}");
    // What is wrong with the list is told as well.
    let said = refused(&layout(), &machine(), Mode::Install, &[json!({"kind": "Volume"})]);
    assert!(said[0].starts_with("volumes[0].metadata.name: "), "{said:?}");
}

#[test]
fn what_a_reinstall_makes_anew_carries_no_volume() {
    let mut layout = layout();
    layout.disks.push(Disk { wipeonreinstall: true, ..whole("/dev/sdc") });
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc")];
    let first = planned(&layout, &machine(), Mode::Install, &volumes).unwrap();
    assert_eq!(shown(&first), ["data /dev/sdc make sdc"]);
    let said =
        "volume data lies on /dev/sdc, which a reinstall wipes: as long as it is in the list, a reinstall is refused";
    assert!(first.warnings.contains(&said.to_owned()), "{first}");
    let inventory = after(&first, machine());
    let said = refused(&layout, &inventory, Mode::Reinstall, &volumes);
    let expected = "volumes[data]: volume data lies on /dev/sdc, which a reinstall wipes: say wipeonreinstall: false for its disks";
    assert_eq!(said, [expected]);
    // Without a filesystem that is kept, the file of a sparse volume is gone with the old system.
    let mut alone = super::layout();
    alone.id = "alone".to_owned();
    let volumes = [sparse("small", 1, "Block", "10Mi")];
    let first = planned(&alone, &machine(), Mode::Install, &volumes).unwrap();
    assert_eq!(first.warnings.len(), 1, "{first}");
    let said = refused(&alone, &after(&first, machine()), Mode::Reinstall, &volumes);
    assert!(said[0].contains("is a file below /, which a reinstall makes anew"), "{said:?}");
}

/// The kernel calls the disks otherwise today: the UUID tells which is which.
#[test]
fn a_volume_is_known_by_its_uuid_and_not_by_its_path() {
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc"), raw("block", 2, "Block", "/dev/sdd")];
    let mut inventory = installed(&volumes);
    let (name, device) = (inventory.disks[2].name.clone(), inventory.disks[2].device.clone());
    inventory.disks[2].name = inventory.disks[3].name.clone();
    inventory.disks[2].device = inventory.disks[3].device.clone();
    (inventory.disks[3].name, inventory.disks[3].device) = (name, device);
    inventory.disks[3].table.as_mut().unwrap().partitions[0].device = "/dev/sdc1".into();
    let plan = planned(&layout(), &inventory, Mode::Reinstall, &volumes).unwrap();
    assert_eq!(shown(&plan), ["data /dev/sdd keep sdd", "block /dev/sdc1 keep sdc"]);
    let said = |name: &str, named: &str, on: &str| {
        format!("volume {name} names /dev/{named}, and is kept on /dev/{on}, which has its UUID")
    };
    assert_eq!(plan.warnings, [said("data", "sdc", "sdd"), said("block", "sdd", "sdc1")]);
    // On two disks at once: nobody can tell which is the copy.
    let copy = Signature { kind: "ext4".into(), usage: "filesystem".into(), uuid: uid(1), ..Signature::default() };
    inventory.disks.push(crate::inventory::Disk { signatures: vec![copy], ..disk("sde", 400) });
    let said = refused(&layout(), &inventory, Mode::Reinstall, &volumes);
    assert!(said[0].contains("has its UUID 9474cda7-0dbe-40fc-9842-3cb0404a7201 on several devices"), "{said:?}");
}

#[test]
fn blank_disks_are_discovered_by_hints_and_found_again() {
    let mut machine = machine();
    machine.disks.extend([disk("sde", 500), disk("sdf", 600)]);
    machine.disks[4].blank = true;
    machine.disks[4].serial = "WD-1".into();
    let volumes = [
        discover("large", 1, json!({"size": ">= 5"})),
        discover("any", 2, json!({})),
        raw("named", 3, "Filesystem", "/dev/sdd"),
    ];
    let plan = planned(&layout(), &machine, Mode::Install, &volumes).unwrap();
    assert_eq!(shown(&plan), ["large /dev/sdc make sdc", "any /dev/sde make sde", "named /dev/sdd make sdd"]);
    assert_sound(&plan, &machine);
    let installed = after(&plan, machine.clone());
    let again = planned(&layout(), &installed, Mode::Reinstall, &volumes).unwrap();
    assert_eq!(shown(&again), ["large /dev/sdc keep sdc", "any /dev/sde keep sde", "named /dev/sdd keep sdd"]);
    let more = [&volumes[..], &[discover("none", 4, json!({"serial": "x"}))]].concat();
    let said = refused(&layout(), &machine, Mode::Install, &more);
    assert!(said[0].contains("finds no blank disk by its hints: /dev/sda (is named)"), "{said:?}");
    assert!(said[0].contains("/dev/sdf (is not blank: data of no known kind)"), "{said:?}");
}

/// Disks, partitions, volumes and arrays that the layout has for them.
#[test]
fn devices_of_the_layout_carry_volumes() {
    let mut layout = layout();
    layout.disks.push(Disk {
        partitions: vec![partition(1, "a", 200, PartitionKind::Linux), partition(2, "b", 0, PartitionKind::Linux)],
        ..whole("/dev/sdc")
    });
    layout.disks.push(whole("/dev/sdd"));
    layout.logicalvolumes.push(logical("bare", "csi", 100, LvmType::Linear));
    let volumes = [
        raw("fs", 1, "Filesystem", "/dev/sdc1"),
        raw("part", 2, "Block", "/dev/sdc2"),
        raw("lv", 3, "Block", "/dev/csi/bare"),
        raw("disk", 4, "Block", "/dev/sdd"),
    ];
    let plan = planned(&layout, &machine(), Mode::Install, &volumes).unwrap();
    assert_eq!(prepares(&plan), ["fs", "disk"]);
    let tables = super::stacks::operations(&plan, StageName::StoragePartition);
    let parts = tables.iter().filter_map(|operation| match operation {
        Operation::Device(OnDevice::WriteTable(table)) if table.device == "/dev/sdc" => Some(&table.partitions),
        _ => None,
    });
    let part = &parts.flatten().find(|part| part.number == 2).unwrap();
    assert_eq!((part.guid.to_string(), part.name.as_str()), (uid(2), "part"));
    let inventory = after(&plan, machine());
    let again = planned(&layout, &inventory, Mode::Reinstall, &volumes).unwrap();
    assert!(shown(&again).iter().all(|line| line.contains(" keep ")), "{again}");
    assert_sound(&again, &inventory);
    // Only a volume of LVM is added to what is kept.
    let mut other = volumes.clone();
    other[0] = raw("fs", 9, "Filesystem", "/dev/sdc1");
    let said = refused(&layout, &inventory, Mode::Reinstall, &other);
    assert!(said[0].contains("is to be kept on /dev/sdc1, which does not have its UUID: there is ext4"), "{said:?}");
}

/// The agent says before the first write what it is about to prepare, so that the next attempt can finish it.
#[test]
fn what_was_cut_off_is_made_again() {
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc"), in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let claim = Claim { order: None, ..super::identity::claim() };
    let make = |machine: &Inventory, mode, volumes: &[Value], claim: Claim| {
        super::super::make(&layout(), machine, request(mode, list(volumes), Some(claim)), &mut counting_from(9000))
    };
    let mut machine = machine();
    for disk in &mut machine.disks {
        disk.serial = format!("serial of {}", disk.name);
    }
    let first = make(&machine, Mode::Install, &volumes, claim.clone()).unwrap();
    let [Operation::Run(OfRun::TellPointOfNoReturn { disks, .. })] =
        super::stacks::operations(&first, StageName::ReportBegin)
    else {
        panic!("{first}")
    };
    let record = disks.iter().find(|record| record.device == "/dev/sdc").unwrap();
    assert_eq!(record.making[0].uuid.as_deref(), Some(uid(1).as_str()));
    // mkfs was cut off: data of no known kind.
    let mut half = machine;
    half.disks[2].blank = false;
    let claim = Claim { begun_on: disks.clone(), ..claim };
    let again = make(&half, Mode::Install, &volumes, claim.clone()).unwrap();
    assert_eq!(shown(&again)[0], "data /dev/sdc make sdc");
    // Another disk in its place is nobody's.
    half.disks[2].serial = "other".into();
    let said = reasons(make(&half, Mode::Install, &volumes, claim));
    assert!(said[0].contains("which is not blank"), "{said:?}");
}

/// A volume of that name is in the group, and is blank still.
#[test]
fn a_volume_that_was_made_and_not_filled_is_filled() {
    let volumes = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut inventory = installed(&volumes);
    let web = inventory.stacked.iter_mut().find(|stacked| stacked.device == "/dev/mapper/csi-web").unwrap();
    (web.signatures, web.blank) = (Vec::new(), true);
    let plan = planned(&layout(), &inventory, Mode::Reinstall, &volumes).unwrap();
    assert_eq!(shown(&plan), ["web /dev/csi/web extend sdb"]);
    let text = plan.to_string();
    assert!(text.contains("activate varlib, web of csi (sdb)") && text.contains("volume web: csi/web, ext4"), "{text}");
    let web = inventory.stacked.iter_mut().find(|stacked| stacked.device == "/dev/mapper/csi-web").unwrap();
    web.blank = false;
    let said = refused(&layout(), &inventory, Mode::Reinstall, &volumes);
    let expected =
        "volumes[web]: volume web is to be /dev/csi/web, which does not have its UUID: there is data of no known kind";
    assert_eq!(said, [expected]);
}

#[test]
fn an_approval_is_of_the_volumes_too() {
    let plan = planned(&layout(), &machine(), Mode::Install, &four()).unwrap();
    let things = plan.verdicts.unwrap().things;
    let things: Vec<String> = things
        .iter()
        .filter(|thing| thing.name.starts_with("kubernetes"))
        .map(|thing| format!("{:?} {} on {}", thing.fate, thing.name, thing.on.join(" ")))
        .collect();
    assert_eq!(things[0], format!("Made kubernetes volume block {} on serial serial of sdd", uid(2)));
    assert_eq!(things.len(), 4);
}

/// Options of the class are tried before anything is destroyed.
#[test]
fn options_of_a_class_are_tried() {
    let volumes = with_class(four(), json!({"fsType": "ext4", "mkfsOptions": "[\"-m\", \"0\"]"}));
    let plan =
        super::super::make(&layout(), &machine(), request(Mode::Install, volumes, None), &mut counting()).unwrap();
    let text = plan.to_string();
    for device in ["sdc", "csi/web"] {
        assert!(text.contains(&format!("try ext4 -m 0 for {device} in memory\n")), "{text}");
    }
}

prop_compose! {
    /// On disks that the layout may list or not, in groups that it may have or not, and in files.
    fn any_volumes()(
        drawn in prop::collection::vec((0usize..4, any::<bool>(), 0..NAMES.len(), 1u64..80), 1..6),
    ) -> Vec<Value> {
        let groups = ["vg-data4", "vg-data5", "vg-system4", "vg-system5"];
        let one = |(index, (kind, block, at, size)): (usize, (usize, bool, usize, u64))| {
            let mode = if block { "Block" } else { "Filesystem" };
            let (name, number) = (format!("kv{index}"), index as u8);
            match kind {
                0 => raw(&name, number, mode, &format!("/dev/{}", NAMES[at])),
                1 => in_group(&name, number, mode, groups[at % groups.len()], &format!("{size}Mi")),
                2 => discover(&name, number, json!({})),
                _ => sparse(&name, number, mode, &format!("{}Mi", size + 4)),
            }
        };
        drawn.into_iter().enumerate().map(one).collect()
    }
}

/// Those that are not refused, as an operator would leave them.
fn accepted(layout: &Layout, machine: &Inventory, mode: Mode, volumes: Vec<Value>) -> Vec<Value> {
    let mut good: Vec<Value> = Vec::new();
    for volume in volumes {
        let more = [&good[..], &[volume]].concat();
        if planned(layout, machine, mode, &more).is_ok() {
            good = more;
        }
    }
    good
}

/// Bytes that somebody could have on disks which the plan keeps, or does not name: signatures, tables, groups.
fn of_others(inventory: &Inventory, plan: &Plan) -> Vec<String> {
    let written: Vec<&crate::device::DevicePath> = plan
        .stages
        .iter()
        .flat_map(|stage| &stage.operations)
        .filter(|operation| matches!(operation, Operation::Device(OnDevice::PreparePersistent(_))))
        .flat_map(|operation| effect(operation).destroyed)
        .collect();
    let stays = |disk: &&crate::inventory::Disk| {
        let verdict = plan.disks.iter().find(|is| is.name == disk.name).unwrap().verdict;
        matches!(verdict, Verdict::Keep | Verdict::NotOurs | Verdict::Volumes) && !written.contains(&&disk.device)
    };
    let disks = inventory.disks.iter().filter(stays);
    // What only ran to look inside is taken down.
    let without_uses = |disk: &crate::inventory::Disk| {
        let mut table = disk.table.clone();
        table.iter_mut().flat_map(|table| &mut table.partitions).for_each(|part| part.uses.clear());
        format!("{} {:?} {:?}", disk.name, disk.signatures, table)
    };
    disks.map(without_uses).collect()
}

#[test]
fn no_volume_touches_what_another_has() {
    let judged = Judged::new("no_volume_touches_what_another_has");
    proptest!(ProptestConfig::with_cases(60), |(
        layout in any_layout(),
        machine in any_machine(),
        volumes in any_volumes(),
        more in any_volumes(),
    )| {
        judged.case();
        let mut machine = machine;
        for disk in &mut machine.disks {
            disk.blank = disk.table.is_none() && disk.signatures.is_empty() && disk.uses.is_empty();
        }
        let Ok(bare) = planned(&layout, &machine, Mode::Install, &[]) else { return Ok(()) };
        let volumes = accepted(&layout, &machine, Mode::Install, volumes);
        let first = planned(&layout, &machine, Mode::Install, &volumes).unwrap();
        judged.note("installations", true);
        judged.note("with volumes", !first.volumes.is_empty());
        judged.note("on disks that the layout does not name", !first.summary.volumes.is_empty());
        assert_sound(&first, &machine);
        // The layout's own is done as without them.
        prop_assert_eq!(first.summary.wiped.clone(), bare.summary.wiped.clone());
        let installed = after(&first, machine.clone());
        prop_assert_eq!(of_others(&machine, &first), of_others(&installed, &first));
        // Sparse ones are refused where the root carries them; groups on wiped disks are made anew.
        let volumes = accepted(&layout, &installed, Mode::Reinstall, volumes);
        let Ok(second) = planned(&layout, &installed, Mode::Reinstall, &volumes) else { return Ok(()) };
        judged.note("reinstalls", true);
        let made = |plan: &Plan| plan.volumes.iter().any(|is| is.verdict != PersistentVerdict::Keep && !is.kind.starts_with("sparse"));
        prop_assert!(!made(&second), "{}", second);
        let rename = |mut volume: Value| {
            let number = volume["metadata"]["name"].as_str().unwrap().trim_start_matches("kv").parse::<u8>().unwrap() + 100;
            volume["metadata"] = json!({"name": format!("kv{number}"), "uid": uid(number)});
            volume
        };
        let more = [volumes, more.into_iter().map(rename).collect()].concat();
        let more = accepted(&layout, &installed, Mode::Reinstall, more);
        let Ok(third) = planned(&layout, &installed, Mode::Reinstall, &more) else { return Ok(()) };
        judged.note("reinstalls that add to a kept group", third.volumes.iter().any(|is| is.verdict == PersistentVerdict::Extend && is.kind.starts_with("lvm")));
        assert_sound(&third, &installed);
        let reinstalled = after(&third, installed.clone());
        prop_assert_eq!(of_others(&installed, &third), of_others(&reinstalled, &third));
        for volume in third.volumes.iter().filter(|is| is.verdict == PersistentVerdict::Keep) {
            let signatures = |inventory: &Inventory| {
                let device = crate::topology::units(inventory).find(|(device, _)| **device == volume.device);
                device.map(|(_, unit)| unit.signatures().to_vec())
            };
            prop_assert_eq!(signatures(&installed), signatures(&reinstalled));
        }
    });
    judged.assert_shares(&[
        ("installations", 12),
        ("with volumes", 8),
        ("on disks that the layout does not name", 4),
        ("reinstalls", 8),
        ("reinstalls that add to a kept group", 0),
    ]);
}
