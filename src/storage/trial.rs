//! Tries arrays and filesystems before anything is destroyed. The tool makes them on files in memory that have the size
//! and the sectors of the real devices, and the kernel runs or mounts them. What the tool or the kernel refuses is so
//! known while the old system is whole.

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

/// An empty filesystem is mostly a hole. The rest is its metadata: for 8 TB some hundred MiB, most of it the zeros of
/// an xfs log.
const MOST_MEMORY_BYTES: u64 = 256 << 20;

/// Each device of an array may fill so much. Its superblock, bitmap and bad-block log take a few MiB.
const MEMBER_MEMORY_BYTES: u64 = 64 << 20;

/// A trial may use the free memory divided by this.
const PART_OF_FREE: u64 = 3;

/// What does not fit into that memory is tried once more in this size.
const SMALL_BYTES: u64 = 2 << 30;

/// No tool takes longer for a file of holes, unless its options make it read the whole file.
const DEADLINE: Duration = Duration::from_secs(120);

/// Makes the array of devices in memory, and says what could not be tried.
///
/// # Errors
/// mdadm or the kernel refuses it in every size that the plan names, in their own words, or makes another one than the plan's.
pub fn array(trial: &TryArray) -> Result<Option<String>> {
    let sizes = std::iter::once(&trial.member_bytes).chain(&trial.or_member_bytes);
    in_one_of(sizes, |member_bytes| array_of(trial, member_bytes))
}

/// The first size in which it succeeds. When it never does, the first failure tells.
fn in_one_of<S>(
    mut sizes: impl Iterator<Item = S>,
    tried: impl Fn(S) -> Result<Option<String>>,
) -> Result<Option<String>> {
    let Some(first) = sizes.next() else { return Ok(None) };
    tried(first).or_else(|error| sizes.find_map(|size| tried(size).ok()).ok_or(error))
}

fn array_of(trial: &TryArray, member_bytes: &[u64]) -> Result<Option<String>> {
    let TryArray { make, sector_bytes, .. } = trial;
    let what = || format!("{} for {} was tried in memory, and cannot be made so", make.level, make.device);
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
            Ok(Some(format!("{} takes more than {mib} MiB of memory for each device to try it", make.device)))
        }
        tried => tried.context(Phase::Storage, what).map(|()| None),
    }
}

/// Makes and mounts the filesystem in memory, and says what could not be tried.
///
/// # Errors
/// The tool or the kernel refuses it in every size that the plan names, in its own words.
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
    let note = format!("{format} of {device} takes more than {} MiB of memory to try it whole", memory_bytes >> 20);
    let small = SMALL_BYTES.min(size_bytes);
    // The options were understood in the first try. If some do not fit a smaller filesystem, that says nothing about
    // the real one.
    Ok(Some(match once(trial, small, memory_bytes) {
        Ok(Tried::Whole) => format!("{note}: it was tried with {}", crate::text::bytes(small)),
        Ok(Tried::NoRoom) => format!("{note}, and with {}", crate::text::bytes(small)),
        Err(error) => format!("{note}; with {} it fails: {error}", crate::text::bytes(small)),
    }))
}

enum Tried {
    Whole,
    /// There was not enough memory or time.
    NoRoom,
}

fn once(trial: &TryFilesystem, size_bytes: u64, memory_bytes: u64) -> Result<Tried> {
    let MakeFilesystem { device, format, .. } = &trial.make;
    let scratch = Scratch::new(size_bytes, memory_bytes)?;
    // A plain file stands for a device with sectors of 512 bytes, and zeroing a part of it takes no memory.
    let four_k = (trial.sector_bytes != 512).then(|| scratch.attach(trial.sector_bytes)).transpose()?;
    let path = match &four_k {
        Some(device) => device.path.clone(),
        None => scratch.file().to_string_lossy().as_ref().into(),
    };
    let make = MakeFilesystem { device: path, ..trial.make.clone() };
    let what = || format!("{format} for {device} was tried in memory, and cannot be made so");
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
        let what = format!("{format} for {device} was tried in memory, and cannot be mounted{with}");
        Error::with_source(Phase::Storage, what, error)
    })
}

/// How much memory a trial may fill.
fn memory_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let kib = kib.ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))?;
    Ok((kib * 1024 / PART_OF_FREE).min(MOST_MEMORY_BYTES))
}

#[cfg(test)]
mod tests;
