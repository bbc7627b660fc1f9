//! What happened, in neutral types that every room may speak. Each control plane's words for it stay with what speaks to it.
//!
//! Those that travel as they are have their names on the wire here.

use crate::inventory::EraseMethod;
use crate::marker::Marker;
use crate::order;
use crate::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The end of an installation, good or bad.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub outcome: Outcome,
    /// What happened, in one sentence; for a failure with the tool's own words.
    pub message: String,
    /// Id of the allocation; empty when it was not known yet.
    pub allocation: String,
    /// Id of the order that a reinstall carries out; none for an install.
    pub order: Option<String>,
    /// The plan as it was printed; empty when there was none yet.
    pub plan: String,
    pub timings: Vec<StageTime>,
    /// Peak resident memory of the agent.
    pub peak_rss_bytes: Option<u64>,
    pub done: Done,
}

/// How an installation ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The new system is whole. The marker is the one that is on its disk.
    Succeeded { boot: BootInfo, marker: Option<Marker> },
    /// Every disk is as it was before this attempt and before all earlier ones.
    FailedUntouched(Failed),
    /// This attempt or an earlier one has passed its point of no return.
    FailedBegun(Failed),
}

/// Where a failed installation ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failed {
    /// A stage of the plan, or what comes before there is a plan.
    pub stage: String,
    /// Nothing was written, but the control plane may believe that this attempt has begun.
    pub announced: bool,
    /// A marker of this very allocation that is on a disk and was not believed: the operator is to see it.
    pub unbelieved: Option<Marker>,
    /// Of a reinstall: no disk says what was installed, and no control plane remembers it. Nothing may be there that boots.
    pub unmarked: bool,
}

/// What a run has done to the disks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Done {
    pub erased: Vec<Erased>,
    /// What a reinstall kept: the same before and after, or the install has failed.
    pub kept: Vec<KeptProof>,
    /// Files of the image that lie beneath kept filesystems, where nobody sees them.
    pub hidden: Vec<Hidden>,
    /// How the image came, when one was burned.
    pub burn: Option<BurnFigures>,
    /// Volumes of Kubernetes that are on the disks.
    pub volumes: Vec<PreparedVolume>,
}

/// What is booted. Paths are the target's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootInfo {
    pub kernel: String,
    /// Empty when the kernel needs none.
    pub initrd: String,
    pub cmdline: String,
    /// Name of the EFI boot entry.
    pub bootloader_id: String,
}

/// An entry in the firmware's boot menu that a boot loader is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryWanted {
    /// Which of the plan's ESPs, counted from 0.
    pub esp: usize,
    /// On the ESP: `\EFI\debian\shimx64.efi`.
    pub loader: String,
    /// A kernel that starts without a boot loader has its command line here; else empty.
    pub arguments: String,
}

/// metal-stack's provisioning events, by their names on the wire.
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

/// Something that happened. Losing one is harmless.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub event: EventName,
    pub message: String,
    /// The plan's stage that is running.
    #[serde(rename = "step", default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// How long that stage took, in the event that ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// How far the image is. Bytes are those of the file as it travels, compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    pub bytes_per_second: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&text::bytes(self.bytes))?;
        if let Some(total) = self.total_bytes {
            write!(f, " of {}", text::bytes(total))?;
        }
        write!(f, ", {}/s", text::bytes(self.bytes_per_second))?;
        if let Some(left) = self.seconds_left {
            match left {
                ..60 => write!(f, ", {left} s left")?,
                _ => write!(f, ", {} left", text::seconds(left as f64))?,
            }
        }
        Ok(())
    }
}

/// How fast the image came, and which stage set the pace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BurnFigures {
    /// As they travelled.
    pub bytes: u64,
    pub seconds: f64,
    #[serde(default)]
    pub shares: Vec<Share>,
}

/// What part of the time a stage worked, in percent; the rest it waited for the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Share {
    pub stage: String,
    pub percent: u8,
}

impl BurnFigures {
    pub fn bytes_per_second(&self) -> u64 {
        (self.bytes as f64 / self.seconds.max(0.001)) as u64
    }
}

/// `387 MB in 3.4 s, 114 MB/s: network 71 % (the bottleneck), decode 22 %`.
impl std::fmt::Display for BurnFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, rate) = (text::bytes(self.bytes), text::bytes(self.bytes_per_second()));
        write!(f, "{bytes} in {}, {rate}/s", text::seconds(self.seconds))?;
        let mut shares: Vec<&Share> = self.shares.iter().collect();
        order::by_key(&mut shares, |share| std::cmp::Reverse(share.percent));
        for (index, Share { stage, percent }) in shares.into_iter().enumerate() {
            let (before, after) = if index == 0 { (": ", " (the bottleneck)") } else { (", ", "") };
            write!(f, "{before}{stage} {percent} %{after}")?;
        }
        Ok(())
    }
}

/// What identified a kept object, read before the first step and after the last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptProof {
    /// `disk /dev/sdb`, `array /dev/md/data`, `volume group csi-lvm`, `filesystem at /var/lib`.
    pub object: String,
    /// GUIDs, UUIDs, bounds, members, labels, by name.
    pub before: BTreeMap<String, String>,
    pub after: BTreeMap<String, String>,
}

/// A volume of Kubernetes that is on the disks: made, kept or added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PreparedVolume {
    pub name: String,
    pub uid: String,
    /// What it is mounted by: `/dev/disk/by-uuid/…`.
    pub path: String,
    pub size_bytes: u64,
}

/// Files of the image below a mount point that a kept filesystem covers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hidden {
    pub path: String,
    pub files: u64,
}

/// One disk that was made empty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Erased {
    /// `/dev/sda`.
    pub device: String,
    pub serial: String,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub method: EraseMethod,
    /// What was read back, or what the disk reported.
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
    /// Seconds by stage, and their sum, for people.
    pub fn table(timings: &[StageTime]) -> String {
        let row = |stage: &str, seconds: f64| [stage.to_owned(), format!("{seconds:>7.1} s")];
        let mut rows: Vec<_> = timings.iter().map(|time| row(&time.stage, time.seconds)).collect();
        rows.push(row("total", timings.iter().map(|time| time.seconds).sum()));
        text::columns(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_stage_is_named_first() {
        let shares = [("network", 22), ("digest", 9), ("decode", 71), ("untar", 22)]
            .map(|(stage, percent)| Share { stage: stage.to_owned(), percent });
        let figures = BurnFigures { bytes: 387_000_000, seconds: 3.4, shares: shares.to_vec() };
        let expected = "387 MB in 3.4 s, 114 MB/s: decode 71 % (the bottleneck), network 22 %, untar 22 %, digest 9 %";
        assert_eq!(figures.to_string(), expected);
        assert_eq!(BurnFigures::default().to_string(), "0 B in 0.0 s, 0 B/s");
    }

    #[test]
    fn the_table_has_a_sum() {
        let timings = [("storage.wipe", 1.25), ("image.burn", 27.41)]
            .map(|(stage, seconds)| StageTime { stage: stage.to_owned(), seconds });
        let expected = "storage.wipe      1.2 s\nimage.burn       27.4 s\ntotal            28.7 s\n";
        assert_eq!(StageTime::table(&timings), expected);
    }
}
