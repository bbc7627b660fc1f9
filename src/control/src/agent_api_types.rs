//! Messages that the agent and `drophammer serve` exchange over HTTP: the messages of metal-api, and additional ones.
//! Only the client and the server of this API use these types. All other code uses [`model::install_report`].
//!
//! | call | body | answer |
//! |---|---|---|
//! | `POST /v1/machine/register` | [`RegisterRequest`] | 200 |
//! | `GET /v1/machine/{id}/wait?seconds=N` | | 200 if the machine is allocated, 204 if it is not allocated yet |
//! | `GET /v1/machine/{id}` | | [`model::allocation::AssignedMachine`] |
//! | `POST /v1/machine/{id}/event` | [`model::install_report::ProgressEvent`] | 200 |
//! | `POST /v1/machine/{id}/log` | [`LogPart`] | 200 |
//! | `POST /v1/machine/{id}/point-of-no-return` | [`PointOfNoReturn`] | 200; 409 if the attempt must not continue |
//! | `POST /v1/machine/{id}/report` | [`InstallReport`] | 200 [`super::ReportAcknowledgement`] |
//!
//! Every request has the header `Authorization: Bearer TOKEN`. Errors have metal-api's format,
//! `{"statuscode": N, "message": "…"}`. A client may send an id for a request in the header [`REQUEST_ID`]. The
//! response then has the same header. Field names follow metal-api. Fields that drophammer adds may be missing in the
//! messages of other implementations.

use model::install_marker::{InstallMarker, RecordedDisk};
use model::install_report::{
    BootInfo, DiskChanges, ErasedDisk, FailureSummary, HiddenFiles, ImageTransferFigures, InstallOutcome,
    InstallResult, PreparedVolume, PreservationProof, StageTime,
};
use model::inventory::Inventory;
use operations::StageExtents;
use serde::{Deserialize, Serialize};

/// Header that contains the id of a request. Client and server write this id to their logs.
pub const REQUEST_ID: &str = "x-request-id";

