//! Trials of arrays and filesystems before anything is erased. Arrays and filesystems are created on files in memory
//! that have the size and sector size of the real devices, and are started or mounted by the kernel. Options that a
//! tool or the kernel rejects are thus detected while the old system is still intact.

use super::filesystem_features::Superblock;
use super::mount::MountStack;
use super::scratch_disk::ScratchDisk;
use super::{mdadm, mkfs};
use crate::process::{CommandError, ProcessFailure};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use operations::{ArraySlot, CreateArray, MakeFilesystem, MountFilesystem, TryArray, TryFilesystem};
use std::fs::{self, File};
use std::io;
use std::time::Duration;

/// Maximum memory for a trial, in bytes. Most of an empty filesystem is a hole in the sparse file. The metadata of an 8
/// TB filesystem takes several hundred MiB; for xfs, most of it is the zeroed log.
const MAXIMUM_MEMORY_BYTES: u64 = 256 << 20;

/// Maximum memory for each device of an array. Superblock, bitmap and bad-block log take a few MiB.
const MEMBER_MEMORY_BYTES: u64 = 64 << 20;

/// Divisor that limits the memory of a trial to a third of the available memory.
const AVAILABLE_MEMORY_DIVISOR: u64 = 3;

/// Maximum size of the filesystem in the second trial, in bytes. The second trial follows if the first one does not fit
/// into memory.
const SECOND_TRIAL_BYTES: u64 = 2 << 30;

/// Time limit for mkfs. On a sparse file, mkfs exceeds this limit only if its options cause it to read the whole file.
const MKFS_TIMEOUT: Duration = Duration::from_secs(120);

/// Creates the array on in-memory devices. Returns a note if the trial was not possible for lack of memory.
///
/// # Errors
/// Returns an error if mdadm or the kernel fails for every size that the plan lists, or the result differs from the
/// plan.
pub fn try_array(trial: &TryArray) -> Result<Option<String>> {
    let sizes = std::iter::once(&trial.member_bytes).chain(&trial.or_member_bytes);
    try_sizes(sizes, |member_bytes| try_array_of_size(trial, member_bytes))
}

/// Tries the sizes in order until one succeeds. If all sizes fail, returns the error for the first size.
fn try_sizes<S>(
    mut sizes: impl Iterator<Item = S>,
    tried: impl Fn(S) -> Result<Option<String>>,
) -> Result<Option<String>> {
    let Some(first) = sizes.next() else { return Ok(None) };
    tried(first).or_else(|error| sizes.find_map(|size| tried(size).ok()).ok_or(error))
}

