//! Tests that run `drophammer check` on files and directories.

use super::check::{CheckReport, check_output};
use crate::cli::{Cli, CliCommand};
use clap::Parser;
use common::command_outcome::CommandOutcome;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn seeds() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/layouts")
}

/// Runs `drophammer check ARGUMENTS`, and returns its output and outcome.
fn run(arguments: &[&str]) -> common::error::Result<(String, CommandOutcome)> {
    let all = ["drophammer", "check"].iter().chain(arguments);
    match Cli::try_parse_from(all).unwrap().command {
        CliCommand::Check(options) => check_output(&options),
        other => panic!("{other:?}"),
    }
}

fn found(paths: &[PathBuf]) -> String {
    CheckReport::check_files(paths).unwrap().to_string()
}

fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn layout(id: &str, constraints: &str) -> String {
    format!(
        "# {id}, kept by hand\nid: {id}\ndisks: [{{device: /dev/sda, partitions: [{{number: 1, size: 0}}]}}]\n\
         filesystems: [{{path: /, device: /dev/sda1, format: ext4}}]\nconstraints: {constraints}\n"
    )
}

#[test]
fn only_layouts_are_fixed() {
    let dir = directory(&[
        ("a.yaml", &layout("a", "{size: [c1], images: {debian: \"*\"}}")),
        ("debian.yaml", "id: debian-12\nfile: d.tar\nwipe: 1\n"),
    ]);
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let image = fs::read_to_string(path("debian.yaml")).unwrap();
    let (said, outcome) = run(&[&path("debian.yaml"), "--fix"]).unwrap();
    let expected = format!("{}: an image, unchanged: --fix rewrites only layouts\n", path("debian.yaml"));
    assert_eq!((said.as_str(), outcome), (expected.as_str(), CommandOutcome::Refused));
    let (said, outcome) = run(&[&path(""), "--fix"]).unwrap();
    assert!(outcome == CommandOutcome::Good && said.contains("sizes: [c1]"), "{said}");
    let (said, outcome) = run(&[&path(""), "--fix", "--write"]).unwrap();
    assert!(outcome == CommandOutcome::Good && said.contains(&expected), "{said}");
    assert_eq!(fs::read_to_string(path("debian.yaml")).unwrap(), image);
}

/// The documentation contains the actual output, except the notes.
#[test]
fn documented_check_output_matches_the_seed_layouts() {
    let checked = testing::docs::code_blocks(include_str!("../../../../docs/checking.md"), "text");
    let selected = testing::docs::code_blocks(include_str!("../../../../docs/layout-selection.md"), "text");
    let here = |text: String| text.replace(&format!("{}/", seeds().display()), "layouts/");
    let said = here(found(&[seeds()]));
    let lines: Vec<&str> = said.lines().filter(|line| !line.ends_with("(note)")).collect();
    assert_eq!(lines, checked[0].lines().collect::<Vec<_>>());
    let (said, _) = run(&[seeds().to_str().unwrap(), "--select", "c1-xlarge-x86", "debian-9.0.20261101"]).unwrap();
    assert_eq!(here(said).trim_end(), selected[0]);
}

