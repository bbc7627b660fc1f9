//! Tests of the schemas with all layouts in the repository, and comparison with the parsers.

mod allocations_and_templates;

use super::*;
use jsonschema::Validator;
use model::layout::graph::testing::{rich, seeds};
use model::layout::read_yaml;
use serde_json::json;
use std::path::{Path, PathBuf};
use testing::docs::code_blocks;
use yaml_rust2::{Yaml, YamlLoader};

fn validator(document: SchemaDocument) -> Validator {
    jsonschema::draft202012::new(&generate_schema(document)).unwrap()
}

fn problems(validator: &Validator, document: &Value) -> Vec<String> {
    validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Parses a document as editors do. YAML determines which values are numbers.
fn parsed(text: &str) -> Value {
    fn json(yaml: &Yaml) -> Value {
        match yaml {
            Yaml::Real(text) => json!(text.parse::<f64>().unwrap()),
            Yaml::Integer(number) => json!(number),
            Yaml::String(text) => json!(text),
            Yaml::Boolean(truth) => json!(truth),
            Yaml::Array(items) => items.iter().map(json).collect(),
            Yaml::Hash(fields) => {
                fields.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), json(value))).collect()
            }
            _ => Value::Null,
        }
    }
    json(&YamlLoader::load_from_str(text).unwrap()[0])
}

fn file(path: &str) -> String {
    std::fs::read_to_string(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/layouts").join(path),
    )
    .unwrap()
}

#[test]
fn generated_schemas_match_the_meta_schema() {
    for document in [SchemaDocument::Layout, SchemaDocument::Allocation] {
        let schema = generate_schema(document);
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        jsonschema::draft202012::meta::validate(&schema).unwrap();
    }
}

/// Returns the paths of all valid layouts of the repository.
fn good_layouts(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("bad") {
            found.extend(good_layouts(&path));
        } else if path.extension().is_some_and(|end| end == "yaml" || end == "json") {
            found.push(path);
        }
    }
    found
}

#[test]
fn valid_layouts_are_accepted_in_their_spelling() {
    let validator = validator(SchemaDocument::Layout);
    let files = good_layouts(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/layouts"));
    assert!(files.len() >= 5);
    for file in files {
        let layout = parsed(&std::fs::read_to_string(&file).unwrap());
        assert_eq!(problems(&validator, &layout), [""; 0], "{}", file.display());
    }
    for text in code_blocks(crate::docs_tests::LAYOUT_PAGES, "yaml") {
        assert_eq!(problems(&validator, &parsed(&text)), [""; 0], "{text}");
    }
}

#[test]
fn canonical_forms_are_accepted() {
    let validator = validator(SchemaDocument::Layout);
    for (name, layout) in seeds().into_iter().chain(rich()) {
        let canonical = serde_json::to_value(&layout).unwrap();
        assert_eq!(problems(&validator, &canonical), [""; 0], "{name}");
        assert!(!uses_deprecated(&canonical), "{name}");
    }
}

/// Returns whether the document is valid only because of parts of the schema that are marked as deprecated.
fn uses_deprecated(document: &Value) -> bool {
    fn without(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                fields.retain(|_, value| value.get("deprecated").is_none());
                fields.values_mut().for_each(without);
            }
            Value::Array(items) => {
                items.retain(|item| item.get("deprecated").is_none());
                items.iter_mut().for_each(without);
            }
            _ => {}
        }
    }
    let mut strict = generate_schema(SchemaDocument::Layout);
    without(&mut strict);
    !jsonschema::draft202012::new(&strict).unwrap().is_valid(document)
}

/// The other invalid layouts of the repository violate rules about several fields, which the schema does not express.
#[test]
fn structurally_invalid_layouts_are_refused() {
    let validator = validator(SchemaDocument::Layout);
    for name in [
        "empty-layout",
        "labels",
        "list",
        "misspelt-required",
        "missing-fields",
        "numbers",
        "options",
        "partition-labels",
        "paths",
        "unknown-fields",
        "unknown-values",
        "wrong-kinds",
    ] {
        assert!(!validator.is_valid(&parsed(&file(&format!("bad/{name}.yaml")))), "{name}");
    }
}

const GOOD: &str = r#"
id: x
constraints: {sizes: [a], images: {debian: ">= 12"}}
disks:
  - device: /dev/sda
    wipeonreinstall: true
    partitions:
      - {number: 1, label: efi, size: 500, gpttype: ef00}
      - {number: 2, size: 5000}
      - {number: 3, size: 0}
