//! Parser of a list of logical disks.

use crate::layout::{RaidLevel, RequestedSize, root_device_hints};
use common::diagnostic::Diagnostic;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Requested arrays, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaidConfig {
    pub logical_disks: Vec<LogicalDisk>,
}

/// Array to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalDisk {
    /// Size of the partition on each member, which `size_gb` specifies.
    pub size: RequestedSize,
    pub level: RaidLevel,
    pub volume_name: Option<String>,
    pub is_root_volume: bool,
    /// Hints for each member, which select its disk. If the list is empty, all disks of the machine are members.
    pub physical_disks: Vec<BTreeMap<String, String>>,
}

const VOLUME_FIELDS: [&str; 6] =
    ["size_gb", "raid_level", "controller", "is_root_volume", "volume_name", "physical_disks"];
const SOFTWARE: &str = "software";
const LEVELS: [(&str, RaidLevel); 5] = [
    ("0", RaidLevel::Raid0),
    ("1", RaidLevel::Raid1),
    ("5", RaidLevel::Raid5),
    ("6", RaidLevel::Raid6),
    ("1+0", RaidLevel::Raid10),
];
const MIB_OF_GIB: u64 = 1024;
/// Maximum value of `size_gb`, which is larger than any existing disk.
const MAXIMUM_SIZE_GIB: u64 = 1 << 30;
/// Maximum number of arrays that Ironic's agent supports.
const MAXIMUM_SOFTWARE_ARRAYS: usize = 2;

impl RaidConfig {
    /// Parses `{"logical_disks": […]}`.
    ///
    /// # Errors
    /// Returns all problems, each with its path.
    pub fn parse_config(value: &Value) -> Result<RaidConfig, Vec<Diagnostic>> {
        let mut problems = Vec::new();
        let Some(fields) = value.as_object() else {
            return Err(vec![Diagnostic::new("", "must be an object with the field `logical_disks`")]);
        };
        for name in fields.keys().filter(|name| *name != "logical_disks") {
            problems.push(Diagnostic::new(name, "unknown field; only logical_disks is supported"));
        }
        let listed = fields.get("logical_disks").and_then(Value::as_array).filter(|disks| !disks.is_empty());
        let Some(listed) = listed else {
            problems.push(Diagnostic::new("logical_disks", "must be a list of at least one logical disk"));
            return Err(problems);
        };
        let read = listed.iter().enumerate().map(|(index, disk)| read_disk(&format!("logical_disks[{index}]"), disk));
        let read: Vec<_> = read.collect();
        problems.extend(check_all_disks(listed));
        problems.extend(read.iter().filter_map(|disk| disk.as_ref().err()).flatten().cloned());
        match problems.is_empty() {
            true => Ok(RaidConfig { logical_disks: read.into_iter().flatten().collect() }),
            false => Err(problems),
        }
    }

    /// Returns the index of the array that contains the root filesystem.
    pub(crate) fn root_index(&self) -> usize {
        self.logical_disks.iter().position(|disk| disk.is_root_volume).unwrap_or(0)
    }
}

/// Checks rules that concern several logical disks.
fn check_all_disks(listed: &[Value]) -> Vec<Diagnostic> {
    let mut problems = Vec::new();
    let mut say = |index: usize, field: &str, message: String| {
        problems.push(Diagnostic::new(format!("logical_disks[{index}].{field}"), message));
    };
    let places = |is: &dyn Fn(&Value) -> bool| -> Vec<usize> {
        listed.iter().enumerate().filter(|(_, disk)| is(disk)).map(|(index, _)| index).collect()
    };
    for index in places(&|disk| disk["size_gb"] == "MAX").into_iter().skip(1) {
        say(
            index,
            "size_gb",
            "only one logical disk can have `size_gb: MAX`, which takes the remaining space".to_owned(),
        );
    }
    for index in places(&|disk| disk["is_root_volume"] == true).into_iter().skip(1) {
        say(index, "is_root_volume", "only one logical disk can be the root volume".to_owned());
    }
    for (index, disk) in listed.iter().enumerate() {
        let name = disk["volume_name"].as_str();
        if name.is_some() && listed[..index].iter().any(|earlier| earlier["volume_name"].as_str() == name) {
            say(
                index,
                "volume_name",
                format!("another logical disk has the name {name}", name = name.unwrap_or_default()),
            );
        }
    }
    if listed.iter().any(|disk| disk["controller"] == SOFTWARE) {
        check_software_disks(listed, &mut say);
    }
    problems
}

