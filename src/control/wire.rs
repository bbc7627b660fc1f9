//! What agent and `drophammer serve` say to each other over HTTP: the shapes of metal-api, and ours. Only those who speak that
//! HTTP themselves use them; everybody else speaks [`crate::facts`].
//!
//! | call | body | answer |
//! |---|---|---|
//! | `POST /v1/machine/register` | [`Register`] | 200 |
//! | `GET /v1/machine/{id}/wait?seconds=N` | | 200 when allocated, 204 when not yet |
//! | `GET /v1/machine/{id}` | | [`crate::allocation::Machine`] |
//! | `POST /v1/machine/{id}/event` | [`crate::facts::Event`] | 200 |
//! | `POST /v1/machine/{id}/log` | [`LogPart`] | 200 |
//! | `POST /v1/machine/{id}/point-of-no-return` | [`PointOfNoReturn`] | 200; 409 when the order is no longer in force |
//! | `POST /v1/machine/{id}/report` | [`Report`] | 200 [`super::Acknowledged`] |
//!
//! Every call carries `Authorization: Bearer TOKEN`. Errors are metal-api's `{"statuscode": N, "message": "…"}`.
//! A call may carry an id of the caller's in [`REQUEST_ID`]; the answer has it too.
//! Names are metal-api's; what drophammer adds is optional for the reader.

use crate::facts::{
    BootInfo, BurnFigures, Done, Ended, Erased, Failed, Hidden, KeptProof, Outcome, PreparedVolume, StageTime,
};
use crate::inventory::Inventory;
use crate::marker::{MarkedDisk, Marker};
use crate::plan::Extents;
use serde::{Deserialize, Serialize};

/// Names a request in the logs of both ends.
pub const REQUEST_ID: &str = "x-request-id";

/// metal-api's `v1.MachineRegisterRequest`, and the whole inventory beside it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Register {
    pub uuid: String,
    pub hardware: Hardware,
    pub bios: Bios,
    #[serde(default)]
    pub tags: Vec<String>,
    /// What is there, in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub inventory: Option<Inventory>,
    /// `drophammer 0.1.0`.
    #[serde(default)]
    pub agent: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hardware {
    pub memory: u64,
    pub cpu_cores: u32,
    pub disks: Vec<HardwareDisk>,
    pub nics: Vec<HardwareNic>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HardwareDisk {
    /// `/dev/sda`.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HardwareNic {
    pub mac: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
                disks: disks
                    .map(|disk| HardwareDisk { name: disk.device.to_string(), size: disk.size_bytes })
                    .collect(),
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

/// Disks and NICs in the lists of [`Hardware`].
const HARDWARE: usize = 4096;
const TAGS: usize = 256;

impl Register {
    /// Returns the first limit that the registration exceeds.
    pub fn exceeded(&self) -> Option<String> {
        let Hardware { disks, nics, .. } = &self.hardware;
        let counts =
            [("disks", disks.len(), HARDWARE), ("NICs", nics.len(), HARDWARE), ("tags", self.tags.len(), TAGS)];
        let over = counts.into_iter().find(|(_, count, maximum)| count > maximum);
        let over = over.map(|(what, count, maximum)| {
            format!("the registration has {count} {what}, and at most {maximum} are supported")
        });
        over.or_else(|| self.inventory.as_ref()?.exceeded())
    }
}

/// The end of an installation, good or bad. Must be acknowledged before the machine leaves the ramdisk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    pub timings: Vec<StageTime>,
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
    #[serde(default, with = "crate::empty")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub order: Option<String>,
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
    /// Volumes of Kubernetes that are on the disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<PreparedVolume>,
}

impl From<&Ended> for Report {
    fn from(ended: &Ended) -> Report {
        let Ended { outcome, message, allocation, order, plan, timings, peak_rss_bytes, done } = ended.clone();
        let Done { erased, kept, hidden, burn, volumes } = done;
        let (allocationuuid, common) = (allocation, Report::default());
        let common = Report { message, allocationuuid, order, plan, timings, peak_rss_bytes, erased, ..common };
        let common = Report { kept, hidden, burn, volumes, ..common };
        match outcome {
            Outcome::Succeeded { boot, marker } => {
                let BootInfo { kernel, initrd, cmdline, bootloader_id: bootloaderid } = boot;
                Report { success: true, kernel, initrd, cmdline, bootloaderid, marker, ..common }
            }
            Outcome::FailedUntouched(failed) => Report { untouched: true, ..common.failed(failed) },
            Outcome::FailedBegun(failed) => common.failed(failed),
        }
    }
}

impl Report {
    fn failed(self, failed: Failed) -> Report {
        Report { step: Some(failed.stage), marker: failed.unbelieved, ..self }
    }
}

/// A part of what was said on the console since the machine has booted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogPart {
    /// Bytes that were said before.
    pub start: u64,
    pub log: String,
}

/// A reinstall is about to destroy: acknowledged before it does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PointOfNoReturn {
    pub allocationuuid: String,
    #[serde(with = "crate::empty")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub order: Option<String>,
    /// Those that the layout means now: the next attempt must not take another one for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<MarkedDisk>,
    /// What each stage may write, for a control plane that keeps a record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<serde_json::Value>"))]
    pub extents: Vec<Extents>,
    /// Hash of the approval that the plan was compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
    /// `sha256:HEX` of the secret that the install marker of this attempt will contain. An attempt without it can only be reported as
    /// successful by the boot that has announced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_digest: Option<String>,
}

/// What a running machine boots to carry out a reinstall without its firmware: the answer to
/// `GET /boot.json?uuid=UUID&mac=MAC`, 409 when nothing is ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NextBoot {
    /// URLs.
    pub kernel: String,
    pub initrd: String,
    pub cmdline: String,
}

/// metal-api's error body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub statuscode: u16,
    pub message: String,
    /// Stable code of the refusal, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

#[cfg(test)]
mod tests;
