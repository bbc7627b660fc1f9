//! Volume groups of Kubernetes storage drivers (csi-driver-lvm and TopoLVM). The drivers, not the layout, define the
//! volumes in them. A reinstall preserves all of these volumes.

use super::arrays_and_groups::{group, whole};
use super::*;
use model::inventory::{LvmLogicalVolume, VolumeHealth};
use operations::{Operation, ProvePreserved, SessionOp};

/// Layout for both drivers. csi-driver-lvm uses `/dev/sdb`, with a group that the layout lists. TopoLVM uses
/// `/dev/sdc`, which the layout only preserves.
fn layout() -> Layout {
    let mut layout = super::layout();
    layout.disks[1] = whole("/dev/sdb");
    layout.disks.push(whole("/dev/sdc"));
    layout.volumegroups = vec![group("csi-lvm", &["/dev/sdb"])];
    layout.filesystems.remove(0);
    layout
}

fn volume(name: &str, kind: &str, size_mib: u64) -> LvmLogicalVolume {
    LvmLogicalVolume {
        name: name.to_owned(),
        uuid: format!("uuid of {name}"),
        kind: kind.to_owned(),
        size_bytes: size_mib * MIB,
        health: VolumeHealth::Whole,
        ..LvmLogicalVolume::default()
    }
}

/// Returns the machine with volumes of both drivers: csi-driver-lvm names volumes after their claims; TopoLVM names
/// them by UUID, in a thin pool.
fn filled() -> Inventory {
    let mut layout = layout();
    layout.volumegroups.push(group("topolvm", &["/dev/sdc"]));
    let mut machine = super::machine();
    for disk in &mut machine.disks {
        disk.blank = true;
    }
    let mut machine = after(&make(&layout, &machine, InstallMode::Install).unwrap(), machine);
    let claims = [volume("pvc-1f0c", "linear", 2048), volume("pvc-77aa", "raid1", 512)];
    let thin = [volume("pool0", "thin-pool", 4096), volume("0b6a7d1e-99c5-4d4e", "thin", 1024)];
    for group in &mut machine.groups {
        group.uuid = format!("uuid of {}", group.name);
        group.volumes.extend(if group.name == "csi-lvm" { claims.clone() } else { thin.clone() });
    }
    machine
}

#[test]
fn reinstall_preserves_csi_groups_and_reports_every_volume() {
    let machine = filled();
    let plan = make(&layout(), &machine, InstallMode::Reinstall).unwrap();
    for disk in ["/dev/sdb", "/dev/sdc"] {
        let written = plan.extents.iter().flat_map(|extents| &extents.disks).filter(|written| written.device == disk);
        assert_eq!(written.count(), 0, "{disk}: {plan}");
    }
    let text = plan.to_string();
    for volume in ["pvc-1f0c", "pvc-77aa", "pool0", "0b6a7d1e-99c5-4d4e"] {
        assert!(text.contains(volume), "{volume}\n{text}");
    }
    let preserved = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved))) => Some(preserved.clone()),
        _ => None,
    });
    let proofs = super::super::preservation_proof::compare_preserved(&preserved.unwrap(), &after(&plan, machine));
    let said = |object: &str, name: &str| {
        let proof = proofs.iter().find(|proof| proof.object == object).unwrap();
        assert_eq!(proof.before, proof.after);
        proof.after[name].clone()
    };
    let group = "volume group csi-lvm";
    assert_eq!(said(group, "volume pvc-1f0c"), "uuid of pvc-1f0c, 2147483648 bytes, linear");
    assert_eq!(said(group, "volume pvc-77aa"), "uuid of pvc-77aa, 536870912 bytes, raid1");
    assert_eq!(said("volume group topolvm", "volume pool0"), "uuid of pool0, 4294967296 bytes, thin-pool");
    assert_eq!(
        said("volume group topolvm", "volume 0b6a7d1e-99c5-4d4e"),
        "uuid of 0b6a7d1e-99c5-4d4e, 1073741824 bytes, thin"
    );
}
