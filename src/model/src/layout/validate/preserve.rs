//! Rules for `preserve: true`. An object can be preserved if everything below it can be preserved too, and if the
//! installation does not need to replace it.

use super::validation_state::LayoutCheck;
use crate::layout::graph::{LayoutGraph, LayoutItem};
use crate::layout::preserved_objects::PreservedObjects;
use crate::layout::{DiskSpec, FilesystemFormat, FilesystemSpec, Layout};

pub(super) fn check_preserve(check: &mut LayoutCheck, layout: &Layout) {
    let is_readable = ["disks", "raid", "volumegroups", "logicalvolumes", "filesystems"]
        .iter()
        .all(|list| check.is_list_readable(list, "preserve") && check.is_list_readable(list, "devices"));
    if !is_readable || !check.are_devices_known() || !check.is_list_readable("disks", "wipeonreinstall") {
        return;
    }
    let graph = LayoutGraph::from_layout(layout);
    let rules = PreserveRules { layout, graph: &graph, preserved: PreservedObjects::from_graph(&graph) };
    for (node, object) in graph.nodes.iter().enumerate() {
        let problems = [rules.find_whole_disk(node), rules.find_mixture(node), rules.check_item(node, object.item)];
        for message in problems.into_iter().flatten() {
            check.report_problem(&rules.locate(object.item), message);
        }
    }
}

struct PreserveRules<'g, 'a> {
    layout: &'a Layout,
    graph: &'g LayoutGraph<'a>,
    preserved: PreservedObjects<'g, 'a>,
}

impl PreserveRules<'_, '_> {
    /// Returns why the object of a node cannot be preserved, apart from the objects below it.
    fn check_item(&self, node: usize, item: LayoutItem) -> Option<String> {
        match item {
            LayoutItem::Filesystem(filesystem) => self.check_filesystem(node, filesystem),
            LayoutItem::Volume(volume) => self.check_volume(node, &volume.volumegroup),
            LayoutItem::Disk(_)
            | LayoutItem::Partition(_)
            | LayoutItem::Array(_)
            | LayoutItem::Group(_)
            | LayoutItem::Missing => None,
        }
    }

    fn check_filesystem(&self, node: usize, filesystem: &FilesystemSpec) -> Option<String> {
        if filesystem.preserve && filesystem.format == FilesystemFormat::Tmpfs {
            return Some("`preserve: true` is not supported for tmpfs, which is recreated at every boot".to_owned());
        }
        let is_root = filesystem.path.as_deref() == Some("/");
        let is_refused = is_root && self.preserved.includes(node) && !self.preserved.is_on_preserved_disks(node);
        is_refused.then(|| {
            format!(
                "{device} contains /, which a reinstall replaces, but `preserve: true` is set on {device}, or on an object above or below it: remove `preserve: true` there",
                device = filesystem.device
            )
        })
    }

    fn check_volume(&self, node: usize, group: &str) -> Option<String> {
        let is_group_preserved = self.graph.nodes[node].below.iter().all(|below| self.preserved.includes(*below));
        (self.preserved.includes(node) && !is_group_preserved).then(|| {
            format!(
                "a volume can be preserved only together with all other volumes of its group: set `preserve: true` on vg:{group}, or place the other volumes in another group"
            )
        })
    }

    /// Returns the problem of an object that is preserved, but is on a whole disk that a reinstall wipes.
    fn find_whole_disk(&self, node: usize) -> Option<String> {
        let object = &self.graph.nodes[node];
        if !self.preserved.includes(node) || matches!(object.item, LayoutItem::Disk(_) | LayoutItem::Partition(_)) {
            return None;
        }
        let disk = object.below.iter().find_map(|below| match self.graph.nodes[*below].item {
            LayoutItem::Disk(disk) if disk.wipeonreinstall => Some(disk),
            _ => None,
        })?;
        let DiskSpec { device, image, .. } = disk;
        Some(match image {
            true => format!(
                "`preserve: true` requires a disk without an image, but {device} has image: true, and a reinstall overwrites it completely"
            ),
            false => format!(
                "`preserve: true` applies to all of {device}, which is used as a whole: set wipeonreinstall: false for {device}"
            ),
        })
    }

    /// Returns the problem of an array or group that is not preserved, although one of its devices is.
    fn find_mixture(&self, node: usize) -> Option<String> {
        let object = &self.graph.nodes[node];
        let is_mixable = matches!(object.item, LayoutItem::Array(_) | LayoutItem::Group(_));
        if !is_mixable || self.preserved.includes(node) {
            return None;
        }
        let name = |node: &usize| self.graph.nodes[*node].name.as_str();
        // A mixture of preserved disks and other disks is refused by the plan, and reported as advice.
        let is_kept =
            |below: &&usize| self.preserved.includes(**below) && !self.preserved.is_on_preserved_disks(**below);
        let kept: Vec<&str> = object.below.iter().filter(is_kept).map(name).collect();
        let others: Vec<&str> =
            object.below.iter().filter(|below| !self.preserved.includes(**below)).map(name).collect();
        let (first, kept, others) = (kept.first()?, kept.join(", "), others.join(", "));
        Some(format!(
            "a reinstall preserves {kept} and renews {others}, but {upper} spans both: set `preserve: true` on {upper}, or remove it from {first}",
            upper = object.name
        ))
    }

