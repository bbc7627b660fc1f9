//! Output of layouts as canonical YAML. It uses the names of metal-api, and lists disks first and filesystems last.
//!
//! This module has its own YAML writer, because serde_yaml is no longer maintained, and yaml-rust2's emitter is not
//! sufficient: it does not write lists on one line, and does not quote text that only YAML 1.1 parses as a number.
//! Layouts need only a small part of YAML.

use super::{
    ArraySpec, DiskSpec, EncryptionSpec, FilesystemSpec, Layout, LogicalVolumeSpec, OnReinstall, PartitionSpec,
    VolumeGroupSpec,
};
use common::encoding::format_sha256;
use common::yaml::{format_scalar, quote_string};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Formats the layout as YAML. Parsing this YAML returns an equal layout, without notes about spellings.
pub fn canonical_yaml(layout: &Layout) -> String {
    let mut yaml = format!("id: {}\n", format_scalar(&layout.id));
    for (name, value) in [("name", &layout.name), ("description", &layout.description)] {
        if let Some(value) = value {
            write_line(&mut yaml, "", name, &format_scalar(value));
        }
    }
    let constraints = &layout.constraints;
    yaml += "constraints:\n";
    write_line(&mut yaml, "  ", "sizes", &format_list(&constraints.sizes));
    write_mapping(&mut yaml, "  ", "images", &constraints.images);
    if layout.cleanfirmware {
        write_line(&mut yaml, "", "cleanfirmware", "true");
    }
    write_items(&mut yaml, "disks", &layout.disks, write_disk);
    write_items(&mut yaml, "raid", &layout.raid, write_array);
    write_items(&mut yaml, "volumegroups", &layout.volumegroups, write_group);
    write_items(&mut yaml, "logicalvolumes", &layout.logicalvolumes, write_volume);
    write_items(&mut yaml, "filesystems", &layout.filesystems, write_filesystem);
    yaml
}

/// Returns `sha256:HEX` of [`canonical_yaml`], which identifies the layout independently of its original spelling.
pub fn compute_digest(layout: &Layout) -> String {
    format_sha256(canonical_yaml(layout))
}

/// Names and values of an item's fields, one field per line.
type YamlLines = Vec<(&'static str, String)>;

fn write_items<T>(yaml: &mut String, name: &str, items: &[T], print: fn(&mut String, &T)) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(yaml, "{name}:");
    for item in items {
        print(yaml, item);
    }
}

/// Writes an item of a list at the top level of the document.
fn write_item(yaml: &mut String, lines: YamlLines) {
    let mut indent = "  - ";
    for (name, value) in lines {
        write_line(yaml, indent, name, &value);
        indent = "    ";
    }
}

fn write_line(yaml: &mut String, indent: &str, name: &str, value: &str) {
    let _ = writeln!(yaml, "{indent}{name}: {value}");
}

fn write_mapping(yaml: &mut String, indent: &str, name: &str, map: &BTreeMap<String, String>) {
    if map.is_empty() {
        return write_line(yaml, indent, name, "{}");
    }
    let _ = writeln!(yaml, "{indent}{name}:");
    for (key, value) in map {
        write_line(yaml, &format!("{indent}  "), &format_scalar(key), &quote_string(value));
    }
}

fn write_disk(yaml: &mut String, disk: &DiskSpec) {
    let wipe = disk.wipeonreinstall.to_string();
    let mut lines = vec![("device", format_scalar(disk.device.as_str())), ("wipeonreinstall", wipe)];
    if disk.image {
        lines.push(("image", disk.image.to_string()));
    }
    write_item(yaml, lines);
    if !disk.hints.is_empty() {
        write_mapping(yaml, "    ", "hints", &disk.hints);
    }
    if !disk.partitions.is_empty() {
        *yaml += "    partitions:\n";
    }
    for partition in &disk.partitions {
        let _ = writeln!(yaml, "      - {{ {} }}", format_partition(partition));
    }
}

fn format_partition(partition: &PartitionSpec) -> String {
    let mut fields = vec![format!("number: {}", partition.number)];
    fields.extend(partition.label.as_ref().map(|label| format!("label: {}", format_scalar(label))));
    fields.push(format!("size: {}", partition.size));
    fields.extend(partition.kind.map(|kind| format!("gpttype: {}", quote_string(kind.code()))));
    fields.extend(partition.preserve.then(|| "preserve: true".to_owned()));
    fields.join(", ")
}

fn write_array(yaml: &mut String, raid: &ArraySpec) {
    let mut lines = vec![
        ("arrayname", format_scalar(raid.arrayname.as_str())),
        ("level", quote_string(raid.level.number())),
        ("devices", format_list(&raid.devices)),
    ];
    if raid.spares > 0 {
        lines.push(("spares", raid.spares.to_string()));
    }
    push_list(&mut lines, "createoptions", &raid.createoptions);
    lines.extend(preserve_line(raid.preserve));
    write_item(yaml, lines);
}

fn write_group(yaml: &mut String, group: &VolumeGroupSpec) {
    let mut lines = vec![("name", format_scalar(&group.name)), ("devices", format_list(&group.devices))];
    push_list(&mut lines, "tags", &group.tags);
    lines.extend(encryption_line(group.encrypted));
    lines.extend((!group.preserve.is_none()).then(|| ("preserve", group.preserve.name().to_owned())));
    write_item(yaml, lines);
}

fn write_volume(yaml: &mut String, volume: &LogicalVolumeSpec) {
    let mut lines = vec![
        ("name", format_scalar(&volume.name)),
        ("volumegroup", format_scalar(&volume.volumegroup)),
        ("size", volume.size.to_string()),
        ("lvmtype", format_scalar(volume.lvmtype.name())),
    ];
    lines.extend(preserve_line(volume.preserve));
    write_item(yaml, lines);
}

fn encryption_line(encrypted: Option<EncryptionSpec>) -> Option<(&'static str, String)> {
    encrypted.map(|encrypted| ("encrypted", format!("{{ key: {} }}", encrypted.key)))
}

fn preserve_line(preserve: bool) -> Option<(&'static str, String)> {
    preserve.then(|| ("preserve", preserve.to_string()))
}

fn write_filesystem(yaml: &mut String, filesystem: &FilesystemSpec) {
    let mut lines = YamlLines::new();
    lines.extend(filesystem.path.as_ref().map(|path| ("path", format_scalar(path))));
    lines.push(("device", format_scalar(filesystem.device.as_str())));
    lines.push(("format", format_scalar(filesystem.format.name())));
    lines.extend(filesystem.label.as_ref().map(|label| ("label", format_scalar(label))));
    push_list(&mut lines, "createoptions", &filesystem.createoptions);
    push_list(&mut lines, "mountoptions", &filesystem.mountoptions);
    if filesystem.reinstall != OnReinstall::default() {
        lines.push(("reinstall", format_scalar(filesystem.reinstall.name())));
    }
    if filesystem.grow {
        lines.push(("grow", filesystem.grow.to_string()));
    }
    lines.extend(encryption_line(filesystem.encrypted));
    lines.extend(preserve_line(filesystem.preserve));
    write_item(yaml, lines);
}

fn push_list(lines: &mut YamlLines, name: &'static str, words: &[String]) {
    if !words.is_empty() {
        lines.push((name, format_list(words)));
    }
}

fn format_list(words: &[impl AsRef<str>]) -> String {
    format!("[{}]", words.iter().map(|word| format_scalar(word.as_ref())).collect::<Vec<_>>().join(", "))
}
