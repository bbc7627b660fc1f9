//! Rules for filesystems, swap areas and their mounts.

use super::{Check, Provider};
use crate::layout::{Filesystem, Format};

/// PATH_MAX and NAME_MAX of the kernel, without the closing NUL.
const MAX_PATH_BYTES: usize = 4095;
const MAX_NAME_BYTES: usize = 255;
/// Characters that mkfs.fat refuses in a label, in addition to control characters.
const NOT_IN_VFAT_LABELS: &str = "*?.,;:/\\|+=<>[]\"";

pub(super) fn check(check: &mut Check, filesystems: &[Filesystem]) {
    for (index, filesystem) in filesystems.iter().enumerate() {
        let place = format!("filesystems[{index}]");
        let format_known = check.known(&format!("{place}.format"));
        if format_known {
            check_device(check, &place, filesystem);
        }
        check_path(check, &place, filesystem, format_known);
        check_label(check, &place, filesystem, format_known);
        check_options(check, &place, filesystem, format_known);
        if let Some(path) = mount_path(filesystem)
            && let Some(first) = filesystems[..index].iter().position(|other| mount_path(other) == Some(path))
        {
            check.report(&format!("{place}.path"), format!("path:{path} is already given as filesystems[{first}]"));
        }
    }
    let root = filesystems.iter().any(|filesystem| filesystem.path.as_deref() == Some("/"));
    if !root && check.all_known("filesystems", "path") {
        check.report("filesystems", "no filesystem has the path /, which the image requires");
    }
}

/// Returns the mount point. `none` means that there is none, as in fstab.
fn mount_path(filesystem: &Filesystem) -> Option<&str> {
    let mounted = !matches!(filesystem.format, Format::Swap | Format::None);
    filesystem.path.as_deref().filter(|path| mounted || *path != "none")
}

fn check_device(check: &mut Check, place: &str, filesystem: &Filesystem) {
    let device = &filesystem.device;
    let place = format!("{place}.device");
    if filesystem.format == Format::Tmpfs {
        if device != "tmpfs" {
            check.report(&place, format!("device:{device} is not valid for a tmpfs: write device: tmpfs"));
        }
    } else if let Some(provider) = check.provided.get(device).copied() {
        check.occupy(&place, device);
        if provider == Provider::Volume
            && let Some(path @ ("/boot/efi" | "/efi")) = filesystem.path.as_deref()
        {
            check.report(&place, format!("device:{device} for {path} is a logical volume, which firmware cannot read"));
        }
    } else if check.all_devices_known() {
        let name = mount_path(filesystem).unwrap_or(filesystem.format.name());
        let message = format!("device:{device} for filesystem:{name} is not configured{}", check.hint(device));
        check.report(&place, message);
    }
}

fn check_path(check: &mut Check, place: &str, filesystem: &Filesystem, format_known: bool) {
    let format = filesystem.format;
    let path_place = format!("{place}.path");
    let Some(path) = mount_path(filesystem) else {
        if format == Format::Tmpfs {
            check.report(&path_place, "a tmpfs requires a path");
        }
        return;
    };
    if matches!(format, Format::Swap | Format::None) {
        check.report(&path_place, format!("format {format} cannot be mounted at {path}: remove path"));
    } else if let Some(message) = path_error(path) {
        check.report(&path_place, message);
    } else if format_known && path == "/" && matches!(format, Format::Tmpfs | Format::Vfat) {
        let message = format!("{format} cannot be the root filesystem: use ext4, xfs, btrfs or ext3");
        check.report(&format!("{place}.format"), message);
    }
}

fn path_error(path: &str) -> Option<String> {
    let Some(below) = path.strip_prefix('/') else {
        return Some(format!("path:{path} must start with /"));
    };
    let names: Vec<&str> = if below.is_empty() { Vec::new() } else { below.split('/').collect() };
    if names.iter().any(|name| matches!(*name, "" | "." | "..")) {
        return Some(format!("path:{path} must not contain empty parts, . or .."));
    }
    // A blank is escaped in fstab; see getmntent(3).
    if let Some(c) = path.chars().find(|c| *c != ' ' && (c.is_whitespace() || c.is_control() || *c == '\\')) {
        let code = u32::from(c);
        return Some(format!(
            "path:{path} contains U+{code:04X}, which some parsers of fstab do not support: use another path"
        ));
    }
    if path.len() > MAX_PATH_BYTES || names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
        return Some("path is longer than the kernel allows".to_owned());
    }
    // The kernel's own filesystems are mounted there in the installer's chroot.
    matches!(path, "/proc" | "/sys" | "/dev").then(|| format!("path:{path} is reserved for the kernel"))
}

fn check_label(check: &mut Check, place: &str, filesystem: &Filesystem, format_known: bool) {
    let Some(label) = &filesystem.label else { return };
    let place = format!("{place}.label");
    let format = filesystem.format;
    // Label sizes in bytes, from ext4(5) (s_volume_name), mkfs.fat(8) and mkswap(8).
    let room = match format {
        Format::Ext3 | Format::Ext4 => 16,
        Format::Vfat => 11,
        Format::Xfs => 12,
        Format::Btrfs => 255,
        Format::Swap => 15,
        Format::Tmpfs | Format::None => usize::MAX,
    };
    if label.len() > room && format_known {
        check.report(&place, format!("the label {label} has {} bytes, but {format} is limited to {room}", label.len()));
    }
    if let Some(c) = label.chars().find(|c| *c != ' ' && (c.is_whitespace() || c.is_control())) {
        check.report(&place, format!("the label {label} contains the unprintable character U+{:04X}", u32::from(c)));
    }
    if label.starts_with(' ') || label.ends_with(' ') {
        check.report(&place, format!("the label {label:?} begins or ends with a blank, which the tools would remove"));
    }
    if format == Format::Vfat && label.contains(|c| NOT_IN_VFAT_LABELS.contains(c)) {
        check.report(
            &place,
            format!("the label {label} contains one of {NOT_IN_VFAT_LABELS}, which vfat does not allow"),
        );
    }
}

fn check_options(check: &mut Check, place: &str, filesystem: &Filesystem, format_known: bool) {
    for (index, option) in filesystem.mountoptions.iter().enumerate() {
        let place = format!("{place}.mountoptions[{index}]");
        if option.is_empty() {
            check.report(&place, "a mount option is empty");
        } else if option.contains(|c: char| c.is_whitespace() || c.is_control() || c == ',' || c == '\\') {
            let message = format!(
                "the mount option {option} contains a blank, comma, backslash or control character: write one option per item"
            );
            check.report(&place, message);
        }
    }
    let place = format!("{place}.createoptions");
    check.words(&place, &filesystem.createoptions);
    let words = |word: &String| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control());
    if format_known && filesystem.createoptions.iter().all(words) {
        filesystem.option_problems().into_iter().for_each(|message| check.report(&place, message));
    }
}
