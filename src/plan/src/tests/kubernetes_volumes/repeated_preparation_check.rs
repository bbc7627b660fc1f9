//! Tests that a prepared Kubernetes volume is not prepared a second time while its data may exist.

use super::*;
use model::install_marker::{InstallMarker, RecordedDisk, RecordedVolume};
use model::inventory::{InspectionFailure, InspectionTarget};
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp, StageName, WriteMarker};

/// Sources of a record that a volume was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recorder {
    /// Field `prepared_volumes` of the allocation.
    ControlPlane,
    /// The marker in the records of the control plane.
    Remembered,
    /// The marker on the disks of the machine.
    Disk,
}

const RECORDERS: [Recorder; 3] = [Recorder::ControlPlane, Recorder::Remembered, Recorder::Disk];

fn claim() -> InstallClaim {
    super::super::installation_identity::claim()
}

pub(super) fn plan_request(mode: InstallMode, volumes: &[Value]) -> PlanRequest {
    request(mode, list(volumes), Some(claim()))
}

pub(super) fn make(layout: &Layout, machine: &Inventory, request: PlanRequest) -> Result<Plan, Box<PlanRefusal>> {
    crate::make_plan(layout, machine, request, &mut counting_from(7000))
}

/// Returns the records that an installation of these volumes writes to the marker.
pub(super) fn records(volumes: &[Value]) -> Vec<RecordedVolume> {
    let claim = InstallClaim { order: None, ..claim() };
    let plan = make(&layout(), &machine(), request(InstallMode::Install, list(volumes), Some(claim))).unwrap();
    let written = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => Some(marker.clone()),
        _ => None,
    });
    written.unwrap().volumes.unwrap()
}

/// Stores the records in this source.
fn record(recorder: Recorder, records: &[RecordedVolume], request: &mut PlanRequest, machine: &mut Inventory) {
    let records = Some(records.to_vec());
    match recorder {
        Recorder::ControlPlane => {
            let bare = |record: &RecordedVolume| RecordedVolume {
                uid: record.uid.clone(),
                name: record.name.clone(),
                path: record.path.clone(),
                ..RecordedVolume::default()
            };
            request.assigned.allocation.prepared_volumes = records.map(|all| all.iter().map(bare).collect());
        }
        Recorder::Remembered => {
            let marker = super::super::installation_identity::marker(machine);
            let remembered = InstallMarker { disks: Vec::new(), volumes: records, ..marker };
            request.claim.as_mut().unwrap().installed = Some(remembered);
        }
        Recorder::Disk => {
            let mut markers = machine.filesystems.iter_mut().filter_map(|filesystem| filesystem.marker.as_mut());
            markers.next().unwrap().volumes = records;
        }
    }
}

/// Makes the plan of a reinstall for a machine whose marker has these records.
pub(super) fn reinstall(
    machine: &Inventory,
    volumes: &[Value],
    recorded: &[RecordedVolume],
) -> Result<Plan, Box<PlanRefusal>> {
    let (mut machine, mut request) = (machine.clone(), plan_request(InstallMode::Reinstall, volumes));
    record(Recorder::Disk, recorded, &mut request, &mut machine);
    make(&layout(), &machine, request)
}

pub(super) fn blank(name: &str, size: u64) -> model::inventory::InventoryDisk {
    model::inventory::InventoryDisk { blank: true, serial: format!("spare {name}"), ..disk(name, size) }
}

pub(super) fn ext4(uuid: &str) -> DeviceSignature {
    DeviceSignature { kind: "ext4".into(), usage: "filesystem".into(), uuid: uuid.into(), ..DeviceSignature::default() }
}