filesystems:
  - {path: /boot/efi, device: /dev/sda1, format: vfat, createoptions: ["-F", "32"], mountoptions: [noatime]}
  - {path: /, device: /dev/sda2, format: ext4}
"#;

/// Each case changes one field of the valid layout. If the parser accepts the change with a note, the schema marks it
/// as deprecated.
#[test]
fn schema_and_parser_agree_on_layouts() {
    let validator = validator(SchemaDocument::Layout);
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum ParserVerdict {
        Good,
        Deprecated,
        Refused,
    }
    use ParserVerdict::{Deprecated, Good, Refused};
    for (from, to, said) in [
        ("id: x", "id: x", Good),
        ("id: x", "id: x\nraid: null", Good),
        ("id: x", "id: x\nraid: []\nvolumegroups: []\nlogicalvolumes: []", Good),
        ("{path: /, ", "{path: /, label: null, ", Good),
        ("number: 3", "number: 128", Good),
        ("wipeonreinstall", "wipe", Deprecated),
        ("wipeonreinstall: true", "wipeonreinstall: true\n    wipe: true", Refused),
        ("wipeonreinstall: true", "wipeonreinstall: yes", Refused),
        ("wipeonreinstall: true", "wipeonreinstall: \"true\"", Refused),
        ("gpttype: ef00", "type: ef00", Deprecated),
        ("gpttype: ef00", "gpttype: GPTBoot", Deprecated),
        ("gpttype: ef00", "gpttype: EF00", Deprecated),
        ("gpttype: ef00", "gpttype: 8300", Deprecated),
        ("gpttype: ef00", "gpttype: 8e00", Deprecated),
        ("gpttype: ef00", "gpttype: \"8e00\"", Good),
        ("gpttype: ef00", "gpttype: ef02", Refused),
        ("gpttype: ef00", "gpttype: 8200", Refused),
        ("createoptions", "options", Deprecated),
        ("createoptions: [\"-F\", \"32\"]", "options: \"-F 32\"", Deprecated),
        ("createoptions: [\"-F\", \"32\"]", "createoptions: [\"-F 32\"]", Deprecated),
        ("createoptions: [\"-F\", \"32\"]", "createoptions: [\"-F\", \"'3'\"]", Refused),
        ("createoptions: [\"-F\", \"32\"]", "createoptions: {F: 32}", Refused),
        ("createoptions", "options: [], createoptions", Refused),
        ("mountoptions: [noatime]", "mountoptions: \"noatime,nodev\"", Deprecated),
        ("mountoptions: [noatime]", "mountoptions: [\"noatime,nodev\"]", Refused),
        ("size: 500", "size: \"500\"", Deprecated),
        ("size: 500", "size: 500M", Refused),
        ("size: 500", "size: -1", Refused),
        ("size: 500", "size: 1.5", Refused),
        ("size: 500, ", "", Refused),
        ("number: 3", "number: \"3\"", Deprecated),
        ("number: 3", "number: 0", Refused),
        ("number: 3", "number: 129", Refused),
        ("sizes: [a]", "size: [a]", Deprecated),
        ("sizes: [a]", "sizes: [a, a]", Refused),
        ("sizes: [a]", "sizes: [\"a*\"]", Refused),
        ("sizes: [a]", "sizes: a", Refused),
        (">= 12", ">=12", Deprecated),
        (">= 12", "12.0.20261101", Good),
        (">= 12", "*", Good),
        ("\">= 12\"", "12", Deprecated),
        (">= 12", "== 12", Refused),
        (">= 12", "about 12", Refused),
        ("debian", "\"*\"", Refused),
        ("images: {debian: \">= 12\"}", "images: []", Deprecated),
        ("images: {debian: \">= 12\"}", "images: [debian]", Refused),
        ("format: ext4", "format: ntfs", Refused),
        ("format: ext4", "format: [ext4]", Refused),
        (", format: ext4", "", Refused),
        ("path: /,", "path: root,", Refused),
        ("path: /,", "mountpoint: /,", Refused),
        ("device: /dev/sda\n", "device: sda\n", Refused),
        ("  - device: /dev/sda\n", "  - /dev/sda\n  - device: /dev/sda\n", Refused),
        ("format: ext4", "format: ext4, label: sixteen_letters_", Good),
        ("format: ext4", "format: ext4, label: seventeen_letters", Refused),
        ("format: vfat", "format: vfat, label: twelve_chars", Refused),
        ("format: vfat", "format: vfat, label: \"a+b\"", Refused),
        ("format: ext4", "format: ext4, label: \"a b\"", Good),
        ("format: ext4", "format: ext4, label: \" ab\"", Refused),
        ("format: ext4", "format: ext4, label: \"ab \"", Refused),
        ("format: ext4", "format: ext4, label: \"a\\tb\"", Refused),
        ("label: efi", "label: an-efi-system-partition-with-a-long-name", Refused),
        ("id: x", "id: \"\"", Refused),
        ("id: x", "name: x", Refused),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replacen(from, to, 1);
        let document = parsed(&text);
        let schema = match validator.is_valid(&document) {
            true if uses_deprecated(&document) => Deprecated,
            true => Good,
            false => Refused,
        };
        assert_eq!(schema, said, "{from} -> {to}: {:?}", problems(&validator, &document));
        let reader = match read_yaml(&text) {
            Ok(parsed) if parsed.notes.is_empty() => Good,
            Ok(_) => Deprecated,
            Err(_) => Refused,
        };
        assert_eq!(reader, said, "{from} -> {to}: {:?}", read_yaml(&text).map(|parsed| parsed.notes));
    }
}

