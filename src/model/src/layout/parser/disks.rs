//! Parser for disks, their hints and partitions.

use super::{SIZE_MISSING, plain_field};
use crate::layout::field_name_spelling::normalize_name;
use crate::layout::field_reader::{FieldNames, LayoutFields, LayoutReader};
use crate::layout::spelling_edits::EditReplacement;
use crate::layout::yaml_document::{DocumentNode, NodeValue};
use crate::layout::{DiskSpec, PartitionSpec, PartitionType};
use common::diagnostic::child_path;
use std::collections::BTreeMap;

const DISK: [FieldNames; 5] = [
    plain_field("device"),
    plain_field("hints"),
    FieldNames { name: "wipeonreinstall", also: &["wipe"] },
    plain_field("image"),
    plain_field("partitions"),
];
const PARTITION: [FieldNames; 5] = [
    plain_field("number"),
    plain_field("label"),
    plain_field("size"),
    FieldNames { name: "gpttype", also: &["type"] },
    plain_field("preserve"),
];

/// Partition types of metal-stack's first proposal.
const PROPOSED_TYPE_NAMES: [(&str, PartitionType); 4] = [
    ("gptboot", PartitionType::Boot),
    ("gptlinux", PartitionType::Linux),
    ("gptlinuxraid", PartitionType::LinuxRaid),
    ("gptlinuxlvm", PartitionType::LinuxLvm),
];

pub(super) fn read_disk(reader: &mut LayoutReader, node: &DocumentNode, place: &str) -> Option<DiskSpec> {
    let fields = reader.read_fields(node, place, &DISK)?;
    Some(DiskSpec {
        device: reader.read_required_text(&fields, "device").into(),
        hints: read_hints(reader, &fields),
        partitions: reader.read_items(&fields, "partitions", read_partition),
        wipeonreinstall: reader.read_flag(&fields, "wipeonreinstall"),
        image: reader.read_flag(&fields, "image"),
    })
}

/// Reads the hints of a disk. Expressions are text; numbers and booleans without quotes are accepted as text.
fn read_hints(reader: &mut LayoutReader, fields: &LayoutFields) -> BTreeMap<String, String> {
    let mut hints = BTreeMap::new();
    let Some(node) = fields.get("hints") else { return hints };
    let place = fields.path_of("hints");
    let NodeValue::Map(entries) = &node.value else {
        let message =
            format!("must be a mapping of hint to expression, but is {actual}", actual = node.describe_type());
        reader.report_unreadable(node, &place, message);
        return hints;
    };
    for entry in entries {
        let place = child_path(&place, &entry.key);
        reader.record_location(&place, &entry.node);
        if let Some((expression, _)) = reader.read_scalar(&entry.node, &place) {
            hints.insert(entry.key.clone(), expression.to_owned());
        }
    }
    hints
}

fn read_partition(reader: &mut LayoutReader, node: &DocumentNode, place: &str) -> Option<PartitionSpec> {
    let fields = reader.read_fields(node, place, &PARTITION)?;
    Some(PartitionSpec {
        number: reader.read_required_number(&fields, "number", "number is missing").unwrap_or_default(),
        label: reader.read_optional_text(&fields, "label"),
        size: reader.read_required_number(&fields, "size", SIZE_MISSING).unwrap_or(1_u64).into(),
        kind: read_partition_type(reader, &fields),
        preserve: reader.read_flag(&fields, "preserve"),
    })
}

fn read_partition_type(reader: &mut LayoutReader, fields: &LayoutFields) -> Option<PartitionType> {
    let node = fields.get("gpttype")?;
    let (text, is_plain) = reader.read_scalar(node, &fields.path_of("gpttype"))?;
    let lower = text.to_ascii_lowercase();
    let by_code = PartitionType::ALL.into_iter().find(|kind| kind.code() == lower);
    // The prefix is replaced, because metal-stack's v2 API uses names such as GPT_TYPE_LINUX_RAID.
    let name = normalize_name(text).replacen("gpttype", "gpt", 1);
    let named = || PROPOSED_TYPE_NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind);
    let Some(kind) = by_code.or_else(named) else {
        let codes = PartitionType::ALL.map(PartitionType::code).join(",");
        let message = format!("given GPTType:{text} is not supported, but:{codes}");
        reader.report_unreadable(node, &fields.path_of("gpttype"), message);
        return None;
    };
    let number_to_others = is_plain && text.parse::<f64>().is_ok();
    if text != kind.code() || number_to_others {
        let code = format!("{:?}", kind.code());
        reader.record_respelling(node, EditReplacement::Raw(code.clone()), format!("the canonical value is {code}"));
    }
    Some(kind)
}
