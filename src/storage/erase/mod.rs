//! Erasing of disks by the best supported method, with verification.

mod ata;
mod nvme;
mod proof;
#[cfg(test)]
mod tests;
pub(super) mod zero;

use super::{identify, kernel, wipe};
use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::facts::Erased;
use crate::inventory::EraseMethod;
use crate::plan::{ByteRange, WipeDisk};
use crate::survey;
use nix::errno::Errno;
use proof::Before;
use std::fs::File;
use std::slice;
use std::time::{Duration, Instant};

/// Tries the plan's methods until one succeeds and is verified, then zeroes the areas of signatures.
///
/// The disk stays open exclusively, so that it cannot be mounted or assembled meanwhile.
///
/// # Errors
/// The disk is in use (the error lists the users), an area cannot be zeroed or does not stay zero, or the plan is
/// strict and no method succeeded (the error lists each reason).
pub fn wipe(disk: &WipeDisk) -> Result<Erased> {
    let began = Instant::now();
    let deadline = Deadline::after(Duration::from_secs(disk.budget_seconds));
    let mut target = Target::open(disk)?;
    zero::check(&disk.device, target.size, &disk.first)?;
    zero::check(&disk.device, target.size, &disk.zero)?;
    wipe::forget_partitions(&target.file, &disk.device)?;
    // A disk that accepts this only after it was formatted is zeroed below.
    for range in &disk.first {
        if let Err(error) = zero::ranges(&target.file, &disk.device, target.size, slice::from_ref(range)) {
            tracing::warn!("{error}");
            break;
        }
    }
    let outcome = target.climb(&disk.methods, deadline);
    // Even if the methods failed: old signatures must not be found again.
    let zeroed = zero::ranges(&target.file, &disk.device, target.size, &disk.zero);
    let outcome = outcome?;
    if let (Err(error), false) = (&zeroed, outcome.failures.is_empty()) {
        let why = format!("{error}; earlier failures: {}", reasons(&outcome.failures));
        return Err(Error::new(Phase::Storage, why));
    }
    zeroed?;
    let (method, mut proof) = match outcome.proven {
        Some(proven) => proven,
        None if disk.strict => {
            let why = format!("{}: cannot erase the disk: {}", disk.device, reasons(&outcome.failures));
            return Err(Error::new(Phase::Storage, why));
        }
        None => (EraseMethod::Ends, String::new()),
    };
    if !disk.zero.is_empty() {
        let bytes: u64 = disk.zero.iter().map(|range| range.length).sum();
        let size = crate::text::bytes(bytes);
        let places = format!("{size} in {} signature areas read back as zero", disk.zero.len());
        proof = if proof.is_empty() { places } else { format!("{proof}; {places}") };
    }
    let (serial, _) = survey::serial_and_wwn(&kernel::sysfs(&disk.device)?);
    Ok(Erased { device: disk.device.to_string(), serial, method, proof, seconds: began.elapsed().as_secs_f64() })
}

/// Failure of an erase method.
enum Failure {
    /// Another method may succeed.
    Next(String),
    /// The disk is in a state that requires the operator's attention.
    Final(Error),
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Next(why)
    }
}

/// Time limit for erasing a disk.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    budget: Duration,
    end: Instant,
}

impl Deadline {
    fn after(budget: Duration) -> Deadline {
        Deadline { budget, end: Instant::now() + budget }
    }

    /// Returns the remaining time, or an error message if there is none.
    fn left(&self) -> Result<Duration, String> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(format!("the limit of {} is exceeded", crate::text::seconds(self.budget.as_secs_f64())))
        } else {
            Ok(left)
        }
    }
}

/// Result of trying the methods.
struct Outcome {
    proven: Option<(EraseMethod, String)>,
    failures: Vec<(EraseMethod, String)>,
}

/// Disk that is opened exclusively.
struct Target<'a> {
    device: &'a DevicePath,
    plan: &'a WipeDisk,
    file: File,
    size: u64,
    /// Areas where signatures are located.
    signatures: &'a [ByteRange],
}

impl Target<'_> {
    fn open(plan: &WipeDisk) -> Result<Target<'_>> {
        let WipeDisk { device, identity, zero: signatures, .. } = plan;
        let file = wipe::open_exclusive(device)?;
        identify::prove(&file, identity)?;
        let size = kernel::size_bytes(&file).context(Phase::Storage, || format!("read the size of {device}"))?;
        Ok(Target { device, plan, file, size, signatures })
    }

    fn climb(&mut self, methods: &[EraseMethod], deadline: Deadline) -> Result<Outcome> {
        let mut failures = Vec::new();
        for &method in methods {
            match self.erase(method, deadline) {
                Ok(proof) => return Ok(Outcome { proven: Some((method, proof)), failures }),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Next(why)) => {
                    tracing::warn!("{}: {} failed: {why}", self.device, name(method));
                    failures.push((method, why));
                }
            }
        }
        Ok(Outcome { proven: None, failures })
    }

    /// Erases the disk by one method and verifies it; returns a human-readable proof.
    fn erase(&mut self, method: EraseMethod, deadline: Deadline) -> Result<String, Failure> {
        deadline.left()?;
        match method {
            EraseMethod::Discard => zero::discard(&self.file, self.size, deadline)?,
            EraseMethod::WriteZeroes => zero::write_zeroes(&self.file, self.device, self.size, deadline)?,
            EraseMethod::Ends => return Ok(String::new()),
            EraseMethod::AtaEnhancedErase | EraseMethod::AtaErase => {
                let before = Before::read(&self.file, self.size, self.signatures);
                let reported = ata::erase(self.device, method, deadline)?;
                return Ok(format!("{reported}; {}", before.is_gone(&self.file)?));
            }
            EraseMethod::NvmeSanitizeCrypto
            | EraseMethod::NvmeSanitizeBlock
            | EraseMethod::NvmeFormatCrypto
            | EraseMethod::NvmeFormat => {
                let before = Before::read(&self.file, self.size, self.signatures);
                let reported = nvme::erase(&self.file, method, deadline)?;
                self.renew()?;
                return Ok(format!("{reported}; {}", before.is_gone(&self.file)?));
            }
        }
        Ok(proof::zeros(&self.file, self.size)?)
    }

    /// Reopens the disk if necessary. After Format NVM the kernel rescans the namespace, and may replace its device;
    /// the open file then belongs to a removed disk.
    fn renew(&mut self) -> Result<(), Failure> {
        if kernel::size_bytes(&self.file) == Ok(self.size) {
            return Ok(());
        }
        let there = || std::fs::metadata(self.device).map_err(|error| kernel::errno(&error));
        kernel::patiently(Errno::ENOENT, there).map_err(|error| error.to_string())?;
        let renewed = Target::open(self.plan).map_err(Failure::Final)?;
        if renewed.size != self.size {
            let what =
                format!("{}: size changed from {} to {} bytes during the erase", self.device, self.size, renewed.size);
            return Err(Failure::Final(Error::new(Phase::Storage, what)));
        }
        self.file = renewed.file;
        Ok(())
    }
}

/// Formats failures: `discard: why; writing zeros: why`.
fn reasons(failures: &[(EraseMethod, String)]) -> String {
    let words: Vec<String> = failures.iter().map(|(method, why)| format!("{}: {why}", name(*method))).collect();
    if words.is_empty() { "the plan contains no method".to_owned() } else { words.join("; ") }
}

fn name(method: EraseMethod) -> &'static str {
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
