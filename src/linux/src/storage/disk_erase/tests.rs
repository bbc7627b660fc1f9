//! Erasing of disks: loop devices on any machine, and NVMe, virtio and SATA disks in a virtual machine.

use super::*;
use crate::probe::ProbeDepth;
use crate::storage::test_loop_device::TestLoopDevice;
use EraseMethod::*;
use model::device_name::DevicePath;
use operations::ByteRange;
use std::os::unix::fs::FileExt;
use testing::filled_byte_check::is_filled_with;

const MIB: u64 = 1 << 20;

fn ends(size: u64) -> Vec<ByteRange> {
    vec![ByteRange { start: 0, length: MIB }, ByteRange { start: size - MIB, length: MIB }]
}

fn plan(device: &DevicePath, methods: &[EraseMethod], strict: bool, zero: Vec<ByteRange>) -> WipeDisk {
    let identity = disk_identity::read_identity(&std::fs::File::open(device).unwrap(), device).unwrap();
    let first = zero.get(..1).unwrap_or_default().to_vec();
    WipeDisk { device: device.clone(), identity, methods: methods.to_vec(), strict, budget_seconds: 120, first, zero }
}

/// Writes text to the start and end of every MiB of the device, and to every sample that the verification compares.
/// Returns the size of the device.
fn fill(device: &DevicePath) -> u64 {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(device).unwrap();
    let size = block_device::read_size_bytes(&file).unwrap();
    let text: Vec<u8> = (0..4096u32).map(|index| (index % 251 + 1) as u8).collect();
    for start in (0..size).step_by(MIB as usize) {
        file.write_all_at(&text, start).unwrap();
        file.write_all_at(&text, start + MIB - 4096).unwrap();
    }
    for start in verification::sample_offsets(size, verification::PIECE_BYTES) {
        file.write_all_at(&text, start).unwrap();
    }
    file.sync_all().unwrap();
    size
}

/// Returns how many MiB of the device have nonzero data at the offsets written by [`fill`]. Reads from the device and
/// not from the page cache.
fn written(device: &DevicePath) -> usize {
    let file = File::open(device).unwrap();
    let size = block_device::read_size_bytes(&file).unwrap();
    block_device::flush_buffers(&file).unwrap();
    let has_content = |start| {
        let mut buffer = [0; 4096];
        [start, start + MIB - 4096].iter().any(|start| {
            file.read_exact_at(&mut buffer, *start).unwrap();
            buffer.iter().any(|byte| *byte != 0)
        })
    };
    (0..size).step_by(MIB as usize).filter(|start| has_content(*start)).count()
}

/// Mounted ramfs. Loop devices over its files do not support discard, because a ramfs cannot punch holes.
struct NoDiscard {
    _mount: sys_mount::UnmountDrop<sys_mount::Mount>,
    point: tempfile::TempDir,
}

impl NoDiscard {
    fn new() -> NoDiscard {
        let point = tempfile::tempdir().unwrap();
        let mount = sys_mount::Mount::builder().fstype("ramfs");
        let mount = mount.mount_autodrop("ramfs", point.path(), sys_mount::UnmountFlags::empty()).unwrap();
        NoDiscard { _mount: mount, point }
    }

    fn disk(&self, size_bytes: u64, sector_bytes: u32) -> TestLoopDevice {
        TestLoopDevice::within(self.point.path(), size_bytes, sector_bytes)
    }
}

#[test]
fn deadline_error_contains_the_time_limit() {
    assert!(EraseDeadline::after_budget(Duration::from_secs(100)).time_left().unwrap() > Duration::from_secs(90));
    assert_eq!(EraseDeadline { budget: Duration::from_secs(60), end: Instant::now() }.time_left().unwrap_err(), {
        format!("the time limit of {} was exceeded", common::format::format_seconds(60.0))
    });
}

