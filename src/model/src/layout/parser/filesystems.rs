//! Parser for filesystems, swap areas and tmpfs.

use super::{FILESYSTEM_OF_V2, plain_field, read_create_options, read_one_of};
use crate::layout::field_reader::{FieldNames, LayoutFields, LayoutReader};
use crate::layout::spelling_edits::EditReplacement;
use crate::layout::yaml_document::DocumentNode;
use crate::layout::{FilesystemFormat, FilesystemSpec, OnReinstall, encryption};

const FILESYSTEM: [FieldNames; 10] = [
    plain_field("path"),
    plain_field("device"),
    plain_field("format"),
    plain_field("label"),
    plain_field("mountoptions"),
    FieldNames { name: "createoptions", also: &["options"] },
    plain_field("reinstall"),
    plain_field("grow"),
    plain_field("encrypted"),
    plain_field("preserve"),
];

pub(super) fn read_filesystem(reader: &mut LayoutReader, node: &DocumentNode, place: &str) -> Option<FilesystemSpec> {
    let fields = reader.read_fields_with_ignored(node, place, &FILESYSTEM, &FILESYSTEM_OF_V2)?;
    let format =
        read_one_of(reader, &fields, "format", "format", &FilesystemFormat::ALL.map(|format| (format.name(), format)));
    Some(FilesystemSpec {
        path: read_mount_path(reader, &fields, format),
        device: reader.read_required_text(&fields, "device").into(),
        // An unreadable format is replaced by ext4, to which the fewest rules apply. Rules check `unread` before they
        // use the format.
        format: format.unwrap_or(FilesystemFormat::Ext4),
        label: reader.read_optional_text(&fields, "label"),
        mountoptions: match reader.split_string(&fields, "mountoptions", split_at_commas) {
            Some(options) => options,
            None => reader.read_texts(&fields, "mountoptions"),
        },
        createoptions: read_create_options(reader, &fields),
        reinstall: read_reinstall_policy(reader, &fields),
        grow: reader.read_flag(&fields, "grow"),
        encrypted: encryption::read_encryption(reader, &fields),
        preserve: reader.read_flag(&fields, "preserve"),
    })
}

fn read_reinstall_policy(reader: &mut LayoutReader, fields: &LayoutFields) -> OnReinstall {
    if fields.get("reinstall").is_none() {
        return OnReinstall::default();
    }
    let known = OnReinstall::ALL.map(|choice| (choice.name(), choice));
    read_one_of(reader, fields, "reinstall", "reinstall", &known).unwrap_or_default()
}

/// Reads the mount point. `path: none` is ignored if the format is swap or none, because layouts that are derived from
/// fstab contain this value.
fn read_mount_path(
    reader: &mut LayoutReader,
    fields: &LayoutFields,
    format: Option<FilesystemFormat>,
) -> Option<String> {
    let path = reader.read_optional_text(fields, "path")?;
    if path == "none" && matches!(format, Some(FilesystemFormat::Swap | FilesystemFormat::None)) {
        if let Some(node) = fields.get("path") {
            reader.record_respelling(
                node,
                EditReplacement::Raw("null".to_owned()),
                "remove `path`: a filesystem that is not mounted must not have a path",
            );
        }
        return None;
    }
    Some(path)
}

fn split_at_commas(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
}
