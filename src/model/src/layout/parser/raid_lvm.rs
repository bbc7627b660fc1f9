//! Parser for arrays, volume groups and logical volumes.

use super::{SIZE_MISSING, plain_field, read_create_options, read_one_of};
use crate::device_name::LayoutPath;
use crate::layout::field_reader::{FieldNames, LayoutFields, LayoutReader};
use crate::layout::spelling_edits::EditReplacement;
use crate::layout::yaml_document::{DocumentNode, NodeValue};
use crate::layout::{ArraySpec, GroupPreservation, LogicalVolumeSpec, LvmType, RaidLevel, VolumeGroupSpec, encryption};

const RAID: [FieldNames; 6] = [
    FieldNames { name: "arrayname", also: &["name"] },
    plain_field("devices"),
    plain_field("level"),
    FieldNames { name: "createoptions", also: &["options"] },
    plain_field("spares"),
    plain_field("preserve"),
];
const VOLUME_GROUP: [FieldNames; 5] = [
    plain_field("name"),
    plain_field("devices"),
    plain_field("tags"),
    plain_field("encrypted"),
    plain_field("preserve"),
];
const LOGICAL_VOLUME: [FieldNames; 5] = [
    plain_field("name"),
    plain_field("volumegroup"),
    plain_field("size"),
    plain_field("lvmtype"),
    plain_field("preserve"),
];

pub(super) fn read_array(reader: &mut LayoutReader, node: &DocumentNode, place: &str) -> Option<ArraySpec> {
    let fields = reader.read_fields(node, place, &RAID)?;
    let level =
        read_one_of(reader, &fields, "level", "raidlevel", &RaidLevel::ALL.map(|level| (level.number(), level)));
    if let (Some(level), Some(node)) = (level, fields.get("level"))
        && matches!(&node.value, NodeValue::Scalar { plain: true, text } if text == level.number())
    {
        let number = format!("{:?}", level.number());
        reader.record_respelling(
            node,
            EditReplacement::Raw(number.clone()),
            format!("the value must be text: write {number}"),
        );
    }
    let spares = fields.get("spares").and_then(|node| reader.read_number(node, &fields.path_of("spares")));
    Some(ArraySpec {
        arrayname: reader.read_required_text(&fields, "arrayname").into(),
        devices: read_devices(reader, &fields),
        // An unreadable level is replaced by the default. Rules check `unread` before they use the level.
        level: level.unwrap_or_default(),
        createoptions: read_create_options(reader, &fields),
        spares: spares.unwrap_or(0),
        preserve: reader.read_flag(&fields, "preserve"),
    })
}

/// Reads the devices of which an array or group consists.
fn read_devices(reader: &mut LayoutReader, fields: &LayoutFields) -> Vec<LayoutPath> {
    reader.read_texts(fields, "devices").into_iter().map(LayoutPath::from).collect()
}

pub(super) fn read_volume_group(
    reader: &mut LayoutReader,
    node: &DocumentNode,
    place: &str,
) -> Option<VolumeGroupSpec> {
    let fields = reader.read_fields(node, place, &VOLUME_GROUP)?;
    Some(VolumeGroupSpec {
        name: reader.read_required_text(&fields, "name"),
        devices: read_devices(reader, &fields),
        tags: reader.read_texts(&fields, "tags"),
        encrypted: encryption::read_encryption(reader, &fields),
        preserve: read_group_preservation(reader, &fields),
    })
}

fn read_group_preservation(reader: &mut LayoutReader, fields: &LayoutFields) -> GroupPreservation {
    match fields.get("preserve") {
        None => GroupPreservation::None,
        Some(DocumentNode { value: NodeValue::Scalar { text, .. }, .. }) if text == "unlisted" => {
            GroupPreservation::Unlisted
        }
        Some(node) => {
            match reader.read_flag_value(node, &fields.path_of("preserve"), "true, false or unlisted, without quotes") {
                true => GroupPreservation::All,
                false => GroupPreservation::None,
            }
        }
    }
}

pub(super) fn read_logical_volume(
    reader: &mut LayoutReader,
    node: &DocumentNode,
    place: &str,
) -> Option<LogicalVolumeSpec> {
    let fields = reader.read_fields(node, place, &LOGICAL_VOLUME)?;
    let lvmtype = read_one_of(reader, &fields, "lvmtype", "lvmtype", &LvmType::ALL.map(|kind| (kind.name(), kind)));
    Some(LogicalVolumeSpec {
        name: reader.read_required_text(&fields, "name"),
        volumegroup: reader.read_required_text(&fields, "volumegroup"),
        size: reader.read_required_number(&fields, "size", SIZE_MISSING).unwrap_or(1_u64).into(),
        lvmtype: lvmtype.unwrap_or_default(),
        preserve: reader.read_flag(&fields, "preserve"),
    })
}
