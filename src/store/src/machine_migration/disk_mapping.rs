//! Assignment of the target machine's disks to the disk names of the layout. If the migration order assigns disks, it
//! must assign one to every disk name. Otherwise, disks with the same names or matching hints are assigned. If a name
//! is left without a disk, all disks that are neither removable nor attached by USB are assigned in the order of their
//! names instead; the number of these disks must equal the number of names. The module performs no I/O.

use common::format::{format_bytes, natural_sort_key};
use model::install_marker::RecordedDisk;
use model::inventory::InventoryDisk as Found;
use model::layout::root_device_hints::{explain_differences, find_candidates, is_portable};
use model::layout::{DiskSpec, Layout};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the disk of the target machine for each disk name in the layout. `requested` contains the assignments in the
/// migration order, by disk name in the layout.
///
/// # Errors
/// Returns all problems of the assignment.
pub fn map_disks(
    layout: &Layout,
    found: &[Found],
    requested: &BTreeMap<String, String>,
) -> Result<Vec<RecordedDisk>, Vec<String>> {
    let names: BTreeSet<&str> = layout.disks.iter().map(|disk| disk.device.as_str()).collect();
    let unknown = requested.keys().filter(|name| !names.contains(name.as_str()));
    let unknown = unknown.map(|name| format!("layout {layout} does not list disk {name}", layout = layout.id));
    let mut problems: Vec<String> = unknown.collect();
    let by_rule = if requested.is_empty() { map_by_rule(&layout.disks, found) } else { BTreeMap::new() };
    let mut pairs: Vec<(&str, &Found)> = Vec::new();
    for name in names {
        let disk = match requested.get(name) {
            Some(wanted) => find_disk(found, wanted).map_err(|why| problems.push(why)).ok(),
            None => by_rule.get(name).copied(),
        };
        match disk {
            Some(disk) => pairs.push((name, disk)),
            None if requested.contains_key(name) => {}
            None => problems.push(format!("no disk of the machine is assigned to {name}")),
        }
    }
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, disk) in &pairs {
        if let Some(other) = taken.insert(disk.device.as_str(), name) {
            problems.push(format!("{disk} cannot be assigned to both {other} and {name}", disk = disk.device.as_str()));
        }
        let hints = layout.disks.iter().find(|listed| listed.device.as_str() == *name).map(|listed| &listed.hints);
        let hints = hints.filter(|hints| !hints.is_empty());
        let differs = hints.map(|hints| explain_differences(hints, disk)).unwrap_or_default();
        if !differs.is_empty() {
            let device = disk.device.as_str();
            problems.push(format!(
                "the layout identifies {name} by hints, which {device} does not match ({differences}): every later reinstall would be refused", differences = differs.join(", ")));
        }
        if disk.read_only {
            problems.push(format!("{} is read-only", disk.device.as_str()));
        }
    }
    if problems.is_empty() {
        return Ok(pairs.into_iter().map(|(name, disk)| to_marked_disk(name, disk)).collect());
    }
    problems.push(list_choices(layout, found));
    Err(problems)
}

/// Assigns disks of the machine to the disk names of the layout, by equal name or by matching hints. If a name is
/// left without a disk, assigns all disks that are neither removable nor attached by USB in the order of their names
/// instead. Returns an empty map if the number of these disks differs from the number of names.
fn map_by_rule<'a>(listed: &'a [DiskSpec], found: &'a [Found]) -> BTreeMap<&'a str, &'a Found> {
    let same = |disk: &'a DiskSpec| {
        let name = disk.device.as_str();
        if !disk.hints.is_empty() {
            let [one] = find_candidates(&disk.hints, found)[..] else { return None };
            return Some((name, one));
        }
        Some((name, found.iter().find(|found| found.has_path(name))?))
    };
    let by_name: BTreeMap<&str, &Found> = listed.iter().filter_map(same).collect();
    if by_name.len() == listed.len() {
        return by_name;
    }
    let mut fixed: Vec<&Found> = found.iter().filter(|disk| !is_portable(disk)).collect();
    fixed.sort_by(|one, other| natural_sort_key(one.device.as_str()).cmp(&natural_sort_key(other.device.as_str())));
    if fixed.len() != listed.len() {
        return BTreeMap::new();
    }
    let mut names: Vec<&str> = listed.iter().map(|disk| disk.device.as_str()).collect();
    names.sort_by(|one, other| natural_sort_key(one).cmp(&natural_sort_key(other)));
    names.into_iter().zip(fixed).collect()
}

