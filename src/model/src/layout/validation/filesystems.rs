//! Rules for filesystems, swap areas and their mounts.

use super::validation_state::{DeviceSource, LayoutCheck};
use crate::layout::{FilesystemFormat, FilesystemSpec};

/// PATH_MAX of the kernel, without the closing NUL.
const MAX_PATH_BYTES: usize = 4095;
/// NAME_MAX of the kernel.
const MAX_NAME_BYTES: usize = 255;
/// Label that mkfs.fat writes to a vfat filesystem without a label.
const VFAT_WITHOUT_LABEL: &str = "NO NAME";
/// Characters that mkfs.fat refuses in a label, in addition to control characters.
const NOT_IN_VFAT_LABELS: &str = "*?.,;:/\\|+=<>[]\"";

pub(super) fn check_filesystems(check: &mut LayoutCheck, filesystems: &[FilesystemSpec]) {
    for (index, filesystem) in filesystems.iter().enumerate() {
        let place = format!("filesystems[{index}]");
        let format_known = check.is_readable(&format!("{place}.format"));
        if format_known {
            check_device(check, &place, filesystem);
        }
        check_path(check, &place, filesystem, format_known);
        check_label(check, &place, filesystem, format_known);
        check_options(check, &place, filesystem, format_known);
        if let Some(path) = mount_point(filesystem)
            && let Some(first) = filesystems[..index].iter().position(|other| mount_point(other) == Some(path))
        {
            check.report_problem(
                &format!("{place}.path"),
                format!("path:{path} is already given as filesystems[{first}]"),
            );
        }
    }
    let root = filesystems.iter().any(|filesystem| filesystem.path.as_deref() == Some("/"));
    if !root && check.is_list_readable("filesystems", "path") {
        check.report_problem("filesystems", "no filesystem has the path /, which the image requires");
    }
}

/// Returns the mount point of a filesystem. As in fstab, `none` means that the filesystem is not mounted.
fn mount_point(filesystem: &FilesystemSpec) -> Option<&str> {
    let mounted = !matches!(filesystem.format, FilesystemFormat::Swap | FilesystemFormat::None);
    filesystem.path.as_deref().filter(|path| mounted || *path != "none")
}

fn check_device(check: &mut LayoutCheck, place: &str, filesystem: &FilesystemSpec) {
    let device = &filesystem.device;
    let place = format!("{place}.device");
    if filesystem.format == FilesystemFormat::Tmpfs {
        if device != "tmpfs" {
            check.report_problem(&place, format!("device:{device} is not valid for a tmpfs: write device: tmpfs"));
        }
    } else if let Some(provider) = check.provided.get(device).copied() {
        check.use_device(&place, device);
        if provider == DeviceSource::Volume
            && let Some(path @ ("/boot/efi" | "/efi")) = filesystem.path.as_deref()
        {
            check.report_problem(
                &place,
                format!("device:{device} for {path} is a logical volume, which firmware cannot read"),
            );
        }
    } else if check.are_devices_known() {
        let name = mount_point(filesystem).unwrap_or(filesystem.format.name());
        let message = format!(
            "device:{device} for filesystem:{name} is not configured{suggestion}",
            suggestion = check.suggest_partition_name(device)
        );
        check.report_problem(&place, message);
    }
}

fn check_path(check: &mut LayoutCheck, place: &str, filesystem: &FilesystemSpec, format_known: bool) {
    let format = filesystem.format;
    let path_place = format!("{place}.path");
    let Some(path) = mount_point(filesystem) else {
        if format == FilesystemFormat::Tmpfs {
            check.report_problem(&path_place, "a tmpfs requires a path");
        }
        return;
    };
    if matches!(format, FilesystemFormat::Swap | FilesystemFormat::None) {
        check.report_problem(
            &path_place,
            format!("format {format} cannot be mounted at {path}: remove the field `path`"),
        );
    } else if let Some(message) = find_path_error(path) {
        check.report_problem(&path_place, message);
    } else if format_known && path == "/" && matches!(format, FilesystemFormat::Tmpfs | FilesystemFormat::Vfat) {
        let message = format!("{format} cannot be the root filesystem: use ext4, xfs, btrfs or ext3");
        check.report_problem(&format!("{place}.format"), message);
    }
}