#[test]
fn layouts_of_a_run_are_checked_as_one_set() {
    let all = "{sizes: [c1], images: {debian: \"*\"}}";
    let dir = directory(&[
        ("a.yaml", &layout("a", all)),
        ("b.yml", &layout("b", "{sizes: [c1], images: {debian: \"< 9\"}}")),
        ("c.json", r#"{"id": "a", "disks": [{"device": "/dev/sda"}], "filesystems": []}"#),
        ("notes.txt", "no layout"),
        (".d.yaml", "no layout either"),
    ]);
    fs::create_dir(dir.path().join("deeper.d")).unwrap();
    fs::write(dir.path().join("deeper.d/e.yaml"), layout("a", all)).unwrap();
    let said = found(&[dir.path().to_owned()]);
    let said = said.replace(&format!("{}/", dir.path().display()), "");
    let lines: Vec<&str> = said.lines().filter(|line| !line.ends_with("(note)")).collect();
    assert!(lines[0].starts_with("c.json:1:"), "{said}");
    assert_eq!(
        lines.last(),
        Some(
            &"1 of 3 files is not valid; checked: 3 layouts; invalid layouts are not compared with the other layouts; \
              1 collision"
        ),
        "{said}"
    );
    let again = [dir.path().join("a.yaml"), dir.path().join("deeper.d/e.yaml")];
    let said = found(&again);
    assert!(said.contains("e.yaml: id: layout a already exists, in "), "{said}");
    assert!(said.ends_with("2 files are valid: 2 layouts; 1 duplicate id\n"), "{said}");
    assert!(found(&again[..1]).ends_with("1 file is valid: 1 layout\n"));
    let good = [dir.path().join("a.yaml"), seeds().join("firewall.yaml")];
    assert!(found(&good).ends_with("2 files are valid: 2 layouts; no two layouts match the same size and image\n"));
}

#[test]
fn exit_status_distinguishes_valid_and_refused_layouts() {
    let dir = directory(&[
        ("a.yaml", &layout("a", "{sizes: [c1], images: {debian: \">= 10\"}}")),
        ("b.yaml", &layout("b", "{sizes: [c1], images: {debian: \"< 10\", suse: 7}}")),
    ]);
    let place = dir.path().to_str().unwrap();
    let seeds = seeds();
    let (seeds, file) = (seeds.to_str().unwrap(), format!("{place}/a.yaml"));
    for (arguments, outcome, words) in [
        (&[place][..], CommandOutcome::Good, "2 files are valid: 2 layouts; no two"),
        (&[place, "-v"], CommandOutcome::Good, "a.yaml: valid\n"),
        (&[place, "--json"], CommandOutcome::Good, "\"collisions\": []"),
        (&[seeds], CommandOutcome::Refused, "6 collisions"),
        (&[seeds, "--json"], CommandOutcome::Refused, "\"example\": \"ubuntu-20.4.0\""),
        (&[place, "--select", "c1", "debian-9"], CommandOutcome::Good, "b  "),
        (&[place, "--select", "c1", "debian-9", "--json"], CommandOutcome::Good, "\"id\": \"b\""),
        (
            &[place, "--select", "c1", "ubuntu-9"],
            CommandOutcome::Refused,
            "does not accept ubuntu, but debian \"< 10\", suse \"7\"",
        ),
        (&[place, "--select", "c1", "debian", "--json"], CommandOutcome::Refused, "\"message\": \"invalid format"),
        (&[seeds, "--select", "c1-large-x86", "debian-12"], CommandOutcome::Refused, "2 layouts match"),
        (&[&file, "--fix"], CommandOutcome::Good, "# a, kept by hand\n"),
    ] {
        let (said, found) = run(arguments).unwrap();
        assert_eq!(found, outcome, "{arguments:?}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    for (arguments, words) in [
        (
            &[place, "--fix"][..],
            "--fix prints exactly one layout, but 2 are specified: specify one file, or add --write",
        ),
        (&["/nowhere/at-all.yaml"], "at-all.yaml"),
    ] {
        let error = run(arguments).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = run(&[tempfile::tempdir().unwrap().path().to_str().unwrap()]).unwrap_err().to_string();
    assert!(error.contains("contains no layout"), "{error}");
    for arguments in [&["--select", "c1"][..], &["--write"], &["--fix", "--json"], &[]] {
        let all = ["drophammer", "check"].iter().chain(arguments);
        assert!(Cli::try_parse_from(all).is_err(), "{arguments:?}");
    }
}

#[test]
fn fix_preserves_meaning_and_skips_other_files() {
    let unusual = fs::read_to_string(seeds().join("s3-storage.yaml")).unwrap();
    let json = serde_json::to_string(&model::layout::read_yaml(&unusual).unwrap().layout).unwrap();
    let canonical = layout("a", "{sizes: [c1], images: {debian: \">= 10\"}}");
    let dir = directory(&[
        ("a.yaml", &canonical),
        ("b.yaml", &unusual),
        ("c.json", &json.replace("createoptions", "options")),
        ("d.yaml", "id: d\nwipe: true # kept\n"),
    ]);
    std::os::unix::fs::symlink("b.yaml", dir.path().join("e.yaml")).unwrap();
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    let (said, outcome) = run(&[dir.path().to_str().unwrap(), "--fix", "--write"]).unwrap();
    assert_eq!(outcome, CommandOutcome::Refused);
    let said = said.replace(&format!("{}/", dir.path().display()), "");
    assert_eq!(
        said.lines().filter(|line| !line.starts_with("d.yaml:")).collect::<Vec<_>>(),
        [
            "a.yaml: already canonical",
            "b.yaml: rewritten in the canonical spelling",
            "c.json: rewritten in the canonical spelling",
            "e.yaml: rewritten in the canonical spelling",
        ]
    );
    assert!(said.contains("d.yaml: not valid, unchanged\n"), "{said}");
    assert_eq!(read("a.yaml"), canonical, "the comment is preserved");
    assert_eq!(read("d.yaml"), "id: d\nwipe: true # kept\n");
    let before = model::layout::read_yaml(&unusual).unwrap();
    for name in ["b.yaml", "c.json", "e.yaml"] {
        let after = model::layout::read_yaml(&read(name)).unwrap();
        assert_eq!((&after.layout, after.notes.len()), (&before.layout, 0), "{name}");
    }
    assert!(read("c.json").starts_with('{'));
    assert!(dir.path().join("e.yaml").is_symlink());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5, "no temporary file remains");
}

/// Layout in the spelling of metal-stack's API v2, in block and flow style, with comments and CRLF line ends.
const V2: &str = "# kept\r
id: v2   # an id\r
disks:\r
- device: /dev/sda\r
  wipe_on_reinstall: true\r
  partitions:\r
  - {number: 1, size: \"500\", gpt_type: GPT_TYPE_BOOT}\r
  - number: 2 # the rest\r
    size: 0\r
    gptType: 'GPT_TYPE_LINUX'\r
filesystems:\r
- {path: /boot/efi, device: /dev/sda1, format: FORMAT_VFAT, create_options: [\"-F 32\"]}\r
- path: /\r
  device: /dev/sda2\r
  format: FORMAT_EXT4\r
  createOptions:\r
  - -m 1 # one percent\r
volume_groups: []\r
constraints: {sizes: [c1], images: {debian: \">=10\"}}\r
";

const V2_CANONICAL: &str = "# kept\r
id: v2   # an id\r
disks:\r
- device: /dev/sda\r
  wipeonreinstall: true\r
  partitions:\r
  - {number: 1, size: 500, gpttype: \"ef00\"}\r
  - number: 2 # the rest\r
    size: 0\r
    gpttype: \"8300\"\r
filesystems:\r
- {path: /boot/efi, device: /dev/sda1, format: vfat, createoptions: [\"-F\", \"32\"]}\r
- path: /\r
  device: /dev/sda2\r
  format: ext4\r
  createoptions:\r
  - \"-m\"\r
  - \"1\" # one percent\r
volumegroups: []\r
constraints: {sizes: [c1], images: {debian: \">= 10\"}}\r
";

#[test]
fn v2_layout_is_accepted_and_fixed() {
    let dir = directory(&[("v2.yaml", V2)]);
    let file = dir.path().join("v2.yaml");
    let (said, outcome) = run(&[file.to_str().unwrap()]).unwrap();
    assert_eq!(outcome, CommandOutcome::Good, "{said}");
    assert!(said.contains("disks[0].wipe_on_reinstall: the canonical name of this field is wipeonreinstall"), "{said}");
    assert!(said.contains("the canonical value is \"ef00\""), "{said}");
    let (said, _) = run(&[file.to_str().unwrap(), "--fix"]).unwrap();
    assert_eq!(said, V2_CANONICAL);
    assert_eq!(fs::read_to_string(&file).unwrap(), V2, "without --write nothing is written");
    run(&[file.to_str().unwrap(), "--fix", "--write"]).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), V2_CANONICAL);
    let (said, _) = run(&[file.to_str().unwrap(), "--fix", "--write"]).unwrap();
    assert!(said.ends_with("v2.yaml: already canonical\n"), "{said}");
}

/// Layout in JSON, as metal-stack's API v2 returns it.
#[test]
fn descriptive_v2_fields_are_ignored_and_removed_by_fix() {
    let answer = r#"{"id": "v2", "meta": {"createdAt": "2026-11-22T10:00:00Z", "generation": "3"}, "name": "a layout",
        "filesystems": [{"device": "/dev/sda1", "format": "FORMAT_EXT4", "name": "root", "description": "the system",
            "path": "/", "mountOptions": ["noatime"]}],
        "disks": [{"device": "/dev/sda", "partitions": [{"number": 1, "size": "0", "gptType": "GPT_TYPE_LINUX"}]}],
        "volumeGroups": [], "constraints": {"sizes": ["c1"], "images": {"debian": ">= 12"}}}"#;
    let dir = directory(&[("v2.json", answer)]);
    let file = dir.path().join("v2.json");
    let (said, outcome) = run(&[file.to_str().unwrap()]).unwrap();
    assert_eq!(outcome, CommandOutcome::Good, "{said}");
    for place in ["meta", "filesystems[0].name", "filesystems[0].description"] {
        let line = format!(": {place}: this field of metal-stack's v2 API is ignored (note)");
        assert!(said.contains(&line), "{said}");
    }
    let (said, outcome) = run(&[file.to_str().unwrap(), "--fix", "--write"]).unwrap();
    assert_eq!(outcome, CommandOutcome::Good, "{said}");
    assert!(said.ends_with("v2.json: regenerated in the canonical form, without its comments\n"), "{said}");
    let fixed = model::layout::read_yaml(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((fixed.notes.len(), fixed.layout.name.as_deref()), (0, Some("a layout")));
}

#[test]
fn reads_layouts_from_all_metal_stack_file_formats() {
    let constraints = "{sizes: [c1], images: {}}";
    let (one, two) = (layout("a", constraints), layout("b", constraints));
    let item = |text: &str| format!("- {}", text.lines().skip(1).collect::<Vec<_>>().join("\n  "));
    let list = format!("{}\n{}\n", item(&one), item(&two));
    for (text, count) in [
        (format!("---\n{one}---\n{two}"), 2),
        (format!("{one}---\n"), 1),
        (list.clone(), 2),
        (format!("metal_api_sizes: [{{id: c1}}]\nmetal_api_filesystemlayouts:\n{list}other: &x 1\n"), 2),
        (format!("[{}]", serde_json::to_string(&model::layout::read_yaml(&one).unwrap().layout).unwrap()), 1),
    ] {
        let dir = directory(&[("set.yaml", &text)]);
        let (said, _) = run(&[dir.path().join("set.yaml").to_str().unwrap(), "--verbose"]).unwrap();
        let valid = said.lines().filter(|line| line.contains(".yaml: valid")).count();
        assert_eq!(valid, count, "{text}{said}");
        assert_eq!(said.contains("valid (b)"), count == 2, "{said}");
    }
    // If one of several layouts is invalid, the path of the problem contains the index of this layout.
    let dir = directory(&[("set.yaml", &format!("{list}- id: c\n  disks: 7\n"))]);
    let said = found(&[dir.path().join("set.yaml")]);
    assert!(said.contains("[2].disks: must be a list"), "{said}");
    assert!(
        said.ends_with(
            "1 file is not valid; checked: 3 layouts; invalid layouts are not compared with the other layouts\n"
        ),
        "{said}"
    );
    let dir = directory(&[("set.yaml", "[]\n"), ("other.yaml", "metal_api_filesystemlayouts: 7\n")]);
    let said = found(&[dir.path().to_owned()]);
    assert!(said.contains("set.yaml: the list contains no layout (DH-200)\n"), "{said}");
    assert!(said.contains("metal_api_filesystemlayouts: must be a list of layouts"), "{said}");
}

#[test]
fn unreadable_files_are_reported_and_the_others_checked() {
    let dir = directory(&[
        ("a.yaml", &layout("a", "{sizes: [c1], images: {}}")),
        ("b.json", &layout("b", "{sizes: [c2], images: {}}")),
        ("c.json", "{\"id\": \"c\",\n \"disks\": ["),
        ("d.yaml", ""),
    ]);
    std::os::unix::fs::symlink("/nowhere/at-all", dir.path().join("e.yaml")).unwrap();
    fs::write(dir.path().join("f.yaml"), b"id: \xff\n").unwrap();
    let said = found(&[dir.path().to_owned()]).replace(&format!("{}/", dir.path().display()), "");
    let lines: Vec<&str> = said.lines().filter(|line| !line.ends_with("(note)")).collect();
    assert_eq!(
        lines,
        [
            "b.json:1:1: not valid JSON, although the file name ends in .json: a value is missing or invalid (DH-200)",
            "c.json:2:11: not valid JSON, although the file name ends in .json: the document ends too early (DH-200)",
            "d.yaml: the document is empty (DH-200)",
            "e.yaml: cannot read the file: No such file or directory (DH-200)",
            "f.yaml: not UTF-8 text: invalid from byte 5 on (DH-200)",
            "5 of 6 files are not valid; checked: 6 layouts; invalid layouts are not compared with the other layouts",
        ]
    );
    // The same layout in JSON is valid.
    let json =
        serde_json::to_string(&model::layout::read_yaml(&layout("b", "{sizes: [], images: {}}")).unwrap().layout);
    fs::write(dir.path().join("b.json"), json.unwrap()).unwrap();
    assert!(found(&[dir.path().join("b.json")]).ends_with("1 file is valid: 1 layout\n"));
}

#[test]
fn strict_option_turns_notes_into_problems() {
    let dir = directory(&[("a.yaml", &layout("a", "{sizes: [c1], images: {debian: '*'}}")), ("b.yaml", V2)]);
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (name, strict, expected) in [
        ("a.yaml", CommandOutcome::Refused, "1 file is valid: 1 layout; 2 notes, which --strict treats as problems\n"),
        ("b.yaml", CommandOutcome::Refused, "notes, which --strict treats as problems\n"),
    ] {
        assert_eq!(run(&[&file(name)]).unwrap().1, CommandOutcome::Good);
        let (said, outcome) = run(&[&file(name), "--strict"]).unwrap();
        assert_eq!(outcome, strict, "{said}");
        assert!(said.ends_with(expected), "{said}");
    }
    let (said, _) = run(&[&file("b.yaml"), "--fix"]).unwrap();
    let good = directory(&[("good.yaml", &said)]);
    let (said, outcome) = run(&[good.path().to_str().unwrap(), "--strict"]).unwrap();
    assert_eq!(outcome, CommandOutcome::Good, "{said}");
}
