//! Error codes of failed stages.

use crate::StageName;
use common::error_code::ErrorCode;

impl StageName {
    /// Returns the code of a failure in this stage that does not have a more specific code.
    pub fn error_code(self) -> ErrorCode {
        match self {
            StageName::ImageReach => ErrorCode::ImageUnavailable,
            StageName::DefinitionVerify => ErrorCode::VerifyProgram,
            StageName::StorageIdentify => ErrorCode::DiskIdentity,
            StageName::StorageLock => ErrorCode::DiskLock,
            StageName::StorageRelease => ErrorCode::HolderRelease,
            StageName::StorageRehearse => ErrorCode::Rehearsal,
            StageName::ReportBegin => ErrorCode::AttemptNotStarted,
            StageName::StorageWipe => ErrorCode::Wipe,
            StageName::BootClean => ErrorCode::BootCleanup,
            StageName::StoragePartition => ErrorCode::Partitioning,
            StageName::StorageRaid => ErrorCode::ArrayCreation,
            StageName::StorageLvm => ErrorCode::LvmCreation,
            StageName::StorageEncrypt => ErrorCode::Encryption,
            StageName::StorageFormat => ErrorCode::Mkfs,
            StageName::MoveCopy => ErrorCode::MigrationCopy,
            StageName::StorageMount => ErrorCode::Mount,
            StageName::ImageBurn => ErrorCode::ImageWrite,
            StageName::StorageMountPreserved => ErrorCode::PreservedMount,
            StageName::StorageVolumes => ErrorCode::VolumePreparation,
            StageName::TargetFiles => ErrorCode::MachineFiles,
            StageName::TargetInstaller => ErrorCode::ImageInstaller,
            StageName::TargetFstab => ErrorCode::Fstab,
            StageName::BootEntries => ErrorCode::BootEntries,
            StageName::BootLoad => ErrorCode::KexecLoad,
            StageName::StorageProvePreserved => ErrorCode::PreservationProof,
            StageName::TargetMarker => ErrorCode::InstallMarker,
            StageName::StorageUnmount => ErrorCode::Unmount,
            StageName::StorageDeactivate => ErrorCode::Deactivation,
            StageName::ReportFinal => ErrorCode::SuccessNotRecorded,
            StageName::BootKexec => ErrorCode::KexecBoot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_stage_has_its_own_code() {
        let codes: BTreeSet<ErrorCode> = StageName::ALL.iter().map(|stage| stage.error_code()).collect();
        assert_eq!(codes.len(), StageName::ALL.len());
        assert!(codes.iter().all(|code| code.number() >= 300), "{codes:?}");
    }
}
