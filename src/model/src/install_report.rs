//! Events and results of an installation, in types that do not depend on a control plane. The module of each control
//! plane converts these types to its wire format. Types that are sent without conversion define their wire names in
//! this module.

use crate::install_marker::InstallMarker;
use crate::inventory::EraseMethod;
use common::error_code::ErrorCode;
use common::format;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Result of an installation, successful or failed.
#[derive(Debug, Clone, PartialEq)]
pub struct InstallResult {
    pub outcome: InstallOutcome,
    /// Outcome in one sentence. For a failure, it includes the error message of the tool.
    pub message: String,
    /// Id of the allocation; empty if the failure occurred before the id was known.
    pub allocation: String,
    /// Id of the order that a reinstall executes; `None` for a first installation.
    pub order: Option<String>,
    /// Text of the plan, or of the refused plan, as it was printed; empty if the failure occurred before there was a
    /// plan.
    pub plan: String,
    pub timings: Vec<StageTime>,
    /// Peak resident memory of the agent, in bytes.
    pub peak_rss_bytes: Option<u64>,
    pub done: DiskChanges,
}

/// Outcome of an installation.
#[derive(Debug, Clone, PartialEq)]
pub enum InstallOutcome {
    /// The new system is complete. `marker` is the install marker on its disk.
    Succeeded { boot: BootInfo, marker: Option<InstallMarker> },
    /// The disks are unchanged: neither this attempt nor an earlier attempt has passed its point of no return.
    FailedUntouched(FailureSummary),
    /// This attempt or an earlier attempt has passed the point of no return.
    FailedBegun(FailureSummary),
}

/// Details of a failed installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailureSummary {
    /// Stage of the plan that failed. If there was no plan yet, this is the phase that failed.
    pub stage: String,
    /// True if the attempt was announced to the control plane, but has written nothing. The control plane may
    /// nevertheless have recorded that the attempt passed its point of no return.
    pub announced: bool,
    /// Marker of this allocation that was found on a disk but is not trusted, for inspection by the operator.
    pub untrusted_marker: Option<InstallMarker>,
    /// True if a reinstall finds a record of the previous installation neither on the disks nor at the control plane.
    /// The machine may then have no bootable system.
    pub lacks_record: bool,
    /// Code of the failure, such as `DH-310`.
    pub code: Option<ErrorCode>,
}

/// Changes that an installation has made to the disks, and the objects that it has preserved on them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiskChanges {
    pub erased: Vec<ErasedDisk>,
    /// Identifiers of the preserved objects, read before and after a reinstall. If the two readings differ, the
    /// installation has failed.
    pub kept: Vec<PreservationProof>,
    /// Files of the image that are hidden below the mount points of preserved filesystems.
    pub hidden: Vec<HiddenFiles>,
    /// Throughput of the image transfer, if an image was written.
    pub burn: Option<ImageTransferFigures>,
    /// Kubernetes volumes that are on the disks.
    pub volumes: Vec<PreparedVolume>,
}

/// Kernel, initrd and command line of the installed system. Paths are relative to its root directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootInfo {
    pub kernel: String,
    /// Path of the initrd; empty if the kernel does not need an initrd.
    pub initrd: String,
    pub cmdline: String,
    /// Name of the EFI boot entry.
    pub bootloader_id: String,
}

/// Boot entry that will be created in the firmware's boot menu. It starts a boot loader or a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootEntryRequest {
    /// Index of the ESP in the plan, from 0.
    pub esp: usize,
    /// Path on the ESP: `\EFI\debian\shimx64.efi`.
    pub loader: String,
    /// Command line, if `loader` is a kernel that the firmware starts without a boot loader; otherwise empty.
    pub arguments: String,
    /// True if the firmware cannot start the system without the entry, because the ESP does not contain a boot loader
    /// at the fallback path.
    pub required: bool,
}

/// Provisioning events of metal-stack, by their wire names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum EventName {
    #[serde(rename = "PXE Booting")]
    PxeBooting,
    Preparing,
    Registering,
    Waiting,
    Installing,
    #[serde(rename = "Booting New Kernel")]
    BootingNewKernel,
    #[serde(rename = "Phoned Home")]
    PhonedHome,
    Alive,
    Crashed,
    #[serde(rename = "Planned Reboot")]
    PlannedReboot,
}

impl EventName {
    pub fn as_str(self) -> &'static str {
        match self {
            EventName::PxeBooting => "PXE Booting",
            EventName::Preparing => "Preparing",
            EventName::Registering => "Registering",
            EventName::Waiting => "Waiting",
            EventName::Installing => "Installing",
            EventName::BootingNewKernel => "Booting New Kernel",
            EventName::PhonedHome => "Phoned Home",
            EventName::Alive => "Alive",
            EventName::Crashed => "Crashed",
            EventName::PlannedReboot => "Planned Reboot",
        }
    }
}

impl std::fmt::Display for EventName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Event about the progress of an installation. The loss of an event is harmless.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgressEvent {
    pub event: EventName,
    pub message: String,
    /// Stage of the plan that is running.
    #[serde(rename = "step", default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Duration of the stage in seconds; only set in the event that ends the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<TransferProgress>,
}

