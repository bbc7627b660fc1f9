//! Validation of layouts, independent of a machine.
//!
//! Violations of metal-api's rules are reported with metal-api's messages, because users and scripts rely on these
//! messages. metal-api accepts many layouts whose installation would fail halfway. The additional rules of this module
//! reject these layouts.

mod disks;
mod encryption;
mod filesystems;
mod lvm;
mod preservation;
mod raid;
mod raw_image;
mod reinstall;
mod sizes;
mod validation_state;

pub use sizes::{MIN_BTRFS_MIB, MIN_EXT3_MIB, MIN_XFS_MIB};

use super::{Layout, image_version_constraints};
use common::diagnostic::Diagnostic;
use validation_state::LayoutCheck;

/// Returns all violations of rules. The list is empty if the layout is valid.
pub fn validate_layout(layout: &Layout) -> Vec<Diagnostic> {
    validate_except(layout, &[])
}

/// Validates a layout that could not be parsed completely. Rules that depend on a path in `unread` are skipped.
pub(super) fn validate_except(layout: &Layout, unread: &[String]) -> Vec<Diagnostic> {
    let mut check = LayoutCheck { unread, ..LayoutCheck::default() };
    if layout.id.is_empty() {
        check.report_problem("id", "id should not be empty");
    }
    disks::check_disks(&mut check, &layout.disks);
    raid::check_arrays(&mut check, layout);
    lvm::check_lvm(&mut check, layout);
    filesystems::check_filesystems(&mut check, &layout.filesystems);
    encryption::check_encryption(&mut check, layout);
    reinstall::check_reinstall_policies(&mut check, layout);
    preservation::check_preserve(&mut check, layout);
    raw_image::check_raw_image(&mut check, layout);
    sizes::check_device_sizes(&mut check, layout);
    check_constraints(&mut check, layout);
    check.problems
}

/// Returns whether a path is absolute, normalized, and below `/dev`.
fn is_device_path(device: &str) -> bool {
    device.strip_prefix("/dev/").is_some_and(|name| name.split('/').all(|part| !matches!(part, "" | "." | "..")))
        && !device.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn check_constraints(check: &mut LayoutCheck, layout: &Layout) {
    let constraints = &layout.constraints;
    for (index, size) in constraints.sizes.iter().enumerate() {
        let place = format!("constraints.sizes[{index}]");
        if size.contains('*') {
            check.report_problem(&place, "no wildcard allowed in size constraint");
        } else if size.trim().is_empty() {
            check.report_problem(&place, "a size should not be empty");
        } else if constraints.sizes[..index].contains(size) {
            check.report_problem(&place, format!("size {size} is configured more than once"));
        }
    }
    for (os, constraint) in &constraints.images {
        let place = format!("constraints.images.{os}");
        if os == "*" {
            check.report_problem(&place, "just '*' is not allowed as image os constraint");
        } else if os.trim().is_empty() {
            check.report_problem("constraints.images", "the os of an image constraint should not be empty");
        }
        if let Some(message) = image_version_constraints::find_syntax_error(constraint) {
            check.report_problem(&place, message);
        }
    }
}
