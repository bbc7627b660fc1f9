//! Rules for a disk that a raw image is written onto: what the image brings is mounted as it is.

use super::Check;
use crate::layout::{Disk, Filesystem, Format, Layout, OnReinstall};

pub(super) fn check(check: &mut Check, layout: &Layout) {
    let disks: Vec<(usize, &Disk)> = layout.disks.iter().enumerate().filter(|(_, disk)| disk.image).collect();
    for (nth, (index, disk)) in disks.iter().enumerate() {
        check_disk(check, &format!("disks[{index}]"), disk, disks[..nth].first().map(|(first, _)| *first));
    }
    let mut growing = None;
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        let place = format!("filesystems[{index}]");
        let is_inside = layout.disks.iter().any(|disk| disk.image_partition(&filesystem.device).is_some());
        if is_inside {
            check_inside(check, &place, filesystem);
        }
        if filesystem.grow {
            check_grow(check, &place, filesystem, is_inside, growing);
            growing = growing.or(Some(index).filter(|_| is_inside));
        }
        if !disks.is_empty() && filesystem.reinstall == OnReinstall::Merge {
            let message = "reinstall: merge adds the image's files, and a raw image has none for other filesystems";
            check.report(&format!("{place}.reinstall"), message);
        }
    }
    if let [(_, disk)] = disks.as_slice() {
        check_root(check, layout, disk);
    }
}

fn check_disk(check: &mut Check, place: &str, disk: &Disk, first: Option<usize>) {
    let device = &disk.device;
    if let Some(first) = first {
        let message = format!("device:{device} takes the image, and so does disks[{first}]: only one disk can");
        check.report(&format!("{place}.image"), message);
    }
    if !disk.partitions.is_empty() {
        let message = format!("device:{device} takes a raw image, which brings its own: leave partitions out");
        check.report(&format!("{place}.partitions"), message);
    }
    if !disk.wipeonreinstall {
        let message = format!("device:{device} takes the image at every reinstall: say wipeonreinstall: true");
        check.report(&format!("{place}.wipeonreinstall"), message);
    }
}

/// A filesystem that the image brings.
fn check_inside(check: &mut Check, place: &str, filesystem: &Filesystem) {
    let Filesystem { device, format, .. } = filesystem;
    let brought = format!("device:{device} is a partition of the image");
    if matches!(format, Format::Swap | Format::None) {
        let message = format!("{brought}: only what is mounted is listed, and {format} is not");
        check.report(&format!("{place}.format"), message);
    } else if filesystem.path.is_none() && !filesystem.is_for_seed() {
        check.report(&format!("{place}.path"), format!("{brought}: only what is mounted is listed, give it a path"));
    }
    if !filesystem.createoptions.is_empty() {
        check.report(&format!("{place}.createoptions"), format!("{brought}, and is not made anew"));
    }
    if !filesystem.mountoptions.is_empty() {
        let message = format!("{brought}, whose own fstab says how it is mounted");
        check.report(&format!("{place}.mountoptions"), message);
    }
}

fn check_grow(check: &mut Check, place: &str, filesystem: &Filesystem, is_inside: bool, first: Option<usize>) {
    let Filesystem { device, format, .. } = filesystem;
    let place = format!("{place}.grow");
    if !is_inside {
        if check.all_devices_known() && check.all_known("disks", "image") {
            let message = format!("device:{device} is no partition of a raw image: only those grow");
            check.report(&place, message);
        }
    } else if let Some(first) = first {
        check.report(&place, format!("filesystems[{first}] takes all that is left already"));
    } else if !matches!(format, Format::Ext3 | Format::Ext4 | Format::Xfs | Format::Btrfs) {
        check.report(&place, format!("{format} does not grow: use ext4, xfs, btrfs or ext3"));
    }
}

fn check_root(check: &mut Check, layout: &Layout, disk: &Disk) {
    let root = layout.filesystems.iter().position(|filesystem| filesystem.path.as_deref() == Some("/"));
    let Some(root) = root.filter(|root| disk.image_partition(&layout.filesystems[*root].device).is_none()) else {
        return;
    };
    let message = format!(
        "the image goes onto {}: / must be one of its partitions, and is {}",
        disk.device, layout.filesystems[root].device
    );
    check.report(&format!("filesystems[{root}].device"), message);
}
