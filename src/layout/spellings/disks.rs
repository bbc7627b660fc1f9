//! Parser for disks, their hints and partitions.

use super::{SIZE_MISSING, only};
use crate::layout::document::{Node, Value, child};
use crate::layout::edit::New;
use crate::layout::fields::{Field, Fields, Reader};
use crate::layout::words::plain;
use crate::layout::{Disk, Partition, PartitionKind};
use std::collections::BTreeMap;

const DISK: [Field; 5] = [
    only("device"),
    only("hints"),
    Field { name: "wipeonreinstall", also: &["wipe"] },
    only("image"),
    only("partitions"),
];
const PARTITION: [Field; 4] = [only("number"), only("label"), only("size"), Field { name: "gpttype", also: &["type"] }];

/// Partition types of metal-stack's first proposal.
const KIND_NAMES: [(&str, PartitionKind); 4] = [
    ("gptboot", PartitionKind::Boot),
    ("gptlinux", PartitionKind::Linux),
    ("gptlinuxraid", PartitionKind::LinuxRaid),
    ("gptlinuxlvm", PartitionKind::LinuxLvm),
];

pub(super) fn disk(reader: &mut Reader, node: &Node, place: &str) -> Option<Disk> {
    let fields = reader.fields(node, place, &DISK)?;
    Some(Disk {
        device: reader.required_text(&fields, "device").into(),
        hints: hints(reader, &fields),
        partitions: reader.items(&fields, "partitions", partition),
        wipeonreinstall: reader.flag(&fields, "wipeonreinstall"),
        image: reader.flag(&fields, "image"),
    })
}

/// Reads the hints. Expressions are text; unquoted numbers and booleans are accepted as text.
fn hints(reader: &mut Reader, fields: &Fields) -> BTreeMap<String, String> {
    let mut hints = BTreeMap::new();
    let Some(node) = fields.get("hints") else { return hints };
    let place = fields.at("hints");
    let Value::Map(entries) = &node.value else {
        let message = format!("must be a mapping of hint to expression, but is {}", node.kind());
        reader.unreadable(node, &place, message);
        return hints;
    };
    for entry in entries {
        let place = child(&place, &entry.key);
        reader.place(&place, &entry.node);
        if let Some((expression, _)) = reader.scalar(&entry.node, &place) {
            hints.insert(entry.key.clone(), expression.to_owned());
        }
    }
    hints
}

fn partition(reader: &mut Reader, node: &Node, place: &str) -> Option<Partition> {
    let fields = reader.fields(node, place, &PARTITION)?;
    Some(Partition {
        number: reader.required_number(&fields, "number", "number is missing").unwrap_or_default(),
        label: reader.optional_text(&fields, "label"),
        size: reader.required_number(&fields, "size", SIZE_MISSING).unwrap_or(1_u64).into(),
        kind: partition_kind(reader, &fields),
    })
}

fn partition_kind(reader: &mut Reader, fields: &Fields) -> Option<PartitionKind> {
    let node = fields.get("gpttype")?;
    let (text, is_plain) = reader.scalar(node, &fields.at("gpttype"))?;
    let lower = text.to_ascii_lowercase();
    let by_code = PartitionKind::ALL.into_iter().find(|kind| kind.code() == lower);
    // metal-stack's v2 API writes GPT_TYPE_LINUX_RAID.
    let name = plain(text).replacen("gpttype", "gpt", 1);
    let named = || KIND_NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind);
    let Some(kind) = by_code.or_else(named) else {
        let codes = PartitionKind::ALL.map(PartitionKind::code).join(",");
        let message = format!("given GPTType:{text} is not supported, but:{codes}");
        reader.unreadable(node, &fields.at("gpttype"), message);
        return None;
    };
    let number_to_others = is_plain && text.parse::<f64>().is_ok();
    if text != kind.code() || number_to_others {
        let code = format!("{:?}", kind.code());
        reader.respell(node, New::Raw(code.clone()), format!("the canonical value is {code}"));
    }
    Some(kind)
}
