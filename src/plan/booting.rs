//! Which partitions the firmware can boot from, and what it is to know of them.

use super::{BootEntries, BootOrder, CreateArray, Esp, Member, NewPartition, OfRun, Operation, PartitionTable};
use crate::layout::{PartitionKind, RaidLevel};

/// The metadata lies at the end: what is at the beginning of a member is a filesystem to firmware.
const METADATA_AT_THE_END: &str = "1.0";

/// On disks that are made: partitions of the ESP's type, and the members of the mirror that is mounted at `/boot/efi`. One for a
/// disk, that of `mounted` before others; its disk comes first. `mounted` is the device that is mounted at `/boot/efi`.
pub fn esps(tables: &[PartitionTable], arrays: &[CreateArray], mounted: Option<&str>) -> Vec<Esp> {
    let mirror = arrays.iter().find(|array| {
        Some(array.device.as_str()) == mounted
            && array.level == RaidLevel::Raid1
            && array.metadata == METADATA_AT_THE_END
    });
    let members: Vec<&str> = mirror.iter().flat_map(|array| &array.devices).filter_map(Member::device).collect();
    let preferred = |part: &&NewPartition| Some(part.device.as_str()) == mounted || members.contains(&&*part.device);
    let mut found: Vec<(bool, Esp)> = Vec::new();
    for table in tables {
        let can_boot = |part: &&NewPartition| part.kind == PartitionKind::Boot.guid() || preferred(part);
        let bootable = table.partitions.iter().filter(can_boot);
        let best = bootable.min_by_key(|part| (!preferred(part), part.number));
        found.extend(best.map(|part| (!preferred(&part), esp(table, part))));
    }
    found.sort_by_key(|(other, _)| *other);
    found.into_iter().map(|(_, esp)| esp).collect()
}

fn esp(table: &PartitionTable, part: &NewPartition) -> Esp {
    Esp {
        disk: table.device.clone(),
        device: part.device.clone(),
        number: part.number,
        guid: part.guid,
        first_lba: part.first_lba,
        sectors: part.last_lba + 1 - part.first_lba,
    }
}

/// Whether it is the agent that tells the firmware. `uefi`: the machine has booted so. `made_here`: the agent makes the boot
/// loader, or may have to.
pub fn entries(uefi: bool, made_here: bool, hostname: &str, esps: Vec<Esp>, order: BootOrder) -> Option<Operation> {
    let label = format!("drophammer: {hostname}");
    let needed = uefi && made_here && !esps.is_empty();
    needed.then_some(Operation::Run(OfRun::WriteBootEntries(BootEntries { label, esps, order })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DiskIdentity;
    use uuid::Uuid;

    fn table(disk: &str, kinds: &[PartitionKind]) -> PartitionTable {
        let device = format!("/dev/{disk}");
        let partitions = (1..).zip(kinds).map(|(number, kind)| NewPartition {
            number,
            device: format!("{device}{number}"),
            first_lba: u64::from(number) * 2048,
            last_lba: u64::from(number) * 2048 + 2047,
            kind: kind.guid(),
            guid: Uuid::from_u128(u128::from(number)),
            name: String::new(),
        });
        let identity = DiskIdentity::default();
        PartitionTable {
            device: device.clone(),
            identity,
            guid: Uuid::nil(),
            sector_bytes: 512,
            partitions: partitions.collect(),
        }
    }

    fn mirror(metadata: &str, devices: &[&str]) -> CreateArray {
        let members = devices.iter().map(|device| Member::Device((*device).to_owned()));
        CreateArray {
            device: "/dev/md/efi".into(),
            level: RaidLevel::Raid1,
            metadata: metadata.into(),
            uuid: Uuid::nil(),
            devices: members.chain([Member::Missing]).collect(),
            spares: 0,
            createoptions: vec![],
        }
    }

    fn devices(esps: &[Esp]) -> Vec<&str> {
        esps.iter().map(|esp| esp.device.as_str()).collect()
    }

    #[test]
    fn each_disk_that_can_boot_has_one() {
        use PartitionKind::{Boot, Linux, LinuxRaid};
        let tables = [table("sda", &[Boot, Linux]), table("sdb", &[Linux, Boot, Boot]), table("sdc", &[LinuxRaid])];
        assert_eq!(devices(&esps(&tables, &[], None)), ["/dev/sda1", "/dev/sdb2"]);
        let mounted = esps(&tables, &[], Some("/dev/sdb3"));
        assert_eq!(devices(&mounted), ["/dev/sdb3", "/dev/sda1"]);
        let Esp { disk, number, guid, first_lba, sectors, .. } = &mounted[0];
        assert_eq!(
            (disk.as_str(), *number, *guid, *first_lba, *sectors),
            ("/dev/sdb", 3, Uuid::from_u128(3), 6144, 2048)
        );
    }

    #[test]
    fn members_of_a_mirror_can_boot_when_firmware_sees_a_filesystem() {
        use PartitionKind::LinuxRaid;
        let tables = [table("sda", &[LinuxRaid, LinuxRaid]), table("sdb", &[LinuxRaid]), table("sdc", &[LinuxRaid])];
        let of = |metadata, mounted| esps(&tables, &[mirror(metadata, &["/dev/sda1", "/dev/sdb1"])], mounted);
        assert_eq!(devices(&of("1.0", Some("/dev/md/efi"))), ["/dev/sda1", "/dev/sdb1"]);
        assert!(of("1.2", Some("/dev/md/efi")).is_empty());
        assert!(of("1.0", Some("/dev/md/root")).is_empty());
        let striped = CreateArray { level: RaidLevel::Raid0, ..mirror("1.0", &["/dev/sda1"]) };
        assert!(esps(&tables, &[striped], Some("/dev/md/efi")).is_empty());
    }

    #[test]
    fn the_firmware_is_told_where_it_boots_what_the_agent_makes() {
        let esps = esps(&[table("sda", &[PartitionKind::Boot])], &[], None);
        let of = |uefi, made_here, esps: &[Esp]| entries(uefi, made_here, "web-1", esps.to_vec(), BootOrder::Disk);
        let Some(Operation::Run(OfRun::WriteBootEntries(entries))) = of(true, true, &esps) else { panic!("none") };
        assert_eq!(
            entries,
            BootEntries { label: "drophammer: web-1".into(), esps: esps.clone(), order: BootOrder::Disk }
        );
        for (uefi, made_here, esps) in [(false, true, &esps[..]), (true, false, &esps), (true, true, &[])] {
            assert_eq!(of(uefi, made_here, esps), None);
        }
    }
}
