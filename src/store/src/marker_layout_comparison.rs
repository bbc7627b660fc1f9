//! Comparison of the wipe policies and the preserved objects in an install marker with those of the layout that the
//! machine would get. After the loss of the database, the layout file may have been edited since the installation. This
//! comparison then prevents the server from treating the edited layout as the installed one.
//!
//! | according to the marker | according to the layout | result |
//! |---|---|---|
//! | the disk is wiped or kept | the opposite | contradiction |
//! | the disk is not recorded | the disk is listed | contradiction |
//! | a partition, array, group or volume is preserved on a wiped disk | it is renewed, or missing | contradiction |
//! | an object is renewed | it is preserved | no contradiction: nothing more is destroyed |

use model::install_marker::{InstallMarker, WipePolicy};
use model::layout::graph::LayoutGraph;
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{compute_digest, read_json};
use serde_json::Value;

/// Returns a description of the recorded and the new wipe policies if they differ for at least one disk of the
/// layout, or if the layout does not preserve an object that must be preserved according to the marker. Otherwise
/// returns `None`. Markers of earlier versions contain no wipe policies, so they never contradict a layout.
pub fn find_contradiction(marker: &InstallMarker, layout: &Value) -> Option<String> {
    let Ok(parsed) = read_json(layout) else {
        return Some(
            "the layout is invalid, so it cannot be checked whether the layout preserves the same disks as before"
                .to_owned(),
        );
    };
    let layout = parsed.layout;
    let now = compute_digest(&layout);
    if marker.layout_digest.as_ref() == Some(&now) || marker.disks.iter().all(|disk| disk.promise.is_none()) {
        return None;
    }
    let differs = layout.disks.iter().any(|listed| {
        let record = marker.disks.iter().find(|record| record.device == listed.device);
        record.and_then(|record| record.promise) != Some(listed.wipe_policy())
    });
    let graph = LayoutGraph::from_layout(&layout);
    let given_up = PreservedObjects::from_graph(&graph).find_given_up(marker);
    let promised = marker.disks.iter().map(|disk| (disk.device.as_str(), disk.promise));
    let wanted = layout.disks.iter().map(|disk| (disk.device.as_str(), Some(disk.wipe_policy())));
    let renewed = match given_up.as_slice() {
        [] => String::new(),
        objects => format!(", and no longer preserves {}", objects.join(", ")),
    };
    (differs || !given_up.is_empty()).then(|| {
        format!(
            "the machine was installed with layout {layout} ({layout_digest}), with the wipe policies: {wipe_policies}. Layout {new_layout} ({now}) has the wipe policies: {new_policies}{renewed}", layout = marker.layout, layout_digest = marker.layout_digest.as_deref().unwrap_or_default(), wipe_policies = list_promises(promised), new_layout = layout.id, new_policies = list_promises(wanted))
    })
}

