//! Rules for layouts that cannot be derived from the Rust types: optional fields, patterns of text, and accepted alternative spellings. The
//! latter are marked with the standard `deprecated` and with `deprecationMessage`, which editors display (VS Code, JetBrains).

use crate::layout::{FILESYSTEM_OF_V2, Format, LAYOUT_OF_V2, LvmType, OnReinstall, RaidLevel};
use serde_json::{Map, Value, json};

type Fields = Map<String, Value>;

const VERSION: &str = r"v?[0-9]+(\.[0-9]+){0,2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?";
const OPERATORS: &str = "(=|!=|>|<|>=|=>|<=|=<|~|~>|\\^)";
const WHOLE_NUMBER: &str = "^(0|[1-9][0-9]*)$";
const LVM_NAME: &str = r"^[A-Za-z0-9+_.][A-Za-z0-9+_.-]*$";
/// A word that is passed to a command unchanged: no shell interprets quotes.
const WORD: &str = r#"^[^\s"']+$"#;

/// Names of GPT types in metal-stack's first proposal and in its v2 API (`GPT_TYPE_LINUX_RAID`), and the codes.
const KINDS: &str = "gpt_?(type_?)?(boot|linux(_?(raid|lvm))?)|ef00|fd00|8e00";

/// Adds the rules of the layout, which is the root of one schema and a definition in another.
pub(super) fn layout(layout: &mut Value) {
    required(layout, &["id", "filesystems", "disks"]);
    set(layout, "id", json!({"minLength": 1, "examples": ["storage"]}));
    set(layout, "cleanfirmware", json!({"default": false}));
    unread(layout, &LAYOUT_OF_V2);
    also(layout, "volumegroups", &["volume_groups", "volumeGroups"]);
    also(layout, "logicalvolumes", &["logical_volumes", "logicalVolumes"]);
}

/// Adds the rules of all types below the layout.
pub(super) fn definitions(definitions: &mut Fields) {
    for (name, rules) in [
        ("Constraints", constraints as fn(&mut Value)),
        ("Filesystem", filesystem),
        ("Disk", disk),
        ("Partition", partition),
        ("Raid", raid),
        ("VolumeGroup", volume_group),
        ("LogicalVolume", logical_volume),
        ("Image", image),
    ] {
        if let Some(definition) = definitions.get_mut(name) {
            rules(definition);
        }
    }
}

fn constraints(constraints: &mut Value) {
    required(constraints, &[]);
    set(constraints, "sizes", json!({"uniqueItems": true, "examples": [["c1-large-x86"]]}));
    set_items(constraints, "sizes", json!({"pattern": r"^[^*]*[^*\s][^*]*$"}));
    also(constraints, "sizes", &["size"]);
    let canonical = json!({"type": "string", "pattern": format!(r"^(\s*\*\s*|({OPERATORS} )?{VERSION})$")});
    let without_blank = json!({"type": "string", "pattern": format!("^{OPERATORS}{VERSION}$")});
    set(
        constraints,
        "images",
        json!({
            "propertyNames": {"pattern": r"\S", "not": {"const": "*"}},
            "additionalProperties": {"anyOf": [
                canonical,
                deprecated(without_blank, "put a blank between operator and version"),
                deprecated(json!({"type": "number"}), "must be text: write it in quotes"),
            ]},
            "examples": [{"debian": ">= 12", "ubuntu": "*"}],
        }),
    );
    let none = deprecated(json!({"type": "array", "maxItems": 0}), "must be a mapping: write {}");
    or(constraints, "images", none);
}