/// The volume's disk is absent, and its kernel name now belongs to a blank spare disk.
#[test]
fn refuses_spare_disk_for_volume_of_absent_disk() {
    let volumes = [
        raw("data", 1, "Filesystem", "/dev/sdc"),
        raw("data", 1, "Block", "/dev/sdc"),
        discover("data", 1, json!({})),
        discover("data", 1, json!({"name": "/dev/sdc"})),
    ];
    for (volume, recorder) in volumes.iter().flat_map(|volume| RECORDERS.map(|recorder| (volume, recorder))) {
        let list = std::slice::from_ref(volume);
        let whole = installed(list);
        let mut gone = whole.clone();
        gone.disks[2] = blank("sdc", 500);
        let try_on = |machine: &Inventory, recorder: Option<Recorder>, give_up: &[&str]| {
            let (mut machine, mut request) = (machine.clone(), plan_request(InstallMode::Reinstall, list));
            request.claim.as_mut().unwrap().give_up = give_up.iter().map(|serial| (*serial).to_owned()).collect();
            if let Some(recorder) = recorder {
                record(recorder, &records(list), &mut request, &mut machine);
            }
            make(&layout(), &machine, request)
        };
        let said = reasons(try_on(&gone, Some(recorder), &[]));
        let was = match recorder {
            Recorder::ControlPlane => "the volume was prepared before, according to the control plane".to_owned(),
            _ => "the volume was prepared on /dev/sdc, the disk with serial serial of sdc (9.44 GB)".to_owned(),
        };
        assert_eq!(said.len(), 1, "{said:?}");
        let start = format!(
            "volumes[data]: volume data cannot be prepared on /dev/sdc: {was}, and no device of this machine has its UUID {}",
            uid(1)
        );
        assert!(said[0].starts_with(&start), "{recorder:?}: {said:?}");
        assert!(
            said[0].ends_with("delete the resource in Kubernetes and list a new resource, which has another UID"),
            "{said:?}"
        );
        // If its disk is present, the volume is preserved, and a blank disk is not used.
        let mut both = whole;
        both.disks.push(blank("sde", 500));
        let plan = try_on(&both, Some(recorder), &[]).unwrap();
        assert!(format_volumes(&plan)[0].ends_with(" keep sdc"), "{plan}");
        // A volume without a record is prepared.
        assert_eq!(format_volumes(&try_on(&gone, None, &[]).unwrap()), ["data /dev/sdc make sdc"]);
        if recorder != Recorder::ControlPlane {
            assert!(said[0].contains("--give-up serial of sdc"), "{said:?}");
            assert!(try_on(&gone, Some(recorder), &["spare sdc"]).is_err(), "the volume is on another disk");
            let plan = try_on(&gone, Some(recorder), &["serial of sdc"]).unwrap();
            assert_eq!(format_volumes(&plan), ["data /dev/sdc make sdc"]);
            assert!(
                plan.warnings
                    .iter()
                    .any(|said| said.contains("the data of the volume will be discarded, as requested by the operator")),
                "{plan}"
            );
        }
    }
}

#[test]
fn file_is_created_only_if_never_prepared() {
    let small = [sparse("small", 4, "Block", "10Mi")];
    let (recorded, whole) = (records(&small), installed(&small));
    let carrier = |machine: &mut Inventory| {
        machine.filesystems.iter().position(|filesystem| filesystem.device == "/dev/mapper/csi-varlib").unwrap()
    };
    assert!(format_volumes(&reinstall(&whole, &small, &recorded).unwrap())[0].contains(" keep "));
    let mut gone = whole.clone();
    let at = carrier(&mut gone);
    let files = std::mem::take(&mut gone.filesystems[at].sparse);
    assert!(format_volumes(&reinstall(&gone, &small, &[]).unwrap())[0].contains(" extend "));
    let said = reasons(reinstall(&gone, &small, &recorded));
    assert!(said[0].contains("and no device of this machine has its file"), "{said:?}");
    // If the file is in another filesystem, the volume is not prepared a second time.
    let mut moved = gone.clone();
    moved.filesystems.push(Inside { device: "/dev/sdc".into(), sparse: files, ..Inside::default() });
    for volume in [small[0].clone(), raw("small", 4, "Block", "/dev/sdd")] {
        let said = reasons(reinstall(&moved, &[volume], &[]));
        assert!(said[0].contains("is in the filesystem on /dev/sdc"), "{said:?}");
    }
    // A filesystem that was not read may contain the file.
    let mut unread = whole;
    unread.filesystems.remove(at);
    let said = reasons(reinstall(&unread, &small, &[]));
    assert!(said[0].contains("/dev/mapper/csi-varlib cannot be mounted: the filesystem was not inspected"), "{said:?}");
    unread.failed.push(InspectionFailure {
        tried: InspectionTarget::Filesystem("/dev/mapper/csi-varlib".into()),
        why: "bad magic".into(),
    });
    let said = reasons(reinstall(&unread, &small, &[]));
    assert!(said.iter().any(|said| said.contains("cannot be mounted: bad magic")), "{said:?}");
    // The plan is made offline, from an inventory without the content of filesystems.
    unread.filesystems.clear();
    unread.failed.clear();
    let plan = super::planned(&layout(), &unread, InstallMode::Reinstall, &small).unwrap();
    assert!(plan.warnings.iter().any(|said| said.contains("once /var/lib is mounted")), "{plan}");
}

