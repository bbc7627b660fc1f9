//! Rules for a disk to which a raw image is written. A layout can mount the partitions of the image and enlarge one
//! filesystem, but cannot change them otherwise.

use super::validation_state::LayoutCheck;
use crate::layout::{DiskSpec, FilesystemFormat, FilesystemSpec, Layout, OnReinstall};

pub(super) fn check_raw_image(check: &mut LayoutCheck, layout: &Layout) {
    let disks: Vec<(usize, &DiskSpec)> = layout.disks.iter().enumerate().filter(|(_, disk)| disk.image).collect();
    for (nth, (index, disk)) in disks.iter().enumerate() {
        check_disk(check, &format!("disks[{index}]"), disk, disks[..nth].first().map(|(first, _)| *first));
    }
    let mut growing = None;
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        let place = format!("filesystems[{index}]");
        let is_inside = layout.disks.iter().any(|disk| disk.image_partition_number(&filesystem.device).is_some());
        if is_inside {
            check_image_filesystem(check, &place, filesystem);
        }
        if filesystem.grow {
            check_grow(check, &place, filesystem, is_inside, growing);
            growing = growing.or(Some(index).filter(|_| is_inside));
        }
        if !disks.is_empty() && filesystem.reinstall == OnReinstall::Merge {
            let message = "`reinstall: merge` is not supported with a raw image, because its files cannot be added to other filesystems";
            check.report_problem(&format!("{place}.reinstall"), message);
        }
    }
    if let [(_, disk)] = disks.as_slice() {
        check_root(check, layout, disk);
    }
}

fn check_disk(check: &mut LayoutCheck, place: &str, disk: &DiskSpec, first: Option<usize>) {
    let device = &disk.device;
    if let Some(first) = first {
        let message =
            format!("device:{device} and disks[{first}] both have image: true, but only one disk can have image: true");
        check.report_problem(&format!("{place}.image"), message);
    }
    if !disk.partitions.is_empty() {
        let message = format!(
            "device:{device} has image: true, and a raw image contains its own partitions: remove the field `partitions`"
        );
        check.report_problem(&format!("{place}.partitions"), message);
    }
    if !disk.wipeonreinstall {
        let message =
            format!("device:{device} has image: true, and every reinstall writes the image: set wipeonreinstall: true");
        check.report_problem(&format!("{place}.wipeonreinstall"), message);
    }
}

/// Checks a filesystem on a partition of the image.
fn check_image_filesystem(check: &mut LayoutCheck, place: &str, filesystem: &FilesystemSpec) {
    let FilesystemSpec { device, format, .. } = filesystem;
    let brought = format!("device:{device} is a partition of the image");
    if matches!(format, FilesystemFormat::Swap | FilesystemFormat::None) {
        let message = format!(
            "{brought}. List only the partitions that the system mounts; {format} cannot be mounted: remove this entry"
        );
        check.report_problem(&format!("{place}.format"), message);
    } else if filesystem.path.is_none() && !filesystem.is_for_seed() {
        check.report_problem(
            &format!("{place}.path"),
            format!("{brought}. List only the partitions that the system mounts: set `path`, or remove this entry"),
        );
    }
    if !filesystem.createoptions.is_empty() {
        check.report_problem(
            &format!("{place}.createoptions"),
            format!("{brought}, so its filesystem is not created by mkfs: remove `createoptions`"),
        );
    }
    if !filesystem.mountoptions.is_empty() {
        let message =
            format!("{brought}, and the image's fstab specifies how the partition is mounted: remove `mountoptions`");
        check.report_problem(&format!("{place}.mountoptions"), message);
    }
}

fn check_grow(
    check: &mut LayoutCheck,
    place: &str,
    filesystem: &FilesystemSpec,
    is_inside: bool,
    first: Option<usize>,
) {
    let FilesystemSpec { device, format, .. } = filesystem;
    let place = format!("{place}.grow");
    if !is_inside {
        if check.are_devices_known() && check.is_list_readable("disks", "image") {
            let message = format!("device:{device} is not a partition of a raw image: grow is not supported");
            check.report_problem(&place, message);
        }
    } else if let Some(first) = first {
        check.report_problem(&place, format!("filesystems[{first}] already takes the remaining space"));
    } else if !matches!(
        format,
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 | FilesystemFormat::Xfs | FilesystemFormat::Btrfs
    ) {
        check.report_problem(&place, format!("{format} cannot be grown: use ext4, xfs, btrfs or ext3"));
    }
}

fn check_root(check: &mut LayoutCheck, layout: &Layout, disk: &DiskSpec) {
    let root = layout.filesystems.iter().position(|filesystem| filesystem.path.as_deref() == Some("/"));
    let Some(root) = root.filter(|root| disk.image_partition_number(&layout.filesystems[*root].device).is_none())
    else {
        return;
    };
    let message = format!(
        "the image is written to {disk}, so the device of / must be a partition of this disk, but is {device}",
        disk = disk.device,
        device = layout.filesystems[root].device
    );
    check.report_problem(&format!("filesystems[{root}].device"), message);
}