    /// Returns the path of an object in the layout.
    fn locate(&self, item: LayoutItem) -> String {
        let layout = self.layout;
        match item {
            LayoutItem::Array(array) => format_place("raid", &layout.raid, array),
            LayoutItem::Group(group) => format_place("volumegroups", &layout.volumegroups, group),
            LayoutItem::Volume(volume) => format_place("logicalvolumes", &layout.logicalvolumes, volume),
            LayoutItem::Filesystem(filesystem) => format_place("filesystems", &layout.filesystems, filesystem),
            LayoutItem::Disk(_) | LayoutItem::Partition(_) | LayoutItem::Missing => "disks".to_owned(),
        }
    }
}

fn format_place<T>(list: &str, items: &[T], item: &T) -> String {
    let index = items.iter().position(|other| std::ptr::eq(other, item)).unwrap_or_default();
    format!("{list}[{index}]")
}

#[cfg(test)]
mod tests {
    use crate::layout::{canonical_yaml, read_json, read_yaml};

    const LAYOUT: &str = "id: x
constraints: {sizes: [], images: {}}
disks:
- {device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 900}, {number: 2, size: 900}, {number: 3, size: 0}]}
- {device: /dev/sdb, wipeonreinstall: true, partitions: [{number: 1, size: 900}, {number: 2, size: 900}, {number: 3, size: 0}]}
- {device: /dev/sdc, wipeonreinstall: true}
raid:
- {arrayname: /dev/md0, level: \"1\", devices: [/dev/sda2, /dev/sdb2]}
volumegroups:
- {name: vg, devices: [/dev/sda3, /dev/sdb3]}
logicalvolumes:
- {name: a, volumegroup: vg, size: 400, lvmtype: linear}
- {name: b, volumegroup: vg, size: 0, lvmtype: linear}
filesystems:
- {path: /, device: /dev/sda1, format: ext4}
- {path: /srv, device: /dev/md0, format: ext4}
- {path: /a, device: /dev/vg/a, format: ext4}
- {path: /b, device: /dev/vg/b, format: ext4}
- {path: /c, device: /dev/sdc, format: ext4}
- {path: /tmp, device: tmpfs, format: tmpfs}
";

    /// Returns the problems of the layout in which `preserve: true` is set on the items that start with these texts.
    fn find_problems(marked: &[&str]) -> Vec<String> {
        let mut text = LAYOUT.to_owned();
        for start in marked {
            assert_eq!(text.matches(start).count(), 1, "{start}");
            text = text.replacen(start, &format!("{start}, preserve: true"), 1);
        }
        match read_yaml(&text) {
            Ok(parsed) => {
                let again = read_yaml(&canonical_yaml(&parsed.layout)).unwrap();
                assert_eq!(again.layout, parsed.layout);
                assert!(again.notes.is_empty());
                assert_eq!(read_json(&serde_json::to_value(&parsed.layout).unwrap()).unwrap().layout, parsed.layout);
                assert_eq!(canonical_yaml(&parsed.layout).matches("preserve: true").count(), marked.len());
                Vec::new()
            }
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn objects_are_preserved_with_everything_below_them() {
        let none: [&str; 0] = [];
        for marked in [
            &[][..],
            &["arrayname: /dev/md0"],
            &["device: /dev/md0"],
            &["name: vg"],
            &["name: a, volumegroup: vg", "device: /dev/vg/b"],
            &["name: vg", "name: a, volumegroup: vg"],
        ] {
            assert_eq!(find_problems(marked), none, "{marked:?}");
        }
    }

    #[test]
    fn mixtures_of_preserved_and_renewed_parts_are_refused() {
        for (marked, expected) in [
            (&["device: /dev/sda1"][..], "filesystems[0]: /dev/sda1 contains /, which a reinstall replaces"),
            (&["device: tmpfs"], "filesystems[5]: `preserve: true` is not supported for tmpfs"),
            (
                &["device: /dev/sdc, format: ext4"],
                "filesystems[4]: `preserve: true` applies to all of /dev/sdc, which is used as a whole: set wipeonreinstall: false",
            ),
            (
                &["device: /dev/vg/a"],
                "logicalvolumes[0]: a volume can be preserved only together with all other volumes of its group",
            ),
            (
                &["/dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 900}, {number: 2, size: 900"],
                "raid[0]: a reinstall preserves /dev/sda2 and renews /dev/sdb2, but /dev/md0 spans both: set `preserve: true` on /dev/md0",
            ),
        ] {
            let problems = find_problems(marked);
            assert_eq!(problems.len(), 1, "{marked:?}: {problems:#?}");
            // Line and column precede the path.
            assert!(problems[0].contains(expected), "{marked:?}: {problems:#?}");
        }
    }

    #[test]
    fn files_are_merged_into_a_preserved_filesystem_only() {
        let text = LAYOUT.replace("device: /dev/md0,", "device: /dev/md0, reinstall: merge,");
        assert!(read_yaml(&text).is_err());
        assert!(read_yaml(&text.replace("reinstall: merge,", "reinstall: merge, preserve: true,")).is_ok());
    }
}
