//! Kubernetes volumes: the verdict on each volume, and a check that nothing else is written for them.

mod added_volumes;
mod devices;
mod many_volumes;
mod random_layouts;
mod refusals;
mod repeated_preparation_check;
mod terminating_volumes;
mod unfinished_volumes;
mod volume_recognition;

use super::arrays_and_groups::{group, raid, volume as logical, whole};
use super::properties::assert_sound;
use super::*;
use model::allocation::Allocation;
use model::inventory::{FilesystemContents as Inside, SparseFile};
use model::layout::{EncryptionSpec, KeySource, LvmType, RaidLevel};
use operations::{DeviceOp, Operation, PlanAssignment, ProvePreserved, SessionOp, StageName, UnlockDisk};
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

fn request(mode: InstallMode, volumes: Value, claim: Option<InstallClaim>) -> PlanRequest {
    let allocation = Allocation { hostname: "node-1".to_owned(), volumes, ..Allocation::default() };
    let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
    PlanRequest { mode, steps: StepList::default(), subject: subject(), assigned, claim }
}

fn planned(
    layout: &Layout,
    machine: &Inventory,
    mode: InstallMode,
    volumes: &[Value],
) -> Result<Plan, Box<PlanRefusal>> {
    super::super::make_plan(layout, machine, request(mode, list(volumes), None), &mut counting_from(3000))
}

/// Layout with the system on sda, and a preserved group with a volume for /var/lib on sdb. The layout does not list sdc
/// and sdd.
fn layout() -> Layout {
    let mut layout = super::layout();
    layout.id = "kube".to_owned();
    layout.disks[1] = whole("/dev/sdb");
    layout.volumegroups = vec![group("csi", &["/dev/sdb"])];
    layout.logicalvolumes = vec![logical("varlib", "csi", 1000, LvmType::Linear)];
    layout.filesystems[0] = filesystem("/var/lib", "/dev/csi/varlib", FilesystemFormat::Ext4, "varlib");
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

/// Returns the machine as the next run finds it, including the files of sparse volumes.
fn installed(volumes: &[Value]) -> Inventory {
    let plan = planned(&layout(), &machine(), InstallMode::Install, volumes).unwrap();
    let mut inventory = after(&plan, machine());
    let device = "/dev/mapper/csi-varlib".into();
    let files = plan.volumes.iter().filter(|volume| volume.kind.starts_with("sparse"));
    let sparse = files.map(|volume| SparseFile { uid: volume.uid, size_bytes: 10 * MIB }).collect();
    inventory.filesystems.push(Inside { device, sparse, ..Inside::default() });
    mark(&mut inventory);
    inventory
}

/// Adds a marker on sda2. It records no disks, because these tests change the names of disks.
fn mark(inventory: &mut Inventory) {
    let marker = Some(model::install_marker::InstallMarker {
        disks: Vec::new(),
        ..super::installation_identity::marker(inventory)
    });
    inventory.filesystems.push(Inside { device: "/dev/sda2".into(), marker, ..Inside::default() });
}

fn format_volumes(plan: &Plan) -> Vec<String> {
    let line = |volume: &PersistentVolume| {
        let (verdict, disks) = (json!(volume.verdict), volume.disks.join(","));
        format!("{} {} {} {}", volume.name, volume.device, verdict.as_str().unwrap(), disks)
    };
    plan.volumes.iter().map(line).collect()
}

fn prepares(plan: &Plan) -> Vec<String> {
    let operations = super::arrays_and_groups::operations(plan, StageName::StorageVolumes);
    operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::Device(DeviceOp::CreateK8sVolume(volume)) => Some(volume.name.clone()),
            _ => None,
        })
        .collect()
}