/// Returns the disk with this serial number or device name.
fn find_disk<'a>(found: &'a [Found], wanted: &str) -> Result<&'a Found, String> {
    let is_it = |disk: &&Found| {
        let is_serial = disk.serial == wanted && disk.comparable_serial().is_some();
        disk.device.as_str() == wanted || disk.name.as_str() == wanted || is_serial
    };
    let all: Vec<&Found> = found.iter().filter(is_it).collect();
    match all[..] {
        [one] => Ok(one),
        [] if found.iter().any(|disk| disk.serial == wanted && !wanted.is_empty()) => {
            Err(format!("the serial number {wanted:?} is a placeholder: specify the device name of the disk instead"))
        }
        [] => Err(format!("disk {wanted:?} not found")),
        _ => Err(format!("{wanted:?} matches several disks of the machine: use a device name")),
    }
}

fn to_marked_disk(name: &str, disk: &Found) -> RecordedDisk {
    RecordedDisk {
        device: name.to_owned(),
        serial: disk.serial.clone(),
        wwn: disk.wwn.clone(),
        size_bytes: disk.size_bytes,
        sector_bytes: disk.sector_bytes,
        model: disk.model.clone(),
        by_path: disk.by_path.clone(),
        ..RecordedDisk::default()
    }
}

/// Lists the disks of the machine, and the command-line options that assign them to the disk names of the layout.
fn list_choices(layout: &Layout, found: &[Found]) -> String {
    let serial = |disk: &Found| if disk.serial.is_empty() { String::new() } else { format!(" serial {}", disk.serial) };
    let has = found.iter().map(|disk| {
        let portable = match (disk.removable, is_portable(disk)) {
            (true, _) => ", removable",
            (false, true) => ", usb",
            (false, false) => "",
        };
        format!("{} ({}{}{portable})", disk.device.as_str(), format_bytes(disk.size_bytes), serial(disk))
    });
    let has = has.collect::<Vec<_>>().join(", ");
    let flags = layout.disks.iter().map(|disk| format!("--disk {}=DISK", disk.device.as_str()));
    format!(
        "the machine has these disks: {disks}. Assign them with: {options}",
        disks = if has.is_empty() { "none" } else { &has },
        options = flags.collect::<Vec<_>>().join(" ")
    )
}

