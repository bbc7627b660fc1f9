//! Comparison of hints with the behaviour of ironic-python-agent, and extensions.

use super::*;
use serde::Deserialize;

/// Results of ironic-python-agent for these hints and disks. Two features are omitted: ranges, which the agent refuses
/// although they are documented, and a second serial number of a disk, which only udev provides.
#[derive(Deserialize)]
struct Recorded {
    disks: Vec<InventoryDisk>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    hints: DiskHints,
    #[serde(default)]
    disks: Vec<String>,
    #[serde(default)]
    refused: bool,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("../../../../../testdata/hints/ironic.json")).unwrap()
}

fn hints(pairs: &[(&str, &str)]) -> DiskHints {
    pairs.iter().map(|(hint, text)| (hint.to_string(), text.to_string())).collect()
}

fn names(hints: &DiskHints, disks: &[InventoryDisk]) -> Vec<String> {
    find_candidates(hints, disks).into_iter().map(|disk| disk.name.to_string()).collect()
}

#[test]
fn hints_match_the_same_disks_as_in_ironic() {
    let Recorded { disks, cases } = recorded();
    assert_eq!(cases.len(), 28);
    for Case { hints, disks: expected, refused } in cases {
        assert_eq!(!check_hints(&hints).is_empty(), refused, "{hints:?}: {:?}", check_hints(&hints));
        assert_eq!(names(&hints, &disks), expected, "{hints:?}");
    }
}

#[test]
fn every_operator_behaves_as_documented() {
    let disks = recorded().disks;
    let all = ["sda", "sdb", "sdc", "nvme0n1", "sde"];
    for (hint, text, expected) in [
        // 17179869184 bytes are 16 GiB; 960000000000 bytes are 894.07 GiB.
        ("size", "= 16", &all[..]),
        ("size", "=894", &["sda", "sdb", "sdc", "nvme0n1"]),
        ("size", ">= 895", &["sdb", "sdc", "nvme0n1"]),
        ("size", "<= 894", &["sde"]),
        ("size", "<=895", &["sda", "sde"]),
        ("size", "894", &[]),
        ("size", "<or> 16 <or> 7450", &["sde"]),
        ("size", "<range-in> [ 10 20 ]", &["sde"]),
        ("size", "<range-in> [10 16]", &["sde"]),
        ("size", "<range-in> [ 10 16 )", &[]),
        ("size", "<range-in> [ 16 900 ]", &["sda", "sde"]),
        ("size", "<range-in> ( 16 900 ]", &["sda"]),
        ("size", "smallest", &["sde"]),
        ("size", "Smallest > 16", &["sda"]),
        ("size", "smallest >= 1000", &["sdb", "sdc"]),
        ("size", "smallest > 9999", &[]),
        ("name", "s== /dev/sda", &["sda"]),
        ("name", "nvme0n1", &["nvme0n1"]),
        ("name", "s!= sda", &["sdb", "sdc", "nvme0n1", "sde"]),
        ("name", "s< /dev/sdb", &["sda", "nvme0n1"]),
        ("name", "<or> /dev/sde <or> sda", &["sda", "sde"]),
        ("serial", "s<= 20170101AA000001", &["sde"]),
        ("model", "s> ST", &["sdb", "sdc"]),
        ("model", "<in> MZ7LH", &["sda"]),
        ("model", "<all-in> 960 samsung", &["sda"]),
        ("model", "<all-in> st8000nm", &["sdb", "sdc"]),
        ("model", "<all-in> samsung seagate", &[]),
        ("vendor", "ata", &["sda", "sde"]),
        // The NVMe disk does not report a vendor, so no vendor matches, not even a different one.
        ("vendor", "s!= ATA", &["sdb", "sdc"]),
        ("wwn", "0x5002538E00000001", &["sda"]),
        ("wwn", "0x5002538e00000001abcd", &["sda"]),
        ("wwn", "s!= 0x5002538e00000001", &["sdb", "sdc", "nvme0n1"]),
        ("wwn_with_extension", "0x5002538e00000001abcd", &["sda"]),
        ("rotational", "False", &["sda", "nvme0n1", "sde"]),
        ("rotational", "1", &["sdb", "sdc"]),
        ("hctl", "4:0:0:0", &["sde"]),
        ("tran", "<or> nvme <or> sas", &["nvme0n1"]),
    ] {
        let hints = hints(&[(hint, text)]);
        assert_eq!(check_hints(&hints), [], "{hint} {text}");
        assert_eq!(names(&hints, &disks), expected, "{hint} {text}");
    }
}

#[test]
fn smallest_applies_after_all_other_hints() {
    let disks = recorded().disks;
    // The boot module is the smallest of the `sd` disks, independent of its kernel name.
    assert_eq!(names(&hints(&[("name", "<in> /dev/sd"), ("size", "smallest")]), &disks), ["sde"]);
    assert_eq!(names(&hints(&[("model", "<in> st8000"), ("size", "smallest")]), &disks), ["sdb", "sdc"]);
    assert_eq!(names(&DiskHints::new(), &disks).len(), disks.len());
}