#[test]
fn install_creates_volumes_and_reinstall_preserves_them() {
    let first = planned(&layout(), &machine(), InstallMode::Install, &four()).unwrap();
    assert_eq!(
        format_volumes(&first),
        [
            "data /dev/sdc make sdc",
            "block /dev/sdd make sdd",
            "web /dev/csi/web make sdb",
            "small /var/lib/metalk8s/storage/sparse/9474cda7-0dbe-40fc-9842-3cb0404a7204 make sdb",
        ]
    );
    assert_eq!(prepares(&first), ["data", "block", "web"]);
    let words: Vec<DiskVerdict> = first.disks.iter().map(|disk| disk.verdict).collect();
    assert_eq!(words, [DiskVerdict::Wipe, DiskVerdict::Wipe, DiskVerdict::Volumes, DiskVerdict::Volumes]);
    assert_eq!((first.summary.volumes.len(), first.summary.untouched.len()), (2, 0));
    assert_sound(&first, &machine());
    assert_printed("volumes-install", &first);

    let inventory = installed(&four());
    let again = planned(&layout(), &inventory, InstallMode::Reinstall, &four()).unwrap();
    assert!(format_volumes(&again).iter().all(|line| line.contains(" keep ")), "{again}");
    assert_eq!(prepares(&again), [""; 0]);
    assert_sound(&again, &inventory);
    // The disks of the volumes stay locked, and are compared at the end.
    let operations = again.stages.iter().flat_map(|stage| &stage.operations);
    let unlocked = operations.clone().filter(|operation| match operation {
        Operation::Run(SessionOp::UnlockDisk(UnlockDisk { device, .. })) => {
            ["/dev/sdc", "/dev/sdd"].contains(&device.as_str())
        }
        _ => false,
    });
    assert_eq!(unlocked.count(), 0);
    let proves = operations.filter_map(|operation| match operation {
        Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved))) => {
            Some(preserved.iter().map(|preserved| preserved.object.to_string()))
        }
        _ => None,
    });
    let proven: Vec<String> = proves.flatten().collect();
    for object in ["disk /dev/sdc", "disk /dev/sdd", "volume group csi"] {
        assert!(proven.iter().any(|is| is == object), "{object}: {proven:?}");
    }
}

#[test]
fn adds_new_volumes_to_a_preserved_group() {
    let inventory = installed(&four());
    let mut volumes = four();
    volumes.extend([
        in_group("more", 5, "Filesystem", "csi", "500M"),
        in_group("bare", 6, "Block", "csi", "1Gi"),
        sparse("file", 7, "Filesystem", "20Mi"),
    ]);
    let plan = planned(&layout(), &inventory, InstallMode::Reinstall, &volumes).unwrap();
    assert_eq!(
        format_volumes(&plan)[4..],
        [
            "more /dev/csi/more extend sdb",
            "bare /dev/csi/bare extend sdb",
            "file /var/lib/metalk8s/storage/sparse/9474cda7-0dbe-40fc-9842-3cb0404a7207 extend sdb",
        ]
    );
    assert_eq!(prepares(&plan), ["more", "bare"]);
    assert_sound(&plan, &inventory);
    assert_printed("volumes-extend", &plan);
    // The comparison of preserved objects ignores the added volumes.
    let preserved = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved))) => Some(preserved.clone()),
        _ => None,
    });
    let reinstalled = after(&plan, inventory.clone());
    let proofs = super::super::preservation_proof::compare_preserved(&preserved.clone().unwrap(), &reinstalled);
    assert_eq!(super::super::preservation_proof::describe_differences(&proofs), [""; 0]);
    // The next reinstall also preserves the added volumes.
    let next = planned(&layout(), &reinstalled, InstallMode::Reinstall, &volumes[..6]).unwrap();
    assert!(format_volumes(&next).iter().all(|line| line.contains(" keep ")), "{next}");
    // Only the volumes that the plan adds are ignored. A volume that another program has created is reported as a
    // change of the group.
    let mut meddled = reinstalled;
    let theirs = model::inventory::LvmLogicalVolume { name: "theirs".into(), ..Default::default() };
    meddled.groups[0].volumes.push(theirs);
    let proofs = super::super::preservation_proof::compare_preserved(&preserved.unwrap(), &meddled);
    assert!(
        super::super::preservation_proof::describe_differences(&proofs)[0].contains("volume theirs was nothing"),
        "{proofs:?}"
    );
}