/// The parser accepts these spellings with a note, and editors do not mark them as errors. Editors do not propose them,
/// because new files should not use them.
#[test]
fn v2_spellings_are_accepted_but_never_proposed() {
    let validator = validator(SchemaDocument::Layout);
    let stacked = "raid: [{arrayname: /dev/md0, level: \"1\", devices: [/dev/sdb, /dev/sdc]}]
volumegroups: [{name: vg, devices: [/dev/md0]}]
logicalvolumes: [{name: a, volumegroup: vg, size: 0, lvmtype: linear}]
";
    let disks = "  - device: /dev/sdb\n  - device: /dev/sdc\nfilesystems";
    let good = format!("{}{stacked}", GOOD.replacen("filesystems", disks, 1));
    let canonical = read_yaml(&good).unwrap().layout;
    let offered = |name: &str| {
        let mut found = false;
        proposed(&generate_schema(SchemaDocument::Layout), &mut |proposal| found |= proposal == name);
        found
    };
    for (from, to, value) in [
        ("wipeonreinstall", &["wipe_on_reinstall", "wipeOnReinstall"][..], false),
        ("mountoptions", &["mount_options", "mountOptions"], false),
        ("createoptions", &["create_options", "createOptions"], false),
        ("gpttype", &["gpt_type", "gptType"], false),
        ("arrayname", &["array_name", "arrayName"], false),
        ("volumegroups", &["volume_groups", "volumeGroups"], false),
        ("logicalvolumes", &["logical_volumes", "logicalVolumes"], false),
        ("volumegroup:", &["volume_group:", "volumeGroup:"], false),
        ("lvmtype", &["lvm_type", "lvmType"], false),
        ("vfat", &["FORMAT_VFAT", "VFAT"], true),
        ("ext4", &["FORMAT_EXT4", "Ext4"], true),
        ("linear", &["LVM_TYPE_LINEAR"], true),
        ("level: \"1\"", &["level: RAID_LEVEL_1"], true),
        ("gpttype: ef00", &["gpttype: GPT_TYPE_BOOT", "gpttype: GPTBoot"], true),
        ("format: ext4", &["format: ext4, reinstall: KEEP"], true),
        ("format: ext4", &["format: ext4, name: root", "format: ext4, description: the system"], true),
        ("id: x", &["meta: {labels: {labels: {a: b}}}\nid: x"], true),
    ] {
        assert!(good.contains(from), "{from}");
        let name = |text: &str| text.rsplit(": ").next().unwrap().trim_end_matches(':').to_owned();
        assert!(value || offered(&name(from)), "{from}");
        for to in to {
            let text = good.replacen(from, to, 1);
            let document = parsed(&text);
            assert_eq!(problems(&validator, &document), [""; 0], "{to}");
            assert!(uses_deprecated(&document), "{to}");
            assert!(!offered(&name(to)), "{to}");
            let read = read_yaml(&text).unwrap();
            assert_eq!((read.layout, read.notes.len()), (canonical.clone(), 1), "{to}");
        }
    }
    for (from, to) in [
        ("wipeonreinstall: true", "wipe_on_reinstall: true\n    wipeOnReinstall: true"),
        ("wipeonreinstall: true", "wipe: true\n    wipe_on_reinstall: true"),
        ("lvmtype: linear", "lvmtype: linear, lvm_type: linear"),
        ("volumegroups", "volume_groups: []\nvolumegroups"),
        ("ext4", "FORMAT_NTFS"),
        ("ext4", "FS_EXT4"),
        ("level: \"1\"", "level: RAID_LEVEL_4"),
        ("gpttype: ef00", "gpttype: GPT_TYPE_SWAP"),
    ] {
        let text = good.replacen(from, to, 1);
        assert!(!validator.is_valid(&parsed(&text)), "{to}");
        assert!(read_yaml(&text).is_err(), "{to}");
    }
}

