//! Stages of a run in order, and their properties.

use crate::Operation;
use serde::{Deserialize, Serialize};

/// A named stage of the run. The API and the console call it a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanStage {
    pub name: StageName,
    pub operations: Vec<Operation>,
}

/// Defines the stages from one table, so that none is omitted and each has one name.
macro_rules! stages {
    ($($stage:ident = $name:literal,)*) => {
        /// Name of a stage, such as `image.burn`: the subject, then the action. The order is that of the run, except that a raw image is written
        /// before `storage.mount`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum StageName {
            $(#[serde(rename = $name)] $stage,)*
        }

        impl StageName {
            #[cfg(any(test, feature = "testing"))]
            pub const ALL: &[StageName] = &[$(StageName::$stage,)*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(StageName::$stage => $name,)*
                }
            }

            /// Returns the stage with this name. `None` for a failure outside of all stages, or from an agent of another version.
            pub fn named(name: &str) -> Option<StageName> {
                match name {
                    $($name => Some(StageName::$stage),)*
                    _ => None,
                }
            }
        }
    };
}

stages! {
    ImageReach = "image.reach",
    DefinitionVerify = "definition.verify",
    StorageIdentify = "storage.identify",
    StorageLock = "storage.lock",
    StorageRelease = "storage.release",
    StorageRehearse = "storage.rehearse",
    ReportBegin = "report.begin",
    StorageWipe = "storage.wipe",
    BootClean = "boot.clean",
    StoragePartition = "storage.partition",
    StorageRaid = "storage.raid",
    StorageLvm = "storage.lvm",
    StorageEncrypt = "storage.encrypt",
    StorageFormat = "storage.format",
    MoveCopy = "move.copy",
    StorageMount = "storage.mount",
    ImageBurn = "image.burn",
    StorageMountKept = "storage.mount_kept",
    StorageVolumes = "storage.volumes",
    TargetFiles = "target.files",
    TargetInstaller = "target.installer",
    TargetFstab = "target.fstab",
    BootEntries = "boot.entries",
    BootLoad = "boot.load",
    StorageProveKept = "storage.prove_kept",
    TargetMarker = "target.marker",
    StorageUnmount = "storage.unmount",
    ReportFinal = "report.final",
    BootKexec = "boot.kexec",
}

/// State that a failure in a stage leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureState {
    /// No disk was written.
    Untouched,
    /// No disk was written, but the control plane may have recorded the start of this attempt.
    Announced,
    /// The system is incomplete, and must not boot until another attempt has completed it.
    HalfMade,
    /// The system is incomplete, and preserved data may have changed. Another attempt would preserve the wrong data.
    Changed,
    /// The system is complete. The control plane may not have received the report.
    Unreported,
    /// The system is complete, and the control plane has acknowledged it.
    Complete,
}

impl FailureState {
    /// Returns whether the executor must make the results of this run unbootable.
    pub fn is_half_made(self) -> bool {
        matches!(self, FailureState::HalfMade | FailureState::Changed)
    }

    /// Returns whether the system is complete and no disk is written after this.
    pub fn is_complete(self) -> bool {
        matches!(self, FailureState::Unreported | FailureState::Complete)
    }
}

/// Properties of a stage.
#[derive(Debug, Clone, Copy)]
struct StageProperties {
    /// Whether the stage destroys existing data.
    destructive: bool,
    /// Whether no two of its operations use the same device, so that they may run concurrently.
    side_by_side: bool,
    leaves: FailureState,
}

impl StageName {
    pub fn is_destructive(self) -> bool {
        self.properties().destructive
    }

    pub fn runs_concurrently(self) -> bool {
        self.properties().side_by_side
    }

    pub fn failure_state(self) -> FailureState {
        self.properties().leaves
    }

    fn properties(self) -> StageProperties {
        let (destructive, side_by_side, leaves) = match self {
            StageName::ImageReach
            | StageName::DefinitionVerify
            | StageName::StorageIdentify
            | StageName::StorageLock
            | StageName::StorageRelease
            | StageName::StorageRehearse => (false, false, FailureState::Untouched),
            StageName::ReportBegin => (false, false, FailureState::Announced),
            StageName::StorageWipe
            | StageName::StoragePartition
            | StageName::StorageEncrypt
            | StageName::StorageFormat => (true, true, FailureState::HalfMade),
            // An array or group may lie on another one.
            StageName::StorageRaid | StageName::StorageLvm => (true, false, FailureState::HalfMade),
            StageName::BootClean
            | StageName::MoveCopy
            | StageName::StorageMount
            | StageName::ImageBurn
            | StageName::StorageMountKept
            | StageName::StorageVolumes
            | StageName::TargetFiles
            | StageName::TargetInstaller
            | StageName::TargetFstab
            | StageName::BootEntries
            | StageName::BootLoad
            | StageName::TargetMarker
            | StageName::StorageUnmount => (false, false, FailureState::HalfMade),
            StageName::StorageProveKept => (false, false, FailureState::Changed),
            StageName::ReportFinal => (false, false, FailureState::Unreported),
            StageName::BootKexec => (false, false, FailureState::Complete),
        };
        StageProperties { destructive, side_by_side, leaves }
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
        for stage in StageName::ALL.iter().copied() {
            assert_eq!(StageName::named(stage.as_str()), Some(stage));
            assert_eq!(serde_json::to_value(stage).unwrap(), stage.as_str());
        }
        assert_eq!(StageName::named("storage.wip"), None);
    }

    #[test]
    fn what_destroys_leaves_nothing_whole_and_what_comes_before_it_leaves_all() {
        let first = StageName::ALL.iter().position(|stage| stage.is_destructive()).unwrap();
        for (index, stage) in StageName::ALL.iter().copied().enumerate() {
            let untouched = matches!(stage.failure_state(), FailureState::Untouched | FailureState::Announced);
            assert_eq!(untouched, index < first, "{stage}");
            assert!(!stage.is_destructive() || stage.failure_state().is_half_made(), "{stage}");
            assert!(!stage.runs_concurrently() || stage.is_destructive(), "{stage}");
        }
    }
}
