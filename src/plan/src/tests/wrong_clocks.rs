//! Markers with wrong times: the clock of a machine without a battery starts in the past, and a previous user of a
//! disk may have written any time. The time in a marker must not affect any decision to destroy data.

use super::installation_identity::{claim, install, marked, reinstall};
use super::*;
use model::install_marker::{InstallMarker, WipePolicy, lineage};
use model::inventory::FilesystemContents;

const TIMES: [&str; 4] = ["", "1970-01-01T00:00:07Z", "2026-11-01T00:00:00Z", "2099-12-31T23:59:59Z"];

fn promising(marker: &InstallMarker, order: &str, promise: WipePolicy) -> InstallMarker {
    let mut marker = InstallMarker { order: Some(order.to_owned()), ..marker.clone() };
    let data = marker.disks.iter_mut().find(|disk| disk.device == "/dev/sdb").unwrap();
    data.promise = Some(promise);
    marker
}

/// Puts a marker on both filesystems of the system disk. According to the first installation, a reinstall wipes the
/// data disk; according to the second one, it preserves that disk.
fn installed_twice(times: [&str; 2], is_proven: bool) -> Inventory {
    let mut inventory = marked();
    let marker = inventory.filesystems[0].marker.clone().unwrap();
    let (mut old, mut new) =
        (promising(&marker, "o-8", WipePolicy::Wiped), promising(&marker, "o-9", WipePolicy::Kept));
    (old.time, new.time) = (times[0].to_owned(), times[1].to_owned());
    if is_proven {
        new.supersedes = lineage::collect_superseded(std::iter::once(&old));
    }
    inventory.filesystems[0].marker = Some(new);
    inventory.filesystems.push(FilesystemContents {
        device: "/dev/sda1".into(),
        marker: Some(old),
        ..FilesystemContents::default()
    });
    inventory
}

#[test]
fn reinstall_follows_the_marker_that_supersedes_the_other() {
    for old in TIMES {
        for new in TIMES {
            let plan = reinstall(&layout(), &installed_twice([old, new], true), claim());
            let plan = plan.unwrap_or_else(|refusal| panic!("{old} {new}: {refusal}"));
            assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Keep, DiskVerdict::NotOurs], "{old} {new}");
            let refused = reinstall(&layout(), &installed_twice([old, new], false), claim()).unwrap_err().to_string();
            assert!(refused.contains("the markers do not show which one is the newest"), "{old} {new}: {refused}");
        }
    }
}

/// With a single marker, or with a marker of another machine or allocation, no times are compared.
#[test]
fn marker_time_does_not_change_any_verdict() {
    type Change = fn(&mut InstallMarker);
    let changes: [(&str, Change); 3] = [
        ("ours", |_| {}),
        ("another allocation", |marker| marker.allocation = "a-0".to_owned()),
        ("another machine", |marker| marker.machine = "m-0".to_owned()),
    ];
    for (name, change) in changes {
        let decided = TIMES.map(|time| {
            let mut inventory = marked();
            let marker = inventory.filesystems[0].marker.as_mut().unwrap();
            time.clone_into(&mut marker.time);
            change(marker);
            let plans = [reinstall(&layout(), &inventory, claim()), install(&layout(), &inventory, claim())];
            plans.map(|plan| plan.map(|plan| verdicts(&plan)).map_err(|refusal| refusal.problems.len()))
        });
        assert!(decided.iter().all(|one| *one == decided[0]), "{name}: {decided:?}");
    }
}
