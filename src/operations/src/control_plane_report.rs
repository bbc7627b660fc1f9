//! Operations that send announcements and reports to the control plane.

use crate::operation_text::{DeviceSizes, OperationLine, join_devices};
use crate::{Effect, PlannedOperation, StageExtents};
use model::device_name::DevicePath;
use model::install_marker::{InstallMarker, RecordedDisk};
use serde::Serialize;

/// Operation that announces to the control plane that the installation is about to destroy data, and asks for
/// permission to continue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AnnouncePointOfNoReturn {
    /// Id of the allocation.
    pub allocation: String,
    #[serde(with = "common::empty_string_as_none")]
    pub order: Option<String>,
    /// Records of the disks, with the names of the disks in the layout.
    pub disks: Vec<RecordedDisk>,
    /// Extents that the remaining stages may write; empty if no stage writes after this operation.
    #[serde(skip)]
    pub extents: Vec<StageExtents>,
    /// Hash of the approved plan that matches this plan; `None` if the operator has not approved a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
    /// SHA-256 of the secret in the marker of this attempt, as `sha256:HEX`.
    #[serde(skip)]
    pub secret_digest: Option<String>,
}

impl PlannedOperation for AnnouncePointOfNoReturn {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        // If `extents` is empty, no stage writes after this operation: the machine is the target of a migration, and
        // has received all data.
        match self.extents.is_empty() {
            true => "the control plane permits the machine to continue, and records that this machine has received \
                all data"
                .into(),
            false => {
                "the control plane permits the machine to continue, and records that disks are about to change".into()
            }
        }
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that sends the final report of a successful installation to the control plane. The report contains the
/// results of the stages and the fields of this type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FinalReport {
    /// Id of the allocation.
    pub allocation: String,
    #[serde(with = "common::empty_string_as_none")]
    pub order: Option<String>,
    pub message: String,
    /// Marker of an installation that already existed on the disks.
    pub already: Option<InstallMarker>,
    /// Disks that this operation makes unbootable, by wiping both ends of each disk, if the control plane denies the
    /// migration. After a denial, the allocation still belongs to the source machine, which may run the same system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken_back: Vec<DevicePath>,
}

impl PlannedOperation for FinalReport {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        match self.taken_back.as_slice() {
            [] => "acknowledged by the control plane".into(),
            disks => format!(
                "acknowledged by the control plane; if the control plane denies the migration, both ends of {disks} are wiped", disks = join_devices(disks))
            .into(),
        }
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}
