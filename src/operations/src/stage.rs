//! Stages of a plan in the order of execution, and their properties.

use serde::{Deserialize, Serialize};

/// Defines the stages in one table, so that each stage has all properties and exactly one name.
macro_rules! stages {
    ($($stage:ident = $name:literal, $destructive:literal, $concurrent:literal, $leaves:ident;)*) => {
        /// Name of a stage, such as `image.burn`: the subject, then the action. The variants are in the order of
        /// execution, except that a raw image is written before `storage.mount`.
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

            /// Returns the stage with this name; `None` if this version has no such stage. Reports also contain names
            /// for failures outside of all stages, and names of stages in other versions of the agent.
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
    StorageWipe = "storage.wipe", true, true, Incomplete;
    BootClean = "boot.clean", false, false, Incomplete;
    StoragePartition = "storage.partition", true, true, Incomplete;
    // An array can consist of arrays, and a group can be on another group, so the operations of these stages run in
    // sequence.
    StorageRaid = "storage.raid", true, false, Incomplete;
    StorageLvm = "storage.lvm", true, false, Incomplete;
    StorageEncrypt = "storage.encrypt", true, true, Incomplete;
    StorageFormat = "storage.format", true, true, Incomplete;
    MoveCopy = "move.copy", false, false, Incomplete;
    StorageMount = "storage.mount", false, false, Incomplete;
    ImageBurn = "image.burn", false, false, Incomplete;
    StorageMountPreserved = "storage.mount_kept", false, false, Incomplete;
    StorageVolumes = "storage.volumes", false, false, Incomplete;
    TargetFiles = "target.files", false, false, Incomplete;
    TargetInstaller = "target.installer", false, false, Incomplete;
    TargetFstab = "target.fstab", false, false, Incomplete;
    BootEntries = "boot.entries", false, false, Incomplete;
    BootLoad = "boot.load", false, false, Incomplete;
    StorageProvePreserved = "storage.prove_kept", false, false, Changed;
    TargetMarker = "target.marker", false, false, Incomplete;
    StorageUnmount = "storage.unmount", false, false, Incomplete;
    // The system is complete and flushed to the disks. A failure to stop a device must not make it unbootable, because
    // the marker proves that it is complete, and the devices that contain the marker may already be stopped.
    StorageDeactivate = "storage.deactivate", false, false, Unreported;
    ReportFinal = "report.final", false, false, Unreported;
    BootKexec = "boot.kexec", false, false, Complete;
}

/// State that a failure in a stage leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureState {
    /// No disk has been written.
    Untouched,
    /// No disk has been written, but the control plane may have recorded the start of this attempt.
    Announced,
    /// The system is incomplete, and must not boot until another attempt has completed it.
    Incomplete,
    /// The system is incomplete, and preserved data may have changed. A further attempt would preserve the changed
    /// data.
    Changed,
    /// The system is complete, but the control plane might not have received the report of success.
    Unreported,
    /// The system is complete, and the control plane has acknowledged the report.
    Complete,
}

impl FailureState {
    /// Returns whether the executor must make the installation unbootable after this failure.
    pub fn is_incomplete(self) -> bool {
        matches!(self, FailureState::Incomplete | FailureState::Changed)
    }

    /// Returns whether the system was already complete when the stage failed. No disk is written after such a failure.
    pub fn is_complete(self) -> bool {
        matches!(self, FailureState::Unreported | FailureState::Complete)
    }
}

/// Properties of a stage.
#[derive(Debug, Clone, Copy)]
struct StageProperties {
    /// True if the stage destroys existing data.
    destructive: bool,
    /// True if the operations of the stage may run concurrently; no two of them then use the same device.
    concurrent: bool,
    leaves: FailureState,
}

impl StageName {
    pub fn is_destructive(self) -> bool {
        self.properties().destructive
    }

    /// Returns whether the stage may write to disks after the point of no return.
    pub fn may_write(self) -> bool {
        !matches!(self, StageName::ReportFinal | StageName::BootKexec)
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
    fn stages_are_parsed_by_name_and_sorted() {
        assert!(StageName::ALL.is_sorted());
        for stage in StageName::ALL.iter().copied() {
            assert_eq!(StageName::named(stage.as_str()), Some(stage));
            assert_eq!(serde_json::to_value(stage).unwrap(), stage.as_str());
        }
        assert_eq!(StageName::named("storage.wip"), None);
    }

    #[test]
    fn failures_before_destructive_stages_leave_disks_untouched() {
        let first = StageName::ALL.iter().position(|stage| stage.is_destructive()).unwrap();
        for (index, stage) in StageName::ALL.iter().copied().enumerate() {
            let untouched = matches!(stage.failure_state(), FailureState::Untouched | FailureState::Announced);
            assert_eq!(untouched, index < first, "{stage}");
            assert!(!stage.is_destructive() || stage.failure_state().is_incomplete(), "{stage}");
            assert!(!stage.runs_concurrently() || stage.is_destructive(), "{stage}");
        }
    }
}