fn filesystem(filesystem: &mut Value) {
    required(filesystem, &["device", "format"]);
    unread(filesystem, &FILESYSTEM_OF_V2);
    set(filesystem, "path", json!({"pattern": "^(/.*)?$", "examples": ["/", "/boot/efi", "/var/lib"]}));
    or(
        filesystem,
        "path",
        deprecated(json!({"const": "none"}), "a filesystem that is not mounted must not have a path: omit it"),
    );
    set(
        filesystem,
        "device",
        json!({"minLength": 1, "examples": ["/dev/sda1", "/dev/md/root", "/dev/vg00/varlib", "tmpfs"]}),
    );
    set(filesystem, "label", json!({"maxLength": 255, "pattern": r"^(\S([\S ]*\S)?)?$", "examples": ["root"]}));
    for (formats, label) in [
        (json!(["ext3", "ext4"]), json!({"maxLength": 16})),
        (json!(["vfat"]), json!({"maxLength": 11, "pattern": r#"^[^*?.,;:/\\|+=<>\[\]"]*$"#})),
        (json!(["xfs"]), json!({"maxLength": 12})),
        (json!(["swap"]), json!({"maxLength": 15})),
    ] {
        let of_format = json!({"properties": {"format": {"enum": formats}}, "required": ["format"]});
        all_of(filesystem, json!({"if": of_format, "then": {"properties": {"label": label}}}));
    }
    set(filesystem, "mountoptions", json!({"examples": [["noatime", "nodev"]]}));
    set_items(filesystem, "mountoptions", json!({"pattern": r"^[^\s,\\]+$"}));
    or(filesystem, "mountoptions", deprecated(json!({"type": "string"}), "must be a list: one option per entry"));
    also(filesystem, "mountoptions", &["mount_options", "mountOptions"]);
    createoptions(filesystem, json!([["-F", "32"]]));
    choice(filesystem, "format", "format_", &Format::ALL.map(Format::name));
    choice(filesystem, "reinstall", "reinstall_", &OnReinstall::ALL.map(OnReinstall::name));
    set(filesystem, "reinstall", json!({"default": "keep"}));
    set(filesystem, "grow", json!({"default": false}));
}

fn createoptions(owner: &mut Value, examples: Value) {
    set(owner, "createoptions", json!({"examples": examples}));
    let several = json!({"type": "string", "pattern": r#"^\s*[^\s"']+(\s+[^\s"']+)*\s*$"#});
    let word = json!({"type": "string", "pattern": WORD});
    let item = json!({"anyOf": [word, deprecated(several, "one word per entry")]});
    set(owner, "createoptions", json!({"items": item}));
    let text = json!({"type": "string", "pattern": r#"^[^"']*$"#});
    or(owner, "createoptions", deprecated(text, "must be a list: one word per entry"));
    also(owner, "createoptions", &["options", "create_options", "createOptions"]);
}

fn disk(disk: &mut Value) {
    required(disk, &["device"]);
    set(
        disk,
        "device",
        json!({"minLength": 1, "examples": ["/dev/sda", "/dev/nvme0n1", "/dev/disk/by-path/pci-0000:00:1f.2-ata-1"]}),
    );
    set(disk, "wipeonreinstall", json!({"default": false}));
    set(disk, "image", json!({"default": false}));
    set(
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
    also(disk, "wipeonreinstall", &["wipe", "wipe_on_reinstall", "wipeOnReinstall"]);
    // Only disks that are found by hints may have any name.
    let named =
        json!({"if": {"not": {"required": ["hints"]}}, "then": {"properties": {"device": {"pattern": r"^/dev/\S+$"}}}});
    all_of(disk, named);
}

fn partition(partition: &mut Value) {
    required(partition, &["number", "size"]);
    set(partition, "number", json!({"minimum": 1, "maximum": 128}));
    or(partition, "number", number_in_quotes("^([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8])$"));
    set(partition, "label", json!({"maxLength": 36, "examples": ["efi", "root"]}));
    set(partition, "size", json!({"examples": [500, 0]}));
    or(partition, "size", number_in_quotes(WHOLE_NUMBER));
    let name = json!({"type": "string", "pattern": either_case(KINDS)});
    let unquoted =
        |number: u32, text: &str| deprecated(json!({"const": number}), &format!("write \"{text}\" in quotes"));
    or(partition, "gpttype", deprecated(name, "write \"ef00\", \"8300\", \"fd00\" or \"8e00\""));
    or(partition, "gpttype", unquoted(8300, "8300"));
    // In YAML, 8e00 without quotes is the number 8 times 10 to the power of 0.
    or(partition, "gpttype", unquoted(8, "8e00"));
    also(partition, "gpttype", &["type", "gpt_type", "gptType"]);
}

/// Returns a pattern for the whole text that ignores the case of letters.
fn either_case(pattern: &str) -> String {
    let either = |c: char| match c.is_ascii_alphabetic() {
        true => format!("[{c}{}]", c.to_ascii_uppercase()),
        false => c.to_string(),
    };
    format!("^({})$", pattern.chars().map(either).collect::<String>())
}

/// Also accepts the values of an enumeration in capitals, and with the prefix of metal-stack's v2 API: `FORMAT_EXT4`.
fn choice(owner: &mut Value, name: &str, prefix: &str, known: &[&str]) {
    let pattern = either_case(&format!("({})?({})", prefix.replace('_', "_?"), known.join("|")));
    let message = format!("write one of: {}", known.join(", "));
    or(owner, name, deprecated(json!({"type": "string", "pattern": pattern}), &message));
}

fn raid(raid: &mut Value) {
    required(raid, &["arrayname", "devices", "level"]);
    let name = r"^/dev/md([0-9]+|/[A-Za-z0-9_][A-Za-z0-9._-]*)$";
    set(raid, "arrayname", json!({"pattern": name, "examples": ["/dev/md/root", "/dev/md0"]}));
    also(raid, "arrayname", &["name", "array_name", "arrayName"]);
    set(raid, "devices", json!({"minItems": 1, "uniqueItems": true, "examples": [["/dev/sda1", "/dev/sdb1"]]}));
    or(raid, "level", deprecated(json!({"enum": [0, 1, 5, 6, 10]}), "must be text: write it in quotes"));
    choice(raid, "level", "raid_level_", &RaidLevel::ALL.map(RaidLevel::number));
    createoptions(raid, json!([["--metadata=1.0"]]));
    set(raid, "spares", json!({"default": 0}));
    or(raid, "spares", number_in_quotes(WHOLE_NUMBER));
}

fn volume_group(group: &mut Value) {
    required(group, &["name", "devices"]);
    set(group, "name", json!({"pattern": LVM_NAME, "maxLength": 127, "examples": ["vg00"]}));
    set(group, "devices", json!({"minItems": 1, "uniqueItems": true, "examples": [["/dev/nvme0n1", "/dev/md/data"]]}));
}

fn logical_volume(volume: &mut Value) {
    required(volume, &["name", "volumegroup", "size", "lvmtype"]);
    set(volume, "name", json!({"pattern": LVM_NAME, "maxLength": 127, "examples": ["varlib"]}));
    set(volume, "volumegroup", json!({"examples": ["vg00"]}));
    also(volume, "volumegroup", &["volume_group", "volumeGroup"]);
    set(volume, "size", json!({"examples": [10240, 0]}));
    or(volume, "size", number_in_quotes(WHOLE_NUMBER));
    choice(volume, "lvmtype", "lvm_type_", &LvmType::ALL.map(LvmType::name));
    also(volume, "lvmtype", &["lvm_type", "lvmType"]);
}

fn image(image: &mut Value) {
    set(
        image,
        "url",
        json!({"examples": ["http://10.0.0.1:8080/images/debian-12.tar.zst", "oci://r.example/os/debian:12"]}),
    );
    set(image, "digest", json!({"pattern": "^(sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$"}));
}

fn number_in_quotes(pattern: &str) -> Value {
    deprecated(json!({"type": "string", "pattern": pattern}), "must be a number: write it without quotes")
}

fn deprecated(mut schema: Value, message: &str) -> Value {
    schema["deprecated"] = json!(true);
    schema["deprecationMessage"] = json!(message);
    schema
}

/// Declares exactly these fields as required; the others also accept null, which is equivalent to absence.
fn required(owner: &mut Value, names: &[&str]) {
    owner["required"] = json!(names);
    let optional: Vec<String> = match owner.get("properties").and_then(Value::as_object) {
        Some(properties) => properties.keys().filter(|name| !names.contains(&name.as_str())).cloned().collect(),
        None => Vec::new(),
    };
    for name in optional {
        let nullable = property(owner, &name).is_some_and(|property| allows_null(property));
        if !nullable {
            or(owner, &name, json!({"type": "null"}));
        }
    }
}

fn allows_null(property: &Fields) -> bool {
    let alternatives = property.get("anyOf").and_then(Value::as_array);
    let null = json!("null");
    property.get("type").and_then(Value::as_array).is_some_and(|kinds| kinds.contains(&null))
        || alternatives.is_some_and(|schemas| schemas.iter().any(|schema| schema["type"] == null))
}

fn property<'a>(owner: &'a mut Value, name: &str) -> Option<&'a mut Fields> {
    owner.get_mut("properties")?.get_mut(name)?.as_object_mut()
}

/// Returns the canonical alternative of a property, or the property itself.
fn canonical(property: &mut Fields) -> Option<&mut Fields> {
    if property.contains_key("anyOf") {
        property.get_mut("anyOf")?.as_array_mut()?.first_mut()?.as_object_mut()
    } else {
        Some(property)
    }
}

/// Adds rules to the canonical spelling. Annotations apply to all alternatives.
fn set(owner: &mut Value, name: &str, rules: Value) {
    let (Some(property), Value::Object(rules)) = (property(owner, name), rules) else { return };
    for (keyword, rule) in rules {
        let beside = ["examples", "default"].contains(&keyword.as_str());
        if let Some(schema) = if beside { Some(&mut *property) } else { canonical(property) } {
            schema.insert(keyword, rule);
        }
    }
}

fn set_items(owner: &mut Value, name: &str, rules: Value) {
    let items = property(owner, name).and_then(canonical).and_then(|schema| schema.get_mut("items")?.as_object_mut());
    if let (Some(items), Value::Object(rules)) = (items, rules) {
        items.extend(rules);
    }
}

/// Adds an alternative spelling of a value.
fn or(owner: &mut Value, name: &str, alternative: Value) {
    let Some(property) = property(owner, name) else { return };
    if !property.contains_key("anyOf") {
        let words = ["description", "examples", "default", "title"];
        let (words, rules): (Fields, Fields) =
            std::mem::take(property).into_iter().partition(|(keyword, _)| words.contains(&keyword.as_str()));
        *property = words;
        property.insert("anyOf".to_owned(), json!([rules]));
    }
    if let Some(alternatives) = property.get_mut("anyOf").and_then(Value::as_array_mut) {
        alternatives.push(alternative);
    }
}

/// Adds other names of a field. At most one of the names may be present; each satisfies a requirement of the canonical one. Editors do not
/// propose fields with a `deprecationMessage`.
fn also(owner: &mut Value, name: &str, others: &[&str]) {
    let Some(property) = property(owner, name) else { return };
    let mut copy = Value::Object(property.clone());
    copy["description"] = json!(format!("Alternative name of {name}."));
    let copy = deprecated(copy, &format!("the canonical name of this field is {name}"));
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
    all_of(owner, json!({"oneOf": once}));
}

/// Adds fields of metal-stack's v2 API that are accepted and ignored.
fn unread(owner: &mut Value, names: &[&str]) {
    for name in names {
        let any = json!({"description": "Field of metal-stack's v2 API."});
        owner["properties"][*name] = deprecated(any, "this field is ignored");
    }
}

fn all_of(owner: &mut Value, schema: Value) {
    match owner.get_mut("allOf").and_then(Value::as_array_mut) {
        Some(all) => all.push(schema),
        None => owner["allOf"] = json!([schema]),
    }
}
