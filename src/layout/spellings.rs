//! Reads a layout from every spelling in use into the canonical types.
//!
//! Canonical are metal-api's names and kinds. What else is understood is in the tables of this file, and each use of
//! it is a note, never silence.

use super::constraints;
use super::document::{self, Node, Value, marked};
use super::fields::{Field, Fields, Places, Reader, quoted};
use super::validate::validate_except;
use super::{
    Constraints, Disk, Filesystem, Format, Layout, LogicalVolume, LvmType, Partition, PartitionKind, Raid, RaidLevel,
    VolumeGroup,
};
use crate::problem::Problem;

const fn only(name: &'static str) -> Field {
    Field { name, also: &[] }
}

const LAYOUT: [Field; 9] = [
    only("id"),
    only("name"),
    only("description"),
    only("filesystems"),
    only("disks"),
    only("raid"),
    only("volumegroups"),
    only("logicalvolumes"),
    only("constraints"),
];
const CONSTRAINTS: [Field; 2] = [Field { name: "sizes", also: &["size"] }, only("images")];
const FILESYSTEM: [Field; 6] = [
    only("path"),
    only("device"),
    only("format"),
    only("label"),
    only("mountoptions"),
    Field { name: "createoptions", also: &["options"] },
];
const DISK: [Field; 3] = [only("device"), Field { name: "wipeonreinstall", also: &["wipe"] }, only("partitions")];
const PARTITION: [Field; 4] = [only("number"), only("label"), only("size"), Field { name: "gpttype", also: &["type"] }];
const RAID: [Field; 5] = [
    Field { name: "arrayname", also: &["name"] },
    only("devices"),
    only("level"),
    Field { name: "createoptions", also: &["options"] },
    only("spares"),
];
const VOLUME_GROUP: [Field; 3] = [only("name"), only("devices"), only("tags")];
const LOGICAL_VOLUME: [Field; 4] = [only("name"), only("volumegroup"), only("size"), only("lvmtype")];

const LEVELS: [&str; 2] = ["0", "1"];
const LVM_TYPES: [&str; 3] = ["linear", "raid1", "striped"];

/// Names for partition types in metal-stack's first proposal.
const KIND_NAMES: [(&str, PartitionKind); 4] = [
    ("gptboot", PartitionKind::Boot),
    ("gptlinux", PartitionKind::Linux),
    ("gptlinuxraid", PartitionKind::LinuxRaid),
    ("gptlinuxlvm", PartitionKind::LinuxLvm),
];

/// A layout that can be worked with, and what was unusual about its spelling.
#[derive(Debug, Clone)]
pub struct Parsed {
    pub layout: Layout,
    pub notes: Vec<Problem>,
    places: Places,
}

impl Parsed {
    /// Gives a problem that was found later (on this machine, say) its line and column in the file.
    pub fn locate(&self, problem: Problem) -> Problem {
        self.places.locate(problem)
    }
}

/// Reads and validates a layout from YAML (JSON is YAML too), with line and column in every problem.
///
/// # Errors
/// Every problem of the document: spelling, types, unknown fields, and the rules of [`super::validate`].
pub fn read_yaml(text: &str) -> Result<Parsed, Vec<Problem>> {
    let (root, problems) = document::from_yaml(text).map_err(|problem| vec![tidy(problem)])?;
    read(&root, problems)
}

/// Reads and validates a layout as it arrives inside an allocation.
///
/// # Errors
/// As [`read_yaml`], with places but no lines.
pub fn read_json(value: &serde_json::Value) -> Result<Parsed, Vec<Problem>> {
    let root = document::from_json(value).map_err(|problem| vec![tidy(problem)])?;
    read(&root, Vec::new())
}

fn read(root: &Node, problems: Vec<Problem>) -> Result<Parsed, Vec<Problem>> {
    let mut reader = Reader::new(problems);
    if let Some(layout) = layout(&mut reader, root) {
        let broken = validate_except(&layout, &reader.unread);
        let broken: Vec<Problem> = broken.into_iter().map(|problem| reader.places.locate(problem)).collect();
        reader.problems.extend(broken);
        if reader.problems.is_empty() {
            return Ok(Parsed { layout, notes: sorted(reader.notes), places: reader.places });
        }
    }
    Err(sorted(reader.problems))
}

fn sorted(problems: Vec<Problem>) -> Vec<Problem> {
    let mut problems: Vec<Problem> = problems.into_iter().map(tidy).collect();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    problems
}

/// The document's own words go to consoles and reports: no control characters, no megabytes.
fn tidy(mut problem: Problem) -> Problem {
    for (text, most) in [(&mut problem.place, 200), (&mut problem.message, 1000)] {
        let plain = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
        let longer = text.chars().nth(most).is_some();
        *text = plain.take(most).chain(longer.then_some('…')).collect();
    }
    problem
}

