//! Output of layouts as canonical YAML: metal-api's names, in the order from disks to filesystems.
//!
//! serde_yaml is no longer maintained, and yaml-rust2's emitter neither writes lists in one line nor quotes text that only YAML 1.1 parses
//! as a number. Layouts need only a small part of YAML.

use super::{Disk, Encrypted, Filesystem, Layout, LogicalVolume, OnReinstall, Partition, Raid, VolumeGroup};
use crate::yaml::{quoted, scalar};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Returns YAML that parses to an equal layout, without notes.
pub fn canonical_yaml(layout: &Layout) -> String {
    let mut yaml = format!("id: {}\n", scalar(&layout.id));
    for (name, value) in [("name", &layout.name), ("description", &layout.description)] {
        if let Some(value) = value {
            line(&mut yaml, "", name, &scalar(value));
        }
    }
    let constraints = &layout.constraints;
    yaml += "constraints:\n";
    line(&mut yaml, "  ", "sizes", &list(&constraints.sizes));
    mapping(&mut yaml, "  ", "images", &constraints.images);
    if layout.cleanfirmware {
        line(&mut yaml, "", "cleanfirmware", "true");
    }
    items(&mut yaml, "disks", &layout.disks, disk);
    items(&mut yaml, "raid", &layout.raid, raid);
    items(&mut yaml, "volumegroups", &layout.volumegroups, group);
    items(&mut yaml, "logicalvolumes", &layout.logicalvolumes, volume);
    items(&mut yaml, "filesystems", &layout.filesystems, filesystem);
    yaml
}

/// Returns `sha256:HEX` of [`canonical_yaml`], which identifies the layout independent of its spelling.
pub fn digest(layout: &Layout) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(canonical_yaml(layout)) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Lines of one item: name and value.
type Lines = Vec<(&'static str, String)>;

fn items<T>(yaml: &mut String, name: &str, items: &[T], print: fn(&mut String, &T)) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(yaml, "{name}:");
    for item in items {
        print(yaml, item);
    }
}

/// Writes an item of a list at the top level.
fn item(yaml: &mut String, lines: Lines) {
    let mut indent = "  - ";
    for (name, value) in lines {
        line(yaml, indent, name, &value);
        indent = "    ";
    }
}

fn line(yaml: &mut String, indent: &str, name: &str, value: &str) {
    let _ = writeln!(yaml, "{indent}{name}: {value}");
}

fn mapping(yaml: &mut String, indent: &str, name: &str, map: &BTreeMap<String, String>) {
    if map.is_empty() {
        return line(yaml, indent, name, "{}");
    }
    let _ = writeln!(yaml, "{indent}{name}:");
    for (key, value) in map {
        line(yaml, &format!("{indent}  "), &scalar(key), &quoted(value));
    }
}

fn disk(yaml: &mut String, disk: &Disk) {
    let wipe = disk.wipeonreinstall.to_string();
    let mut lines = vec![("device", scalar(disk.device.as_str())), ("wipeonreinstall", wipe)];
    if disk.image {
        lines.push(("image", disk.image.to_string()));
    }
    item(yaml, lines);
    if !disk.hints.is_empty() {
        mapping(yaml, "    ", "hints", &disk.hints);
    }
    if !disk.partitions.is_empty() {
        *yaml += "    partitions:\n";
    }
    for partition in &disk.partitions {
        let _ = writeln!(yaml, "      - {{ {} }}", in_one_line(partition));
    }
}

fn in_one_line(partition: &Partition) -> String {
    let mut fields = vec![format!("number: {}", partition.number)];
    fields.extend(partition.label.as_ref().map(|label| format!("label: {}", scalar(label))));
    fields.push(format!("size: {}", partition.size));
    fields.extend(partition.kind.map(|kind| format!("gpttype: {}", quoted(kind.code()))));
    fields.join(", ")
}

fn raid(yaml: &mut String, raid: &Raid) {
    let mut lines = vec![
        ("arrayname", scalar(raid.arrayname.as_str())),
        ("level", quoted(raid.level.number())),
        ("devices", list(&raid.devices)),
    ];
    if raid.spares > 0 {
        lines.push(("spares", raid.spares.to_string()));
    }
    push_list(&mut lines, "createoptions", &raid.createoptions);
    item(yaml, lines);
}

fn group(yaml: &mut String, group: &VolumeGroup) {
    let mut lines = vec![("name", scalar(&group.name)), ("devices", list(&group.devices))];
    push_list(&mut lines, "tags", &group.tags);
    lines.extend(encrypted(group.encrypted));
    item(yaml, lines);
}

fn volume(yaml: &mut String, volume: &LogicalVolume) {
    let lines = vec![
        ("name", scalar(&volume.name)),
        ("volumegroup", scalar(&volume.volumegroup)),
        ("size", volume.size.to_string()),
        ("lvmtype", scalar(volume.lvmtype.name())),
    ];
    item(yaml, lines);
}

fn encrypted(encrypted: Option<Encrypted>) -> Option<(&'static str, String)> {
    encrypted.map(|encrypted| ("encrypted", format!("{{ key: {} }}", encrypted.key)))
}

fn filesystem(yaml: &mut String, filesystem: &Filesystem) {
    let mut lines = Lines::new();
    lines.extend(filesystem.path.as_ref().map(|path| ("path", scalar(path))));
    lines.push(("device", scalar(filesystem.device.as_str())));
    lines.push(("format", scalar(filesystem.format.name())));
    lines.extend(filesystem.label.as_ref().map(|label| ("label", scalar(label))));
    push_list(&mut lines, "createoptions", &filesystem.createoptions);
    push_list(&mut lines, "mountoptions", &filesystem.mountoptions);
    if filesystem.reinstall != OnReinstall::default() {
        lines.push(("reinstall", scalar(filesystem.reinstall.name())));
    }
    if filesystem.grow {
        lines.push(("grow", filesystem.grow.to_string()));
    }
    lines.extend(encrypted(filesystem.encrypted));
    item(yaml, lines);
}

fn push_list(lines: &mut Lines, name: &'static str, words: &[String]) {
    if !words.is_empty() {
        lines.push((name, list(words)));
    }
}

fn list(words: &[impl AsRef<str>]) -> String {
    format!("[{}]", words.iter().map(|word| scalar(word.as_ref())).collect::<Vec<_>>().join(", "))
}
