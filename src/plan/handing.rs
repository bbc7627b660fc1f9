//! What the operations of an installation carry of its request: the executor looks nothing up.

use super::verdict::Decided;
use super::{
    BurnDisk, Closing, Extents, MachineFiles, MakeFilesystem, Needs, OfRun, OnDevice, Operation, Request, Stage,
};
use crate::device::DevicePath;
use crate::inventory::Inventory;
use crate::marker::{MarkedDisk, Marker};

/// The image with all its places, and the disk that takes it when it is a raw one.
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

/// They are known when all stages are.
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

/// The words of a success: what was installed, or what was there. These disks were made for it.
pub fn closing(request: &Request, already: Option<&Marker>, made: Vec<DevicePath>) -> OfRun {
    let allocation = &request.assigned.allocation;
    let message = match (already, request.receiving()) {
        (Some(marker), _) => format!("{} is installed already; nothing was written", marker.image),
        (None, Some(_)) => format!("{} was received from another machine", request.subject.image),
        (None, None) => format!("{} is installed", request.subject.image),
    };
    let (order, allocation) = (allocation.order_id().map(str::to_owned), allocation.id.clone());
    let taken_back = if request.receiving().is_some() { made } else { Vec::new() };
    OfRun::Report(Closing { allocation, order, message, already: already.cloned(), taken_back })
}