/// Checks rules that concern software arrays.
fn check_software_disks(listed: &[Value], say: &mut dyn FnMut(usize, &str, String)) {
    for (index, _) in listed.iter().enumerate().filter(|(_, disk)| disk.get("controller").is_none()) {
        let message = format!(
            "the field is missing: if one logical disk has `controller: {SOFTWARE}`, all logical disks must have this controller"
        );
        say(index, "controller", message);
    }
    if listed[0]["raid_level"] != "1" {
        let message =
            format!("the first logical disk must have level 1 if any logical disk has `controller: {SOFTWARE}`");
        say(0, "raid_level", message);
    }
    for index in MAXIMUM_SOFTWARE_ARRAYS..listed.len() {
        let message = format!(
            "at most {MAXIMUM_SOFTWARE_ARRAYS} logical disks are supported if they have `controller: {SOFTWARE}`"
        );
        say(index, "controller", message);
    }
}

fn read_disk(place: &str, value: &Value) -> Result<LogicalDisk, Vec<Diagnostic>> {
    let Some(fields) = value.as_object() else { return Err(vec![Diagnostic::new(place, "must be an object")]) };
    let mut problems = Vec::new();
    let mut say = |field: &str, message: String| problems.push(Diagnostic::new(format!("{place}.{field}"), message));
    for name in fields.keys().filter(|name| !VOLUME_FIELDS.contains(&name.as_str())) {
        say(
            name,
            format!("unknown field; software arrays support {known_fields}", known_fields = VOLUME_FIELDS.join(", ")),
        );
    }
    let size = parse_size(fields.get("size_gb"));
    if size.is_none() {
        say("size_gb", "must be a positive whole number of GiB, or MAX".to_owned());
    }
    let level = fields.get("raid_level").and_then(Value::as_str);
    let level = LEVELS.iter().find(|(name, _)| Some(*name) == level).map(|(_, level)| *level);
    if level.is_none() {
        say(
            "raid_level",
            format!("must be one of {levels}, as a string", levels = LEVELS.map(|(name, _)| name).join(", ")),
        );
    }
    if fields.get("controller").is_some_and(|controller| controller != SOFTWARE) {
        say("controller", format!("only {SOFTWARE} is supported"));
    }
    if fields.get("is_root_volume").is_some_and(|is| !is.is_boolean()) {
        say("is_root_volume", "must be true or false".to_owned());
    }
    let name = fields.get("volume_name");
    if name.is_some_and(|name| name.as_str().is_none_or(str::is_empty)) {
        say("volume_name", "must be a nonempty string".to_owned());
    }
    let hints = read_hints(fields, &mut say);
    match (size, level) {
        (Some(size), Some(level)) if problems.is_empty() => Ok(LogicalDisk {
            size,
            level,
            volume_name: name.and_then(Value::as_str).map(str::to_owned),
            is_root_volume: fields.get("is_root_volume") == Some(&Value::Bool(true)),
            physical_disks: hints,
        }),
        _ => Err(problems),
    }
}

fn parse_size(value: Option<&Value>) -> Option<RequestedSize> {
    match value? {
        Value::String(text) if text == "MAX" => Some(RequestedSize::Rest),
        Value::Number(gib) => {
            let gib = gib.as_u64().filter(|gib| (1..=MAXIMUM_SIZE_GIB).contains(gib))?;
            Some(RequestedSize::from(gib * MIB_OF_GIB))
        }
        _ => None,
    }
}

/// Reads the hints. Expressions are strings; numbers and booleans are converted to strings.
fn read_hints(fields: &Map<String, Value>, say: &mut impl FnMut(&str, String)) -> Vec<BTreeMap<String, String>> {
    let Some(given) = fields.get("physical_disks") else { return Vec::new() };
    let Some(listed) = given.as_array().filter(|listed| listed.len() >= 2) else {
        say("physical_disks", "must be a list of at least two objects with hints, one for each member".to_owned());
        return Vec::new();
    };
    let mut all = Vec::new();
    for (index, value) in listed.iter().enumerate() {
        let at = |hint: &str| format!("physical_disks[{index}]{hint}");
        let Some(fields) = value.as_object().filter(|fields| !fields.is_empty()) else {
            say(&at(""), "must be an object of hints".to_owned());
            continue;
        };
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let of_disk: BTreeMap<String, String> =
            fields.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        for (hint, why) in root_device_hints::check_hints(&of_disk) {
            say(&at(&format!(".{hint}")), why);
        }
        all.push(of_disk);
    }
    all
}