fn layout(reader: &mut Reader, root: &Node) -> Option<Layout> {
    let fields = reader.fields(root, "", &LAYOUT)?;
    let id = reader.required(&fields, "id", "id should not be empty");
    let id = id.and_then(|node| reader.text(node, "id")).unwrap_or_default();
    Some(Layout {
        id,
        name: reader.optional_text(&fields, "name"),
        description: reader.optional_text(&fields, "description"),
        filesystems: reader.items(&fields, "filesystems", filesystem),
        disks: reader.items(&fields, "disks", disk),
        raid: reader.items(&fields, "raid", raid),
        volumegroups: reader.items(&fields, "volumegroups", volume_group),
        logicalvolumes: reader.items(&fields, "logicalvolumes", logical_volume),
        constraints: match fields.get("constraints") {
            Some(node) => read_constraints(reader, node).unwrap_or_default(),
            None => {
                let message = "no constraints: only an allocation that names this layout gets it";
                reader.notes.push(marked("constraints", root.mark, message));
                Constraints::default()
            }
        },
    })
}

fn read_constraints(reader: &mut Reader, node: &Node) -> Option<Constraints> {
    let fields = reader.fields(node, "constraints", &CONSTRAINTS)?;
    let sizes = reader.texts(&fields, "sizes");
    let mut constraints = Constraints { sizes, ..Constraints::default() };
    let Some(images) = fields.get("images") else { return Some(constraints) };
    match &images.value {
        Value::Map(entries) => {
            for entry in entries {
                let place = document::child("constraints.images", &entry.key);
                reader.place(&place, &entry.node);
                if let Some(constraint) = image_constraint(reader, &entry.node, &place) {
                    constraints.images.insert(entry.key.clone(), constraint);
                }
            }
        }
        // `images: []` is how the proposal speaks of a layout for explicit use.
        Value::List(items) if items.is_empty() => reader.note(images, "this is a mapping: write {}"),
        _ => {
            let message = format!("must be a mapping of OS to version constraint, found {}", images.kind());
            reader.unreadable(images, "constraints.images", message);
        }
    }
    Some(constraints)
}

fn image_constraint(reader: &mut Reader, node: &Node, place: &str) -> Option<String> {
    let constraint = reader.text(node, place)?;
    Some(match constraints::with_blank(&constraint) {
        Some(canonical) => {
            reader.note(node, format!("a blank belongs between operator and version: \"{canonical}\""));
            canonical
        }
        None => constraint,
    })
}

fn filesystem(reader: &mut Reader, node: &Node, place: &str) -> Option<Filesystem> {
    let fields = reader.fields(node, place, &FILESYSTEM)?;
    let format = one_of(reader, &fields, "format", "format", &Format::ALL.map(|format| (format.name(), format)));
    Some(Filesystem {
        path: mount_path(reader, &fields, format),
        device: reader.required_text(&fields, "device"),
        // The stand-in that allows the most; the rules look at `unread` before they rely on it.
        format: format.unwrap_or(Format::Ext4),
        label: reader.optional_text(&fields, "label"),
        mountoptions: match reader.one_string(&fields, "mountoptions", at_commas) {
            Some(options) => options,
            None => reader.texts(&fields, "mountoptions"),
        },
        createoptions: create_options(reader, &fields),
    })
}

/// Swap areas are written with `path: none` where layouts grew out of fstab lines.
fn mount_path(reader: &mut Reader, fields: &Fields, format: Option<Format>) -> Option<String> {
    let path = reader.optional_text(fields, "path")?;
    if path == "none" && matches!(format, Some(Format::Swap | Format::None)) {
        if let Some(node) = fields.get("path") {
            reader.note(node, "what is not mounted has no path: leave it out");
        }
        return None;
    }
    Some(path)
}

/// Since metal-hammer 0.11.7 each entry is one argument; before, `-F 32` in one entry was usual.
fn create_options(reader: &mut Reader, fields: &Fields) -> Vec<String> {
    let options = match reader.one_string(fields, "createoptions", at_blanks) {
        Some(options) => options,
        None => reader.items(fields, "createoptions", single_words).concat(),
    };
    if let Some(node) = fields.get("createoptions")
        && options.iter().any(|option| option.contains(['"', '\'']))
    {
        reader.problem(node, "quotes in createoptions would reach the command as they are: no shell reads them");
    }
    options
}

fn single_words(reader: &mut Reader, node: &Node, place: &str) -> Option<Vec<String>> {
    let text = reader.text(node, place)?;
    let words = at_blanks(&text);
    if words.is_empty() || words == [text.as_str()] {
        return Some(vec![text]);
    }
    reader.note(node, format!("one word per entry: {}", quoted(&words)));
    Some(words.into_iter().map(str::to_owned).collect())
}

