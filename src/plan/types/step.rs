//! The steps of a run, in its order.

use super::Operation;
use serde::{Deserialize, Serialize};

/// A named part of the run; events, timings and reports speak of steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    pub name: StepName,
    pub operations: Vec<Operation>,
}

/// `interface.step`, in the order of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StepName {
    #[serde(rename = "image.reach")]
    ImageReach,
    #[serde(rename = "storage.identify")]
    StorageIdentify,
    #[serde(rename = "storage.lock")]
    StorageLock,
    #[serde(rename = "storage.release")]
    StorageRelease,
    #[serde(rename = "storage.rehearse")]
    StorageRehearse,
    #[serde(rename = "report.begin")]
    ReportBegin,
    #[serde(rename = "storage.wipe")]
    StorageWipe,
    #[serde(rename = "storage.partition")]
    StoragePartition,
    #[serde(rename = "storage.raid")]
    StorageRaid,
    #[serde(rename = "storage.lvm")]
    StorageLvm,
    #[serde(rename = "storage.format")]
    StorageFormat,
    #[serde(rename = "storage.mount")]
    StorageMount,
    #[serde(rename = "image.burn")]
    ImageBurn,
    #[serde(rename = "storage.mount_kept")]
    StorageMountKept,
    #[serde(rename = "target.files")]
    TargetFiles,
    #[serde(rename = "target.installer")]
    TargetInstaller,
    #[serde(rename = "target.fstab")]
    TargetFstab,
    #[serde(rename = "boot.load")]
    BootLoad,
    #[serde(rename = "storage.prove_kept")]
    StorageProveKept,
    #[serde(rename = "target.marker")]
    TargetMarker,
    #[serde(rename = "storage.unmount")]
    StorageUnmount,
    #[serde(rename = "report.final")]
    ReportFinal,
    #[serde(rename = "boot.kexec")]
    BootKexec,
}

impl StepName {
    pub fn as_str(self) -> &'static str {
        match self {
            StepName::ImageReach => "image.reach",
            StepName::StorageIdentify => "storage.identify",
            StepName::StorageLock => "storage.lock",
            StepName::StorageRelease => "storage.release",
            StepName::StorageRehearse => "storage.rehearse",
            StepName::ReportBegin => "report.begin",
            StepName::StorageWipe => "storage.wipe",
            StepName::StoragePartition => "storage.partition",
            StepName::StorageRaid => "storage.raid",
            StepName::StorageLvm => "storage.lvm",
            StepName::StorageFormat => "storage.format",
            StepName::StorageMount => "storage.mount",
            StepName::ImageBurn => "image.burn",
            StepName::StorageMountKept => "storage.mount_kept",
            StepName::TargetFiles => "target.files",
            StepName::TargetInstaller => "target.installer",
            StepName::TargetFstab => "target.fstab",
            StepName::BootLoad => "boot.load",
            StepName::StorageProveKept => "storage.prove_kept",
            StepName::TargetMarker => "target.marker",
            StepName::StorageUnmount => "storage.unmount",
            StepName::ReportFinal => "report.final",
            StepName::BootKexec => "boot.kexec",
        }
    }
}

impl std::fmt::Display for StepName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
