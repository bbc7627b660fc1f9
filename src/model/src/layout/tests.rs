//! Valid and invalid layouts of `testdata/layouts`, and properties of all layouts.

mod random;

use super::*;
use crate::device_name::LayoutPath;
use common::diagnostic::{Diagnostic, join_problems};
use serde_json::json;
use std::path::{Path, PathBuf};

const DEFAULT: &str = include_str!("../../../../testdata/layouts/default.yaml");
const SEEDS: [&str; 5] = [
    DEFAULT,
    include_str!("../../../../testdata/layouts/firewall.yaml"),
    include_str!("../../../../testdata/layouts/storage.yaml"),
    include_str!("../../../../testdata/layouts/s3-storage.yaml"),
    include_str!("../../../../testdata/layouts/lvm.yaml"),
];

fn layouts(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/layouts").join(folder);
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|end| end != "expected")).collect();
    files.sort();
    files
}

fn format_problems(problems: &[Diagnostic]) -> Vec<String> {
    problems.iter().map(|problem| problem.to_string()).collect()
}

/// Each invalid layout has an `.expected` file with its problems, one per line.
#[test]
fn invalid_layouts_report_all_their_problems() {
    let files = layouts("bad");
    assert!(files.len() >= 30, "the folder exists");
    let mut wrong = String::new();
    for file in files {
        let found = match read_yaml(&std::fs::read_to_string(&file).unwrap()) {
            Ok(_) => "accepted\n".to_owned(),
            Err(problems) => join_problems(&problems) + "\n",
        };
        let expected = std::fs::read_to_string(file.with_extension("expected")).unwrap_or_default();
        if found != expected {
            wrong += &format!("{}:\n--- expected\n{expected}--- found\n{found}\n", file.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn valid_layouts_are_parsed_without_notes() {
    let files = layouts("good");
    assert!(files.len() >= 6, "the folder exists");
    for file in files {
        let parsed = read_yaml(&std::fs::read_to_string(&file).unwrap());
        let parsed = parsed.unwrap_or_else(|problems| panic!("{}: {}", file.display(), join_problems(&problems)));
        assert_eq!(format_problems(&parsed.notes), [""; 0], "{}", file.display());
    }
}

#[test]
fn canonical_yaml_describes_the_same_layout() {
    let good = layouts("good").into_iter().map(|file| std::fs::read_to_string(file).unwrap());
    for text in good.chain(SEEDS.map(str::to_owned)) {
        let layout = read_yaml(&text).unwrap().layout;
        let yaml = canonical_yaml(&layout);
        let again = read_yaml(&yaml).unwrap_or_else(|problems| panic!("{yaml}{}", join_problems(&problems)));
        assert_eq!(format_problems(&again.notes), [""; 0], "{yaml}");
        assert_eq!(again.layout, layout, "{yaml}");
    }
    let storage = include_str!("../../../../testdata/layouts/storage.canonical");
    assert_eq!(canonical_yaml(&read_yaml(SEEDS[2]).unwrap().layout), storage);
}

#[test]
fn default_layout_is_parsed_with_notes() {
    let parsed = read_yaml(DEFAULT).unwrap();
    let canonical = json!({
        "id": "default",
        "filesystems": [
            {"path": "/boot/efi", "device": "/dev/sda1", "format": "vfat", "label": "efi", "mountoptions": [],
             "createoptions": ["-F", "32"]},
            {"path": "/", "device": "/dev/sda2", "format": "ext4", "label": "root", "mountoptions": [], "createoptions": []},
            {"path": "/var/lib", "device": "/dev/sda3", "format": "ext4", "label": "varlib", "mountoptions": [],
             "createoptions": []},
            {"path": "/tmp", "device": "tmpfs", "format": "tmpfs", "createoptions": [], "mountoptions":
             ["defaults", "noatime", "nosuid", "nodev", "noexec", "mode=1777", "size=512M"]},
        ],
        "disks": [{"device": "/dev/sda", "wipeonreinstall": true, "partitions": [
            {"number": 1, "label": "efi", "size": 500, "gpttype": "ef00"},
            {"number": 2, "label": "root", "size": 5000, "gpttype": "8300"},
            {"number": 3, "label": "varlib", "size": 0, "gpttype": "8300"},
        ]}],
        "raid": [],
        "volumegroups": [],
        "logicalvolumes": [],
        "constraints": {"sizes": ["c1-large-x86", "c1-xlarge-x86"],
                        "images": {"centos": ">= 7", "debian": ">= 10", "ubuntu": ">= 20.04"}},
    });
    assert_eq!(serde_json::to_value(&parsed.layout).unwrap(), canonical);
    assert_eq!(
        format_problems(&parsed.notes),
        [
            "8:13: constraints.images.debian: insert a space between operator and version: \">= 10\"",
            "9:13: constraints.images.ubuntu: insert a space between operator and version: \">= 20.04\"",
            "10:13: constraints.images.centos: insert a space between operator and version: \">= 7\"",
            "15:5: filesystems[0].options: the canonical name of this field is createoptions",
            "15:14: filesystems[0].options: write a list with one word per item: [\"-F\", \"32\"]",
            "31:5: disks[0].wipe: the canonical name of this field is wipeonreinstall",
            "36:9: disks[0].partitions[0].type: the canonical name of this field is gpttype",
            "36:15: disks[0].partitions[0].type: the canonical value is \"ef00\"",
            "40:9: disks[0].partitions[1].type: the canonical name of this field is gpttype",
            "40:15: disks[0].partitions[1].type: the canonical value is \"8300\"",
            "44:9: disks[0].partitions[2].type: the canonical name of this field is gpttype",
            "44:15: disks[0].partitions[2].type: the canonical value is \"8300\"",
        ]
    );
}

#[test]
fn seed_layouts_are_parsed_with_notes() {
    let notes =
        SEEDS.map(|text| read_yaml(text).unwrap_or_else(|problems| panic!("{}", join_problems(&problems))).notes.len());
    assert_eq!(notes, [12, 11, 21, 12, 5]);
    let storage = read_yaml(SEEDS[2]).unwrap().layout;
    assert_eq!(
        serde_json::to_value(&storage.raid).unwrap(),
        json!([
            {"arrayname": "/dev/md1", "devices": ["/dev/sda1", "/dev/sdb1"], "level": "1",
             "createoptions": ["--metadata=1.0"], "spares": 0},
            {"arrayname": "/dev/md2", "devices": ["/dev/sda2", "/dev/sdb2"], "level": "1",
             "createoptions": ["--metadata=1.0"], "spares": 0},
        ])
    );
    // The misspelt /dev/nvmne0n1 is accepted by the validation, and detected only by the plan.
    let lvm = read_yaml(SEEDS[4]).unwrap().layout;
    assert_eq!(
        serde_json::to_value((&lvm.volumegroups, &lvm.logicalvolumes)).unwrap(),
        json!([
            [{"name": "vg00", "devices": ["/dev/nvmne0n1", "/dev/nvmne0n2"], "tags": []}],
            [{"name": "varlib", "volumegroup": "vg00", "size": 200, "lvmtype": "striped"}],
        ])
    );
}

/// Returns the text of a valid layout with one filesystem, one disk and one partition. Each argument is appended to the
/// fields of the corresponding item.
fn layout_with(filesystem: &str, disk: &str, partition: &str) -> String {
    format!(
        "id: x\nfilesystems:\n  - {{ path: /, device: /dev/sda1, format: ext4{filesystem} }}\n\
         disks:\n  - device: /dev/sda{disk}\n    partitions:\n      - {{ number: 1{partition} }}\n\
         constraints: {{ sizes: [], images: {{}} }}\n"
    )
}

#[test]
fn alternative_spellings_are_equivalent_and_noted() {
    let plain = read_yaml(&layout_with("", "", ", size: 0")).unwrap();
    assert!(plain.notes.is_empty(), "{:?}", plain.notes);
    let partition = |spelling: &str| layout_with("", "", &format!(", size: 0, {spelling}"));
    let filesystem = |spelling: &str| layout_with(&format!(", {spelling}"), "", ", size: 0");
    for (canonical, other, notes) in [
        (partition("gpttype: \"8e00\""), partition("gpttype: 8e00"), 1),
        (partition("gpttype: \"8300\""), partition("gpttype: 8300"), 1),
        (partition("gpttype: ef00"), partition("gpttype: EF00"), 1),
        (partition("gpttype: ef00"), partition("type: GPTBoot"), 2),
        (partition("gpttype: fd00"), partition("type: GPTLinuxRaid"), 2),
        (partition("gpttype: \"8e00\""), partition("gpttype: gptlinuxlvm"), 1),
        (partition("gpttype: null"), partition("label: \"\""), 0),
        (partition("label: \"1\""), partition("label: 1"), 1),
        (layout_with("", "", ", size: 5"), layout_with("", "", ", size: \"5\""), 1),
        (
            layout_with("", "\n    wipeonreinstall: true", ", size: 0"),
            layout_with("", "\n    wipe: True", ", size: 0"),
            1,
        ),
        (filesystem("createoptions: [-m, \"1\"]"), filesystem("createoptions: [\"-m 1\"]"), 1),
        (filesystem("createoptions: [-m, \"1\"]"), filesystem("createoptions: \" -m  1 \""), 1),
        (filesystem("createoptions: [-m1]"), filesystem("options: \"-m1\""), 2),
        (filesystem("mountoptions: [noatime, nosuid]"), filesystem("mountoptions: \"noatime, nosuid\""), 1),
        (filesystem("mountoptions: []"), filesystem("mountoptions:"), 0),
    ] {
        let canonical = read_yaml(&canonical).unwrap();
        let other = read_yaml(&other).unwrap_or_else(|problems| panic!("{other}{}", join_problems(&problems)));
        assert!(canonical.notes.is_empty(), "{:?}", canonical.notes);
        assert_eq!(other.layout, canonical.layout);
        assert_eq!(other.notes.len(), notes, "{:?}", format_problems(&other.notes));
    }
}

#[test]
fn unconstrained_layout_and_swap_path_are_noted() {
    let swap = "id: x\nfilesystems:\n- {path: /, device: /dev/sda1, format: ext4}\n- {path: none, device: /dev/sdb, \
                format: swap}\ndisks: [{device: /dev/sda, partitions: [{number: 1, size: 0}]}, {device: /dev/sdb}]\n";
    let parsed = read_yaml(swap).unwrap();
    assert_eq!(parsed.layout.filesystems[1].path, None);
    assert_eq!(
        format_problems(&parsed.notes),
        [
            "1:1: constraints: the layout has no constraints, so it is used only by allocations that specify this \
            layout",
            "4:10: filesystems[1].path: remove `path`: a filesystem that is not mounted must not have a path",
        ]
    );
}

#[test]
fn json_problems_have_paths_without_lines() {
    let wrong = json!({"id": "x", "filesystems": [{"path": "/", "device": "/dev/sda2", "format": "ext4"}], "raid": null,
        "disks": [{"device": "/dev/sda", "wipe": "no", "partitions": [{"number": 1.0, "size": -1}]}],
        "constraints": {"sizes": null, "images": {}}});
    assert_eq!(
        format_problems(&read_json(&wrong).unwrap_err()),
        [
            "disks[0].partitions[0].number: must be an integer without a unit, but is \"1.0\"",
            "disks[0].partitions[0].size: must not be negative, but is -1",
            "disks[0].wipe: must be true or false without quotes, but is \"no\"",
        ]
    );
    for other in [json!(null), json!([]), json!("text"), json!(1)] {
        assert!(format_problems(&read_json(&other).unwrap_err())[0].starts_with("must be a mapping"), "{other}");
    }
    let deep = (0..200).fold(json!(1), |value, _| json!([value]));
    assert!(read_json(&json!({ "id": deep })).is_err());
}

#[test]
fn partition_paths_follow_kernel_naming() {
    for disk in
        ["/dev/sda", "/dev/nvme0n1", "/dev/mmcblk0", "/dev/nbd0", "/dev/loop7", "/dev/vda", "/dev/disk/by-id/wwn-0x5"]
    {
        let device = LayoutPath::from(disk).partition_path(1);
        let text = layout_with("", "", ", size: 0")
            .replace("/dev/sda1", device.as_str())
            .replace("/dev/sda\n", &format!("{disk}\n"));
        assert!(read_yaml(&text).is_ok(), "{text}");
    }
}

#[test]
fn messages_contain_no_control_characters_from_documents() {
    let text = layout_with("", "", ", size: 0").replace("format: ext4", "format: \"\\e[2J\"");
    let problems = read_yaml(&text).unwrap_err();
    assert!(!join_problems(&problems).contains('\u{1b}'), "{problems:?}");
    let long = format!("{}: 1\n", "k".repeat(100_000));
    assert!(join_problems(&read_yaml(&long).unwrap_err()).len() < 3000);
}

/// Code can set values that the parser corrects or refuses, so the rules must also refuse these values.
#[test]
fn validation_does_not_rely_on_the_parser() {
    let mut layout = read_yaml(DEFAULT).unwrap().layout;
    layout.id.clear();
    layout.filesystems[0].createoptions = vec!["-F 32".to_owned()];
    layout.constraints.images.insert("debian".to_owned(), ">=10".to_owned());
    layout.raid.push(ArraySpec {
        arrayname: "/dev/md0".into(),
        devices: vec!["/dev/sdb".into()],
        level: RaidLevel::Raid6,
        createoptions: Vec::new(),
        spares: 0,
        preserve: false,
    });
    assert_eq!(
        format_problems(&validate_layout(&layout)),
        [
            "id: id should not be empty",
            "raid[0].devices[0]: device:/dev/sdb not provided by disk for raid:/dev/md0",
            "raid[0].devices: raid:/dev/md0 has 1 of the 4 devices that raid6 needs",
            "filesystems[0].createoptions: the given createoption:\"-F 32\" contains whitespace and must be split into separate options",
            "constraints.images.debian: given imageconstraint:>=10 is not valid, missing space between op and version? invalid semantic version",
        ]
    );
}