fn at_blanks(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn at_commas(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
}

fn disk(reader: &mut Reader, node: &Node, place: &str) -> Option<Disk> {
    let fields = reader.fields(node, place, &DISK)?;
    Some(Disk {
        hints: Default::default(),
        device: reader.required_text(&fields, "device"),
        partitions: reader.items(&fields, "partitions", partition),
        wipeonreinstall: reader.flag(&fields, "wipeonreinstall"),
    })
}

const SIZE_MISSING: &str = "size is missing: MiB, or 0 for all that is left";

fn partition(reader: &mut Reader, node: &Node, place: &str) -> Option<Partition> {
    let fields = reader.fields(node, place, &PARTITION)?;
    Some(Partition {
        number: reader.required_number(&fields, "number", "number is missing").unwrap_or_default(),
        label: reader.optional_text(&fields, "label"),
        size_mib: reader.required_number(&fields, "size", SIZE_MISSING).unwrap_or(1),
        kind: partition_kind(reader, &fields),
    })
}

fn partition_kind(reader: &mut Reader, fields: &Fields) -> Option<PartitionKind> {
    let node = fields.get("gpttype")?;
    let (text, plain) = reader.scalar(node, &fields.at("gpttype"))?;
    let lower = text.to_ascii_lowercase();
    let by_code = PartitionKind::ALL.into_iter().find(|kind| kind.code() == lower);
    let named = || KIND_NAMES.into_iter().find(|(name, _)| *name == lower).map(|(_, kind)| kind);
    let Some(kind) = by_code.or_else(named) else {
        let codes = PartitionKind::ALL.map(PartitionKind::code).join(",");
        let message = format!("given GPTType:{text} is not supported, but:{codes}");
        reader.unreadable(node, &fields.at("gpttype"), message);
        return None;
    };
    let number_to_others = plain && text.parse::<f64>().is_ok();
    if text != kind.code() || number_to_others {
        reader.note(node, format!("the canonical value is \"{}\"", kind.code()));
    }
    Some(kind)
}

fn raid(reader: &mut Reader, node: &Node, place: &str) -> Option<Raid> {
    let fields = reader.fields(node, place, &RAID)?;
    let level = one_of(reader, &fields, "level", "raidlevel", &LEVELS.map(|level| (level, level)));
    if let (Some(level), Some(node)) = (level, fields.get("level"))
        && matches!(node.value, Value::Scalar { plain: true, .. })
    {
        reader.note(node, format!("this is text: write \"{level}\""));
    }
    let spares = fields.get("spares").and_then(|node| reader.number(node, &fields.at("spares")));
    Some(Raid {
        arrayname: reader.required_text(&fields, "arrayname"),
        devices: reader.texts(&fields, "devices"),
        level: RaidLevel::ALL.into_iter().find(|known| Some(known.number()) == level).unwrap_or_default(),
        createoptions: create_options(reader, &fields),
        spares: spares.unwrap_or(0),
    })
}

fn volume_group(reader: &mut Reader, node: &Node, place: &str) -> Option<VolumeGroup> {
    let fields = reader.fields(node, place, &VOLUME_GROUP)?;
    Some(VolumeGroup {
        name: reader.required_text(&fields, "name"),
        devices: reader.texts(&fields, "devices"),
        tags: reader.texts(&fields, "tags"),
    })
}

fn logical_volume(reader: &mut Reader, node: &Node, place: &str) -> Option<LogicalVolume> {
    let fields = reader.fields(node, place, &LOGICAL_VOLUME)?;
    let lvmtype = one_of(reader, &fields, "lvmtype", "lvmtype", &LVM_TYPES.map(|name| (name, name)));
    Some(LogicalVolume {
        name: reader.required_text(&fields, "name"),
        volumegroup: reader.required_text(&fields, "volumegroup"),
        size_mib: reader.required_number(&fields, "size", SIZE_MISSING).unwrap_or(1),
        lvmtype: LvmType::ALL.into_iter().find(|known| Some(known.name()) == lvmtype).unwrap_or_default(),
    })
}

/// A required value out of a few; `called` is metal-api's word for it in the refusal.
fn one_of<T: Copy>(reader: &mut Reader, fields: &Fields, name: &str, called: &str, known: &[(&str, T)]) -> Option<T> {
    let node = reader.required(fields, name, &format!("{name} is missing"))?;
    let (text, _) = reader.scalar(node, &fields.at(name))?;
    let found = known.iter().find(|(spelling, _)| *spelling == text);
    if found.is_none() {
        let all = known.iter().map(|(spelling, _)| *spelling).collect::<Vec<_>>().join(",");
        let message = format!("given {called}:{text} is not supported, but:{all}");
        reader.unreadable(node, &fields.at(name), message);
    }
    found.map(|(_, value)| *value)
}

/// A layout for tests of what does not depend on the rules.
#[cfg(test)]
pub(crate) fn read_unchecked(text: &str) -> Layout {
    let (root, _) = document::from_yaml(text).unwrap();
    layout(&mut Reader::default(), &root).unwrap()
}