/// If the layout does not use the group, its volumes are not activated.
#[test]
fn extends_preserved_group_without_layout_volumes() {
    let mut layout = layout();
    layout.logicalvolumes.clear();
    layout.filesystems.remove(0);
    let first = planned(&layout, &machine(), InstallMode::Install, &[]).unwrap();
    let inventory = after(&first, machine());
    let volumes = [in_group("pvc", 1, "Filesystem", "csi", "1Gi")];
    let plan = planned(&layout, &inventory, InstallMode::Reinstall, &volumes).unwrap();
    assert_eq!(format_volumes(&plan), ["pvc /dev/csi/pvc extend sdb"]);
    assert_sound(&plan, &inventory);
    let words: Vec<String> = plan.to_string().lines().map(|line| line.trim().to_owned()).collect();
    for expected in [
        "sdb writable again",
        "stop the arrays and mappings on sdb that were started for inspection",
        "volume pvc: csi/pvc in free space of sdb, ext4",
        "deactivate csi",
    ] {
        assert!(words.iter().any(|line| line.ends_with(expected)), "{expected}\n{plan}");
    }
}

/// The files are found in the open container of their filesystem.
#[test]
fn preserves_sparse_files_on_an_encrypted_filesystem() {
    let mut layout = layout();
    layout.filesystems[0].encrypted = Some(EncryptionSpec { key: KeySource::Tpm2 });
    let volume = sparse("small", 4, "Block", "10Mi");
    let first = planned(&layout, &machine(), InstallMode::Install, std::slice::from_ref(&volume)).unwrap();
    let mut inventory = after(&first, machine());
    mark(&mut inventory);
    let again = |inventory: &Inventory, volume: &Value| {
        let plan = planned(&layout, inventory, InstallMode::Reinstall, std::slice::from_ref(volume)).unwrap();
        assert_sound(&plan, inventory);
        format_volumes(&plan).concat()
    };
    let mounted = first.fstab.iter().find(|entry| entry.path == "/var/lib").unwrap();
    inventory.filesystems.push(Inside { device: mounted.source.as_str().into(), ..Inside::default() });
    let without = again(&inventory, &volume);
    assert!(without.contains(" extend "), "{without}");
    let sparse = vec![SparseFile { uid: first.volumes[0].uid, size_bytes: 10 * MIB }];
    inventory.filesystems.last_mut().unwrap().sparse = sparse;
    // An offline inventory does not contain the open container.
    let mut closed = inventory.clone();
    closed.stacked.retain(|stacked| stacked.kind != inventory::StackedDeviceKind::Crypt);
    closed.stacked.iter_mut().for_each(|stacked| stacked.uses.clear());
    let plan = planned(&layout, &closed, InstallMode::Reinstall, std::slice::from_ref(&volume)).unwrap();
    assert!(
        plan.warnings.iter().any(|said| said.contains("volume small: the machine will check for its backing file")),
        "{plan}"
    );
    let mut deleted = volume.clone();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-24T12:00:00Z");
    for volume in [volume, deleted] {
        let found = again(&inventory, &volume);
        assert!(found.ends_with(" keep sdb"), "{found}");
    }
}

fn refused(layout: &Layout, machine: &Inventory, mode: InstallMode, volumes: &[Value]) -> Vec<String> {
    reasons(planned(layout, machine, mode, volumes))
}

#[test]
fn approval_includes_kubernetes_volumes() {
    let plan = planned(&layout(), &machine(), InstallMode::Install, &four()).unwrap();
    let things = plan.verdicts.unwrap().things;
    let things: Vec<String> = things
        .iter()
        .filter(|thing| thing.name.starts_with("kubernetes"))
        .map(|thing| format!("{:?} {} on {}", thing.fate, thing.name, thing.on.join(" ")))
        .collect();
    assert_eq!(things[0], format!("Made kubernetes volume block {} on serial serial of sdd", uid(2)));
    assert_eq!(things.len(), 4);
}

/// The options of the storage class are tried before anything is destroyed.
#[test]
fn mkfs_options_of_a_storage_class_are_tried() {
    let volumes = with_class(four(), json!({"fsType": "ext4", "mkfsOptions": "[\"-m\", \"0\"]"}));
    let plan =
        super::super::make_plan(&layout(), &machine(), request(InstallMode::Install, volumes, None), &mut counting())
            .unwrap();
    let text = plan.to_string();
    for device in ["sdc", "csi/web"] {
        assert!(text.contains(&format!("try to create ext4 -m 0 for {device} in memory\n")), "{text}");
    }
}
