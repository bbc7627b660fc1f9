//! Erases each disk with the best method that it supports, and verifies the result.

mod ata;
mod nvme;
#[cfg(test)]
mod tests;
mod verification;
pub(super) mod zeroing;

use super::{block_device, disk_identity, signature_wipe};
use crate::probe;
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::install_report::ErasedDisk;
use model::inventory::EraseMethod;
use nix::errno::Errno;
use operations::{ByteRange, WipeDisk};
use std::fs::File;
use std::slice;
use std::time::{Duration, Instant};
use verification::ContentSamples;

/// Tries the plan's methods until one succeeds and is verified, and then zeroes the areas that may contain signatures.
///
/// The disk stays open exclusively during the erase, so that it cannot be mounted or assembled.
///
/// # Errors
/// Returns an error if the disk is in use (the error lists the users), an area cannot be zeroed or does not stay zero,
/// or no method succeeded although the plan requires this (the error lists the failure of each method).
pub fn wipe_disk(disk: &WipeDisk) -> Result<ErasedDisk> {
    let began = Instant::now();
    let deadline = EraseDeadline::after_budget(Duration::from_secs(disk.budget_seconds));
    let mut target = EraseTarget::open(disk)?;
    zeroing::check_ranges(&disk.device, target.size, &disk.first)?;
    zeroing::check_ranges(&disk.device, target.size, &disk.zero)?;
    signature_wipe::unregister_partitions(&target.file, &disk.device)?;
    // Errors are ignored here: a disk may accept these writes only after it was formatted by an erase method. The areas
    // are zeroed again below.
    for range in &disk.first {
        if let Err(error) = zeroing::zero_ranges(&target.file, &disk.device, target.size, slice::from_ref(range)) {
            tracing::warn!("{error}");
            break;
        }
    }
    let outcome = target.try_methods(&disk.methods, deadline);
    // The areas are zeroed even if all methods failed, so that old signatures are not found again.
    let zeroed = zeroing::zero_ranges(&target.file, &disk.device, target.size, &disk.zero);
    let outcome = outcome?;
    if let (Err(error), false) = (&zeroed, outcome.failures.is_empty()) {
        let why = format!("{error}; earlier failures: {}", format_failures(&outcome.failures));
        return Err(Error::new(Phase::Storage, why));
    }
    zeroed?;
    let (method, mut proof) = match outcome.proven {
        Some(proven) => proven,
        None if disk.strict => {
            let why = format!(
                "{device}: cannot erase the disk: {reasons}",
                device = disk.device,
                reasons = format_failures(&outcome.failures)
            );
            return Err(Error::new(Phase::Storage, why));
        }
        None => (EraseMethod::Ends, String::new()),
    };
    if !disk.zero.is_empty() {
        let bytes: u64 = disk.zero.iter().map(|range| range.length).sum();
        let size = common::format::format_bytes(bytes);
        let places = format!("{size} in {areas} signature areas read back as zero", areas = disk.zero.len());
        proof = if proof.is_empty() { places } else { format!("{proof}; {places}") };
    }
    let (serial, _) = probe::read_serial_and_wwn(&block_device::sysfs_path(&disk.device)?);
    Ok(ErasedDisk { device: disk.device.to_string(), serial, method, proof, seconds: began.elapsed().as_secs_f64() })
}

/// Failure of an erase method.
enum EraseFailure {
    /// Failure after which the next erase method is tried.
    Next(String),
    /// Failure after which no other method is tried, because only the operator can repair the disk.
    Final(Error),
}

impl From<String> for EraseFailure {
    fn from(why: String) -> EraseFailure {
        EraseFailure::Next(why)
    }
}

/// Time limit for erasing a disk.
#[derive(Debug, Clone, Copy)]
struct EraseDeadline {
    budget: Duration,
    end: Instant,
}

impl EraseDeadline {
    fn after_budget(budget: Duration) -> EraseDeadline {
        EraseDeadline { budget, end: Instant::now() + budget }
    }

    /// Returns the remaining time, or an error message if the time limit is exceeded.
    fn time_left(&self) -> Result<Duration, String> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(format!(
                "the time limit of {limit} was exceeded",
                limit = common::format::format_seconds(self.budget.as_secs_f64())
            ))
        } else {
            Ok(left)
        }
    }
}

/// Result of trying the erase methods.
struct EraseOutcome {
    proven: Option<(EraseMethod, String)>,
    failures: Vec<(EraseMethod, String)>,
}

/// Disk to erase, opened exclusively.
struct EraseTarget<'a> {
    device: &'a DevicePath,
    plan: &'a WipeDisk,
    file: File,
    size: u64,
    /// Areas of the disk in which signatures may be located.
    signatures: &'a [ByteRange],
}

