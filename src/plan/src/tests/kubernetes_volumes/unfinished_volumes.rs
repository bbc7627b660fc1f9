//! Kubernetes volumes that an earlier attempt left unfinished.

use super::*;
use model::inventory::{InspectionFailure, InspectionTarget};
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp, StageName};

/// Before the first write, the agent announces the volumes that it will prepare, so that the next attempt can complete
/// them.
#[test]
fn interrupted_volume_preparation_is_repeated() {
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc"), in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let claim = InstallClaim { order: None, ..super::super::installation_identity::claim() };
    let make = |machine: &Inventory, mode, volumes: &[Value], claim: InstallClaim| {
        crate::make_plan(&layout(), machine, request(mode, list(volumes), Some(claim)), &mut counting_from(9000))
    };
    let mut machine = machine();
    for disk in &mut machine.disks {
        disk.serial = format!("serial of {}", disk.name);
    }
    let first = make(&machine, InstallMode::Install, &volumes, claim.clone()).unwrap();
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        super::super::arrays_and_groups::operations(&first, StageName::ReportBegin)
    else {
        panic!("{first}")
    };
    let record = disks.iter().find(|record| record.device == "/dev/sdc").unwrap();
    assert_eq!(record.making[0].uuid.as_deref(), Some(uid(1).as_str()));
    // An interrupted mkfs has left unrecognized data on the disk.
    let mut half = machine;
    half.disks[2].blank = false;
    let claim = InstallClaim { begun_on: disks.clone(), ..claim };
    let again = make(&half, InstallMode::Install, &volumes, claim.clone()).unwrap();
    assert_eq!(format_volumes(&again)[0], "data /dev/sdc make sdc");
    // mkfs was interrupted after it had written the UUID, so the filesystem cannot be mounted.
    let mut marked = half.clone();
    let signature =
        DeviceSignature { kind: "ext4".into(), uuid: uid(1), usage: "filesystem".into(), ..DeviceSignature::default() };
    marked.disks[2].signatures.push(signature);
    let failed = InspectionFailure {
        tried: InspectionTarget::Filesystem("/dev/sdc".into()),
        why: "mkfs is not over".to_owned(),
    };
    let whole = make(&marked, InstallMode::Install, &volumes, claim.clone()).unwrap();
    assert_eq!(format_volumes(&whole)[0], "data /dev/sdc keep sdc", "the filesystem can be mounted");
    marked.failed.push(failed);
    let again = make(&marked, InstallMode::Install, &volumes, claim.clone()).unwrap();
    assert_eq!(format_volumes(&again)[0], "data /dev/sdc make sdc");
    // If no attempt was creating the filesystem, it counts as damaged, and is preserved.
    let claim_of_nothing = InstallClaim { begun_on: Vec::new(), ..claim.clone() };
    let preserved = make(&marked, InstallMode::Install, &volumes, claim_of_nothing).unwrap();
    assert_eq!(format_volumes(&preserved)[0], "data /dev/sdc keep sdc");
    // A disk with another serial number in the same slot is not the disk of the attempt.
    half.disks[2].serial = "other".into();
    let said = reasons(make(&half, InstallMode::Install, &volumes, claim));
    assert!(said[0].contains("which is not blank"), "{said:?}");
}

/// The logical volume exists but is still blank, as after an interrupted attempt.
#[test]
fn existing_blank_logical_volume_is_filled() {
    let volumes = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut inventory = installed(&volumes);
    let web = inventory.stacked.iter_mut().find(|stacked| stacked.device == "/dev/mapper/csi-web").unwrap();
    (web.signatures, web.blank) = (Vec::new(), true);
    let plan = planned(&layout(), &inventory, InstallMode::Reinstall, &volumes).unwrap();
    assert_eq!(format_volumes(&plan), ["web /dev/csi/web extend sdb"]);
    let text = plan.to_string();
    assert!(text.contains("activate varlib, web of csi (sdb)") && text.contains("volume web: csi/web, ext4"), "{text}");
    let web = inventory.stacked.iter_mut().find(|stacked| stacked.device == "/dev/mapper/csi-web").unwrap();
    web.blank = false;
    let said = refused(&layout(), &inventory, InstallMode::Reinstall, &volumes);
    let expected = "volumes[web]: volume web cannot use /dev/csi/web: the device does not have the UUID of the volume, but contains data of no known kind";
    assert_eq!(said, [expected]);
}