/// Describes the first disk in `now` that differs from the recorded disk of the same name.
pub(crate) fn explain_other_disk(then: &[RecordedDisk], now: &[RecordedDisk]) -> Option<String> {
    now.iter().find_map(|now| {
        let then = then.iter().find(|then| then.device == now.device)?;
        then.is_different_disk(now).then(|| {
            let words = |disk: &RecordedDisk| format!("serial {:?}, {}", disk.serial, format_bytes(disk.size_bytes));
            format!(
                "{device} must be the disk with {planned}, but is now the disk with {actual}: put the disk back, or cancel the migration and order it again", device = now.device, planned = words(then), actual = words(now))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::layout::read_yaml;

    const TWO: &str = "id: two
disks:
- {device: /dev/sda, wipe: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}
- {device: /dev/sdb, wipe: true, partitions: [{number: 1, label: srv, size: 0, type: GPTLinux}]}
filesystems:
- {path: /, device: /dev/sda1, format: ext4, label: root}
- {path: /srv, device: /dev/sdb1, format: ext4, label: srv}
";

    fn disk(name: &str, serial: &str, removable: bool) -> Found {
        let device = format!("/dev/{name}");
        serde_json::from_value(serde_json::json!({
            "name": name, "device": device, "size_bytes": 1_000_000_000u64, "sector_bytes": 512, "serial": serial,
            "removable": removable,
        }))
        .unwrap()
    }

    fn assignments(words: &[(&str, &str)]) -> BTreeMap<String, String> {
        words.iter().map(|(name, disk)| ((*name).to_owned(), (*disk).to_owned())).collect()
    }

    #[test]
    fn disks_are_mapped_by_assignment_name_or_number() {
        let layout = read_yaml(TWO).unwrap().layout;
        let sata = [disk("sda", "A", false), disk("sdb", "B", false), disk("sdc", "C", false)];
        let nvme = [disk("nvme10n1", "N10", false), disk("nvme2n1", "N2", false), disk("sda", "U", true)];
        let paired = |found: &[Found], words: &[(&str, &str)]| {
            let all = map_disks(&layout, found, &assignments(words)).unwrap();
            all.into_iter().map(|disk| (disk.device, disk.serial)).collect::<Vec<_>>()
        };
        let both = |one: &str, two: &str| {
            vec![("/dev/sda".to_owned(), one.to_owned()), ("/dev/sdb".to_owned(), two.to_owned())]
        };
        assert_eq!(paired(&sata, &[]), both("A", "B"));
        assert_eq!(paired(&nvme, &[]), both("N2", "N10"), "in the order of their numbers, and no stick");
        let external = Found { transport: "usb".to_owned(), ..disk("sda", "E", false) };
        assert_eq!(paired(&[nvme[0].clone(), nvme[1].clone(), external], &[]), both("N2", "N10"));
        assert_eq!(paired(&sata, &[("/dev/sda", "C"), ("/dev/sdb", "/dev/sda")]), both("C", "A"));
        assert_eq!(paired(&nvme, &[("/dev/sda", "nvme10n1"), ("/dev/sdb", "N2")]), both("N10", "N2"));
    }

    #[test]
    fn disk_that_contradicts_its_hints_is_refused() {
        let text = TWO.replace("{device: /dev/sda, wipe", "{device: /dev/sda, hints: {serial: A}, wipe");
        let layout = read_yaml(&text).unwrap().layout;
        let fits = [disk("nvme0n1", "B", false), disk("nvme1n1", "A", false)];
        let words = assignments(&[("/dev/sda", "A"), ("/dev/sdb", "B")]);
        assert_eq!(map_disks(&layout, &fits, &words).unwrap()[0].serial, "A");
        let other = [disk("nvme0n1", "C", false), disk("nvme1n1", "B", false)];
        let why = map_disks(&layout, &other, &BTreeMap::new()).unwrap_err().join("\n");
        assert!(why.contains("by hints, which /dev/nvme0n1 does not match"), "{why}");
    }

    #[test]
    fn invalid_assignments_are_refused_with_disks_and_options() {
        let layout = read_yaml(TWO).unwrap().layout;
        let three = [disk("nvme0n1", "A", false), disk("nvme1n1", "A", false), disk("nvme2n1", "C", false)];
        for (words, wrong) in [
            (vec![], vec!["no disk of the machine is assigned to /dev/sda", "assigned to /dev/sdb"]),
            (vec![("/dev/sda", "C")], vec!["assigned to /dev/sdb"]),
            (
                vec![("/dev/sda", "C"), ("/dev/sdb", "C")],
                vec!["/dev/nvme2n1 cannot be assigned to both /dev/sda and /dev/sdb"],
            ),
            (vec![("/dev/sda", "A"), ("/dev/sdb", "C")], vec!["\"A\" matches several disks of the machine"]),
            (vec![("/dev/sdz", "C")], vec!["layout two does not list disk /dev/sdz", "assigned to /dev/sda"]),
            (vec![("/dev/sda", "X"), ("/dev/sdb", "")], vec!["disk \"X\" not found", "disk \"\" not found"]),
        ] {
            let problems = map_disks(&layout, &three, &assignments(&words)).unwrap_err();
            let text = problems.join("\n");
            assert!(wrong.iter().all(|wrong| text.contains(wrong)), "{words:?}: {text}");
            let last = problems.last().unwrap();
            assert!(last.contains("/dev/nvme2n1 (1.00 GB serial C)"), "{last}");
            assert!(last.ends_with("Assign them with: --disk /dev/sda=DISK --disk /dev/sdb=DISK"), "{last}");
        }
    }
}
