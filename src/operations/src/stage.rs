//! Stages of a run in order, and their properties.

use serde::{Deserialize, Serialize};

/// Defines the stages from one table, so that no stage is omitted, and each stage has exactly one name.
macro_rules! stages {
    ($($stage:ident = $name:literal, $destructive:literal, $concurrent:literal, $leaves:ident;)*) => {
        /// Name of a stage, such as `image.burn`: the subject, then the action. The stages are listed in the order of
        /// the run, with one exception: a raw image is written before `storage.mount`.
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

            /// Returns the stage with this name. Returns `None` for names that reports use for failures outside of all
            /// stages, and for names that only other versions of the agent use.
            pub fn named(name: &str) -> Option<StageName> {
                match name {
                    $($name => Some(StageName::$stage),)*
                    _ => None,
                }
            }

            fn properties(self) -> StageProperties {
                let (destructive, concurrent, leaves) = match self {
                    $(StageName::$stage => ($destructive, $concurrent, FailureState::$leaves),)*
                };
                StageProperties { destructive, concurrent, leaves }
            }
        }
    };
}

stages! {
    // stage = name, whether it destroys data, whether its operations run concurrently, state after a failure
    ImageReach = "image.reach", false, false, Untouched;
    DefinitionVerify = "definition.verify", false, false, Untouched;
    StorageIdentify = "storage.identify", false, false, Untouched;
    StorageLock = "storage.lock", false, false, Untouched;
    StorageRelease = "storage.release", false, false, Untouched;
    StorageRehearse = "storage.rehearse", false, false, Untouched;
    ReportBegin = "report.begin", false, false, Announced;
    StorageWipe = "storage.wipe", true, true, HalfMade;
    BootClean = "boot.clean", false, false, HalfMade;
    StoragePartition = "storage.partition", true, true, HalfMade;
    // An array or group may be on top of another array or group, so the operations of these stages do not run concurrently.
    StorageRaid = "storage.raid", true, false, HalfMade;
    StorageLvm = "storage.lvm", true, false, HalfMade;
    StorageEncrypt = "storage.encrypt", true, true, HalfMade;
    StorageFormat = "storage.format", true, true, HalfMade;
    MoveCopy = "move.copy", false, false, HalfMade;
    StorageMount = "storage.mount", false, false, HalfMade;
    ImageBurn = "image.burn", false, false, HalfMade;
    StorageMountKept = "storage.mount_kept", false, false, HalfMade;
    StorageVolumes = "storage.volumes", false, false, HalfMade;
    TargetFiles = "target.files", false, false, HalfMade;
    TargetInstaller = "target.installer", false, false, HalfMade;
    TargetFstab = "target.fstab", false, false, HalfMade;
    BootEntries = "boot.entries", false, false, HalfMade;
    BootLoad = "boot.load", false, false, HalfMade;
    StorageProveKept = "storage.prove_kept", false, false, Changed;
    TargetMarker = "target.marker", false, false, HalfMade;
    StorageUnmount = "storage.unmount", false, false, HalfMade;
    ReportFinal = "report.final", false, false, Unreported;
    BootKexec = "boot.kexec", false, false, Complete;
}

/// State that a failure in a stage leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureState {
    /// No disk was written.
    Untouched,
    /// No disk was written, but the control plane may already have recorded the start of this attempt.
    Announced,
    /// The system is incomplete, and must not boot until another attempt has completed it.
    HalfMade,
    /// The system is incomplete, and preserved data may have changed. Another attempt would preserve the wrong data.
    Changed,
    /// The system is complete, but the control plane may not have received the report.
    Unreported,
    /// The system is complete, and the control plane has acknowledged the report.
    Complete,
}

impl FailureState {
    /// Returns whether the executor must make the installation unbootable after this failure.
    pub fn is_half_made(self) -> bool {
        matches!(self, FailureState::HalfMade | FailureState::Changed)
    }

    /// Returns whether the system was already complete when the stage failed. No disk is written after such a failure.
    pub fn is_complete(self) -> bool {
        matches!(self, FailureState::Unreported | FailureState::Complete)
    }
}

/// Properties of a stage.
#[derive(Debug, Clone, Copy)]
struct StageProperties {
    /// Whether the stage destroys existing data.
    destructive: bool,
    /// Whether the operations of the stage may run concurrently, because no two of them use the same device.
    concurrent: bool,
    leaves: FailureState,
}

impl StageName {
    pub fn is_destructive(self) -> bool {
        self.properties().destructive
    }

    pub fn runs_concurrently(self) -> bool {
        self.properties().concurrent
    }

    pub fn failure_state(self) -> FailureState {
        self.properties().leaves
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
