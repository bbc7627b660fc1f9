//! Parts of the request that are copied into the operations of an installation, so that the executor needs no lookups.

use super::PlanRequest;
use super::plan_decisions::PlanDecisions;
use model::device_name::DevicePath;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::Inventory;
use operations::{
    AnnouncePointOfNoReturn, BurnDisk, DeviceOp, FinalReport, ImageNeeds, MachineFiles, MakeFilesystem, Operation,
    PlanStage, ResolveImage, SessionOp, StageExtents,
};

/// Returns the operation that queries the image at its download locations. For a raw image, the operation contains the
/// disk to which the image is written.
pub(crate) fn query_image(request: &PlanRequest, burned: &[Operation], needs: Option<ImageNeeds>) -> SessionOp {
    let onto = burned.iter().find_map(raw_image);
    let (name, url) = (request.subject.image.clone(), request.subject.url.clone());
    let image = Box::new(request.assigned.allocation.image.clone());
    SessionOp::ResolveImage(ResolveImage { name, url, image, onto: onto.cloned(), needs })
}

fn raw_image(operation: &Operation) -> Option<&BurnDisk> {
    match operation {
        Operation::Run(SessionOp::BurnDisk(burn)) => Some(burn),
        _ => None,
    }
}

pub(crate) fn announce_start(
    request: &PlanRequest,
    disks: Vec<RecordedDisk>,
    secret_digest: Option<String>,
) -> SessionOp {
    let allocation = &request.assigned.allocation;
    let (order, allocation) = (allocation.order_id().map(str::to_owned), allocation.id.clone());
    let approved = request.assigned.allocation.approved.as_ref().map(|approved| approved.sha256.clone());
    SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn {
        allocation,
        order,
        disks,
        extents: Vec::new(),
        approved,
        secret_digest,
    })
}

/// Copies the plan's extents into the announcement of the point of no return. Called when all stages are known.
pub(crate) fn insert_extents(stages: &mut [PlanStage], all: &[StageExtents]) {
    for operation in stages.iter_mut().flat_map(|stage| &mut stage.operations) {
        if let Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { extents, .. })) = operation {
            *extents = all.to_vec();
        }
    }
}

pub(crate) fn machine_files(
    request: &PlanRequest,
    inventory: &Inventory,
    decided: &PlanDecisions,
    formats: &[Operation],
    root_uuid: &str,
) -> MachineFiles {
    let made = formats.iter().filter_map(new_filesystem).cloned().collect();
    MachineFiles {
        machine: request.subject.machine.clone(),
        assigned: request.assigned.clone(),
        nics: inventory.nics.clone(),
        has_arrays: !decided.arrays.is_empty(),
        made,
        root_uuid: root_uuid.to_owned(),
    }
}

fn new_filesystem(operation: &Operation) -> Option<&MakeFilesystem> {
    match operation {
        Operation::Device(DeviceOp::MakeFilesystem(make)) => Some(make),
        _ => None,
    }
}

/// Returns the operation that reports the successful installation, or the installation that was already on the disks.
/// `made` contains the disks that are wiped if the control plane rejects the report of a successful migration.
pub(crate) fn final_report(request: &PlanRequest, already: Option<&InstallMarker>, made: Vec<DevicePath>) -> SessionOp {
    let allocation = &request.assigned.allocation;
    let message = match (already, request.receiving()) {
        (Some(marker), _) => format!("{image} is already installed; nothing was written", image = marker.image),
        (None, Some(_)) => format!("{image} was received from another machine", image = request.subject.image),
        (None, None) => format!("{} is installed", request.subject.image),
    };
    let (order, allocation) = (allocation.order_id().map(str::to_owned), allocation.id.clone());
    let taken_back = if request.receiving().is_some() { made } else { Vec::new() };
    SessionOp::Report(FinalReport { allocation, order, message, already: already.cloned(), taken_back })
}
