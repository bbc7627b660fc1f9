//! The stages of a run in their order, and what policy has to know of each.

use super::Operation;
use serde::{Deserialize, Serialize};

/// A named part of the run. On the wire and on the console it is called a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stage {
    pub name: StageName,
    pub operations: Vec<Operation>,
}

/// Like `image.burn`: the subject, then the action. In the order of the run, but that a raw image is burned before
/// `storage.mount`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StageName {
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

impl StageName {
    pub fn as_str(self) -> &'static str {
        match self {
            StageName::ImageReach => "image.reach",
            StageName::StorageIdentify => "storage.identify",
            StageName::StorageLock => "storage.lock",
            StageName::StorageRelease => "storage.release",
            StageName::StorageRehearse => "storage.rehearse",
            StageName::ReportBegin => "report.begin",
            StageName::StorageWipe => "storage.wipe",
            StageName::StoragePartition => "storage.partition",
            StageName::StorageRaid => "storage.raid",
            StageName::StorageLvm => "storage.lvm",
            StageName::StorageFormat => "storage.format",
            StageName::StorageMount => "storage.mount",
            StageName::ImageBurn => "image.burn",
            StageName::StorageMountKept => "storage.mount_kept",
            StageName::TargetFiles => "target.files",
            StageName::TargetInstaller => "target.installer",
            StageName::TargetFstab => "target.fstab",
            StageName::BootLoad => "boot.load",
            StageName::StorageProveKept => "storage.prove_kept",
            StageName::TargetMarker => "target.marker",
            StageName::StorageUnmount => "storage.unmount",
            StageName::ReportFinal => "report.final",
            StageName::BootKexec => "boot.kexec",
        }
    }
}

/// What a failure in a stage leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// Nothing was written.
    Untouched,
    /// Nothing was written, but the control plane may believe that this attempt has begun.
    Announced,
    /// The system is incomplete, and must not boot until another attempt has made it whole.
    HalfMade,
    /// The system is incomplete, and what was to be kept may have changed. Another attempt would keep the wrong data.
    Changed,
    /// The system is complete. The control plane may not know it.
    Unreported,
    /// The system is complete, and the control plane knows it.
    Complete,
}

impl Leaves {
    /// Must the executor make unbootable what this run has made?
    pub fn half_made(self) -> bool {
        matches!(self, Leaves::HalfMade | Leaves::Changed)
    }

    /// Is the system complete, and is no disk written any more?
    pub fn complete(self) -> bool {
        matches!(self, Leaves::Unreported | Leaves::Complete)
    }
}

#[derive(Debug, Clone, Copy)]
struct Nature {
    /// Does the stage destroy what was there?
    destructive: bool,
    /// Does each of its operations use devices that no other one touches? Then they run at the same time.
    side_by_side: bool,
    leaves: Leaves,
}

impl StageName {
    pub const ALL: [StageName; 23] = [
        StageName::ImageReach,
        StageName::StorageIdentify,
        StageName::StorageLock,
        StageName::StorageRelease,
        StageName::StorageRehearse,
        StageName::ReportBegin,
        StageName::StorageWipe,
        StageName::StoragePartition,
        StageName::StorageRaid,
        StageName::StorageLvm,
        StageName::StorageFormat,
        StageName::StorageMount,
        StageName::ImageBurn,
        StageName::StorageMountKept,
        StageName::TargetFiles,
        StageName::TargetInstaller,
        StageName::TargetFstab,
        StageName::BootLoad,
        StageName::StorageProveKept,
        StageName::TargetMarker,
        StageName::StorageUnmount,
        StageName::ReportFinal,
        StageName::BootKexec,
    ];

    /// The stage that a report or an event names.
    pub fn named(name: &str) -> Option<StageName> {
        StageName::ALL.into_iter().find(|stage| stage.as_str() == name)
    }

    pub fn is_destructive(self) -> bool {
        self.nature().destructive
    }

    pub fn runs_side_by_side(self) -> bool {
        self.nature().side_by_side
    }

    pub fn leaves(self) -> Leaves {
        self.nature().leaves
    }

    fn nature(self) -> Nature {
        let (destructive, side_by_side, leaves) = match self {
            StageName::ImageReach
            | StageName::StorageIdentify
            | StageName::StorageLock
            | StageName::StorageRelease
            | StageName::StorageRehearse => (false, false, Leaves::Untouched),
            StageName::ReportBegin => (false, false, Leaves::Announced),
            StageName::StorageWipe | StageName::StoragePartition | StageName::StorageFormat => {
                (true, true, Leaves::HalfMade)
            }
            // An array or group may lie on another one.
            StageName::StorageRaid | StageName::StorageLvm => (true, false, Leaves::HalfMade),
            StageName::StorageMount
            | StageName::ImageBurn
            | StageName::StorageMountKept
            | StageName::TargetFiles
            | StageName::TargetInstaller
            | StageName::TargetFstab
            | StageName::BootLoad
            | StageName::TargetMarker
            | StageName::StorageUnmount => (false, false, Leaves::HalfMade),
            StageName::StorageProveKept => (false, false, Leaves::Changed),
            StageName::ReportFinal => (false, false, Leaves::Unreported),
            StageName::BootKexec => (false, false, Leaves::Complete),
        };
        Nature { destructive, side_by_side, leaves }
    }
}

impl std::fmt::Display for StageName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_found_by_its_name_and_stands_in_the_order_of_the_run() {
        assert!(StageName::ALL.is_sorted());
        for stage in StageName::ALL {
            assert_eq!(StageName::named(stage.as_str()), Some(stage));
            assert_eq!(serde_json::to_value(stage).unwrap(), stage.as_str());
        }
        assert_eq!(StageName::named("storage.wip"), None);
    }

    #[test]
    fn what_destroys_leaves_nothing_whole_and_what_comes_before_it_leaves_all() {
        let first = StageName::ALL.iter().position(|stage| stage.is_destructive()).unwrap();
        for (index, stage) in StageName::ALL.into_iter().enumerate() {
            let untouched = matches!(stage.leaves(), Leaves::Untouched | Leaves::Announced);
            assert_eq!(untouched, index < first, "{stage}");
            assert!(!stage.is_destructive() || stage.leaves().half_made(), "{stage}");
            assert!(!stage.runs_side_by_side() || stage.is_destructive(), "{stage}");
        }
    }
}