/// Calls `see` with each string that an editor proposes: names of fields, and values, unless they are deprecated.
fn proposed(schema: &Value, see: &mut impl FnMut(&str)) {
    match schema {
        Value::Object(fields) if fields.contains_key("deprecationMessage") => {}
        Value::Object(fields) => {
            for (keyword, rule) in fields {
                match (keyword.as_str(), rule) {
                    ("properties", Value::Object(properties)) => properties
                        .iter()
                        .filter(|(_, property)| property.get("deprecationMessage").is_none())
                        .for_each(|(name, _)| see(name)),
                    ("const", Value::String(value)) => see(value),
                    ("enum", Value::Array(values)) => values.iter().filter_map(Value::as_str).for_each(&mut *see),
                    _ => {}
                }
                proposed(rule, see);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| proposed(item, see)),
        _ => {}
    }
}

#[test]
fn schema_checks_arrays_and_volumes() {
    let validator = validator(SchemaDocument::Layout);
    let layout = |raid: Value, group: Value, volume: Value| json!({"id": "x", "disks": [], "filesystems": [], "raid": [raid], "volumegroups": [group], "logicalvolumes": [volume]});
    let raid = json!({"arrayname": "/dev/md0", "level": "1", "devices": ["/dev/sda1", "/dev/sdb1"]});
    let group = json!({"name": "vg00", "devices": ["/dev/md0"]});
    let volume = json!({"name": "a", "volumegroup": "vg00", "size": 0, "lvmtype": "linear"});
    assert_eq!(problems(&validator, &layout(raid.clone(), group.clone(), volume.clone())), [""; 0]);
    let with = |value: &Value, field: &str, new: Value| {
        let mut value = value.clone();
        value[field] = new;
        value
    };
    let bad = [
        layout(with(&raid, "arrayname", json!("/dev/root")), group.clone(), volume.clone()),
        layout(with(&raid, "arrayname", Value::Null), group.clone(), volume.clone()),
        layout(with(&raid, "name", json!("/dev/md0")), group.clone(), volume.clone()),
        layout(with(&raid, "level", json!("4")), group.clone(), volume.clone()),
        layout(with(&raid, "level", json!("raid1")), group.clone(), volume.clone()),
        layout(with(&raid, "spares", json!(-1)), group.clone(), volume.clone()),
        layout(with(&raid, "devices", json!([])), group.clone(), volume.clone()),
        layout(raid.clone(), with(&group, "name", json!("-vg")), volume.clone()),
        layout(raid.clone(), with(&group, "tags", json!("csi")), volume.clone()),
        layout(raid.clone(), group.clone(), with(&volume, "lvmtype", json!("thin"))),
        layout(raid.clone(), group.clone(), with(&volume, "size", Value::Null)),
    ];
    for bad in bad {
        assert!(!validator.is_valid(&bad), "{bad}");
    }
    let mut renamed = with(&raid, "name", json!("/dev/md/root"));
    renamed.as_object_mut().unwrap().remove("arrayname");
    let proposal = layout(with(&renamed, "level", json!(1)), group, volume);
    assert_eq!(problems(&validator, &proposal), [""; 0]);
    assert!(uses_deprecated(&proposal));
}

#[test]
fn disk_with_hints_accepts_any_name() {
    let validator = validator(SchemaDocument::Layout);
    let layout = |disk: Value| json!({"id": "x", "disks": [disk], "filesystems": []});
    assert!(validator.is_valid(&layout(json!({"device": "os", "hints": {"size": "<= 64", "rotational": false}}))));
    assert!(!validator.is_valid(&layout(json!({"device": "os"}))));
    assert!(!validator.is_valid(&layout(json!({"device": "os", "hints": {"colour": "red"}}))));
    assert!(!validator.is_valid(&layout(json!({"device": "os", "hints": {"size": [1]}}))));
}

#[test]
fn every_field_is_described() {
    for document in [SchemaDocument::Layout, SchemaDocument::Allocation] {
        let schema = generate_schema(document);
        let definitions = schema["$defs"].as_object().unwrap().values().chain([&schema]);
        for definition in definitions.filter(|definition| definition["properties"].is_object()) {
            for (name, property) in definition["properties"].as_object().unwrap() {
                let described = property.get("description").is_some() || property.get("$ref").is_some();
                assert!(described || document == SchemaDocument::Allocation, "{name} of {}", definition["description"]);
            }
        }
    }
}
