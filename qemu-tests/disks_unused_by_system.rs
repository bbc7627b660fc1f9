//! Disks that a running system does not use: no part of them is mounted, a member of an array, or used for swap. Such
//! disks must not have been written.

use crate::guest_facts::Facts;
use crate::scenario::Machine;
use std::collections::BTreeSet;

/// Returns the names of the disks that the system does not use, according to its facts. The facts contain kernel names,
/// so the disks must have been plugged in in the order of the scenario.
pub fn find_unused<'a>(machine: &'a Machine, facts: &Facts) -> Vec<&'a str> {
    let lines = |section: &str| facts.section(section).unwrap_or_default().iter();
    // The facts do not show on which disk an open LUKS container is, so no disk counts as unused.
    let is_open = |line: &String| line.starts_with("/dev/mapper/luks-");
    let has_open = |line: &String| line.contains(" mapper/luks-");
    if lines("mounts").any(is_open) || lines("groups").any(has_open) {
        return Vec::new();
    }
    let mut devices = BTreeSet::new();
    for line in lines("mounts").chain(lines("swaps")) {
        let device = line.split_whitespace().next().unwrap_or_default();
        match device.strip_prefix("/dev/mapper/") {
            Some(volume) => devices.extend(volumes_of(volume_group(volume), facts)),
            None => devices.extend(device.strip_prefix("/dev/").map(str::to_owned)),
        }
    }
    // The start of an array writes to its members.
    for line in lines("arrays") {
        devices.extend(line.split_whitespace().skip(4).flat_map(|members| members.split(',')).map(str::to_owned));
    }
    let is_on = |disk: &str| devices.iter().any(|device| is_of(device, disk));
    // If a disk is used through one of its paths, all of its paths count as used.
    let used: BTreeSet<&str> = machine
        .disks
        .iter()
        .filter(|disk| is_on(&disk.name))
        .map(|disk| disk.path_of.as_ref().unwrap_or(&disk.name).as_str())
        .collect();
    let disks = machine.disks.iter().filter(|disk| disk.path_of.is_none());
    disks.map(|disk| disk.name.as_str()).filter(|disk| !used.contains(disk)).collect()
}

/// Returns whether the device is this disk or one of its partitions. `sdaa` is not a partition of `sda`, and partitions
/// of `nvme0n1` have a `p` before their number.
fn is_of(device: &str, disk: &str) -> bool {
    let Some(rest) = device.strip_prefix(disk) else { return false };
    let digits = rest.strip_prefix('p').filter(|_| disk.ends_with(|c: char| c.is_ascii_digit())).unwrap_or(rest);
    let has_separator = disk.ends_with(|c: char| c.is_ascii_alphabetic()) || rest.starts_with('p');
    rest.is_empty() || (has_separator && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the volume group in a name of the device mapper. In such a name, `-` separates group and volume, and `--`
/// stands for a hyphen in one of the names.
fn volume_group(volume: &str) -> String {
    let name = volume.replace("--", "\n");
    name.split('-').next().unwrap_or_default().replace('\n', "-")
}

fn volumes_of(group: String, facts: &Facts) -> Vec<String> {
    let lines = facts.section("groups").unwrap_or_default().iter();
    let found = lines.filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [name, _, volumes] if name == group => Some(volumes.split(',').map(str::to_owned)),
        _ => None,
    });
    found.flatten().collect()
}

/// Tests that a disk counts as used because of partitions, volumes, arrays and swap, but not because of a group without
/// mounted volumes.
pub fn self_test() {
    let text = "=== facts begin tiny\n--- mounts\n/dev/vda1 / ext4 rw 0 0\nproc /proc proc rw 0 0\n/dev/sdz1 /srv ext4 rw 0 0\n\
                /dev/mapper/csi--lvm-var--lib /var/lib ext4 rw 0 0\n--- swaps\nFilename Type\n/dev/nvme0n1p2 partition 1 0 -2\n\
                --- arrays\ndata raid1 1.2 2 sda2,missing sdb2\n--- groups\ncsi-lvm - vdb,vdc\nother - vdd\n=== facts end tiny\n";
    let facts = Facts::read(text, "tiny").expect("facts");
    let names = ["vda", "vdb", "vdc", "vdd", "vde", "sda", "sdb", "sdc", "nvme0n1", "nvme1n1"];
    let disks: String = names.iter().map(|name| format!("- {{name: {name}, bus: scsi, size_mib: 1}}\n")).collect();
    let disks = disks + "- {name: sdy, bus: scsi, size_mib: 1}\n- {name: sdz, bus: scsi, path_of: sdy}\n";
    let text = format!("about: x\nfirmware: bios\nlayout: x\nexpect: {{}}\ndisks:\n{disks}");
    let scenario = crate::scenario_parser::parse(&text, "x".into(), ".".into()).expect("a scenario");
    assert_eq!(find_unused(&scenario.machine, &facts), ["vdd", "vde", "sdc", "nvme1n1"]);
    let text = "=== facts begin tiny\n--- mounts\n/dev/vda1 / ext4 rw 0 0\n/dev/mapper/luks-7 /srv ext4 rw 0 0\n=== facts end tiny\n";
    assert!(find_unused(&scenario.machine, &Facts::read(text, "tiny").expect("facts")).is_empty());
    let text = "=== facts begin tiny\n--- mounts\n/dev/vda1 / ext4 rw 0 0\n/dev/mapper/vault-srv /srv ext4 rw 0 0\n\
                --- groups\nvault - mapper/luks-7,mapper/luks-8\n=== facts end tiny\n";
    assert!(find_unused(&scenario.machine, &Facts::read(text, "tiny").expect("facts")).is_empty());
    for (device, disk) in [("sda", "sda"), ("sda12", "sda"), ("nvme0n1p2", "nvme0n1"), ("nvme0n1", "nvme0n1")] {
        assert!(is_of(device, disk), "{device} {disk}");
    }
    for (device, disk) in [("sdaa", "sda"), ("sdaa1", "sda"), ("nvme0n12", "nvme0n1"), ("md127", "md1"), ("vdb", "vda")]
    {
        assert!(!is_of(device, disk), "{device} {disk}");
    }
}
