//! Ranges of physical volumes that a logical volume occupies.

use super::{LvmReportRow, LvmReportSegment, lvm_raid1_copies, parse_number};
use model::inventory::{LvmHiddenVolume, VolumeRange};

/// Returns the ranges that a linear, striped or raid1 volume, or the changes of a snapshot, occupy. The ranges of a
/// raid1 volume include its copies and their superblocks. Returns an empty list for other types, and if a physical
/// volume is missing: the location of the volume is then unknown.
pub(super) fn find_volume_ranges(row: &LvmReportRow, name: &str, kind: &str) -> Vec<VolumeRange> {
    let ranges = match kind {
        "linear" | "striped" | "snapshot" => find_own_ranges(row, name),
        "raid1" => list_raid1_parts(row, name)
            .iter()
            .map(|part| find_own_ranges(row, part))
            .collect::<Option<Vec<_>>>()
            .map(|parts| parts.concat()),
        _ => None,
    };
    ranges.unwrap_or_default()
}

/// Returns the hidden volumes of a group, except those that are parts of visible raid1 volumes.
pub(super) fn find_hidden_volumes(row: &LvmReportRow) -> Vec<LvmHiddenVolume> {
    let is_raid1 = |name: &str| lvm_raid1_copies::find_segments(row, name).any(|segment| segment.segtype == "raid1");
    let visible = row.lv.iter().map(|volume| volume.lv_name.as_str()).filter(|name| !name.starts_with('['));
    let mirrors: Vec<&str> = visible.filter(|name| is_raid1(name)).collect();
    let is_part = |name: &str| {
        let kind = mirrors.iter().find_map(|whole| name.strip_prefix(whole));
        kind.is_some_and(|kind| kind.starts_with("_rimage_") || kind.starts_with("_rmeta_"))
    };
    let hidden = row.lv.iter().filter_map(|volume| {
        let name = volume.lv_name.strip_prefix('[')?.strip_suffix(']')?;
        Some((name, volume)).filter(|_| !is_part(name))
    });
    hidden
        .map(|(name, volume)| LvmHiddenVolume {
            name: name.to_owned(),
            uuid: volume.lv_uuid.clone(),
            size_bytes: parse_number(&volume.lv_size),
            ranges: find_own_ranges(row, name).unwrap_or_default(),
        })
        .collect()
}

/// Returns the names of the hidden volumes of a raid1 volume: `data_rimage_0`, `data_rmeta_0`.
fn list_raid1_parts(row: &LvmReportRow, name: &str) -> Vec<String> {
    let devices = lvm_raid1_copies::find_segments(row, name).map(|segment| segment.devices.as_str());
    let images = devices.flat_map(|devices| devices.split(',')).filter_map(|image| Some(image.rsplit_once('(')?.0));
    images.flat_map(|image| [image.to_owned(), image.replace("_rimage_", "_rmeta_")]).collect()
}

/// Returns the ranges of all segments of a volume; `None` if one of them is unknown, or there is no segment.
fn find_own_ranges(row: &LvmReportRow, name: &str) -> Option<Vec<VolumeRange>> {
    let segments = lvm_raid1_copies::find_segments(row, name);
    let ranges: Vec<Vec<VolumeRange>> =
        segments.map(|segment| find_segment_ranges(row, segment)).collect::<Option<_>>()?;
    Some(ranges.concat()).filter(|ranges| !ranges.is_empty())
}

