//! Rules for layouts that the Rust types do not express: optional fields, patterns of text, and accepted alternative
//! spellings. Alternative spellings have the standard keyword `deprecated`, and the keyword `deprecationMessage`, which
//! some editors display (VS Code, JetBrains).

use model::layout::{FILESYSTEM_OF_V2, FilesystemFormat, LAYOUT_OF_V2, LvmType, OnReinstall, RaidLevel};
use serde_json::{Map, Value, json};

type SchemaFields = Map<String, Value>;

const VERSION: &str = r"v?[0-9]+(\.[0-9]+){0,2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?";
const OPERATORS: &str = "(=|!=|>|<|>=|=>|<=|=<|~|~>|\\^)";
const WHOLE_NUMBER: &str = "^(0|[1-9][0-9]*)$";
const LVM_NAME: &str = r"^[A-Za-z0-9+_.][A-Za-z0-9+_.-]*$";
/// Pattern of one argument of a command. It excludes quotes: no shell removes them, so they would become part of the
/// argument.
const WORD: &str = r#"^[^\s"']+$"#;

/// Pattern of GPT types: the names in metal-stack's first proposal, the names in its API v2 (such as
/// `GPT_TYPE_LINUX_RAID`), and the type codes of sgdisk.
const GPT_TYPE_PATTERN: &str = "gpt_?(type_?)?(boot|linux(_?(raid|lvm))?)|ef00|fd00|8e00";

/// Adds the rules for the layout itself. The layout is the root of the layout schema, and a definition in the schema of
/// allocations.
pub(super) fn add_layout_rules(layout: &mut Value) {
    set_required(layout, &["id", "filesystems", "disks"]);
    set_rules(layout, "id", json!({"minLength": 1, "examples": ["storage"]}));
    set_rules(layout, "cleanfirmware", json!({"default": false}));
    add_ignored_fields(layout, &LAYOUT_OF_V2);
    add_aliases(layout, "volumegroups", &["volume_groups", "volumeGroups"]);
    add_aliases(layout, "logicalvolumes", &["logical_volumes", "logicalVolumes"]);
}

/// Adds the rules for all types within a layout, such as disks and filesystems.
pub(super) fn add_definition_rules(definitions: &mut SchemaFields) {
    for (name, rules) in [
        ("Constraints", add_constraint_rules as fn(&mut Value)),
        ("Filesystem", add_filesystem_rules),
        ("Disk", add_disk_rules),
        ("Partition", add_partition_rules),
        ("Raid", add_raid_rules),
        ("VolumeGroup", add_volume_group_rules),
        ("LogicalVolume", add_logical_volume_rules),
        ("Image", add_image_rules),
    ] {
        if let Some(definition) = definitions.get_mut(name) {
            rules(definition);
        }
    }
}

fn add_constraint_rules(constraints: &mut Value) {
    set_required(constraints, &[]);
    set_rules(constraints, "sizes", json!({"uniqueItems": true, "examples": [["c1-large-x86"]]}));
    set_item_rules(constraints, "sizes", json!({"pattern": r"^[^*]*[^*\s][^*]*$"}));
    add_aliases(constraints, "sizes", &["size"]);
    let canonical = json!({"type": "string", "pattern": format!(r"^(\s*\*\s*|({OPERATORS} )?{VERSION})$")});
    let without_blank = json!({"type": "string", "pattern": format!("^{OPERATORS}{VERSION}$")});
    set_rules(
        constraints,
        "images",
        json!({
            "propertyNames": {"pattern": r"\S", "not": {"const": "*"}},
            "additionalProperties": {"anyOf": [
                canonical,
                mark_deprecated(without_blank, "write a blank between operator and version"),
                mark_deprecated(json!({"type": "number"}), "must be text: write it in quotes"),
            ]},
            "examples": [{"debian": ">= 12", "ubuntu": "*"}],
        }),
    );
    let none = mark_deprecated(json!({"type": "array", "maxItems": 0}), "must be a mapping: write {}");
    add_alternative(constraints, "images", none);
}

