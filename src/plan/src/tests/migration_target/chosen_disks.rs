//! Disks that the migration specifies, and their matches among the disks of the target machine.

use super::*;

/// Disks are matched by serial number, independent of their kernel names. The marker records their current names.
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
    let disks: Vec<(&str, &str)> =
        marker.disks.iter().map(|disk| (disk.device.as_str(), disk.serial.as_str())).collect();
    assert_eq!(disks[..2], [("/dev/sda", "B0"), ("/dev/sdb", "B1")]);
    assert_eq!(plan.disks[0].verdict, DiskVerdict::NotOurs);
}

/// Disks that share a serial number or have none are matched by slot.
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