#[test]
fn documentation_lists_every_method_and_the_report() {
    let docs = include_str!("../../../../../docs/erase.md");
    let example: ErasedDisk = serde_json::from_str(&testing::docs::code_blocks(docs, "json")[0]).unwrap();
    assert_eq!(example.method, NvmeFormatCrypto);
    let methods = [
        NvmeSanitizeCrypto,
        NvmeSanitizeBlock,
        NvmeFormatCrypto,
        NvmeFormat,
        AtaEnhancedErase,
        AtaErase,
        Discard,
        WriteZeroes,
        Ends,
    ];
    for method in methods {
        let name = serde_json::to_string(&method).unwrap();
        assert!(docs.contains(&format!("`{}`", name.trim_matches('"'))), "{name}");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_kernel_forgets_the_old_partitions() {
    let disk = TestLoopDevice::new(16 * MIB, 512);
    crate::storage::partition_table::write_partition_table(&disk.table(512, &[(1, 2048, 4095), (7, 4096, 8191)]))
        .unwrap();
    assert_eq!(block_device::read_partitions(disk.path()).unwrap().len(), 2);
    wipe_disk(&plan(disk.path(), &[Discard], false, ends(16 * MIB))).unwrap();
    assert_eq!(block_device::read_partitions(disk.path()).unwrap(), []);
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_disk_in_use_is_not_erased() {
    let disk = TestLoopDevice::new(16 * MIB, 512);
    let user = signature_wipe::open_exclusive(disk.path()).unwrap();
    let size = fill(disk.path());
    let error = wipe_disk(&plan(disk.path(), &[Discard], true, ends(size))).unwrap_err().to_string();
    assert!(error.contains(" for writing, used by: "), "{error}");
    assert_eq!(written(disk.path()), 16);
    drop(user);
    wipe_disk(&plan(disk.path(), &[Discard], true, ends(size))).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_discard_that_reads_back_zero_is_sufficient() {
    let disk = TestLoopDevice::new(96 * MIB, 512);
    let size = fill(disk.path());
    let erased =
        wipe_disk(&plan(disk.path(), &[NvmeFormat, AtaErase, Discard, WriteZeroes], true, ends(size))).unwrap();
    assert_eq!((erased.device.as_str(), erased.method), (disk.path().as_str(), Discard));
    let proof = "64 samples of 1 MiB, including both ends, read back as zero; \
                 2.10 MB in 2 signature areas read back as zero";
    assert_eq!(erased.proof, proof);
    assert!(erased.seconds > 0.0);
    assert!(is_filled_with(&std::fs::read(disk.image()).unwrap(), 0));
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_zeros_are_written_if_no_other_method_works() {
    let no_discard = NoDiscard::new();
    let disk = no_discard.disk(32 * MIB, 4096);
    let size = fill(disk.path());
    let erased = wipe_disk(&plan(disk.path(), &[Discard, WriteZeroes], true, ends(size))).unwrap();
    assert_eq!(erased.method, WriteZeroes);
    assert!(erased.proof.starts_with("the whole disk reads back as zero; "), "{}", erased.proof);
    assert!(is_filled_with(&std::fs::read(disk.image()).unwrap(), 0));
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_failed_strict_plan_names_every_reason() {
    let no_discard = NoDiscard::new();
    let disk = no_discard.disk(16 * MIB, 512);
    let size = fill(disk.path());
    let methods = [NvmeSanitizeCrypto, NvmeFormatCrypto, AtaEnhancedErase, Discard];
    let error = wipe_disk(&plan(disk.path(), &methods, true, ends(size))).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot erase the disk: NVMe crypto sanitize: ", disk.path())), "{error}");
    for method in ["; NVMe crypto format: ", "; ATA enhanced erase: ", "; discard: at byte 0: Operation not supported"]
    {
        assert!(error.contains(method), "{error}");
    }
    // The signature areas are zeroed nevertheless. The rest of the content remains, and the error does not claim
    // otherwise.
    assert_eq!(written(disk.path()), 14);
    let error = wipe_disk(&plan(disk.path(), &[], true, Vec::new())).unwrap_err().to_string();
    assert!(error.ends_with("cannot erase the disk: the plan contains no erase method"), "{error}");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_signature_areas_are_wiped_without_an_erase_method() {
    let no_discard = NoDiscard::new();
    let disk = no_discard.disk(16 * MIB, 512);
    let size = fill(disk.path());
    for methods in [&[][..], &[Ends], &[Discard]] {
        fill(disk.path());
        let erased = wipe_disk(&plan(disk.path(), methods, false, ends(size))).unwrap();
        assert_eq!(erased.method, Ends);
        assert_eq!(erased.proof, "2.10 MB in 2 signature areas read back as zero");
        assert_eq!(written(disk.path()), 14);
    }
    // A range that is not a multiple of a sector is written exactly, without the bytes around it.
    fill(disk.path());
    wipe_disk(&plan(disk.path(), &[], false, vec![ByteRange { start: 7, length: 5 }])).unwrap();
    let image = std::fs::read(disk.image()).unwrap();
    assert_eq!(image[5..14], [6, 7, 0, 0, 0, 0, 0, 13, 14]);
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_nothing_is_written_if_a_range_exceeds_the_disk() {
    let disk = TestLoopDevice::new(16 * MIB, 512);
    let size = fill(disk.path());
    let beyond = vec![ByteRange { start: 0, length: MIB }, ByteRange { start: size, length: 1 }];
    let error = wipe_disk(&plan(disk.path(), &[Discard], false, beyond)).unwrap_err().to_string();
    assert!(error.contains("cannot wipe 1 bytes at byte 16777216: the device is only 16777216 bytes"), "{error}");
    assert_eq!(written(disk.path()), 16);
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_exhausted_time_limit_ends_all_methods() {
    let disk = TestLoopDevice::new(16 * MIB, 512);
    let size = fill(disk.path());
    let mut plan = plan(disk.path(), &[Discard, WriteZeroes], true, ends(size));
    plan.budget_seconds = 0;
    let error = wipe_disk(&plan).unwrap_err().to_string();
    assert!(error.contains("discard: the ") && error.contains("writing zeros: the "), "{error}");
    assert!(error.ends_with("was exceeded"), "{error}");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_disks_are_erased_concurrently() {
    let disks: Vec<TestLoopDevice> = (0..6).map(|_| TestLoopDevice::new(24 * MIB, 512)).collect();
    std::thread::scope(|scope| {
        for disk in &disks {
            scope.spawn(|| {
                let size = fill(disk.path());
                wipe_disk(&plan(disk.path(), &[Discard, WriteZeroes], true, ends(size))).unwrap();
            });
        }
    });
    assert!(disks.iter().all(|disk| written(disk.path()) == 0));
}

/// Returns the erase methods of this disk in the inventory.
fn offered(device: &DevicePath) -> Vec<EraseMethod> {
    probe::read_inventory(ProbeDepth::Deep).unwrap().find_disk(device.as_str()).unwrap().erase.clone()
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_erase_formats_an_nvme_disk() {
    crate::storage::vm_test_disks::assert_test_machine();
    let device = &DevicePath::from("/dev/nvme0n1");
    let size = fill(device);
    let methods = offered(device);
    assert!(methods.contains(&NvmeFormat), "{methods:?}");
    let erased = wipe_disk(&plan(device, &[NvmeFormat], true, ends(size))).unwrap();
    assert_eq!((erased.method, erased.serial.as_str()), (NvmeFormat, "nvme0"));
    let proof = "the controller reports that formatting has completed; 64 samples of 4 KiB that contained data were overwritten; \
                 2.10 MB in 2 signature areas read back as zero";
    assert_eq!(erased.proof, proof);
    assert_eq!(written(device), 0);
    // The disk has the same size as before, and is writable.
    assert_eq!(fill(device), size);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_erase_refuses_unsupported_nvme_methods() {
    crate::storage::vm_test_disks::assert_test_machine();
    let device = &DevicePath::from("/dev/nvme1n1");
    let size = fill(device);
    let offered = offered(device);
    let missing: Vec<EraseMethod> = [NvmeSanitizeCrypto, NvmeSanitizeBlock, NvmeFormatCrypto]
        .into_iter()
        .filter(|method| !offered.contains(method))
        .collect();
    assert!(!missing.is_empty(), "{offered:?}");
    let error = wipe_disk(&plan(device, &missing, true, ends(size))).unwrap_err().to_string();
    assert_eq!(
        error.matches("the controller does not support this erase method for a single namespace").count(),
        missing.len()
    );
    assert!(written(device) > 500);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_erase_empties_a_virtio_disk_with_supported_methods() {
    crate::storage::vm_test_disks::assert_test_machine();
    let device = &DevicePath::from("/dev/vda");
    assert_eq!(offered(device), [Discard]);
    for method in [Discard, WriteZeroes] {
        let size = fill(device);
        let erased = wipe_disk(&plan(device, &[method], true, ends(size))).unwrap();
        assert_eq!((erased.method, erased.serial.as_str()), (method, "vda"));
        assert_eq!(written(device), 0);
    }
}

/// QEMU's SATA disk accepts TRIM, but ignores it without `discard=unmap`, like some SSDs. It does not support ATA
/// security.
#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_erase_rejects_ineffective_discard() {
    crate::storage::vm_test_disks::assert_test_machine();
    let device = &DevicePath::from("/dev/sda");
    let size = fill(device);
    assert_eq!(offered(device), [Discard]);
    let methods = [AtaEnhancedErase, AtaErase, Discard];
    let error = wipe_disk(&plan(device, &methods, true, ends(size))).unwrap_err().to_string();
    assert!(error.contains("ATA erase: the disk does not support ATA security"), "{error}");
    assert!(error.contains("discard: the disk does not contain zeros at byte "), "{error}");
    fill(device);
    let erased = wipe_disk(&plan(device, &methods, false, ends(size))).unwrap();
    assert_eq!((erased.method, written(device)), (Ends, 254));
    let erased = wipe_disk(&plan(device, &[Discard, WriteZeroes], true, ends(size))).unwrap();
    assert_eq!((erased.method, written(device)), (WriteZeroes, 0));
}