fn add_filesystem_rules(filesystem: &mut Value) {
    set_required(filesystem, &["device", "format"]);
    add_ignored_fields(filesystem, &FILESYSTEM_OF_V2);
    set_rules(filesystem, "path", json!({"pattern": "^(/.*)?$", "examples": ["/", "/boot/efi", "/var/lib"]}));
    add_alternative(
        filesystem,
        "path",
        mark_deprecated(json!({"const": "none"}), "a filesystem that is not mounted must not have a path: omit `path`"),
    );
    set_rules(
        filesystem,
        "device",
        json!({"minLength": 1, "examples": ["/dev/sda1", "/dev/md/root", "/dev/vg00/varlib", "tmpfs"]}),
    );
    set_rules(filesystem, "label", json!({"maxLength": 255, "pattern": r"^(\S([\S ]*\S)?)?$", "examples": ["root"]}));
    for (formats, label) in [
        (json!(["ext3", "ext4"]), json!({"maxLength": 16})),
        (json!(["vfat"]), json!({"maxLength": 11, "pattern": r#"^[^*?.,;:/\\|+=<>\[\]"]*$"#})),
        (json!(["xfs"]), json!({"maxLength": 12})),
        (json!(["swap"]), json!({"maxLength": 15})),
    ] {
        let of_format = json!({"properties": {"format": {"enum": formats}}, "required": ["format"]});
        add_all_of(filesystem, json!({"if": of_format, "then": {"properties": {"label": label}}}));
    }
    set_rules(filesystem, "mountoptions", json!({"examples": [["noatime", "nodev"]]}));
    set_item_rules(filesystem, "mountoptions", json!({"pattern": r"^[^\s,\\]+$"}));
    add_alternative(
        filesystem,
        "mountoptions",
        mark_deprecated(json!({"type": "string"}), "must be a list with one option per entry"),
    );
    add_aliases(filesystem, "mountoptions", &["mount_options", "mountOptions"]);
    add_createoptions_rules(filesystem, json!([["-F", "32"]]));
    add_choice_spellings(filesystem, "format", "format_", &FilesystemFormat::ALL.map(FilesystemFormat::name));
    add_choice_spellings(filesystem, "reinstall", "reinstall_", &OnReinstall::ALL.map(OnReinstall::name));
    set_rules(filesystem, "reinstall", json!({"default": "keep"}));
    set_rules(filesystem, "grow", json!({"default": false}));
    set_rules(filesystem, "preserve", json!({"default": false}));
}

fn add_createoptions_rules(owner: &mut Value, examples: Value) {
    set_rules(owner, "createoptions", json!({"examples": examples}));
    let several = json!({"type": "string", "pattern": r#"^\s*[^\s"']+(\s+[^\s"']+)*\s*$"#});
    let word = json!({"type": "string", "pattern": WORD});
    let item = json!({"anyOf": [word, mark_deprecated(several, "each entry must be a single word")]});
    set_rules(owner, "createoptions", json!({"items": item}));
    let text = json!({"type": "string", "pattern": r#"^[^"']*$"#});
    add_alternative(owner, "createoptions", mark_deprecated(text, "must be a list with one word per entry"));
    add_aliases(owner, "createoptions", &["options", "create_options", "createOptions"]);
}

fn add_disk_rules(disk: &mut Value) {
    set_required(disk, &["device"]);
    set_rules(
        disk,
        "device",
        json!({"minLength": 1, "examples": ["/dev/sda", "/dev/nvme0n1", "/dev/disk/by-path/pci-0000:00:1f.2-ata-1"]}),
    );
    set_rules(disk, "wipeonreinstall", json!({"default": false}));
    set_rules(disk, "image", json!({"default": false}));
    set_rules(
        disk,
        "hints",
        json!({
            "propertyNames": {"enum": [
                "size", "model", "vendor", "serial", "wwn", "wwn_with_extension", "wwn_vendor_extension", "hctl",
                "by_path", "name", "rotational", "tran",
            ]},
            "additionalProperties": {"type": ["string", "integer", "boolean"]},
            "examples": [{"size": "<= 64", "tran": "sata"}],
        }),
    );
    add_aliases(disk, "wipeonreinstall", &["wipe", "wipe_on_reinstall", "wipeOnReinstall"]);
    // If hints select a disk, the field `device` of the disk may be any name; otherwise it must be a path below /dev.
    let named =
        json!({"if": {"not": {"required": ["hints"]}}, "then": {"properties": {"device": {"pattern": r"^/dev/\S+$"}}}});
    add_all_of(disk, named);
}

fn add_partition_rules(partition: &mut Value) {
    set_required(partition, &["number", "size"]);
    set_rules(partition, "number", json!({"minimum": 1, "maximum": 128}));
    add_alternative(partition, "number", number_in_quotes("^([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8])$"));
    set_rules(partition, "label", json!({"maxLength": 36, "examples": ["efi", "root"]}));
    set_rules(partition, "size", json!({"examples": [500, 0]}));
    add_alternative(partition, "size", number_in_quotes(WHOLE_NUMBER));
    let name = json!({"type": "string", "pattern": ignore_case(GPT_TYPE_PATTERN)});
    let unquoted =
        |number: u32, text: &str| mark_deprecated(json!({"const": number}), &format!("write \"{text}\" in quotes"));
    add_alternative(partition, "gpttype", mark_deprecated(name, "write \"ef00\", \"8300\", \"fd00\" or \"8e00\""));
    add_alternative(partition, "gpttype", unquoted(8300, "8300"));
    // YAML reads 8e00 without quotes as the number 8: 8 times 10 to the power of 0.
    add_alternative(partition, "gpttype", unquoted(8, "8e00"));
    add_aliases(partition, "gpttype", &["type", "gpt_type", "gptType"]);
    set_rules(partition, "preserve", json!({"default": false}));
}

/// Returns a pattern that matches the whole text regardless of case.
fn ignore_case(pattern: &str) -> String {
    let either = |c: char| match c.is_ascii_alphabetic() {
        true => format!("[{c}{}]", c.to_ascii_uppercase()),
        false => c.to_string(),
    };
    format!("^({})$", pattern.chars().map(either).collect::<String>())
}

/// Adds rules that accept the values of an enumeration regardless of case, with or without the prefix of metal-stack's
/// API v2, such as `FORMAT_EXT4`.
fn add_choice_spellings(owner: &mut Value, name: &str, prefix: &str, known: &[&str]) {
    let pattern = ignore_case(&format!("({})?({})", prefix.replace('_', "_?"), known.join("|")));
    let message = format!("write one of: {}", known.join(", "));
    add_alternative(owner, name, mark_deprecated(json!({"type": "string", "pattern": pattern}), &message));
}

fn add_raid_rules(raid: &mut Value) {
    set_required(raid, &["arrayname", "devices", "level"]);
    let name = r"^/dev/md([0-9]+|/[A-Za-z0-9_][A-Za-z0-9._-]*)$";
    set_rules(raid, "arrayname", json!({"pattern": name, "examples": ["/dev/md/root", "/dev/md0"]}));
    add_aliases(raid, "arrayname", &["name", "array_name", "arrayName"]);
    set_rules(raid, "devices", json!({"minItems": 1, "uniqueItems": true, "examples": [["/dev/sda1", "/dev/sdb1"]]}));
    add_alternative(
        raid,
        "level",
        mark_deprecated(json!({"enum": [0, 1, 5, 6, 10]}), "must be text: write it in quotes"),
    );
    add_choice_spellings(raid, "level", "raid_level_", &RaidLevel::ALL.map(RaidLevel::number));
    add_createoptions_rules(raid, json!([["--metadata=1.0"]]));
    set_rules(raid, "spares", json!({"default": 0}));
    set_rules(raid, "preserve", json!({"default": false}));
    add_alternative(raid, "spares", number_in_quotes(WHOLE_NUMBER));
}

fn add_volume_group_rules(group: &mut Value) {
    set_required(group, &["name", "devices"]);
    set_rules(group, "name", json!({"pattern": LVM_NAME, "maxLength": 127, "examples": ["vg00"]}));
    set_rules(
        group,
        "devices",
        json!({"minItems": 1, "uniqueItems": true, "examples": [["/dev/nvme0n1", "/dev/md/data"]]}),
    );
    set_rules(group, "preserve", json!({"default": false}));
}

fn add_logical_volume_rules(volume: &mut Value) {
    set_required(volume, &["name", "volumegroup", "size", "lvmtype"]);
    set_rules(volume, "name", json!({"pattern": LVM_NAME, "maxLength": 127, "examples": ["varlib"]}));
    set_rules(volume, "volumegroup", json!({"examples": ["vg00"]}));
    add_aliases(volume, "volumegroup", &["volume_group", "volumeGroup"]);
    set_rules(volume, "size", json!({"examples": [10240, 0]}));
    add_alternative(volume, "size", number_in_quotes(WHOLE_NUMBER));
    set_rules(volume, "preserve", json!({"default": false}));
    add_choice_spellings(volume, "lvmtype", "lvm_type_", &LvmType::ALL.map(LvmType::name));
    add_aliases(volume, "lvmtype", &["lvm_type", "lvmType"]);
}

fn add_image_rules(image: &mut Value) {
    set_rules(
        image,
        "url",
        json!({"examples": ["http://10.0.0.1:8080/images/debian-12.tar.zst", "oci://r.example/os/debian:12"]}),
    );
    set_rules(image, "digest", json!({"pattern": "^(sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$"}));
}

fn number_in_quotes(pattern: &str) -> Value {
    mark_deprecated(json!({"type": "string", "pattern": pattern}), "must be a number: write it without quotes")
}

fn mark_deprecated(mut schema: Value, message: &str) -> Value {
    schema["deprecated"] = json!(true);
    schema["deprecationMessage"] = json!(message);
    schema
}

/// Makes these fields required, and all other fields optional. An optional field also accepts null, which has the same
/// effect as omitting the field.
fn set_required(owner: &mut Value, names: &[&str]) {
    owner["required"] = json!(names);
    let optional: Vec<String> = match owner.get("properties").and_then(Value::as_object) {
        Some(properties) => properties.keys().filter(|name| !names.contains(&name.as_str())).cloned().collect(),
        None => Vec::new(),
    };
    for name in optional {
        let nullable = find_property(owner, &name).is_some_and(|property| allows_null(property));
        if !nullable {
            add_alternative(owner, &name, json!({"type": "null"}));
        }
    }
}

fn allows_null(property: &SchemaFields) -> bool {
    let alternatives = property.get("anyOf").and_then(Value::as_array);
    let null = json!("null");
    property.get("type").and_then(Value::as_array).is_some_and(|kinds| kinds.contains(&null))
        || alternatives.is_some_and(|schemas| schemas.iter().any(|schema| schema["type"] == null))
}

fn find_property<'a>(owner: &'a mut Value, name: &str) -> Option<&'a mut SchemaFields> {
    owner.get_mut("properties")?.get_mut(name)?.as_object_mut()
}

/// Returns the schema of a property's canonical spelling: the first alternative, or the property itself if it has no
/// alternatives.
fn find_canonical(property: &mut SchemaFields) -> Option<&mut SchemaFields> {
    if property.contains_key("anyOf") {
        property.get_mut("anyOf")?.as_array_mut()?.first_mut()?.as_object_mut()
    } else {
        Some(property)
    }
}

/// Adds rules to a property: `examples` and `default` to the property itself, and all other rules to the schema of its
/// canonical spelling.
fn set_rules(owner: &mut Value, name: &str, rules: Value) {
    let (Some(property), Value::Object(rules)) = (find_property(owner, name), rules) else { return };
    for (keyword, rule) in rules {
        let beside = ["examples", "default"].contains(&keyword.as_str());
        if let Some(schema) = if beside { Some(&mut *property) } else { find_canonical(property) } {
            schema.insert(keyword, rule);
        }
    }
}

fn set_item_rules(owner: &mut Value, name: &str, rules: Value) {
    let items =
        find_property(owner, name).and_then(find_canonical).and_then(|schema| schema.get_mut("items")?.as_object_mut());
    if let (Some(items), Value::Object(rules)) = (items, rules) {
        items.extend(rules);
    }
}

/// Adds an alternative spelling of a value.
fn add_alternative(owner: &mut Value, name: &str, alternative: Value) {
    let Some(property) = find_property(owner, name) else { return };
    if !property.contains_key("anyOf") {
        let words = ["description", "examples", "default", "title"];
        let (words, rules): (SchemaFields, SchemaFields) =
            std::mem::take(property).into_iter().partition(|(keyword, _)| words.contains(&keyword.as_str()));
        *property = words;
        property.insert("anyOf".to_owned(), json!([rules]));
    }
    if let Some(alternatives) = property.get_mut("anyOf").and_then(Value::as_array_mut) {
        alternatives.push(alternative);
    }
}

/// Adds alternative names of a field. At most one name of the field may be present, and any of them satisfies
/// `required`. Editors do not propose fields with a `deprecationMessage`.
fn add_aliases(owner: &mut Value, name: &str, others: &[&str]) {
    let Some(property) = find_property(owner, name) else { return };
    let mut copy = Value::Object(property.clone());
    copy["description"] = json!(format!("Alternative name of {name}."));
    let copy = mark_deprecated(copy, &format!("the canonical name of this field is {name}"));
    for other in others {
        owner["properties"][*other] = copy.clone();
    }
    let mut required = false;
    if let Some(names) = owner.get_mut("required").and_then(Value::as_array_mut) {
        required = names.iter().any(|known| known == name);
        names.retain(|known| known != name);
    }
    let given = |name: &str| json!({"required": [name]});
    let mut once: Vec<Value> = [name].iter().chain(others).map(|name| given(name)).collect();
    if !required {
        let none = json!({"not": {"anyOf": once}});
        once.push(none);
    }
    add_all_of(owner, json!({"oneOf": once}));
}

/// Adds fields of metal-stack's API v2 that are accepted and ignored.
fn add_ignored_fields(owner: &mut Value, names: &[&str]) {
    for name in names {
        let any = json!({"description": "Field of metal-stack's v2 API."});
        owner["properties"][*name] = mark_deprecated(any, "this field is ignored");
    }
}

fn add_all_of(owner: &mut Value, schema: Value) {
    match owner.get_mut("allOf").and_then(Value::as_array_mut) {
        Some(all) => all.push(schema),
        None => owner["allOf"] = json!([schema]),
    }
}
