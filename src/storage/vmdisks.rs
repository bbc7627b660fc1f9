//! The scratch disks of the machine in which `vm_` tests run: blank and free when taken, free again when dropped.

use super::{gpt, kernel, wipe};
use crate::command::Command;
use crate::error::{Context, Phase, Result};
use crate::plan::{NewPartition, PartitionTable};
use std::fs;
use std::path::Path;
use uuid::Uuid;

pub struct Disks(Vec<String>);

impl Disks {
    /// These, by kernel name: `vda vdb`.
    pub fn take(names: &str) -> Disks {
        assert_test_machine();
        free();
        let disks: Vec<String> = names.split(' ').map(|name| format!("/dev/{name}")).collect();
        for disk in &disks {
            blank(disk).unwrap();
        }
        Disks(disks)
    }

    pub fn all(&self) -> &[String] {
        &self.0
    }

    /// Partition 1, 2… of all disks, each of so many MiB: `[number - 1][disk]`.
    pub fn partition(&self, sizes_mib: &[u64]) -> Vec<Vec<String>> {
        for disk in &self.0 {
            gpt::write(&table(disk, sizes_mib)).unwrap();
        }
        let numbers = 1..=u32::try_from(sizes_mib.len()).unwrap();
        let devices = |number| self.0.iter().map(|disk| crate::layout::partition_device(disk, number)).collect();
        numbers.map(devices).collect()
    }
}

/// Guards against a test filter that is too wide: on another machine `vda` may be the disk that the system runs from.
pub fn assert_test_machine() {
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap();
    assert!(cmdline.contains(" vm-tests"), "vm_ tests destroy disks: only scripts/vm-tests runs them, in its machine");
}

impl Drop for Disks {
    /// What stays on a disk is found by the tests that come later: tools look at all disks.
    fn drop(&mut self) {
        free();
        for disk in &self.0 {
            let _ = blank(disk);
        }
    }
}

fn blank(disk: &str) -> Result<()> {
    let file = wipe::open_exclusive(disk)?;
    wipe::forget_partitions(&file, disk)?;
    let zeroed = kernel::size_bytes(&file).and_then(|size| kernel::zero_out(&file, 0, size));
    zeroed.context(Phase::Storage, || format!("zero {disk}"))
}

fn table(disk: &str, sizes_mib: &[u64]) -> PartitionTable {
    let file = fs::File::open(disk).unwrap();
    let (identity, sector_bytes) = (super::identify::read(&file, disk).unwrap(), kernel::sector_bytes(&file).unwrap());
    let mib = (1 << 20) / u64::from(sector_bytes);
    let mut next = mib;
    let partitions = sizes_mib.iter().zip(1..).map(|(size, number)| {
        let first_lba = next;
        next += size * mib;
        NewPartition {
            number,
            device: crate::layout::partition_device(disk, number),
            first_lba,
            last_lba: next - 1,
            kind: crate::layout::PartitionKind::Linux.guid(),
            guid: Uuid::new_v4(),
            name: format!("part {number}"),
        }
    });
    let partitions = partitions.collect();
    PartitionTable { device: disk.to_owned(), identity, guid: Uuid::new_v4(), sector_bytes, partitions }
}

/// Takes everything down, also what a failed test has left: layers lie on layers, so several rounds.
fn free() {
    for swap in fs::read_to_string("/proc/swaps").unwrap_or_default().lines().skip(1) {
        let _ = Command::new("swapoff").args(swap.split_whitespace().take(1)).run();
    }
    for _ in 0..4 {
        let _ = Command::new("dmsetup").args(["remove_all", "--noudevsync"]).env("DM_DISABLE_UDEV", "1").run();
        let _ = Command::new("mdadm").args(["--stop", "--scan"]).env("MDADM_NO_UDEV", "1").run();
    }
    // LVM's links, whose volumes are gone.
    for group in fs::read_dir("/dev").into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        for link in fs::read_dir(group.path()).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if fs::read_link(&link).is_ok_and(|to| to.starts_with("/dev/mapper")) {
                fs::remove_file(link).unwrap();
            }
        }
        if group.path() != Path::new("/dev/mapper") {
            let _ = fs::remove_dir(group.path());
        }
    }
}