impl EraseTarget<'_> {
    fn open(plan: &WipeDisk) -> Result<EraseTarget<'_>> {
        let WipeDisk { device, identity, zero: signatures, .. } = plan;
        let file = signature_wipe::open_exclusive(device)?;
        disk_identity::verify_identity(&file, identity)?;
        let size =
            block_device::read_size_bytes(&file).context(Phase::Storage, || format!("read the size of {device}"))?;
        Ok(EraseTarget { device, plan, file, size, signatures })
    }

    fn try_methods(&mut self, methods: &[EraseMethod], deadline: EraseDeadline) -> Result<EraseOutcome> {
        let mut failures = Vec::new();
        for &method in methods {
            match self.erase(method, deadline) {
                Ok(proof) => return Ok(EraseOutcome { proven: Some((method, proof)), failures }),
                Err(EraseFailure::Final(error)) => return Err(error),
                Err(EraseFailure::Next(why)) => {
                    tracing::warn!("{}: {} failed: {why}", self.device, method_name(method));
                    failures.push((method, why));
                }
            }
        }
        Ok(EraseOutcome { proven: None, failures })
    }

    /// Erases the disk with one method and verifies the result; returns a description of the verification for the
    /// operator.
    fn erase(&mut self, method: EraseMethod, deadline: EraseDeadline) -> Result<String, EraseFailure> {
        deadline.time_left()?;
        match method {
            EraseMethod::Discard => zeroing::discard_disk(&self.file, self.size, deadline)?,
            EraseMethod::WriteZeroes => zeroing::zero_disk(&self.file, self.device, self.size, deadline)?,
            EraseMethod::Ends => return Ok(String::new()),
            EraseMethod::AtaEnhancedErase | EraseMethod::AtaErase => {
                let before = ContentSamples::read_samples(&self.file, self.size, self.signatures);
                let reported = ata::erase_sata(self.device, method, deadline)?;
                return Ok(format!("{reported}; {}", before.verify_overwritten(&self.file)?));
            }
            EraseMethod::NvmeSanitizeCrypto
            | EraseMethod::NvmeSanitizeBlock
            | EraseMethod::NvmeFormatCrypto
            | EraseMethod::NvmeFormat => {
                let before = ContentSamples::read_samples(&self.file, self.size, self.signatures);
                let reported = nvme::erase_nvme(&self.file, method, deadline)?;
                self.reopen_if_replaced()?;
                return Ok(format!("{reported}; {}", before.verify_overwritten(&self.file)?));
            }
        }
        Ok(verification::verify_zeros(&self.file, self.size)?)
    }

    /// Reopens the disk if necessary. After Format NVM, the kernel rescans the namespace and may replace its block
    /// device. In this case, the open file belongs to a removed device.
    fn reopen_if_replaced(&mut self) -> Result<(), EraseFailure> {
        if block_device::read_size_bytes(&self.file) == Ok(self.size) {
            return Ok(());
        }
        let there = || std::fs::metadata(self.device).map_err(|error| block_device::to_errno(&error));
        block_device::retry_while_busy(Errno::ENOENT, there).map_err(|error| error.to_string())?;
        let renewed = EraseTarget::open(self.plan).map_err(EraseFailure::Final)?;
        if renewed.size != self.size {
            let what = format!(
                "{device}: size changed from {before} to {now} bytes during the erase",
                device = self.device,
                before = self.size,
                now = renewed.size
            );
            return Err(EraseFailure::Final(Error::new(Phase::Storage, what)));
        }
        self.file = renewed.file;
        Ok(())
    }
}

/// Formats the failures of erase methods, such as `discard: why; writing zeros: why`.
fn format_failures(failures: &[(EraseMethod, String)]) -> String {
    let words: Vec<String> = failures.iter().map(|(method, why)| format!("{}: {why}", method_name(*method))).collect();
    if words.is_empty() { "the plan contains no erase method".to_owned() } else { words.join("; ") }
}

fn method_name(method: EraseMethod) -> &'static str {
    match method {
        EraseMethod::NvmeSanitizeCrypto => "NVMe crypto sanitize",
        EraseMethod::NvmeSanitizeBlock => "NVMe block sanitize",
        EraseMethod::NvmeFormatCrypto => "NVMe crypto format",
        EraseMethod::NvmeFormat => "NVMe format",
        EraseMethod::AtaEnhancedErase => "ATA enhanced erase",
        EraseMethod::AtaErase => "ATA erase",
        EraseMethod::Discard => "discard",
        EraseMethod::WriteZeroes => "writing zeros",
        EraseMethod::Ends => "zeroing of signature areas",
    }
}