/// A preserved disk that was replaced is recreated. Its volumes are recreated only if the operator discards their data.
#[test]
fn volumes_of_replaced_disk_are_recreated_only_if_discarded() {
    let web = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut machine = installed(&web);
    (machine.groups, machine.stacked) = (Vec::new(), Vec::new());
    machine.filesystems.retain(|filesystem| filesystem.marker.is_some());
    machine.disks[1] = blank("sdb", machine.disks[1].size_bytes / MIB);
    assert!(reinstall(&machine, &[], &[]).is_ok());
    assert_eq!(format_volumes(&reinstall(&machine, &web, &[]).unwrap()), ["web /dev/csi/web make sdb"]);
    let recorded = RecordedVolume {
        disks: vec![RecordedDisk { serial: "serial of sdb".into(), ..records(&web)[0].disks[0].clone() }],
        ..records(&web)[0].clone()
    };
    let said = reasons(reinstall(&machine, &web, std::slice::from_ref(&recorded)));
    assert!(said.len() == 1 && said[0].contains("--give-up serial of sdb"), "{said:?}");
    let mut request = plan_request(InstallMode::Reinstall, &web);
    request.claim.as_mut().unwrap().give_up = vec!["serial of sdb".to_owned()];
    record(Recorder::Disk, &[recorded], &mut request, &mut machine);
    assert_eq!(format_volumes(&make(&layout(), &machine, request).unwrap()), ["web /dev/csi/web make sdb"]);
}

/// An installation of a new allocation erases all listed disks, and with them the volumes on these disks. Other volumes
/// may still be on other disks.
#[test]
fn installation_recreates_the_volumes_that_it_erases() {
    let mut machine = installed(&four());
    let fresh = |machine: &Inventory| {
        let (mut machine, mut request) = (machine.clone(), plan_request(InstallMode::Install, &four()));
        record(Recorder::Disk, &records(&four()), &mut request, &mut machine);
        let claim = request.claim.as_mut().unwrap();
        (claim.allocation, claim.order) = ("a-2".to_owned(), None);
        make(&layout(), &machine, request)
    };
    let verdicts = format_volumes(&fresh(&machine).unwrap());
    for (line, verdict) in verdicts.iter().zip(["keep", "keep", "make", "make"]) {
        assert!(line.contains(&format!(" {verdict} ")), "{verdicts:?}");
    }
    machine.disks[3] = blank("sdd", 500);
    let said = reasons(fresh(&machine));
    let expected = "volume block cannot be prepared on /dev/sdd: the volume was prepared on /dev/sdd, the disk with serial serial of sdd";
    assert!(said.len() == 1 && said[0].contains(expected) && !said[0].contains("--give-up"), "{said:?}");
}

#[test]
fn interrupted_preparation_is_not_continued_on_another_disk() {
    let volume = [discover("data", 1, json!({}))];
    let claim = InstallClaim { order: None, ..claim() };
    let mut there = machine();
    there.disks[..2].iter_mut().for_each(|disk| disk.serial = format!("serial of {}", disk.name));
    let first = make(&layout(), &there, request(InstallMode::Install, list(&volume), Some(claim.clone()))).unwrap();
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        super::super::arrays_and_groups::operations(&first, StageName::ReportBegin)
    else {
        panic!("{first}")
    };
    let again = |machine: &Inventory| {
        let claim = InstallClaim { begun_on: disks.clone(), ..claim.clone() };
        make(&layout(), machine, request(InstallMode::Install, list(&volume), Some(claim)))
    };
    assert_eq!(format_volumes(&again(&there).unwrap()), ["data /dev/sdc make sdc"]);
    let mut gone = there;
    gone.disks[2] = blank("sdc", 500);
    let said = reasons(again(&gone));
    assert!(
        said.iter().any(|said| said.contains("an interrupted attempt was preparing the volume on disk /dev/sdc")),
        "{said:?}"
    );
}

/// The record of a volume is preserved after the volume was removed from the list, because it may be listed again.
#[test]
fn marker_records_prepared_volumes_until_they_are_erased() {
    let recorded = records(&four());
    let names: Vec<(&str, &str)> = recorded.iter().map(|is| (is.name.as_str(), is.device.as_str())).collect();
    assert_eq!(names[..3], [("data", "/dev/sdc"), ("block", "/dev/sdd"), ("web", "/dev/csi/web")]);
    assert_eq!(recorded[0].disks[0].serial, "serial of sdc");
    assert_eq!(recorded[0].path, format!("/dev/disk/by-uuid/{}", uid(1)));
    let machine = installed(&four());
    let marker = |plan: &Plan| {
        plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
            Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => marker.volumes.clone(),
            _ => None,
        })
    };
    let plan = reinstall(&machine, &four()[..1], &recorded).unwrap();
    let names: Vec<String> = marker(&plan).unwrap().into_iter().map(|is| is.name).collect();
    assert_eq!(names, ["data", "block", "web", "small"]);
    // Volumes on disks that the layout wipes are no longer recorded.
    let mut layout = layout();
    layout.disks.push(DiskSpec { wipeonreinstall: true, ..whole("/dev/sdc") });
    let (mut machine, mut request) = (machine, plan_request(InstallMode::Reinstall, &four()[1..]));
    record(Recorder::Disk, &recorded, &mut request, &mut machine);
    request.claim.as_mut().unwrap().change_promise = true;
    let plan = make(&layout, &machine, request).unwrap();
    let names: Vec<String> = marker(&plan).unwrap().into_iter().map(|is| is.name).collect();
    assert_eq!(names, ["block", "web", "small"]);
}
