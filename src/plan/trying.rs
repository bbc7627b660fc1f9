//! What is tried before the point of no return: arrays and filesystems whose options only their tool, or the kernel, understands.

use super::returning::mountable;
use super::stages::{Placed, new_filesystem};
use super::{CreateArray, MakeFilesystem, OnDevice, Operation, TryArray, TryFilesystem};
use crate::layout::Format;
use uuid::Uuid;

/// Where the size of a device cannot be said before it is made.
const UNKNOWN_SIZE_BYTES: u64 = 4 << 30;

/// The trial of an array that is made; one without options needs none. `sizes` has the devices that are there, in their order.
pub fn array(made: &CreateArray, sizes: &[Option<u64>], sector_bytes: u32) -> Option<TryArray> {
    if made.createoptions.is_empty() {
        return None;
    }
    let mut sizes = sizes.iter().map(|size| size.unwrap_or(UNKNOWN_SIZE_BYTES));
    let of = |device: &String| if device == "missing" { Some(0) } else { sizes.next() };
    let member_bytes = made.devices.iter().map(of).collect::<Option<_>>()?;
    let uuid = Uuid::from_u128(!made.uuid.as_u128());
    Some(TryArray { make: CreateArray { uuid, ..made.clone() }, member_bytes, sector_bytes })
}

/// Those that are made, and have options. What has none is made as its tool wants it.
pub fn tries(filesystems: &[Placed]) -> Vec<Operation> {
    let made = filesystems.iter().filter(|(_, is)| (!is.keep || is.fill) && is.image_partition.is_none());
    let made = made.filter(|(wanted, _)| wanted.format != Format::None);
    let with_options = made.filter(|(wanted, _)| {
        let mounted = mountable(wanted).is_some() && wanted.mountoptions.iter().any(|option| option != "defaults");
        !wanted.createoptions.is_empty() || mounted || wanted.format == Format::Tmpfs && !wanted.mountoptions.is_empty()
    });
    with_options.map(trial).map(OnDevice::TryFilesystem).map(Operation::Device).collect()
}

fn trial((wanted, is): &Placed) -> TryFilesystem {
    let make = new_filesystem(&(wanted, is));
    let uuid =
        Uuid::try_parse(&make.uuid).map_or(make.uuid.clone(), |uuid| Uuid::from_u128(!uuid.as_u128()).to_string());
    TryFilesystem {
        make: MakeFilesystem { uuid, ..make },
        size_bytes: is.size_bytes.unwrap_or(UNKNOWN_SIZE_BYTES),
        sector_bytes: is.sector_bytes,
        mount: mountable(wanted).map(|_| wanted.mountoptions.clone()),
    }
}
