//! Many Kubernetes volumes together.

use super::*;
use std::collections::BTreeSet;

/// Many volumes are on blank disks selected by hints, in a group, and in files. Each of them gets a separate device,
/// and a reinstall preserves all of them.
#[test]
fn many_volumes_each_get_a_separate_device() {
    let mut machine = machine();
    machine.disks.truncate(2);
    for number in 0..24 {
        let mut blank = disk(&format!("sd{}", char::from(b'c' + number)), 400 + u64::from(number));
        (blank.blank, blank.rotational) = (true, number % 2 == 0);
        blank.serial = format!("blank {number}");
        machine.disks.push(blank);
    }
    let mut volumes = Vec::new();
    for number in 0..12 {
        volumes.push(discover(&format!("hdd-{number}"), number, json!({"rotational": "true"})));
        volumes.push(discover(
            &format!("ssd-{number}"),
            number + 20,
            json!({"rotational": "false", "name": "s!= /dev/sda"}),
        ));
        volumes.push(in_group(&format!("lv-{number}"), number + 40, "Block", "csi", "100Mi"));
        volumes.push(sparse(&format!("file-{number}"), number + 60, "Filesystem", "10Mi"));
    }
    let plan = planned(&layout(), &machine, InstallMode::Install, &volumes).unwrap();
    let devices: BTreeSet<&str> = plan.volumes.iter().map(|volume| volume.device.as_str()).collect();
    assert_eq!((devices.len(), plan.volumes.len(), prepares(&plan).len()), (48, 48, 36));
    for volume in &plan.volumes {
        let wanted = volume.name.split('-').next().unwrap();
        let on = machine.disks.iter().find(|disk| disk.device == volume.device);
        assert!(on.is_none_or(|disk| disk.rotational == (wanted == "hdd")), "{plan}");
    }
    assert_sound(&plan, &machine);
    let files = plan.volumes.iter().filter(|volume| volume.kind.starts_with("sparse"));
    let sparse = files.map(|volume| SparseFile { uid: volume.uid, size_bytes: 10 * MIB }).collect();
    let mut installed = after(&plan, machine.clone());
    let marker = Some(model::install_marker::InstallMarker {
        disks: Vec::new(),
        ..super::super::installation_identity::marker(&installed)
    });
    installed.filesystems.push(Inside { device: "/dev/mapper/csi-varlib".into(), sparse, ..Inside::default() });
    installed.filesystems.push(Inside { device: "/dev/sda2".into(), marker, ..Inside::default() });
    let again = planned(&layout(), &installed, InstallMode::Reinstall, &volumes).unwrap();
    assert!(format_volumes(&again).iter().all(|line| line.contains(" keep ")), "{again}");
    assert_eq!(prepares(&again), [""; 0]);
    // For each type of disk, there is one volume more than disks. Both additional volumes are refused, and nothing is
    // created.
    volumes.push(discover("hdd-12", 90, json!({"rotational": "true"})));
    volumes.push(discover("ssd-12", 91, json!({"rotational": "false"})));
    let said = refused(&layout(), &machine, InstallMode::Install, &volumes);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().all(|why| why.contains("cannot find a blank disk that matches its hints")), "{said:?}");
}
