//! Trials of arrays and filesystems before anything is erased. They are created on files in memory that have the size
//! and sectors of the real devices, and started or mounted by the kernel, so that options rejected by a tool or the
//! kernel are found while the old system is intact.

use super::mount::Mounts;
use super::scratch::Scratch;
use super::{filesystem, raid};
use crate::command::{CommandError, End};
use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::layout::Format;
use crate::plan::{CreateArray, MakeFilesystem, Member, MountFilesystem, TryArray, TryFilesystem};
use std::fs;
use std::io;
use std::time::Duration;

/// Maximum memory for a trial. An empty filesystem is mostly a hole; its metadata takes some hundred MiB for 8 TB,
/// most of it the zeroed log of an xfs.
const MOST_MEMORY_BYTES: u64 = 256 << 20;

/// Maximum memory for each device of an array. Superblock, bitmap and bad-block log take a few MiB.
const MEMBER_MEMORY_BYTES: u64 = 64 << 20;

/// Divisor of the available memory that a trial may use.
const PART_OF_FREE: u64 = 3;

/// Size of a second trial if the first one does not fit into memory.
const SMALL_BYTES: u64 = 2 << 30;

/// Deadline, which no tool exceeds for a sparse file, unless its options make it read the whole file.
const DEADLINE: Duration = Duration::from_secs(120);

/// Creates the array on devices in memory. Returns a note if that was not possible for lack of memory.
///
/// # Errors
/// mdadm or the kernel fails in every size listed by the plan, or the result differs from the plan.
pub fn array(trial: &TryArray) -> Result<Option<String>> {
    let sizes = std::iter::once(&trial.member_bytes).chain(&trial.or_member_bytes);
    in_one_of(sizes, |member_bytes| array_of(trial, member_bytes))
}

/// Returns the first success for one of the sizes, or else the first failure.
fn in_one_of<S>(
    mut sizes: impl Iterator<Item = S>,
    tried: impl Fn(S) -> Result<Option<String>>,
) -> Result<Option<String>> {
    let Some(first) = sizes.next() else { return Ok(None) };
    tried(first).or_else(|error| sizes.find_map(|size| tried(size).ok()).ok_or(error))
}