fn try_array_of_size(trial: &TryArray, member_bytes: &[u64]) -> Result<Option<String>> {
    let TryArray { make, sector_bytes, .. } = trial;
    let what = || {
        format!(
            "cannot create {level} for {device} (trial on an in-memory device)",
            level = make.level,
            device = make.device
        )
    };
    let (mut scratches, mut members, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for (member, size_bytes) in make.devices.iter().zip(member_bytes) {
        if *member == ArraySlot::Missing {
            devices.push(ArraySlot::Missing);
            continue;
        }
        let scratch = ScratchDisk::new(*size_bytes, MEMBER_MEMORY_BYTES)?;
        let member = scratch.attach_loop_device(*sector_bytes)?;
        devices.push(ArraySlot::Device(member.path.clone()));
        members.push(member);
        scratches.push(scratch);
    }
    let device = format!("/dev/md/trial-{}", std::process::id()).into();
    match mdadm::try_create_array(&CreateArray { device, devices, ..make.clone() }) {
        Err(_) if scratches.iter().any(ScratchDisk::is_full) => {
            let mib = MEMBER_MEMORY_BYTES >> 20;
            Ok(Some(format!(
                "the creation of {device} was not tested in memory: the test requires more than {mib} MiB of memory for each device",
                device = make.device
            )))
        }
        tried => tried.context(Phase::Storage, what).map(|()| None),
    }
}

/// Creates and mounts the filesystem in memory. Returns a note if a trial with the full size was not possible for lack
/// of memory.
///
/// # Errors
/// Returns an error if the tool or the kernel fails for every size that the plan lists.
pub fn try_filesystem(trial: &TryFilesystem) -> Result<Option<String>> {
    let memory = trial_memory_bytes().context(Phase::Storage, || "read /proc/meminfo")?;
    try_filesystem_within(trial, memory)
}

fn try_filesystem_within(trial: &TryFilesystem, memory_bytes: u64) -> Result<Option<String>> {
    let sizes = std::iter::once(&trial.size_bytes).chain(&trial.or_size_bytes);
    try_sizes(sizes, |size_bytes| try_filesystem_of_size(trial, *size_bytes, memory_bytes))
}

fn try_filesystem_of_size(trial: &TryFilesystem, size_bytes: u64, memory_bytes: u64) -> Result<Option<String>> {
    if trial.make.format == FilesystemFormat::Tmpfs {
        let scratch = ScratchDisk::new(0, memory_bytes)?;
        return try_mount(trial, &scratch, &"tmpfs".into()).map(|()| None);
    }
    let MakeFilesystem { device, format, .. } = &trial.make;
    if let TrialOutcome::Whole = try_once(trial, size_bytes, memory_bytes)? {
        return Ok(None);
    }
    let note = format!(
        "the creation of {format} on {device} was not tested with the full size: the test requires more than {mib} MiB of memory",
        mib = memory_bytes >> 20
    );
    let small = SECOND_TRIAL_BYTES.min(size_bytes);
    // The first trial ran out of memory without having rejected the options. A second trial uses a smaller size. If it
    // fails, the smaller size may be the cause, so its failure is reported only as a note.
    Ok(Some(match try_once(trial, small, memory_bytes) {
        Ok(TrialOutcome::Whole) => {
            format!("{note}; a trial with a size of {size} succeeded", size = common::format::format_bytes(small))
        }
        Ok(TrialOutcome::NoRoom) => {
            format!("{note}, even for a size of {size}", size = common::format::format_bytes(small))
        }
        Err(error) => {
            format!("{note}; a trial with a size of {size} failed: {error}", size = common::format::format_bytes(small))
        }
    }))
}

enum TrialOutcome {
    Whole,
    /// The trial was not possible for lack of memory or time.
    NoRoom,
}

fn try_once(trial: &TryFilesystem, size_bytes: u64, memory_bytes: u64) -> Result<TrialOutcome> {
    let MakeFilesystem { device, format, .. } = &trial.make;
    let scratch = ScratchDisk::new(size_bytes, memory_bytes)?;
    // For sectors of 512 bytes, a plain file is used instead of a loop device, because zeroing a range of a file takes
    // no memory.
    let four_k = (trial.sector_bytes != 512).then(|| scratch.attach_loop_device(trial.sector_bytes)).transpose()?;
    let path = match &four_k {
        Some(device) => device.path.clone(),
        None => scratch.file().to_string_lossy().as_ref().into(),
    };
    let make = MakeFilesystem { device: path, ..trial.make.clone() };
    let what = || format!("cannot create {format} for {device} (trial on an in-memory device)");
    if let Err(error) = mkfs::run_mkfs(&make, MKFS_TIMEOUT).context(Phase::Storage, what)? {
        return match scratch.is_full() || is_timeout(&error) {
            true => Ok(TrialOutcome::NoRoom),
            false => Err(error).context(Phase::Storage, what),
        };
    }
    mkfs::verify_uuid(&make).context(Phase::Storage, what)?;
    refuse_unsupported(trial, &make.device)?;
    drop(four_k);
    if trial.mount.is_some() {
        let device = scratch.attach_loop_device(trial.sector_bytes)?;
        try_mount(trial, &scratch, &device.path)?;
    }
    Ok(TrialOutcome::Whole)
}

/// Refuses a filesystem that the image's kernel cannot mount.
fn refuse_unsupported(trial: &TryFilesystem, created: &DevicePath) -> Result<()> {
    let Some(kernel) = &trial.mounted_by else { return Ok(()) };
    let format = trial.make.format;
    let superblock = File::open(created).and_then(|device| Superblock::read(&device, format));
    let superblock = superblock.context(Phase::Storage, || {
        format!("read the superblock that the trial for {device} created", device = trial.make.device)
    })?;
    let why = superblock.and_then(|superblock| superblock.explain_unsupported(format, &kernel.path, &kernel.version));
    why.map_or(Ok(()), |why| Err(Error::refusal(Phase::Storage, why).with_code(ErrorCode::OptionRejected)))
}

fn is_timeout(error: &CommandError) -> bool {
    matches!(error.end, ProcessFailure::Deadline { .. })
}

fn try_mount(trial: &TryFilesystem, scratch: &ScratchDisk, from: &DevicePath) -> Result<()> {
    let Some(options) = &trial.mount else { return Ok(()) };
    let MakeFilesystem { device, format, .. } = &trial.make;
    let mut mounts = MountStack::new(scratch.mount_point());
    let (device_now, path, options) = (from.clone(), "/".to_owned(), options.clone());
    let said = options.join(",");
    let mounted = mounts.mount_filesystem(&MountFilesystem {
        device: device_now,
        path,
        format: *format,
        options,
        others: Vec::new(),
    });
    mounted.and_then(|()| mounts.unmount_all()).map_err(|error| {
        let with = if said.is_empty() { String::new() } else { format!(" with {said}") };
        let what = format!("cannot mount {format} for {device}{with} (trial on an in-memory device)");
        Error::with_source(Phase::Storage, what, error)
    })
}

/// Returns the memory that a trial may use.
fn trial_memory_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let kib = kib.ok_or_else(|| io::Error::other("/proc/meminfo does not contain MemAvailable"))?;
    Ok((kib * 1024 / AVAILABLE_MEMORY_DIVISOR).min(MAXIMUM_MEMORY_BYTES))
}

#[cfg(test)]
mod tests;