/// Progress of the image download. Bytes are counted before decompression.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TransferProgress {
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    pub bytes_per_second: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

impl TransferProgress {
    /// Returns whether all bytes were transferred, so that only decoding, writing and flushing remain.
    pub fn is_flushing(&self) -> bool {
        self.total_bytes.is_some_and(|total| total > 0 && self.bytes >= total)
    }
}

impl std::fmt::Display for TransferProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format::format_bytes(self.bytes))?;
        if let Some(total) = self.total_bytes {
            write!(f, " of {}", format::format_bytes(total))?;
        }
        if self.is_flushing() {
            return f.write_str(", flushing");
        }
        write!(f, ", {}/s", format::format_bytes(self.bytes_per_second))?;
        if let Some(left) = self.seconds_left {
            match left {
                ..60 => write!(f, ", {left} s left")?,
                _ => write!(f, ", {} left", format::format_seconds(left as f64))?,
            }
        }
        Ok(())
    }
}

/// Throughput of the image transfer, and how busy each pipeline stage was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImageTransferFigures {
    /// Number of transferred bytes, counted before decompression.
    pub bytes: u64,
    pub seconds: f64,
    #[serde(default)]
    pub shares: Vec<StageShare>,
}

/// Share of the time in which a pipeline stage was busy, in percent. In the remaining time, the stage waited for the
/// other stages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageShare {
    pub stage: String,
    pub percent: u8,
}

impl ImageTransferFigures {
    pub(crate) fn bytes_per_second(&self) -> u64 {
        (self.bytes as f64 / self.seconds.max(0.001)) as u64
    }
}

/// Displays the figures as `387 MB in 3.4 s, 114 MB/s: network 71 % (the bottleneck), decode 22 %`.
impl std::fmt::Display for ImageTransferFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, rate) = (format::format_bytes(self.bytes), format::format_bytes(self.bytes_per_second()));
        write!(f, "{bytes} in {}, {rate}/s", format::format_seconds(self.seconds))?;
        let mut shares: Vec<&StageShare> = self.shares.iter().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.percent));
        for (index, StageShare { stage, percent }) in shares.into_iter().enumerate() {
            let (before, after) = if index == 0 { (": ", " (the bottleneck)") } else { (", ", "") };
            write!(f, "{before}{stage} {percent} %{after}")?;
        }
        Ok(())
    }
}

/// Identifiers of a preserved object, read before the first stage and after the last stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PreservationProof {
    /// Type and name of the object: `disk /dev/sdb`, `array /dev/md/data`, `filesystem at /var/lib`.
    pub object: String,
    /// Values of GUIDs, UUIDs, offsets, members and labels, keyed by their names.
    pub before: BTreeMap<String, String>,
    pub after: BTreeMap<String, String>,
}

/// Kubernetes volume that is on the disks after the installation, whether it was created, preserved or added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PreparedVolume {
    pub name: String,
    pub uid: String,
    /// Device path from which the volume is mounted: `/dev/disk/by-uuid/…`.
    pub path: String,
    pub size_bytes: u64,
}

/// Files of the image that are hidden because a preserved filesystem is mounted at their directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HiddenFiles {
    pub path: String,
    pub files: u64,
}

/// Disk that was erased.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErasedDisk {
    /// Device path, such as `/dev/sda`.
    pub device: String,
    pub serial: String,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub method: EraseMethod,
    /// Proof that the disk was erased: the result of reading the disk back, or the status that the disk reported.
    pub proof: String,
    pub seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageTime {
    #[serde(rename = "step")]
    pub stage: String,
    pub seconds: f64,
}

impl StageTime {
    /// Formats a table with the duration of each stage in seconds, and their sum.
    pub fn format_table(timings: &[StageTime]) -> String {
        let row = |stage: &str, seconds: f64| [stage.to_owned(), format!("{seconds:>7.1} s")];
        let mut rows: Vec<_> = timings.iter().map(|time| row(&time.stage, time.seconds)).collect();
        rows.push(row("total", timings.iter().fold(0.0, |sum, time| sum + time.seconds)));
        format::format_columns(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_stage_is_listed_first() {
        let shares = [("network", 22), ("digest", 9), ("decode", 71), ("untar", 22)]
            .map(|(stage, percent)| StageShare { stage: stage.to_owned(), percent });
        let figures = ImageTransferFigures { bytes: 387_000_000, seconds: 3.4, shares: shares.to_vec() };
        let expected = "387 MB in 3.4 s, 114 MB/s: decode 71 % (the bottleneck), network 22 %, untar 22 %, digest 9 %";
        assert_eq!(figures.to_string(), expected);
        assert_eq!(ImageTransferFigures::default().to_string(), "0 B in 0.0 s, 0 B/s");
    }

    #[test]
    fn table_of_stage_times_ends_with_the_total() {
        let timings = [("storage.wipe", 1.25), ("image.burn", 27.41)]
            .map(|(stage, seconds)| StageTime { stage: stage.to_owned(), seconds });
        let expected = "storage.wipe      1.2 s\nimage.burn       27.4 s\ntotal            28.7 s\n";
        assert_eq!(StageTime::format_table(&timings), expected);
    }
}
