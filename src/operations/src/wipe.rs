//! Operations that wipe disks, or prove that a device is blank.

use crate::operation_text::{DeviceSizes, OperationLine, strip_dev};
use crate::{ByteRange, DiskIdentity, Effect, PlannedOperation, UndoOperation};
use common::format::{format_bytes, format_seconds};
use model::device_name::DevicePath;
use model::inventory::EraseMethod;
use serde::Serialize;

/// Offsets of Ceph's BlueStore label copies from the start of a device, in bytes (Ceph 19.2, BlueStore.cc:
/// bdev_label_positions). Ceph uses such a copy even if the label at the start of the device is missing.
const LABEL_COPY_OFFSETS: [u64; 4] = [1 << 30, 10 << 30, 100 << 30, 1000 << 30];
/// Size of a BlueStore label, in bytes.
const LABEL_COPY_BYTES: u64 = 4096;

/// Returns the ranges of a device or partition that may contain copies of a BlueStore label.
pub fn label_copy_ranges(area: ByteRange) -> impl Iterator<Item = ByteRange> {
    let inside = move |offset: &u64| offset + LABEL_COPY_BYTES <= area.length;
    let range = move |offset: u64| ByteRange { start: area.start.saturating_add(offset), length: LABEL_COPY_BYTES };
    LABEL_COPY_OFFSETS.into_iter().filter(inside).map(range)
}

/// Operation that wipes a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WipeDisk {
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    /// Erase methods, which are tried in order until one of them succeeds. Whether or not one succeeds, the ranges in
    /// `zero` are zeroed afterwards.
    pub methods: Vec<EraseMethod>,
    /// True if the operation fails when none of `methods` succeeds.
    pub strict: bool,
    /// Time limit for all erase methods together, in seconds.
    pub budget_seconds: u64,
    /// Ranges that are zeroed first, one after the other. Each range is flushed to the disk before the next one is
    /// written. When all of them are zeroed, the disk is no longer bootable.
    pub first: Vec<ByteRange>,
    /// Ranges that are zeroed and verified after the `methods`, whatever the result of the methods.
    pub zero: Vec<ByteRange>,
}

impl PlannedOperation for WipeDisk {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationLine::on_device("", self.device.as_str(), format!(": {}", describe_erasure(self)))
    }

    fn effect(&self) -> Effect<'_> {
        // Each wipe verifies its own open descriptor, but disks are wiped concurrently. Therefore the paths of all
        // disks are verified before the first write: if one disk has been replaced, no disk is written.
        Effect::opening([&self.device]).undone_by([UndoOperation::WipeUnfinishedDisk(self.device.clone())])
    }
}

/// Describes the erasure of a disk: `discard, verified as zero, if possible (within 2 h); then zero and read back
/// both ends of …`.
fn describe_erasure(disk: &WipeDisk) -> String {
    let methods: Vec<&str> = disk
        .methods
        .iter()
        .filter(|method| **method != EraseMethod::Ends)
        .map(|method| describe_method(*method))
        .collect();
    let methods = match (methods.is_empty(), disk.strict) {
        (true, _) => String::new(),
        (false, true) => {
            format!(
                "{methods} (time limit {limit}; if the disk cannot be erased, the installation fails); then ",
                methods = methods.join(" or "),
                limit = format_seconds(disk.budget_seconds as f64)
            )
        }
        (false, false) => {
            format!(
                "{methods} if possible (time limit {limit}); then ",
                methods = methods.join(" or "),
                limit = format_seconds(disk.budget_seconds as f64)
            )
        }
    };
    format!("{methods}zero and read back signature areas of the disk and of its old and new partitions")
}

fn describe_method(method: EraseMethod) -> &'static str {
    match method {
        EraseMethod::NvmeSanitizeCrypto => "NVMe sanitize (crypto erase)",
        EraseMethod::NvmeSanitizeBlock => "NVMe sanitize (block erase)",
        EraseMethod::NvmeFormatCrypto => "NVMe format (crypto erase)",
        EraseMethod::NvmeFormat => "NVMe format (user data erase)",
        EraseMethod::AtaEnhancedErase => "ATA enhanced secure erase",
        EraseMethod::AtaErase => "ATA secure erase",
        EraseMethod::Discard => "discard (if discarded blocks read back as zero)",
        EraseMethod::WriteZeroes => "zeros over the whole disk",
        EraseMethod::Ends => "ends only",
    }
}

/// Operation that completely reads the devices whose samples were all zero. The operation fails if any byte is not
/// zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProveZeros(pub Vec<ZeroProof>);

/// Ranges of a device that are read completely, and in which every byte must be zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ZeroProof {
    /// Path of the device before the first operation changes anything.
    pub device: DevicePath,
    pub ranges: Vec<ByteRange>,
    /// Serial numbers of the disks that contain the device; empty if one of the disks has no serial number. The
    /// operator can discard the data by passing these numbers to `--give-up`.
    pub give_up: Vec<String>,
}

impl ZeroProof {
    /// Returns the total size of the ranges, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.length))
    }
}

impl PlannedOperation for ProveZeros {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_zero_proofs(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        // The devices are only read. They are nevertheless declared as opened, because they must be the same devices
        // that are written later.
        Effect::opening(self.0.iter().map(|proof| &proof.device))
    }
}

/// Describes a proof of zeros: `read all of sdb1 (4 GB): every byte must be zero`.
fn describe_zero_proofs(proofs: &[ZeroProof]) -> String {
    let device = |proof: &ZeroProof| format!("{} ({})", strip_dev(&proof.device), format_bytes(proof.total_bytes()));
    let devices: Vec<String> = proofs.iter().map(device).collect();
    format!("read all of {devices}: every byte must be zero", devices = devices.join(", "))
}