/// Lists the wipe policies of disks, such as `/dev/sda wiped, /dev/sdb kept`.
fn list_promises<'a>(disks: impl Iterator<Item = (&'a str, Option<WipePolicy>)>) -> String {
    let words = disks.map(|(device, promise)| match promise {
        Some(promise) => format!("{device} {promise}"),
        None => format!("{device} unknown"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Returns the remedies for a contradiction, for the operator.
pub fn contradiction_remedy(machine: &str) -> String {
    format!(
        "restore the old content of the layout file or, to change the wipe policies, run `drophammer machine reinstall {machine} --image IMAGE \
         --change-promise`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_marker::RecordedDisk;
    use model::layout::{Layout, read_yaml};

    const TWO_DISKS: &str = "id: default
disks:
- {device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}
- {device: /dev/sdb, partitions: [{number: 1, label: srv, size: 0, type: GPTLinux}]}
filesystems:
- {path: /, device: /dev/sda1, format: ext4, label: root}
- {path: /srv, device: /dev/sdb1, format: ext4, label: srv}
";

    fn layout(text: &str) -> Layout {
        read_yaml(text).unwrap().layout
    }

    /// Returns the marker that an installation with this layout writes.
    fn marker(layout: &Layout) -> InstallMarker {
        let disks = layout.disks.iter().map(|listed| RecordedDisk {
            device: listed.device.to_string(),
            promise: Some(listed.wipe_policy()),
            ..RecordedDisk::default()
        });
        let (id, layout_digest) = (layout.id.clone(), Some(compute_digest(layout)));
        InstallMarker { layout: id, layout_digest, disks: disks.collect(), ..InstallMarker::default() }
    }

    #[test]
    fn layout_must_match_disks_and_wipe_policies_of_marker() {
        let installed = marker(&layout(TWO_DISKS));
        let says = |text: &str| find_contradiction(&installed, &serde_json::to_value(layout(text)).unwrap());
        assert_eq!(says(TWO_DISKS), None);
        assert_eq!(
            says(&TWO_DISKS.replace("label: srv", "label: data")),
            None,
            "the plan compares all else with the disks"
        );
        let wiped =
            says(&TWO_DISKS.replace("{device: /dev/sdb,", "{device: /dev/sdb, wipeonreinstall: true,")).unwrap();
        assert!(wiped.contains("wipe policies: /dev/sda wiped, /dev/sdb kept. Layout default (sha256:"), "{wiped}");
        assert!(
            wiped.ends_with(" wipe policies: /dev/sda wiped, /dev/sdb wiped")
                && wiped.contains(installed.layout_digest.as_deref().unwrap())
        );
        let more = TWO_DISKS.replace(
            "filesystems:",
            "- {device: /dev/sdc, wipeonreinstall: true, partitions: [{number: 1, label: x, size: 0}]}\nfilesystems:",
        );
        assert!(says(&more).unwrap().ends_with("/dev/sdb kept, /dev/sdc wiped"));
        assert!(says(&TWO_DISKS.replace("sdb", "sdd")).is_some());
        assert!(find_contradiction(&installed, &serde_json::json!({"disks": 7})).is_some());
    }

    const SHARED: &str = "id: shared
constraints: {sizes: [], images: {}}
disks:
- {device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 900}, {number: 2, size: 900}, {number: 3, size: 0}]}
- {device: /dev/sdb, wipeonreinstall: true, partitions: [{number: 1, size: 900}, {number: 2, size: 900}, {number: 3, size: 0}]}
raid:
- {arrayname: /dev/md/data, level: \"1\", devices: [/dev/sda2, /dev/sdb2], preserve: true}
volumegroups:
- {name: vg, devices: [/dev/sda3, /dev/sdb3]}
logicalvolumes:
- {name: root, volumegroup: vg, size: 400, lvmtype: linear}
- {name: home, volumegroup: vg, size: 400, lvmtype: linear, preserve: true}
- {name: opt, volumegroup: vg, size: 0, lvmtype: linear}
filesystems:
- {path: /, device: /dev/vg/root, format: ext4}
- {path: /boot, device: /dev/sda1, format: ext4, preserve: true}
- {path: /srv, device: /dev/md/data, format: xfs}
- {path: /home, device: /dev/vg/home, format: xfs}
- {path: /opt, device: /dev/vg/opt, format: xfs, preserve: true}
";

    /// Returns the marker that an installation with this layout writes, including the preserved objects.
    fn marker_with_objects(text: &str) -> InstallMarker {
        let layout = layout(text);
        let graph = LayoutGraph::from_layout(&layout);
        let objects = PreservedObjects::from_graph(&graph);
        let mut marker = marker(&layout);
        for (record, listed) in marker.disks.iter_mut().zip(&layout.disks) {
            record.preserved = objects.numbers_on(listed);
        }
        InstallMarker { preserved: objects.names_on_renewed_disks(), ..marker }
    }

    /// Returns the objects that the edited layout no longer preserves, as the contradiction lists them.
    fn given_up(marker: &InstallMarker, edited: &str) -> Option<String> {
        let text = find_contradiction(marker, &serde_json::to_value(layout(edited)).unwrap())?;
        Some(text.split_once("no longer preserves ").map_or(text.clone(), |(_, objects)| objects.to_owned()))
    }

    #[test]
    fn a_layout_that_gives_up_a_preserved_object_contradicts_the_marker() {
        let installed = marker_with_objects(SHARED);
        assert_eq!(installed.preserved, ["array /dev/md/data", "volume vg/home", "volume vg/opt"]);
        let without = |text: &str| SHARED.replace(text, &text.replace(", preserve: true", ""));
        for (edited, expected) in [
            (SHARED.to_owned(), None),
            (SHARED.replace("xfs", "ext4"), None),
            (without("/dev/sda1, format: ext4, preserve: true"), Some("partition /dev/sda1")),
            (
                without("devices: [/dev/sda2, /dev/sdb2], preserve: true"),
                Some("partition /dev/sda2, partition /dev/sdb2, array /dev/md/data"),
            ),
            (without("size: 400, lvmtype: linear, preserve: true"), Some("volume vg/home")),
            (without("/dev/vg/opt, format: xfs, preserve: true"), Some("volume vg/opt")),
            // More is preserved than before.
            (SHARED.replace("/dev/sda1, format: ext4, preserve: true", "/dev/sda1, format: xfs, preserve: true"), None),
        ] {
            assert_eq!(given_up(&installed, &edited).as_deref(), expected, "{edited}");
        }
        // Both volumes are no longer preserved, so the group and its partitions are also not preserved.
        let all = without("size: 400, lvmtype: linear, preserve: true")
            .replace("/dev/vg/opt, format: xfs, preserve: true", "/dev/vg/opt, format: xfs");
        let found = given_up(&installed, &all).unwrap();
        assert_eq!(found, "partition /dev/sda3, partition /dev/sdb3, volume vg/home, volume vg/opt");
    }

    #[test]
    fn a_group_that_was_preserved_as_a_whole_is_not_preserved_by_some_of_its_volumes() {
        let whole = SHARED
            .replace("devices: [/dev/sda3, /dev/sdb3]", "devices: [/dev/sda3, /dev/sdb3], preserve: true")
            .replace("- {name: root, volumegroup: vg, size: 400, lvmtype: linear}\n", "")
            .replace("device: /dev/vg/root", "device: /dev/sdb1");
        let installed = marker_with_objects(&whole);
        assert!(installed.preserved.contains(&"group vg".to_owned()), "{:?}", installed.preserved);
        assert_eq!(given_up(&installed, SHARED).unwrap(), "group vg");
        assert_eq!(given_up(&marker_with_objects(SHARED), &whole), None);
    }

    #[test]
    fn a_record_that_is_late_repeated_wrong_or_absent_is_compared_with_what_it_contains() {
        let installed = marker_with_objects(SHARED);
        let nothing = SHARED.replace(", preserve: true", "");
        // The marker was written before the layout preserved objects, or by a version without the field `preserved`.
        let early = marker_with_objects(&nothing);
        assert_eq!((early.preserved.len(), given_up(&early, SHARED)), (0, None));
        let old = InstallMarker { preserved: Vec::new(), ..installed.clone() };
        let found = given_up(&old, &nothing).unwrap();
        assert!(found.starts_with("partition /dev/sda1, ") && !found.contains("volume"), "{found}");
        // The marker lists each object twice. A repeated comparison has the same result.
        let twice = InstallMarker {
            preserved: [installed.preserved.clone(), installed.preserved.clone()].concat(),
            ..installed.clone()
        };
        assert_eq!(given_up(&twice, SHARED), None);
        assert_eq!(given_up(&installed, &nothing), given_up(&installed, &nothing));
        // A marker with an object that no layout defines, and a partition number that no disk has.
        let mut wrong = installed.clone();
        wrong.preserved.push("volume other/x".to_owned());
        wrong.disks[0].preserved.push(99);
        wrong.layout_digest = None;
        assert_eq!(given_up(&wrong, SHARED).as_deref(), Some("partition /dev/sda99, volume other/x"));
        // A layout that does not list the disks of the marker, and a marker without disks.
        let moved = SHARED.replace("/dev/sda", "/dev/sdx");
        assert!(given_up(&installed, &moved).is_some());
        assert_eq!(given_up(&InstallMarker::default(), &nothing), None);
        assert!(find_contradiction(&installed, &serde_json::Value::Null).is_some());
        // A disk that is preserved as a whole also preserves its objects, but contradicts the recorded policy.
        let kept = nothing.replace("wipeonreinstall: true", "wipeonreinstall: false");
        let found = find_contradiction(&installed, &serde_json::to_value(layout(&kept)).unwrap()).unwrap();
        assert!(!found.contains("no longer preserves"), "{found}");
    }

    #[test]
    fn marker_without_disks_contradicts_no_layout() {
        let now = serde_json::to_value(layout(TWO_DISKS)).unwrap();
        let old = InstallMarker { layout: "default".to_owned(), ..InstallMarker::default() };
        assert_eq!(find_contradiction(&old, &now), None);
    }
}
