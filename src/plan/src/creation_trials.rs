//! Trials before the point of no return, for arrays and filesystems whose options can be checked only by the tool or
//! the kernel.

use super::filesystem_fate::{FilesystemFate, NewFilesystem, PlacedFilesystem, new_filesystem};
use super::planned_devices::DeviceSize;
use super::preserved_activation::mount_path;
use model::image_boot_contents::{LinuxVersion, parse_linux_version};
use model::layout::FilesystemFormat;
use operations::{
    ArraySlot, CreateArray, DeviceOp, InitialVolumeContent, MakeFilesystem, MountingKernel, Operation, TryArray,
    TryFilesystem,
};
use uuid::Uuid;

/// First size that is tried, in bytes, if the size of a device is unknown until the device is created.
const GUESS_BYTES: u64 = 4 << 30;

/// Smallest size that is tried after [`GUESS_BYTES`], in bytes.
const MINIMUM_ESTIMATE_BYTES: u64 = 64 << 20;
/// Factor between one estimate and the next. A tool accepts or refuses an option for whole ranges of sizes. The largest
/// size in each range is more than this factor times the smallest one, so each range contains at least one estimate.
const GUESS_STEP: u64 = 4;

/// Returns the sizes to try for a device of this size, in order. If a tool accepts an option for the real size, it also
/// accepts the option for at least one of these sizes.
fn size_estimates(size: DeviceSize) -> (u64, Vec<u64>) {
    let most_bytes = match size {
        DeviceSize::Known(bytes) => return (bytes, Vec::new()),
        DeviceSize::AtMost(bytes) => bytes,
    };
    let first = GUESS_BYTES.min(most_bytes);
    let steps = std::iter::successors(Some(MINIMUM_ESTIMATE_BYTES), |bytes| bytes.checked_mul(GUESS_STEP));
    let steps = steps.take_while(|bytes| *bytes < most_bytes).chain([most_bytes]);
    let mut others: Vec<u64> = steps.filter(|bytes| *bytes != first).collect();
    others.reverse();
    (first, others)
}

/// Returns the trial of a new array. `sizes` contains the sizes of the present devices, in order. Returns `None` for an
/// array that has metadata 1.0 or 1.2 and no create options.
pub(crate) fn array_trial(made: &CreateArray, sizes: &[DeviceSize], sector_bytes: u32) -> Option<TryArray> {
    if made.createoptions.is_empty() && ["1.0", "1.2"].contains(&made.metadata.as_str()) {
        return None;
    }
    // One list of estimates is used for all devices of unknown size. It is made for the largest of these devices.
    let of_largest =
        sizes.iter().copied().filter(|size| matches!(size, DeviceSize::AtMost(_))).max_by_key(|size| size.max_bytes());
    let (first, others) = size_estimates(of_largest.unwrap_or(DeviceSize::Known(0)));
    let members = |guess: u64| -> Option<Vec<u64>> {
        let mut sizes = sizes.iter().map(|size| match size {
            DeviceSize::Known(bytes) => *bytes,
            DeviceSize::AtMost(most) => guess.min(*most),
        });
        let of = |member: &ArraySlot| match member {
            ArraySlot::Device(_) => sizes.next(),
            ArraySlot::Missing => Some(0),
        };
        made.devices.iter().map(of).collect()
    };
    let (member_bytes, or_member_bytes) = (members(first)?, others.into_iter().filter_map(members).collect());
    let uuid = Uuid::from_u128(!made.uuid.as_u128());
    Some(TryArray { make: CreateArray { uuid, ..made.clone() }, member_bytes, or_member_bytes, sector_bytes })
}

/// First version of Linux that supports all features that mkfs in the ramdisk enables by default.
const FIRST_SUPPORTED_KERNEL: LinuxVersion = (5, 10);

/// Returns the trials of filesystems. A filesystem is tried if it is created on a preserved device, if it has create
/// options or mount options, or if the image that mounts it has an old kernel. All other filesystems are created with
/// the tool's defaults, which need no trial.
pub(crate) fn filesystem_trials(filesystems: &[PlacedFilesystem], kernel: Option<&str>) -> Vec<Operation> {
    let is_old = kernel.and_then(parse_linux_version).is_some_and(|version| version < FIRST_SUPPORTED_KERNEL);
    let tried = filesystems.iter().filter(|(wanted, is)| {
        let mounted = mount_path(wanted).is_some() && wanted.mountoptions.iter().any(|option| option != "defaults");
        is.as_filled().is_some()
            || !wanted.createoptions.is_empty()
            || mounted
            || is_old && mount_path(wanted).is_some()
            || wanted.format == FilesystemFormat::Tmpfs && !wanted.mountoptions.is_empty()
    });
    let trials = tried.filter_map(|placed| filesystem_trial(placed, kernel));
    trials.map(DeviceOp::TryFilesystem).map(Operation::Device).collect()
}

/// Returns the trial of a Kubernetes volume's filesystem. Such a trial is made if the volume is added to a preserved
/// object, or if its storage class specifies options.
pub(crate) fn volume_trial(
    filling: &InitialVolumeContent,
    size: DeviceSize,
    sector_bytes: u32,
    extends: bool,
) -> Option<TryFilesystem> {
    let InitialVolumeContent::Filesystem(make) = filling else { return None };
    if make.createoptions.is_empty() && !extends {
        return None;
    }
    let uuid = invert_uuid(&make.uuid);
    let (size_bytes, or_size_bytes) = size_estimates(size);
    Some(TryFilesystem {
        make: MakeFilesystem { uuid, ..make.clone() },
        size_bytes,
        or_size_bytes,
        sector_bytes,
        mount: None,
        mounted_by: None,
    })
}

fn invert_uuid(uuid: &str) -> String {
    Uuid::try_parse(uuid).map_or(uuid.to_owned(), |uuid| Uuid::from_u128(!uuid.as_u128()).to_string())
}

/// Returns the trial of a filesystem; `None` if the filesystem is not created.
fn filesystem_trial((wanted, is): &PlacedFilesystem, kernel: Option<&str>) -> Option<TryFilesystem> {
    let in_memory =
        NewFilesystem { device: "tmpfs".into(), uuid: String::new(), size: DeviceSize::Known(0), sector_bytes: 512 };
    let new = match is {
        FilesystemFate::Created(new) | FilesystemFate::Filled(new) => new,
        FilesystemFate::Tmpfs => &in_memory,
        FilesystemFate::Preserved { .. } | FilesystemFate::InImage { .. } | FilesystemFate::Unformatted { .. } => {
            return None;
        }
    };
    let make = new_filesystem(wanted, new);
    let uuid = invert_uuid(&make.uuid);
    let (size_bytes, or_size_bytes) = size_estimates(new.size);
    Some(TryFilesystem {
        make: MakeFilesystem { uuid, ..make },
        size_bytes,
        or_size_bytes,
        sector_bytes: new.sector_bytes,
        mount: mount_path(wanted).map(|_| wanted.mountoptions.clone()),
        mounted_by: mount_path(wanted)
            .zip(kernel)
            .map(|(path, version)| MountingKernel { version: version.to_owned(), path: path.to_owned() }),
    })
}
