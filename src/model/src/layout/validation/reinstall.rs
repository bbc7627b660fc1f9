//! Rules for `reinstall: merge`. Files of the image can be added only to a preserved filesystem that is mounted before
//! the image is unpacked.

use super::validation_state::LayoutCheck;
use crate::layout::graph::LayoutGraph;
use crate::layout::preserved_objects::PreservedObjects;
use crate::layout::{FilesystemFormat, FilesystemSpec, Layout, OnReinstall};

pub(super) fn check_reinstall_policies(check: &mut LayoutCheck, layout: &Layout) {
    let graph = LayoutGraph::from_layout(layout);
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        let place = format!("filesystems[{index}].reinstall");
        let format_known = check.is_readable(&format!("filesystems[{index}].format"));
        if filesystem.reinstall == OnReinstall::Merge && format_known {
            check_merge(check, &graph, &place, filesystem);
        }
    }
}

/// Returns the mount point of a filesystem with `reinstall: merge`.
///
/// # Errors
/// Fails if the filesystem does not support a merge. The error is the reason. Other objects of the layout are not
/// considered.
fn find_merge_path(filesystem: &FilesystemSpec) -> Result<&str, String> {
    let path = match (filesystem.format, filesystem.path.as_deref()) {
        (format @ (FilesystemFormat::Swap | FilesystemFormat::None | FilesystemFormat::Tmpfs), _) => {
            return Err(format!(
                "`reinstall: merge` requires a filesystem that can be preserved, but {format} cannot be preserved"
            ));
        }
        (_, None) => return Err("`reinstall: merge` requires a mounted filesystem: set `path`".to_owned()),
        (_, Some("/")) => {
            return Err("`reinstall: merge` is not supported for /, because a reinstall recreates /".to_owned());
        }
        (_, Some(path)) => path,
    };
    match filesystem.is_read_only() {
        true => Err(format!("`reinstall: merge` writes to {path}, but its mountoptions contain ro")),
        false => Ok(path),
    }
}

fn check_merge(check: &mut LayoutCheck, graph: &LayoutGraph, place: &str, filesystem: &FilesystemSpec) {
    let path = match find_merge_path(filesystem) {
        Ok(path) => path,
        Err(message) => return check.report_problem(place, message),
    };
    if !check.are_devices_known() || !check.is_list_readable("disks", "wipeonreinstall") {
        return;
    }
    let layout = graph.layout;
    let preserved = PreservedObjects::from_graph(graph);
    let wiped = |filesystem: &FilesystemSpec| {
        if preserved.includes_filesystem(filesystem) {
            return None;
        }
        let below = graph.objects_below([&filesystem.device]);
        below.disks.into_iter().map(|disk| &layout.disks[disk]).find(|disk| disk.wipeonreinstall)
    };
    if let Some(disk) = wiped(filesystem) {
        let message = format!(
            "`reinstall: merge` requires a preserved filesystem, but {path} is on {disk}, which has wipeonreinstall: true",
            disk = disk.device
        );
        return check.report_problem(place, message);
    }
    let hides = |other: &&FilesystemSpec| {
        let above = other.path.as_deref().filter(|above| *above != "/");
        above.is_some_and(|above| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/')))
            && other.reinstall == OnReinstall::Keep
            && !matches!(other.format, FilesystemFormat::Swap | FilesystemFormat::None | FilesystemFormat::Tmpfs)
            && wiped(other).is_none()
    };
    if let Some(above) = layout.filesystems.iter().find(hides) {
        let above = above.path.as_deref().unwrap_or_default();
        let message = format!(
            "`reinstall: merge` of {path} requires {above} to be mounted before the image is unpacked: also set `reinstall: merge` on {above}"
        );
        check.report_problem(place, message);
    }
}
