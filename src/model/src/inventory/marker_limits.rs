//! Size limit of the install markers in an inventory.

use super::{FilesystemContents, Inventory};
use std::cmp::Reverse;

/// Maximum size of all install markers of a machine as JSON, in bytes. The registration contains the markers and must
/// not exceed the size limit of the server, even if a previous tenant has written markers of any size. A marker with
/// thousands of Kubernetes volumes is smaller than 1 MiB.
pub const MARKER_BYTES: usize = 2 << 20;

impl Inventory {
    /// Removes the largest markers until the total size of the remaining markers is at most [`MARKER_BYTES`]. Removed
    /// markers are reported as unreadable, with the reason.
    pub fn limit_markers(&mut self) {
        let size = |filesystem: &FilesystemContents| {
            let json = serde_json::to_vec(filesystem.marker.as_ref()?);
            Some(json.map_or(usize::MAX, |json| json.len()))
        };
        let mut sizes: Vec<(usize, usize)> =
            self.filesystems.iter().enumerate().filter_map(|(index, found)| Some((size(found)?, index))).collect();
        sizes.sort_by_key(|(bytes, index)| Reverse((*bytes, self.filesystems[*index].device.clone())));
        let mut total = sizes.iter().fold(0_usize, |total, (bytes, _)| total.saturating_add(*bytes));
        for (bytes, index) in sizes {
            if total <= MARKER_BYTES {
                break;
            }
            total = total.saturating_sub(bytes);
            self.filesystems[index].marker = None;
            self.filesystems[index].unreadable_marker = Some(format!(
                "the marker of {bytes} bytes cannot be read: all markers of a machine together must not exceed {MARKER_BYTES} bytes"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install_marker::InstallMarker;

    fn inventory(sizes: &[usize]) -> Inventory {
        let filesystem = |(index, bytes): (usize, &usize)| FilesystemContents {
            device: format!("/dev/sda{index}").as_str().into(),
            marker: Some(InstallMarker { image: "i".repeat(*bytes), ..InstallMarker::default() }),
            ..FilesystemContents::default()
        };
        Inventory { filesystems: sizes.iter().enumerate().map(filesystem).collect(), ..Inventory::default() }
    }

    fn readable(sizes: &[usize]) -> Vec<bool> {
        let mut inventory = inventory(sizes);
        inventory.limit_markers();
        for filesystem in &inventory.filesystems {
            assert!(filesystem.marker.is_some() != filesystem.unreadable_marker.is_some(), "{filesystem:?}");
        }
        inventory.filesystems.iter().map(|filesystem| filesystem.marker.is_some()).collect()
    }

    #[test]
    fn markers_of_ordinary_size_remain_readable() {
        assert!(readable(&[]).is_empty());
        assert_eq!(readable(&[3_000, 800_000, 5]), [true; 3]);
    }

    #[test]
    fn the_largest_markers_become_unreadable() {
        assert_eq!(readable(&[2_000_000, 3_000, 1_500_000]), [false, true, true]);
        assert_eq!(readable(&[3_000, 2_100_000]), [true, false]);
        assert_eq!(readable(&[700_000; 4]), [true, true, false, false]);
    }

    #[test]
    fn registration_with_many_large_markers_is_accepted() {
        let mut inventory = inventory(&[MARKER_BYTES - 10_000; 40]);
        inventory.limit_markers();
        assert!(serde_json::to_vec(&inventory).unwrap().len() < 3 << 20);
        assert_eq!(inventory.filesystems.iter().filter(|found| found.unreadable_marker.is_some()).count(), 39);
    }
}
