//! Disks of the virtual machine in which `vm_` tests run, and digests of their contents. The disks are blank and unused
//! before and after each test.

#![allow(clippy::unwrap_used)]

use super::aligned_buffer::AlignedBuffer;
use super::{block_device, partition_table, signature_wipe};
use crate::process::ToolCommand;
use common::error::{Context, Phase, Result};
use model::device_name::DevicePath;
use operations::{NewPartition, PartitionTable};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use uuid::Uuid;

/// Number of bytes that are read at once.
const READ_BLOCK_BYTES: usize = 1 << 20;
/// Size of the blocks into which each read is split, in bytes. A block of zeros is not hashed.
const PIECE: usize = 64 << 10;
static ZEROS: [u8; PIECE] = [0; PIECE];

pub struct TestDisks(Vec<DevicePath>);

impl TestDisks {
    /// Takes the disks with these kernel names for a test. The names are separated by spaces, such as `vda vdb`.
    pub fn take(names: &str) -> TestDisks {
        assert_test_machine();
        free();
        let disks: Vec<DevicePath> = names.split(' ').map(|name| format!("/dev/{name}").into()).collect();
        for disk in &disks {
            blank(disk).unwrap();
        }
        TestDisks(disks)
    }

    pub fn all(&self) -> &[DevicePath] {
        &self.0
    }

    /// Creates partitions of these sizes, in MiB, on all disks. The result is indexed by `[number - 1][disk]`.
    pub fn partition(&self, sizes_mib: &[u64]) -> Vec<Vec<DevicePath>> {
        for disk in &self.0 {
            partition_table::write_partition_table(&table(disk, sizes_mib)).unwrap();
        }
        let numbers = 1..=u32::try_from(sizes_mib.len()).unwrap();
        let devices = |number| self.0.iter().map(|disk| disk.partition_path(number)).collect();
        numbers.map(devices).collect()
    }
}

/// Refuses to run outside of the test machine, because the filter of a test run may be too broad: on another machine,
/// `vda` may be the system disk.
pub fn assert_test_machine() {
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap();
    assert!(
        cmdline.contains(" vm-tests"),
        "vm_ tests destroy disks: they may be run only by scripts/vm-tests, in a virtual machine"
    );
}

impl Drop for TestDisks {
    /// Removes the contents of the disks, because tools scan all disks and would find these contents in later tests.
    fn drop(&mut self) {
        free();
        for disk in &self.0 {
            let _ = blank(disk);
        }
    }
}

/// Returns a digest of the contents of each device. Hashing every byte would dominate the duration of these tests
/// under emulation. Therefore blocks of zeros are recognized by a comparison and not hashed. Reads bypass the page
/// cache.
pub fn fingerprints<P: AsRef<Path>>(devices: &[P]) -> Vec<String> {
    let one = |device: &P| {
        block_device::flush_buffers(&File::open(device).unwrap()).unwrap();
        fingerprint(fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(device).unwrap())
    };
    devices.iter().map(one).collect()
}

fn fingerprint(mut content: impl Read) -> String {
    let mut block = AlignedBuffer::new(READ_BLOCK_BYTES);
    let (mut digest, mut offset) = (Sha256::new(), 0_u64);
    loop {
        let count = content.read(&mut block).unwrap();
        for piece in block[..count].chunks(PIECE) {
            if *piece != ZEROS[..piece.len()] {
                digest.update(offset.to_le_bytes());
                digest.update(piece);
            }
            offset += piece.len() as u64;
        }
        if count == 0 {
            digest.update(offset.to_le_bytes());
            return digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        }
    }
}

#[test]
fn fingerprint_depends_on_every_byte_offset_and_length() {
    let zeros = || vec![0; 2 * READ_BLOCK_BYTES];
    let with = |offset: usize, byte: u8| {
        let mut content = zeros();
        content[offset] = byte;
        content
    };
    let contents = [
        zeros(),
        zeros()[1..].to_vec(),
        vec![],
        with(0, 1),
        with(0, 2),
        with(PIECE - 1, 1),
        with(PIECE, 1),
        with(READ_BLOCK_BYTES - 1, 1),
        with(READ_BLOCK_BYTES, 1),
        with(2 * READ_BLOCK_BYTES - 1, 1),
    ];
    let all: std::collections::BTreeSet<String> = contents.iter().map(|content| fingerprint(&content[..])).collect();
    assert_eq!(all.len(), contents.len());
    assert_eq!(fingerprint(&zeros()[..]), fingerprint(&zeros()[..]));
}

fn blank(disk: &DevicePath) -> Result<()> {
    let file = signature_wipe::open_exclusive(disk)?;
    signature_wipe::unregister_partitions(&file, disk)?;
    let zeroed = block_device::read_size_bytes(&file).and_then(|size| block_device::zero_range(&file, 0, size));
    zeroed.context(Phase::Storage, || format!("zero {disk}"))
}

fn table(disk: &DevicePath, sizes_mib: &[u64]) -> PartitionTable {
    let file = fs::File::open(disk).unwrap();
    let (identity, sector_bytes) =
        (super::disk_identity::read_identity(&file, disk).unwrap(), block_device::read_sector_bytes(&file).unwrap());
    let mib = (1 << 20) / u64::from(sector_bytes);
    let mut next = mib;
    let partitions = sizes_mib.iter().zip(1..).map(|(size, number)| {
        let first_lba = next;
        next += size * mib;
        NewPartition {
            number,
            device: disk.partition_path(number),
            first_lba,
            last_lba: next - 1,
            kind: model::layout::PartitionType::Linux.guid(),
            guid: Uuid::new_v4(),
            name: format!("part {number}"),
        }
    });
    let partitions = partitions.collect();
    PartitionTable { device: disk.to_owned(), identity, guid: Uuid::new_v4(), sector_bytes, partitions }
}

/// Stops all devices on the disks, including those left behind by failed tests. Devices may be stacked, so several
/// rounds are made.
fn free() {
    for swap in fs::read_to_string("/proc/swaps").unwrap_or_default().lines().skip(1) {
        let _ = ToolCommand::new("swapoff").args(swap.split_whitespace().take(1)).run();
    }
    for _ in 0..4 {
        let _ = ToolCommand::new("dmsetup").args(["remove_all", "--noudevsync"]).env("DM_DISABLE_UDEV", "1").run();
        let _ = ToolCommand::new("mdadm").args(["--stop", "--scan"]).env("MDADM_NO_UDEV", "1").run();
    }
    // Removes LVM's links in /dev to volumes that no longer exist.
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
