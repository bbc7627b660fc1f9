//! Comparison of the wipe policies in an install marker with those of the layout that the machine would get. After the
//! loss of the database, this comparison prevents the server from mistaking a layout file that was edited after the
//! installation for the installed layout.

use model::install_marker::{InstallMarker, WipePolicy};
use model::layout::{compute_digest, read_json};
use serde_json::Value;

/// Describes the recorded and the new wipe policies if they differ for at least one disk of the layout. Otherwise
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
    let promised = marker.disks.iter().map(|disk| (disk.device.as_str(), disk.promise));
    let wanted = layout.disks.iter().map(|disk| (disk.device.as_str(), Some(disk.wipe_policy())));
    differs.then(|| {
        format!(
            "the machine was installed with layout {layout} ({layout_digest}), with the wipe policies: {wipe_policies}. Layout {new_layout} ({now}) has the wipe policies: {new_policies}", layout = marker.layout, layout_digest = marker.layout_digest.as_deref().unwrap_or_default(), wipe_policies = list_promises(promised), new_layout = layout.id, new_policies = list_promises(wanted))
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

    /// The marker that an installation with this layout leaves.
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
    fn only_a_layout_that_promises_the_same_of_the_same_disks_agrees_with_the_marker() {
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

    #[test]
    fn a_marker_of_before_says_nothing() {
        let now = serde_json::to_value(layout(TWO_DISKS)).unwrap();
        let old = InstallMarker { layout: "default".to_owned(), ..InstallMarker::default() };
        assert_eq!(find_contradiction(&old, &now), None);
    }
}
