//! What is tried before the point of no return: arrays and filesystems whose options only their tool, or the kernel, understands.

use super::placed::{FilesystemFate, New, Placed};
use super::returning::mountable;
use super::stages::new_filesystem;
use super::{CreateArray, MakeFilesystem, Member, OnDevice, Operation, TryArray, TryFilesystem};
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
    let of = |member: &Member| match member {
        Member::Device(_) => sizes.next(),
        Member::Missing => Some(0),
    };
    let member_bytes = made.devices.iter().map(of).collect::<Option<_>>()?;
    let uuid = Uuid::from_u128(!made.uuid.as_u128());
    Some(TryArray { make: CreateArray { uuid, ..made.clone() }, member_bytes, sector_bytes })
}

/// Those that are made, and have options. What has none is made as its tool wants it.
pub fn tries(filesystems: &[Placed]) -> Vec<Operation> {
    let with_options = filesystems.iter().filter(|(wanted, _)| {
        let mounted = mountable(wanted).is_some() && wanted.mountoptions.iter().any(|option| option != "defaults");
        !wanted.createoptions.is_empty() || mounted || wanted.format == Format::Tmpfs && !wanted.mountoptions.is_empty()
    });
    with_options.filter_map(trial).map(OnDevice::TryFilesystem).map(Operation::Device).collect()
}

/// `None`: it is not made.
fn trial((wanted, is): &Placed) -> Option<TryFilesystem> {
    let in_memory = New { device: "tmpfs".to_owned(), uuid: String::new(), size_bytes: None, sector_bytes: 512 };
    let new = match is {
        FilesystemFate::Made(new) | FilesystemFate::Filled(new) => new,
        FilesystemFate::Tmpfs => &in_memory,
        FilesystemFate::Kept { .. } | FilesystemFate::InImage { .. } | FilesystemFate::Unformatted { .. } => {
            return None;
        }
    };
    let make = new_filesystem(wanted, new);
    let uuid =
        Uuid::try_parse(&make.uuid).map_or(make.uuid.clone(), |uuid| Uuid::from_u128(!uuid.as_u128()).to_string());
    Some(TryFilesystem {
        make: MakeFilesystem { uuid, ..make },
        size_bytes: new.size_bytes.unwrap_or(UNKNOWN_SIZE_BYTES),
        sector_bytes: new.sector_bytes,
        mount: mountable(wanted).map(|_| wanted.mountoptions.clone()),
    })
}
