//! Rules for `preserve: true`. An object can be preserved if everything below it can also be preserved, and if
//! the installation does not need to replace the object.

use super::validation_state::LayoutCheck;
use crate::layout::graph::{LayoutGraph, LayoutItem};
use crate::layout::preserved_objects::PreservedObjects;
use crate::layout::{DiskSpec, FilesystemFormat, FilesystemSpec, Layout, VolumeGroupSpec};

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
            LayoutItem::Group(group) => self.check_group(node, group),
            LayoutItem::Disk(_)
            | LayoutItem::Partition(_)
            | LayoutItem::Array(_)
            | LayoutItem::Volume(_)
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

    /// Returns why a reinstall cannot renew some volumes of a group and preserve the other volumes.
    fn check_group(&self, node: usize, group: &VolumeGroupSpec) -> Option<String> {
        if !self.preserved.is_partly_renewed(node) {
            return None;
        }
        let renewed = self.preserved.renewed_volumes(group);
        let names = renewed.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>().join(", ");
        let below = self.graph.reach_below([node]);
        let preserved_disk = below.into_iter().find_map(|below| match self.graph.nodes[below].item {
            LayoutItem::Disk(disk) if !disk.wipeonreinstall => Some(&disk.device),
            _ => None,
        });
        let name = &group.name;
        if group.encrypted.is_some() {
            return Some(format!(
                "a reinstall would renew {names} and preserve other volumes, which is not supported in an encrypted group: set `preserve: true` on vg:{name}, or place {names} in another group"
            ));
        }
        preserved_disk.map(|disk| {
            format!(
                "a reinstall would renew {names} and preserve other volumes, but vg:{name} uses {disk}, which has wipeonreinstall: false and is not written: set wipeonreinstall: true for {disk}, or `preserve: true` on vg:{name}"
            )
        })
    }

    /// Returns the problem of a preserved object that is directly on a disk, without a partition, if a reinstall wipes
    /// the disk.
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
                "`preserve: true` requires a disk without an image, but {device} has image: true, and a reinstall \
                overwrites this disk completely"
            ),
            false => format!(
                "`preserve: true` would preserve all of {device}, because the disk is not partitioned, but a reinstall wipes this \
                disk: set wipeonreinstall: false for {device}"
            ),
        })
    }

    /// Returns the problem of an array or group that is not preserved, although one of its devices is preserved.
    fn find_mixture(&self, node: usize) -> Option<String> {
        let object = &self.graph.nodes[node];
        let is_mixable = matches!(object.item, LayoutItem::Array(_) | LayoutItem::Group(_));
        let is_whole = match object.item {
            LayoutItem::Group(_) => self.preserved.includes_completely(node),
            _ => self.preserved.includes(node),
        };
        if !is_mixable || is_whole {
            return None;
        }
        let name = |node: &usize| self.graph.nodes[*node].name.as_str();
        // Devices on preserved disks are not considered: the plan refuses objects that span preserved and other disks,
        // and advice reports such layouts. If some volumes of a group are renewed, the physical volumes of the group
        // are preserved, but not completely.
        let includes = |below: usize| match object.item {
            LayoutItem::Group(_) => self.preserved.includes_completely(below),
            _ => self.preserved.includes(below),
        };
        let is_preserved = |below: &&usize| includes(**below) && !self.preserved.is_on_preserved_disks(**below);
        let preserved: Vec<&str> = object.below.iter().filter(is_preserved).map(name).collect();
        let others: Vec<&str> = object.below.iter().filter(|below| !includes(**below)).map(name).collect();
        let (first, preserved, others) = (preserved.first()?, preserved.join(", "), others.join(", "));
        Some(format!(
            "a reinstall preserves {preserved} and renews {others}, but {upper} spans both: set `preserve: true` on \
            {upper}, or remove `preserve: true` from {first}",
            upper = object.name
        ))
    }

    /// Returns the location of an object in the layout document, such as `raid[0]`.
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
    use super::{LayoutGraph, PreservedObjects};
    use crate::install_marker::InstallMarker;
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

    /// Returns the problems of the layout in which `preserve: true` is set on the items that start with these
    /// strings.
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
            &["name: a, volumegroup: vg"],
            &["device: /dev/vg/b"],
            &["name: vg", "name: a, volumegroup: vg"],
        ] {
            assert_eq!(find_problems(marked), none, "{marked:?}");
        }
    }

    #[test]
    fn unlisted_volumes_are_preserved_while_listed_ones_are_renewed() {
        let text = LAYOUT.replace("{name: vg, ", "{name: vg, preserve: unlisted, ");
        let layout = read_yaml(&text).unwrap().layout;
        assert_eq!(read_yaml(&canonical_yaml(&layout)).unwrap().layout, layout);
        assert_eq!(read_json(&serde_json::to_value(&layout).unwrap()).unwrap().layout, layout);
        assert!(canonical_yaml(&layout).contains("preserve: unlisted"));
        let graph = LayoutGraph::from_layout(&layout);
        let preserved = PreservedObjects::from_graph(&graph);
        let renewed = preserved.renewed_volumes(&layout.volumegroups[0]);
        assert_eq!(renewed.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            (preserved.numbers_on(&layout.disks[0]), preserved.numbers_on(&layout.disks[1])),
            (vec![3], vec![3])
        );
        assert_eq!(preserved.names_on_renewed_disks(), ["unlisted volumes of group vg"]);
        // If the layout lists no volumes of the group, the whole group is preserved.
        let none = text.split("logicalvolumes:").next().unwrap().to_owned()
            + "filesystems:\n- {path: /, device: /dev/sda1, format: ext4}\n";
        let layout = read_yaml(&none).unwrap().layout;
        let graph = LayoutGraph::from_layout(&layout);
        assert_eq!(PreservedObjects::from_graph(&graph).names_on_renewed_disks(), ["group vg"]);
        let wrong = text.replace("preserve: unlisted", "preserve: others");
        let found = read_yaml(&wrong).unwrap_err()[0].to_string();
        assert!(found.contains("must be true, false or unlisted, without quotes, but is others"), "{found}");
    }

    #[test]
    fn a_marker_protects_unlisted_volumes() {
        let of = |text: &str, names: &[&str]| {
            let layout = read_yaml(text).unwrap().layout;
            let graph = LayoutGraph::from_layout(&layout);
            let preserved = names.iter().map(|name| (*name).to_owned()).collect();
            PreservedObjects::from_graph(&graph).find_given_up(&InstallMarker { preserved, ..InstallMarker::default() })
        };
        let unlisted = LAYOUT.replace("{name: vg, ", "{name: vg, preserve: unlisted, ");
        let name = "unlisted volumes of group vg";
        assert_eq!(of(LAYOUT, &[name]), [name]);
        for text in [
            unlisted.clone(),
            unlisted.replace("unlisted", "true"),
            LAYOUT.replace("name: a, ", "name: a, preserve: true, "),
        ] {
            assert!(of(&text, &[name]).is_empty(), "{text}");
        }
        assert_eq!(of(&unlisted, &["group vg"]), ["group vg"]);
    }

    #[test]
    fn refuses_mixtures_of_preserved_and_recreated_objects() {
        for (marked, expected) in [
            (&["device: /dev/sda1"][..], "filesystems[0]: /dev/sda1 contains /, which a reinstall replaces"),
            (&["device: tmpfs"], "filesystems[5]: `preserve: true` is not supported for tmpfs"),
            (
                &["device: /dev/sdc, format: ext4"],
                "filesystems[4]: `preserve: true` would preserve all of /dev/sdc, because the disk is not partitioned, but a reinstall wipes this disk: set wipeonreinstall: false",
            ),
            (
                &[
                    "/dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 900}, {number: 2, size: 900}, {number: 3, size: 0",
                ],
                "volumegroups[0]: a reinstall preserves /dev/sda3 and renews /dev/sdb3, but vg spans both: set `preserve: true` on vg",
            ),
            (
                &["/dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 900}, {number: 2, size: 900"],
                "raid[0]: a reinstall preserves /dev/sda2 and renews /dev/sdb2, but /dev/md0 spans both: set `preserve: true` on /dev/md0",
            ),
        ] {
            let problems = find_problems(marked);
            assert_eq!(problems.len(), 1, "{marked:?}: {problems:#?}");
            // The problem begins with line and column, so the expected path is not at its start.
            assert!(problems[0].contains(expected), "{marked:?}: {problems:#?}");
        }
    }

    #[test]
    fn volumes_are_renewed_next_to_preserved_ones_only_in_a_plain_group_on_renewed_disks() {
        let text = LAYOUT.replace("device: /dev/vg/a,", "device: /dev/vg/a, preserve: true,");
        assert!(read_yaml(&text).is_ok());
        let problems =
            |text: &str| -> Vec<String> { read_yaml(text).unwrap_err().iter().map(ToString::to_string).collect() };
        let encrypted = text.replace("{name: vg, ", "{name: vg, encrypted: {key: server}, ");
        let found = problems(&encrypted);
        assert!(
            found.len() == 1
                && found[0]
                    .contains("renew b and preserve other volumes, which is not supported in an encrypted group"),
            "{found:#?}"
        );
        let preserved = text.replace("/dev/sdb, wipeonreinstall: true", "/dev/sdb, wipeonreinstall: false");
        let found = problems(&preserved);
        assert!(
            found.iter().any(|why| why.contains(
                "renew b and preserve other volumes, but vg:vg uses /dev/sdb, which has wipeonreinstall: false"
            )),
            "{found:#?}"
        );
    }

    #[test]
    fn merge_is_permitted_only_for_a_preserved_filesystem() {
        let text = LAYOUT.replace("device: /dev/md0,", "device: /dev/md0, reinstall: merge,");
        assert!(read_yaml(&text).is_err());
        assert!(read_yaml(&text.replace("reinstall: merge,", "reinstall: merge, preserve: true,")).is_ok());
    }
}
