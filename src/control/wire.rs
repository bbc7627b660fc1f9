//! What agent and control plane say to each other, shared by the HTTP client and by `serve`.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `POST /v1/machine/register` | [`Register`] | 200 |
//! | `GET /v1/machine/{id}/wait?seconds=N` | | 200 when allocated, 204 when not yet |
//! | `GET /v1/machine/{id}` | | [`crate::allocation::Machine`] |
//! | `POST /v1/machine/{id}/event` | [`Event`] | 200 |
//! | `POST /v1/machine/{id}/point-of-no-return` | [`PointOfNoReturn`] | 200; 409 when the order is no longer in force |
//! | `POST /v1/machine/{id}/report` | [`Report`] | 200 [`Acknowledged`] |
//!
//! Every call carries `Authorization: Bearer TOKEN`. Errors are metal-api's `{"statuscode": N, "message": "…"}`.
//! Names are metal-api's; what drophammer adds is optional for the reader.

use crate::inventory::{EraseMethod, Inventory};
use crate::marker::{MarkedDisk, Marker};
use crate::plan::Extents;
use crate::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// metal-api's `v1.MachineRegisterRequest`, and the whole inventory beside it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Register {
    pub uuid: String,
    pub hardware: Hardware,
    pub bios: Bios,
    #[serde(default)]
    pub tags: Vec<String>,
    /// What is there, in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Inventory>,
    /// `drophammer 0.1.0`.
    #[serde(default)]
    pub agent: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    pub memory: u64,
    pub cpu_cores: u32,
    pub disks: Vec<HardwareDisk>,
    pub nics: Vec<HardwareNic>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardwareDisk {
    /// `/dev/sda`.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardwareNic {
    pub mac: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bios {
    pub vendor: String,
    pub version: String,
    pub date: String,
}

impl Register {
    /// The registration of a machine with that id and inventory.
    pub fn new(uuid: String, inventory: Inventory) -> Register {
        let disks = inventory.disks.iter();
        let nics = inventory.nics.iter();
        Register {
            uuid,
            hardware: Hardware {
                memory: inventory.memory_bytes,
                cpu_cores: inventory.cpus.iter().map(|cpu| cpu.cores).sum(),
                disks: disks.map(|disk| HardwareDisk { name: disk.device.clone(), size: disk.size_bytes }).collect(),
                nics: nics.map(|nic| HardwareNic { mac: nic.mac.clone(), name: nic.name.clone() }).collect(),
            },
            bios: Bios {
                vendor: inventory.system.bios_vendor.clone(),
                version: inventory.system.bios_version.clone(),
                date: inventory.system.bios_date.clone(),
            },
            tags: Vec::new(),
            inventory: Some(inventory),
            agent: concat!("drophammer ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// metal-stack's provisioning events, by their names on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
pub struct Event {
    pub event: EventName,
    pub message: String,
    /// The plan's step that is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// How long that step took, in the event that ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// How far the image is. Bytes are those of the file as it travels, compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
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

/// The end of an installation, good or bad. Must be acknowledged before the machine leaves the ramdisk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub success: bool,
    /// What happened, in one sentence; for a failure with the tool's own words.
    pub message: String,
    #[serde(default)]
    pub allocationuuid: String,
    /// Step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(default)]
    pub kernel: String,
    #[serde(default)]
    pub initrd: String,
    #[serde(default)]
    pub cmdline: String,
    #[serde(default)]
    pub bootloaderid: String,
    #[serde(default)]
    pub timings: Vec<StepTime>,
    /// The plan as it was printed.
    #[serde(default)]
    pub plan: String,
    /// Peak resident memory of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// How each disk was erased, and what proves it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erased: Vec<Erased>,
    /// Id of the order that a reinstall carried out; empty for an install.
    #[serde(default)]
    pub order: String,
    /// Of a failure: every disk is as it was before, and the machine goes back to what it had.
    #[serde(default)]
    pub untouched: bool,
    /// Of a success: the marker that is on the disk. Of a failure: that of this very allocation, which is on a disk and was not
    /// believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Marker>,
    /// What a reinstall kept: the same before and after, or the install has failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptProof>,
    /// Files of the image that lie beneath kept filesystems, where nobody sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<Hidden>,
    /// How the image came, when one was burned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burn: Option<BurnFigures>,
}

/// How fast the image came, and which stage set the pace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BurnFigures {
    /// As they travelled.
    pub bytes: u64,
    pub seconds: f64,
    #[serde(default)]
    pub shares: Vec<Share>,
}

/// What part of the time a stage worked, in percent; the rest it waited for the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
        shares.sort_by_key(|share| std::cmp::Reverse(share.percent));
        for (index, Share { stage, percent }) in shares.into_iter().enumerate() {
            let (before, after) = if index == 0 { (": ", " (the bottleneck)") } else { (", ", "") };
            write!(f, "{before}{stage} {percent} %{after}")?;
        }
        Ok(())
    }
}

/// What identified a kept object, read before the first step and after the last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptProof {
    /// `disk /dev/sdb`, `array /dev/md/data`, `volume group csi-lvm`, `filesystem at /var/lib`.
    pub object: String,
    /// GUIDs, UUIDs, bounds, members, labels, by name.
    pub before: BTreeMap<String, String>,
    pub after: BTreeMap<String, String>,
}

/// Files of the image below a mount point that a kept filesystem covers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hidden {
    pub path: String,
    pub files: u64,
}

/// A reinstall is about to destroy: acknowledged before it does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointOfNoReturn {
    pub allocationuuid: String,
    pub order: String,
    /// Those that the layout means now: the next attempt must not take another one for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<MarkedDisk>,
    /// What each step may write, for a control plane that keeps a record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extents: Vec<Extents>,
}

/// The answer to a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// Of a failed reinstall: boot over PXE at once for another attempt.
    #[serde(default)]
    pub retry: bool,
}

/// What a running machine boots to carry out a reinstall without its firmware: the answer to
/// `GET /boot.json?uuid=UUID&mac=MAC`, 409 when nothing is ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextBoot {
    /// URLs.
    pub kernel: String,
    pub initrd: String,
    pub cmdline: String,
}

/// One disk that was made empty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Erased {
    /// `/dev/sda`.
    pub device: String,
    pub serial: String,
    pub method: EraseMethod,
    /// What was read back, or what the disk reported.
    pub proof: String,
    pub seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    pub step: String,
    pub seconds: f64,
}

impl StepTime {
    /// Seconds by step, and their sum, for people.
    pub fn table(timings: &[StepTime]) -> String {
        let row = |step: &str, seconds: f64| [step.to_owned(), format!("{seconds:>7.1} s")];
        let mut rows: Vec<_> = timings.iter().map(|time| row(&time.step, time.seconds)).collect();
        rows.push(row("total", timings.iter().map(|time| time.seconds).sum()));
        text::columns(&rows)
    }
}

/// metal-api's error body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub statuscode: u16,
    pub message: String,
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
            .map(|(step, seconds)| StepTime { step: step.to_owned(), seconds });
        let expected = "storage.wipe      1.2 s\nimage.burn       27.4 s\ntotal            28.7 s\n";
        assert_eq!(StepTime::table(&timings), expected);
    }
}