/// metal-api's `v1.MachineRegisterRequest`, extended by the complete inventory and the version of the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegisterRequest {
    pub uuid: String,
    pub hardware: RegisteredHardware,
    pub bios: RegisteredBios,
    #[serde(default)]
    pub tags: Vec<String>,
    /// Complete inventory of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub inventory: Option<Inventory>,
    /// Name and version of the agent, such as `drophammer 0.1.0`.
    #[serde(default)]
    pub agent: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegisteredHardware {
    pub memory: u64,
    pub cpu_cores: u32,
    pub disks: Vec<HardwareDisk>,
    pub nics: Vec<HardwareNic>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HardwareDisk {
    /// Device path, such as `/dev/sda`.
    pub name: String,
    /// Size in bytes.
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
pub struct RegisteredBios {
    pub vendor: String,
    pub version: String,
    pub date: String,
}

impl RegisterRequest {
    /// Creates the registration of a machine from its id and inventory.
    pub fn new(uuid: String, inventory: Inventory) -> RegisterRequest {
        let disks = inventory.disks.iter();
        let nics = inventory.nics.iter();
        RegisterRequest {
            uuid,
            hardware: RegisteredHardware {
                memory: inventory.memory_bytes,
                cpu_cores: inventory.cpus.iter().map(|cpu| cpu.cores).sum(),
                disks: disks
                    .map(|disk| HardwareDisk { name: disk.device.to_string(), size: disk.size_bytes })
                    .collect(),
                nics: nics.map(|nic| HardwareNic { mac: nic.mac.clone(), name: nic.name.clone() }).collect(),
            },
            bios: RegisteredBios {
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

/// Maximum number of disks in [`RegisteredHardware`]. The same maximum applies to NICs.
const HARDWARE: usize = 4096;
/// Maximum number of tags in a [`RegisterRequest`].
const TAGS: usize = 256;

impl RegisterRequest {
    /// Returns a message about the first limit that the registration exceeds, or `None` if it is within all limits.
    pub fn exceeded_limit(&self) -> Option<String> {
        let RegisteredHardware { disks, nics, .. } = &self.hardware;
        let counts =
            [("disks", disks.len(), HARDWARE), ("NICs", nics.len(), HARDWARE), ("tags", self.tags.len(), TAGS)];
        let over = counts.into_iter().find(|(_, count, maximum)| count > maximum);
        let over = over.map(|(what, count, maximum)| {
            format!("the registration has {count} {what}, but at most {maximum} are supported")
        });
        over.or_else(|| self.inventory.as_ref()?.find_exceeded_limit())
    }
}

/// Final report about an installation. After a success, the machine leaves the ramdisk only after the control plane has
/// acknowledged the report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InstallReport {
    pub success: bool,
    /// Result in one sentence. For a failure, it includes the error message of the tool.
    pub message: String,
    #[serde(default)]
    pub allocationuuid: String,
    /// Stage of the plan that failed, such as `storage.wipe`, or the failed phase if there was no plan yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Code of the failure, such as `DH-310`. Agents of older versions do not send a code, and a newer version may
    /// send a code that this version does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
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
    /// Text of the plan, as printed on the console.
    #[serde(default)]
    pub plan: String,
    /// Peak resident memory of the agent, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// Each erased disk, with the method and the proof of the erasure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erased: Vec<ErasedDisk>,
    /// Id of the reinstall order that the machine has carried out; empty for a first installation.
    #[serde(default, with = "common::empty_string_as_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub order: Option<String>,
    /// True for a failure that left every disk unchanged. The machine can then boot its old system.
    #[serde(default)]
    pub untouched: bool,
    /// For a success, the install marker that was written to the disk. For a failure, an install marker of this
    /// allocation that was found on a disk and is not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<InstallMarker>,
    /// Identifiers of the preserved objects, read before and after a reinstall. If the two readings differ, the
    /// installation has failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<PreservationProof>,
    /// Files of the image that are hidden below the mount points of preserved filesystems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<HiddenFiles>,
    /// Throughput of the image transfer; `None` if no image was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burn: Option<ImageTransferFigures>,
    /// Kubernetes volumes on the disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<PreparedVolume>,
}

impl From<&InstallResult> for InstallReport {
    fn from(ended: &InstallResult) -> InstallReport {
        let InstallResult { outcome, message, allocation, order, plan, timings, peak_rss_bytes, done } = ended.clone();
        let DiskChanges { erased, kept, hidden, burn, volumes } = done;
        let (allocationuuid, common) = (allocation, InstallReport::default());
        let common = InstallReport { message, allocationuuid, order, plan, timings, peak_rss_bytes, erased, ..common };
        let common = InstallReport { kept, hidden, burn, volumes, ..common };
        match outcome {
            InstallOutcome::Succeeded { boot, marker } => {
                let BootInfo { kernel, initrd, cmdline, bootloader_id: bootloaderid } = boot;
                InstallReport { success: true, kernel, initrd, cmdline, bootloaderid, marker, ..common }
            }
            InstallOutcome::FailedUntouched(failed) => InstallReport { untouched: true, ..common.with_failure(failed) },
            InstallOutcome::FailedBegun(failed) => common.with_failure(failed),
        }
    }
}

impl InstallReport {
    /// Returns the message without the name of the failed stage at its start, because [`InstallReport::step`] already
    /// contains this name.
    pub fn reason(&self) -> &str {
        let step = self.step.as_deref().filter(|step| !step.is_empty());
        let rest = step.and_then(|step| self.message.strip_prefix(step)?.strip_prefix(':'));
        rest.map_or(self.message.as_str(), str::trim_start)
    }

    fn with_failure(self, failed: FailureSummary) -> InstallReport {
        let code = failed.code.map(|code| code.to_string());
        InstallReport { step: Some(failed.stage), code, marker: failed.untrusted_marker, ..self }
    }
}

/// Part of the console log of the current boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogPart {
    /// Offset of this part in the log, in bytes.
    pub start: u64,
    pub log: String,
}

/// Announcement that an attempt is about to pass the point of no return. The agent starts to write only after the
/// response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PointOfNoReturn {
    pub allocationuuid: String,
    #[serde(with = "common::empty_string_as_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub order: Option<String>,
    /// Disks that the layout currently selects. The next attempt must select the same disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<RecordedDisk>,
    /// Extents of the disks that each stage may write. A control plane may record these extents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<serde_json::Value>"))]
    pub extents: Vec<StageExtents>,
    /// Hash of the approved plan with which the agent compared its own plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
    /// `sha256:HEX` of the secret that the install marker of this attempt will contain. If the digest is missing, only
    /// the boot that made this announcement can report the attempt as successful.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_digest: Option<String>,
}

/// Kernel, initrd and command line that a running system boots with kexec for its reinstall. This is the response to
/// `GET /boot.json?uuid=UUID&mac=MAC`. If no reinstall is ordered, the server responds with 409 instead.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NextBoot {
    /// URL of the kernel.
    pub kernel: String,
    /// URL of the initrd.
    pub initrd: String,
    pub cmdline: String,
}

/// Body of an error response, as in metal-api.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub statuscode: u16,
    pub message: String,
    /// Stable code of the refusal; `None` if the refusal has no code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Code of the error in the manual, such as `DH-641`; `None` if the version of the server does not support these
    /// codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

#[cfg(test)]
mod tests;