/// Returns the ranges of a segment: one for each device, with the same number of extents on each device.
fn find_segment_ranges(row: &LvmReportRow, segment: &LvmReportSegment) -> Option<Vec<VolumeRange>> {
    let extent: u64 = parse_number(&row.vg.first()?.vg_extent_size);
    let devices: Vec<&str> = segment.devices.split(',').collect();
    let (extents, count) = (parse_number::<u64>(&segment.seg_size_pe), u64::try_from(devices.len()).ok()?);
    let is_known = ["linear", "striped"].contains(&segment.segtype.as_str()) && extents > 0 && extents % count == 0;
    let size_bytes = (extents / count).checked_mul(extent).filter(|_| is_known)?;
    let range = |device: &&str| {
        let (device, first) = device.strip_suffix(')')?.rsplit_once('(')?;
        let physical = row.pv.iter().find(|physical| physical.pv_name == device && device.starts_with("/dev/"))?;
        let start_bytes =
            first.parse::<u64>().ok()?.checked_mul(extent)?.checked_add(physical.pe_start.parse().ok()?)?;
        Some(VolumeRange { physical: physical.pv_uuid.clone(), start_bytes, size_bytes })
    };
    devices.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the recorded group `vg00`. One of its three physical volumes is missing, unless `replacement` is its
    /// path.
    fn recorded(replacement: Option<&str>) -> LvmReportRow {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/tools/lvm-fullreport-partial.json");
        let text = std::fs::read_to_string(path).unwrap().replace("[unknown]", replacement.unwrap_or("[unknown]"));
        let mut report: super::super::LvmReport = serde_json::from_str(&text).unwrap();
        let index = report.report.iter().position(|row| row.vg.iter().any(|group| group.vg_name == "vg00")).unwrap();
        report.report.remove(index)
    }

    #[test]
    fn ranges_of_recorded_volumes_are_disjoint_and_have_their_sizes() {
        let (row, mib) = (recorded(Some("/dev/vdb")), 1 << 20);
        let of = |name: &str, kind: &str| find_volume_ranges(&row, name, kind);
        let sum = |ranges: &[VolumeRange]| ranges.iter().map(|range| range.size_bytes).sum::<u64>() / mib;
        let volumes = [of("pad", "linear"), of("pad2", "linear"), of("other", "raid1"), of("safe", "raid1")];
        // A raid1 volume has two copies and two superblocks of 4 MiB. A copy of `safe` has two segments.
        assert_eq!(volumes.each_ref().map(|ranges| (ranges.len(), sum(ranges))), [(1, 8), (1, 8), (4, 32), (5, 48)]);
        let mut all: Vec<_> = volumes.concat();
        all.sort_by(|a, b| (&a.physical, a.start_bytes).cmp(&(&b.physical, b.start_bytes)));
        for pair in all.windows(2) {
            let ends = pair[0].start_bytes + pair[0].size_bytes <= pair[1].start_bytes;
            assert!(pair[0].physical != pair[1].physical || ends, "{pair:?}");
        }
        assert!(all.iter().all(|range| range.start_bytes >= mib && range.start_bytes % mib == 0));
        // The parts of the raid1 volumes are not listed again, but those of the raid5 volume are.
        let hidden = find_hidden_volumes(&row);
        assert!(!hidden.is_empty() && hidden.iter().all(|volume| volume.name.starts_with("five_")), "{hidden:?}");
    }

    #[test]
    fn location_is_unknown_for_other_types_and_without_a_physical_volume() {
        let row = recorded(None);
        assert_eq!(find_volume_ranges(&row, "pad", "linear").len(), 1);
        for (name, kind) in [("other", "raid1"), ("safe", "raid1"), ("five", "raid5"), ("absent", "linear")] {
            assert_eq!(find_volume_ranges(&row, name, kind), [], "{name}");
        }
    }

    /// Group `pve` as written by vgcfgrestore, with a thin pool, a snapshot and a cache.
    fn proxmox() -> LvmReportRow {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/tools/lvm-fullreport-thin.json");
        let mut report: super::super::LvmReport =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        report.report.remove(0)
    }

    #[test]
    fn visible_and_hidden_volumes_of_a_group_with_a_thin_pool_occupy_everything_that_is_not_free() {
        let row = proxmox();
        let hidden = find_hidden_volumes(&row);
        let names: Vec<(&str, usize)> =
            hidden.iter().map(|volume| (volume.name.as_str(), volume.ranges.len())).collect();
        let expected = [
            ("data_tdata", 2),
            ("data_tmeta", 1),
            ("disk_corig", 1),
            ("fast_cpool", 0),
            ("fast_cpool_cdata", 1),
            ("fast_cpool_cmeta", 1),
            ("lvol0_pmspare", 1),
        ];
        assert_eq!(names, expected);
        let visible = [
            ("data", "thin-pool"),
            ("vm-100-disk-0", "thin"),
            ("disk", "cache"),
            ("root", "linear"),
            ("swap", "linear"),
            ("iso", "linear"),
            ("iso-before", "snapshot"),
        ];
        let visible = visible.iter().flat_map(|(name, kind)| find_volume_ranges(&row, name, kind));
        let mut all: Vec<VolumeRange> = visible.chain(hidden.into_iter().flat_map(|volume| volume.ranges)).collect();
        all.sort_by_key(|range| range.start_bytes);
        assert!(all.windows(2).all(|pair| pair[0].start_bytes + pair[0].size_bytes <= pair[1].start_bytes), "{all:?}");
        let used: u64 = all.iter().map(|range| range.size_bytes).sum();
        let free: u64 = row.vg[0].vg_free.parse().unwrap();
        assert_eq!(used + free, row.pv[0].pv_size.parse::<u64>().unwrap());
    }
}
