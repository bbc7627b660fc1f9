//! Parts of the request that are copied into the operations of an installation, so that the executor needs no lookups.

use super::verdict::Decided;
use super::{
    BurnDisk, Closing, Extents, MachineFiles, MakeFilesystem, Needs, OfRun, OnDevice, Operation, Request, Stage,
};
use crate::device::DevicePath;
use crate::inventory::Inventory;
use crate::marker::{MarkedDisk, Marker};

/// Returns the operation that queries the image at its locations, with the disk that it is written to if it is a raw image.
pub fn reach(request: &Request, burned: &[Operation], needs: Option<Needs>) -> OfRun {
    let onto = burned.iter().find_map(raw);
    let (name, url) = (request.subject.image.clone(), request.subject.url.clone());
    let image = Box::new(request.assigned.allocation.image.clone());
    OfRun::ReachImage { name, url, image, onto: onto.cloned(), needs }
}

fn raw(operation: &Operation) -> Option<&BurnDisk> {
    match operation {
        Operation::Run(OfRun::BurnDisk(burn)) => Some(burn),
        _ => None,
    }
}

pub fn announce(request: &Request, disks: Vec<MarkedDisk>, secret_digest: Option<String>) -> OfRun {
    let allocation = &request.assigned.allocation;
    let (order, allocation) = (allocation.order_id().map(str::to_owned), allocation.id.clone());
    let approved = request.assigned.allocation.approved.as_ref().map(|approved| approved.sha256.clone());
    OfRun::TellPointOfNoReturn { allocation, order, disks, extents: Vec::new(), approved, secret_digest }
}

/// Copies the extents of the plan into the announcement of the point of no return, once all stages are known.
pub fn extents(stages: &mut [Stage], all: &[Extents]) {
    for operation in stages.iter_mut().flat_map(|stage| &mut stage.operations) {
        if let Operation::Run(OfRun::TellPointOfNoReturn { extents, .. }) = operation {
            *extents = all.to_vec();
        }
    }
}

pub fn files(
    request: &Request,
    inventory: &Inventory,
    decided: &Decided,
    formats: &[Operation],
    root_uuid: &str,
) -> MachineFiles {
    let made = formats.iter().filter_map(made).cloned().collect();
    MachineFiles {
        machine: request.subject.machine.clone(),
        assigned: request.assigned.clone(),
        nics: inventory.nics.clone(),
        has_arrays: !decided.arrays.is_empty(),
        made,
        root_uuid: root_uuid.to_owned(),
    }
}

fn made(operation: &Operation) -> Option<&MakeFilesystem> {
    match operation {
        Operation::Device(OnDevice::MakeFilesystem(make)) => Some(make),
        _ => None,
    }
}

/// Returns the final report of a success: what was installed, or was present already. `made` are the disks that were created for it.
pub fn closing(request: &Request, already: Option<&Marker>, made: Vec<DevicePath>) -> OfRun {
    let allocation = &request.assigned.allocation;
    let message = match (already, request.receiving()) {
        (Some(marker), _) => format!("{} is already installed; nothing was written", marker.image),
        (None, Some(_)) => format!("{} was received from another machine", request.subject.image),
        (None, None) => format!("{} is installed", request.subject.image),
    };
    let (order, allocation) = (allocation.order_id().map(str::to_owned), allocation.id.clone());
    let taken_back = if request.receiving().is_some() { made } else { Vec::new() };
    OfRun::Report(Closing { allocation, order, message, already: already.cloned(), taken_back })
}