fn array_of(trial: &TryArray, member_bytes: &[u64]) -> Result<Option<String>> {
    let TryArray { make, sector_bytes, .. } = trial;
    let what = || format!("{} for {} cannot be created (trial in memory)", make.level, make.device);
    let (mut scratches, mut members, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for (member, size_bytes) in make.devices.iter().zip(member_bytes) {
        if *member == Member::Missing {
            devices.push(Member::Missing);
            continue;
        }
        let scratch = Scratch::new(*size_bytes, MEMBER_MEMORY_BYTES)?;
        let member = scratch.attach(*sector_bytes)?;
        devices.push(Member::Device(member.path.clone()));
        members.push(member);
        scratches.push(scratch);
    }
    let device = format!("/dev/md/trial-{}", std::process::id()).into();
    match raid::try_out(&CreateArray { device, devices, ..make.clone() }) {
        Err(_) if scratches.iter().any(Scratch::is_full) => {
            let mib = MEMBER_MEMORY_BYTES >> 20;
            Ok(Some(format!("{} was not tried: it takes more than {mib} MiB of memory for each device", make.device)))
        }
        tried => tried.context(Phase::Storage, what).map(|()| None),
    }
}

/// Creates and mounts the filesystem in memory. Returns a note if that was not possible for lack of memory.
///
/// # Errors
/// The tool or the kernel fails in every size listed by the plan.
pub fn filesystem(trial: &TryFilesystem) -> Result<Option<String>> {
    let memory = memory_bytes().context(Phase::Storage, || "read /proc/meminfo")?;
    with_memory(trial, memory)
}

fn with_memory(trial: &TryFilesystem, memory_bytes: u64) -> Result<Option<String>> {
    let sizes = std::iter::once(&trial.size_bytes).chain(&trial.or_size_bytes);
    in_one_of(sizes, |size_bytes| of_size(trial, *size_bytes, memory_bytes))
}

fn of_size(trial: &TryFilesystem, size_bytes: u64, memory_bytes: u64) -> Result<Option<String>> {
    if trial.make.format == Format::Tmpfs {
        let scratch = Scratch::new(0, memory_bytes)?;
        return mount(trial, &scratch, &"tmpfs".into()).map(|()| None);
    }
    let MakeFilesystem { device, format, .. } = &trial.make;
    if let Tried::Whole = once(trial, size_bytes, memory_bytes)? {
        return Ok(None);
    }
    let note = format!(
        "{format} of {device} was not tried in full size: it takes more than {} MiB of memory",
        memory_bytes >> 20
    );
    let small = SMALL_BYTES.min(size_bytes);
    // The options were accepted in the first trial. If some do not work for a smaller filesystem, that is irrelevant
    // for the real one.
    Ok(Some(match once(trial, small, memory_bytes) {
        Ok(Tried::Whole) => format!("{note}; it was tried with {}", crate::text::bytes(small)),
        Ok(Tried::NoRoom) => format!("{note}, even with {}", crate::text::bytes(small)),
        Err(error) => format!("{note}; with {} it fails: {error}", crate::text::bytes(small)),
    }))
}

enum Tried {
    Whole,
    /// Memory or time was not sufficient.
    NoRoom,
}

fn once(trial: &TryFilesystem, size_bytes: u64, memory_bytes: u64) -> Result<Tried> {
    let MakeFilesystem { device, format, .. } = &trial.make;
    let scratch = Scratch::new(size_bytes, memory_bytes)?;
    // A plain file represents a device with sectors of 512 bytes, and zeroing a range of it takes no memory.
    let four_k = (trial.sector_bytes != 512).then(|| scratch.attach(trial.sector_bytes)).transpose()?;
    let path = match &four_k {
        Some(device) => device.path.clone(),
        None => scratch.file().to_string_lossy().as_ref().into(),
    };
    let make = MakeFilesystem { device: path, ..trial.make.clone() };
    let what = || format!("{format} for {device} cannot be created (trial in memory)");
    if let Err(error) = filesystem::run_mkfs(&make, DEADLINE).context(Phase::Storage, what)? {
        return match scratch.is_full() || is_late(&error) {
            true => Ok(Tried::NoRoom),
            false => Err(error).context(Phase::Storage, what),
        };
    }
    filesystem::require_uuid(&make).context(Phase::Storage, what)?;
    drop(four_k);
    if trial.mount.is_some() {
        let device = scratch.attach(trial.sector_bytes)?;
        mount(trial, &scratch, &device.path)?;
    }
    Ok(Tried::Whole)
}

fn is_late(error: &CommandError) -> bool {
    matches!(error.end, End::Deadline { .. })
}

fn mount(trial: &TryFilesystem, scratch: &Scratch, from: &DevicePath) -> Result<()> {
    let Some(options) = &trial.mount else { return Ok(()) };
    let MakeFilesystem { device, format, .. } = &trial.make;
    let mut mounts = Mounts::new(scratch.mount_point());
    let (device_now, path, options) = (from.clone(), "/".to_owned(), options.clone());
    let said = options.join(",");
    let mounted =
        mounts.mount(&MountFilesystem { device: device_now, path, format: *format, options, others: Vec::new() });
    mounted.and_then(|()| mounts.finish()).map_err(|error| {
        let with = if said.is_empty() { String::new() } else { format!(" with {said}") };
        let what = format!("{format} for {device} cannot be mounted{with} (trial in memory)");
        Error::with_source(Phase::Storage, what, error)
    })
}

/// Returns the memory that a trial may use.
fn memory_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let kib = kib.ok_or_else(|| io::Error::other("/proc/meminfo does not contain MemAvailable"))?;
    Ok((kib * 1024 / PART_OF_FREE).min(MOST_MEMORY_BYTES))
}

#[cfg(test)]
mod tests;
