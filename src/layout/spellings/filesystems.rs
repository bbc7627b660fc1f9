//! Parser for filesystems, swap areas and tmpfs.

use super::{FILESYSTEM_OF_V2, create_options, one_of, only};
use crate::layout::document::Node;
use crate::layout::edit::New;
use crate::layout::encrypted;
use crate::layout::fields::{Field, Fields, Reader};
use crate::layout::{Filesystem, Format, OnReinstall};

const FILESYSTEM: [Field; 9] = [
    only("path"),
    only("device"),
    only("format"),
    only("label"),
    only("mountoptions"),
    Field { name: "createoptions", also: &["options"] },
    only("reinstall"),
    only("grow"),
    only("encrypted"),
];

pub(super) fn filesystem(reader: &mut Reader, node: &Node, place: &str) -> Option<Filesystem> {
    let fields = reader.fields_of_v2(node, place, &FILESYSTEM, &FILESYSTEM_OF_V2)?;
    let format = one_of(reader, &fields, "format", "format", &Format::ALL.map(|format| (format.name(), format)));
    Some(Filesystem {
        path: mount_path(reader, &fields, format),
        device: reader.required_text(&fields, "device").into(),
        // The most permissive substitute; rules check `unread` before they use it.
        format: format.unwrap_or(Format::Ext4),
        label: reader.optional_text(&fields, "label"),
        mountoptions: match reader.one_string(&fields, "mountoptions", at_commas) {
            Some(options) => options,
            None => reader.texts(&fields, "mountoptions"),
        },
        createoptions: create_options(reader, &fields),
        reinstall: on_reinstall(reader, &fields),
        grow: reader.flag(&fields, "grow"),
        encrypted: encrypted::read(reader, &fields),
    })
}

fn on_reinstall(reader: &mut Reader, fields: &Fields) -> OnReinstall {
    if fields.get("reinstall").is_none() {
        return OnReinstall::default();
    }
    let known = OnReinstall::ALL.map(|choice| (choice.name(), choice));
    one_of(reader, fields, "reinstall", "reinstall", &known).unwrap_or_default()
}

/// Reads the mount point. Layouts that were derived from fstab have swap areas with `path: none`.
fn mount_path(reader: &mut Reader, fields: &Fields, format: Option<Format>) -> Option<String> {
    let path = reader.optional_text(fields, "path")?;
    if path == "none" && matches!(format, Some(Format::Swap | Format::None)) {
        if let Some(node) = fields.get("path") {
            reader.respell(
                node,
                New::Raw("null".to_owned()),
                "remove path: a filesystem that is not mounted must not have one",
            );
        }
        return None;
    }
    Some(path)
}

fn at_commas(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
}