fn find_path_error(path: &str) -> Option<String> {
    let Some(below) = path.strip_prefix('/') else {
        return Some(format!("path:{path} must start with /"));
    };
    let names: Vec<&str> = if below.is_empty() { Vec::new() } else { below.split('/').collect() };
    if names.iter().any(|name| matches!(*name, "" | "." | "..")) {
        return Some(format!("path:{path} must not contain empty parts, . or .."));
    }
    // Blanks are allowed, because they can be escaped in fstab; see getmntent(3).
    if let Some(c) = path.chars().find(|c| *c != ' ' && (c.is_whitespace() || c.is_control() || *c == '\\')) {
        let code = u32::from(c);
        return Some(format!(
            "path:{path} contains U+{code:04X}, which some parsers of fstab do not support: use another path"
        ));
    }
    if path.len() > MAX_PATH_BYTES || names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
        return Some("the path is longer than the kernel allows".to_owned());
    }
    // In the installer's chroot, proc, sysfs and devtmpfs are mounted at these paths.
    matches!(path, "/proc" | "/sys" | "/dev").then(|| format!("path:{path} is reserved for the kernel"))
}

fn check_label(check: &mut LayoutCheck, place: &str, filesystem: &FilesystemSpec, format_known: bool) {
    let Some(label) = &filesystem.label else { return };
    let place = format!("{place}.label");
    let format = filesystem.format;
    // Label sizes in bytes, from ext4(5) (s_volume_name), mkfs.fat(8) and mkswap(8).
    let room = match format {
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => 16,
        FilesystemFormat::Vfat => 11,
        FilesystemFormat::Xfs => 12,
        FilesystemFormat::Btrfs => 255,
        FilesystemFormat::Swap => 15,
        FilesystemFormat::Tmpfs | FilesystemFormat::None => usize::MAX,
    };
    if label.len() > room && format_known {
        check.report_problem(
            &place,
            format!("the label {label} is {bytes} bytes, but {format} is limited to {room}", bytes = label.len()),
        );
    }
    if let Some(c) = label.chars().find(|c| *c != ' ' && (c.is_whitespace() || c.is_control())) {
        check.report_problem(
            &place,
            format!("the label {label} contains the unprintable character U+{code:04X}", code = u32::from(c)),
        );
    }
    if label.starts_with(' ') || label.ends_with(' ') {
        check.report_problem(
            &place,
            format!("the label {label:?} begins or ends with a blank, which the tools would remove"),
        );
    }
    if format == FilesystemFormat::Vfat && !label.is_ascii() {
        let message =
            format!("the label {label} has characters other than ASCII, which mkfs.vfat refuses in the ramdisk");
        check.report_problem(&place, message);
    }
    if format == FilesystemFormat::Vfat && label.eq_ignore_ascii_case(VFAT_WITHOUT_LABEL) {
        check.report_problem(
            &place,
            format!("the label {label} is reserved: it marks a vfat filesystem without a label"),
        );
    }
    if format == FilesystemFormat::Vfat && label.contains(|c| NOT_IN_VFAT_LABELS.contains(c)) {
        check.report_problem(
            &place,
            format!("the label {label} contains one of {NOT_IN_VFAT_LABELS}, which vfat does not allow"),
        );
    }
}

fn check_options(check: &mut LayoutCheck, place: &str, filesystem: &FilesystemSpec, format_known: bool) {
    for (index, option) in filesystem.mountoptions.iter().enumerate() {
        let place = format!("{place}.mountoptions[{index}]");
        if option.is_empty() {
            check.report_problem(&place, "a mount option is empty");
        } else if option.contains(|c: char| c.is_whitespace() || c.is_control() || c == ',' || c == '\\') {
            let message = format!(
                "the mount option {option} contains a blank, comma, backslash or control character: write one option per item"
            );
            check.report_problem(&place, message);
        }
    }
    let place = format!("{place}.createoptions");
    check.check_words(&place, &filesystem.createoptions);
    let words = |word: &String| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control());
    if format_known && filesystem.createoptions.iter().all(words) {
        filesystem.check_options().into_iter().for_each(|message| check.report_problem(&place, message));
    }
}