/// Returns the recorded disks with a USB stick and a virtual medium of the management controller, which are smaller
/// than all other disks.
fn with_portable() -> Vec<InventoryDisk> {
    let mut disks = recorded().disks;
    let of = |name: &str, transport: &str, removable: bool, size_bytes: u64| InventoryDisk {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        size_bytes,
        serial: format!("serial of {name}"),
        model: "Virtual HDisk".to_owned(),
        transport: transport.to_owned(),
        by_path: format!("/dev/disk/by-path/{name}"),
        removable,
        ..InventoryDisk::default()
    };
    disks.push(of("sdf", "usb", true, 8 << 30));
    disks.push(of("sdg", "usb", false, 9 << 30));
    disks.push(of("sdh", "sata", true, 10 << 30));
    disks
}

#[test]
fn removable_disks_match_only_explicit_hints() {
    let disks = with_portable();
    for (pairs, expected) in [
        (&[("size", "smallest")][..], &["sde"][..]),
        (&[("size", "< 100")], &["sde"]),
        (&[("name", "<in> /dev/sd"), ("size", "smallest")], &["sde"]),
        (&[("name", "/dev/sdf")], &[]),
        (&[("model", "Virtual HDisk")], &[]),
        (&[("rotational", "false")], &["sda", "nvme0n1", "sde"]),
        (&[("removable", "false")], &["sda", "sdb", "sdc", "nvme0n1", "sde"]),
        (&[("tran", "s!= nvme")], &["sda", "sdb", "sdc", "sde"]),
        (&[("tran", "<in> s")], &["sda", "sdb", "sdc", "sde"]),
        (&[("serial", "<in> serial of")], &[]),
        (&[("tran", "usb")], &["sdf", "sdg"]),
        (&[("tran", "<or> usb <or> nvme")], &["nvme0n1", "sdf", "sdg"]),
        (&[("tran", "usb"), ("size", "smallest")], &["sdf"]),
        (&[("tran", "sata"), ("size", "<= 16")], &["sde"]),
        (&[("removable", "true")], &["sdf", "sdh"]),
        (&[("removable", "yes"), ("tran", "sata")], &["sdh"]),
        (&[("serial", "serial of sdf")], &["sdf"]),
        (&[("by_path", "<or> /dev/disk/by-path/sdh <or> x")], &["sdh"]),
    ] {
        let hints = hints(pairs);
        assert_eq!(check_hints(&hints), [], "{pairs:?}");
        assert_eq!(names(&hints, &disks), expected, "{pairs:?}");
    }
    let why = |index: usize| explain_differences(&hints(&[("size", "< 100")]), &disks[index]).join("; ");
    assert_eq!(
        why(5),
        "the disk is attached by USB, and hints match such a disk only together with `tran: usb` or `removable: true`"
    );
    assert_eq!(
        why(7),
        "the disk is removable, and hints match such a disk only together with `tran: usb` or `removable: true`"
    );
}

/// `smallest` matches all disks that are at most 4 % larger than the smallest one.
#[test]
fn disks_of_similar_size_all_match_smallest() {
    let mut disks = recorded().disks;
    let names = |disks: &[InventoryDisk]| names(&hints(&[("size", "smallest"), ("rotational", "true")]), disks);
    disks[2].size_bytes = disks[1].size_bytes / 100 * 99;
    assert_eq!(names(&disks), ["sdb", "sdc"]);
    disks[2].size_bytes = disks[1].size_bytes / 100 * 104;
    assert_eq!(names(&disks), ["sdb", "sdc"]);
    disks[2].size_bytes += 1;
    assert_eq!(names(&disks), ["sdb"]);
}

#[test]
fn explains_which_hints_exclude_a_disk() {
    let disks = recorded().disks;
    let hints = hints(&[("size", "<= 894"), ("rotational", "true"), ("vendor", "ATA"), ("tran", "sata")]);
    assert_eq!(
        explain_differences(&hints, &disks[0]),
        ["rotational true: it does not rotate", "size <= 894: it has 894.07 GiB (960 GB)"]
    );
    assert_eq!(explain_differences(&hints, &disks[3])[3], "vendor ATA: it has none");
    let smallest = BTreeMap::from([("size".to_owned(), "smallest > 16".to_owned())]);
    assert_eq!(explain_differences(&smallest, &disks[1]), [""; 0]);
}

#[test]
fn invalid_hints_are_named_and_match_nothing() {
    let broken = hints(&[("sise", "16"), ("size", "16 GiB"), ("rotational", "perhaps"), ("serial", " ")]);
    let found = check_hints(&broken);
    let expected = [
        ("rotational", "the value must be true or false"),
        ("serial", "is empty"),
        ("sise", "did you mean size?"),
        ("size", "positive whole number of GiB"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((hint, message), (expected_hint, words)) in found.iter().zip(expected) {
        assert!(hint == expected_hint && message.contains(words), "{hint}: {message}");
    }
    for (hint, text) in &broken {
        assert!(names(&hints(&[(hint, text)]), &recorded().disks).is_empty(), "{hint} {text}");
    }
}

proptest::proptest! {
    #[test]
    fn any_hint_expression_is_parsed_or_refused(hint in proptest::sample::select(&KNOWN[..]), text in "[<>=!s]{0,3}\\PC{0,12}|smallest\\PC{0,4}") {
        let hints = hints(&[(hint, &text)]);
        let found = find_candidates(&hints, &recorded().disks).len();
        proptest::prop_assert!(check_hints(&hints).is_empty() || found == 0);
    }
}
