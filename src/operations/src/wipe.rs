//! Wiping of disks, and the proof that a preserved device is blank.

use crate::operation_text::{DeviceSizes, OperationLine, strip_dev};
use crate::{ByteRange, DiskIdentity, Effect, PlannedOperation, UndoOperation};
use common::format::{format_bytes, format_seconds};
use model::device_name::DevicePath;
use model::inventory::EraseMethod;
use serde::Serialize;

/// Offsets of the copies of Ceph's BlueStore label from the start of a device, in bytes (Ceph 19.2, BlueStore.cc:
/// bdev_label_positions). Ceph uses a copy of the label that it finds at one of these offsets, even if the label at the
/// start is missing.
const LABEL_COPY_OFFSETS: [u64; 4] = [1 << 30, 10 << 30, 100 << 30, 1000 << 30];
/// Size of a BlueStore label, in bytes.
const LABEL_COPY_BYTES: u64 = 4096;

/// Returns the ranges within a device or partition that may contain copies of a BlueStore label.
pub fn label_copy_ranges(area: ByteRange) -> impl Iterator<Item = ByteRange> {
    let inside = move |offset: &u64| offset + LABEL_COPY_BYTES <= area.length;
    let range = move |offset: u64| ByteRange { start: area.start.saturating_add(offset), length: LABEL_COPY_BYTES };
    LABEL_COPY_OFFSETS.into_iter().filter(inside).map(range)
}

/// Wipes a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WipeDisk {
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    /// Erase methods, which are tried in order until one of them succeeds. The ranges in `zero` are zeroed afterwards,
    /// whether or not a method has succeeded.
    pub methods: Vec<EraseMethod>,
    /// Whether the operation fails if none of `methods` succeeds.
    pub strict: bool,
    /// Time limit for all erase methods of the disk together, in seconds.
    pub budget_seconds: u64,
    /// Ranges that are zeroed first, one after the other. Each range is flushed to the disk before the next one is
    /// written. Once all of these ranges are zeroed, the disk is no longer bootable.
    pub first: Vec<ByteRange>,
    /// Ranges that are zeroed and verified after the `methods` were tried, regardless of the result of the methods.
    pub zero: Vec<ByteRange>,
}

impl PlannedOperation for WipeDisk {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationLine::on_device("", self.device.as_str(), format!(": {}", describe_erasure(self)))
    }

    fn effect(&self) -> Effect<'_> {
        // Each wipe verifies its open descriptor, but disks are wiped concurrently. Therefore all paths are verified
        // before the first write: if one disk has changed, none is written.
        Effect::opening([&self.device]).undone_by([UndoOperation::Wiping(self.device.clone())])
    }
}

/// Describes the erasure of a disk: `discard, verified as zero, if possible (within 2 h); then zero and read back both ends of …`.
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
                "{methods} (time limit {limit}; if the erase is impossible, the run fails); then ",
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

/// Reads devices completely if all of their samples were zero, and fails if any byte is not zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProveZeros(pub Vec<ZeroProof>);

/// Ranges of a device that are read completely and must be zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ZeroProof {
    /// Path that the device has before the run changes anything.
    pub device: DevicePath,
    pub ranges: Vec<ByteRange>,
    /// Serial numbers of the disks below the device. The operator can pass these numbers with `--give-up` to discard
    /// the data. Empty if one of the disks has no serial number.
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
        // The devices are only read, but they must be the ones that are written later.
        Effect::opening(self.0.iter().map(|proof| &proof.device))
    }
}

/// Describes a proof of zeros: `read all of sdb1 (4 GB): every byte must be zero`.
fn describe_zero_proofs(proofs: &[ZeroProof]) -> String {
    let device = |proof: &ZeroProof| format!("{} ({})", strip_dev(&proof.device), format_bytes(proof.total_bytes()));
    let devices: Vec<String> = proofs.iter().map(device).collect();
    format!("read all of {devices}: every byte must be zero", devices = devices.join(", "))
}
