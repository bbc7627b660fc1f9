//! Parser for arrays, volume groups and logical volumes.

use super::{SIZE_MISSING, create_options, one_of, only};
use crate::device::LayoutPath;
use crate::layout::document::{Node, Value};
use crate::layout::edit::New;
use crate::layout::encrypted;
use crate::layout::fields::{Field, Fields, Reader};
use crate::layout::{LogicalVolume, LvmType, Raid, RaidLevel, VolumeGroup};

const RAID: [Field; 5] = [
    Field { name: "arrayname", also: &["name"] },
    only("devices"),
    only("level"),
    Field { name: "createoptions", also: &["options"] },
    only("spares"),
];
const VOLUME_GROUP: [Field; 4] = [only("name"), only("devices"), only("tags"), only("encrypted")];
const LOGICAL_VOLUME: [Field; 4] = [only("name"), only("volumegroup"), only("size"), only("lvmtype")];

pub(super) fn raid(reader: &mut Reader, node: &Node, place: &str) -> Option<Raid> {
    let fields = reader.fields(node, place, &RAID)?;
    let level = one_of(reader, &fields, "level", "raidlevel", &RaidLevel::ALL.map(|level| (level.number(), level)));
    if let (Some(level), Some(node)) = (level, fields.get("level"))
        && matches!(&node.value, Value::Scalar { plain: true, text } if text == level.number())
    {
        let number = format!("{:?}", level.number());
        reader.respell(node, New::Raw(number.clone()), format!("this must be text: write {number}"));
    }
    let spares = fields.get("spares").and_then(|node| reader.number(node, &fields.at("spares")));
    Some(Raid {
        arrayname: reader.required_text(&fields, "arrayname").into(),
        devices: devices(reader, &fields),
        // Substitute that is valid with the fewest members; rules check `unread` before they use it.
        level: level.unwrap_or_default(),
        createoptions: create_options(reader, &fields),
        spares: spares.unwrap_or(0),
    })
}

/// Reads the devices that an array or group consists of.
fn devices(reader: &mut Reader, fields: &Fields) -> Vec<LayoutPath> {
    reader.texts(fields, "devices").into_iter().map(LayoutPath::from).collect()
}

pub(super) fn volume_group(reader: &mut Reader, node: &Node, place: &str) -> Option<VolumeGroup> {
    let fields = reader.fields(node, place, &VOLUME_GROUP)?;
    Some(VolumeGroup {
        name: reader.required_text(&fields, "name"),
        devices: devices(reader, &fields),
        tags: reader.texts(&fields, "tags"),
        encrypted: encrypted::read(reader, &fields),
    })
}

pub(super) fn logical_volume(reader: &mut Reader, node: &Node, place: &str) -> Option<LogicalVolume> {
    let fields = reader.fields(node, place, &LOGICAL_VOLUME)?;
    let lvmtype = one_of(reader, &fields, "lvmtype", "lvmtype", &LvmType::ALL.map(|kind| (kind.name(), kind)));
    Some(LogicalVolume {
        name: reader.required_text(&fields, "name"),
        volumegroup: reader.required_text(&fields, "volumegroup"),
        size: reader.required_number(&fields, "size", SIZE_MISSING).unwrap_or(1_u64).into(),
        lvmtype: lvmtype.unwrap_or_default(),
    })
}
