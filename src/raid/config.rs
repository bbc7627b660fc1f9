//! What a list of logical disks says, whatever the machine.

use crate::layout::{RaidLevel, Size, hints};
use crate::order::Gather;
use crate::problem::Problem;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Arrays that are wanted, in the order in which they were listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub logical_disks: Vec<LogicalDisk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalDisk {
    /// Of the partition on each member.
    pub size: Size,
    pub level: RaidLevel,
    pub volume_name: Option<String>,
    pub is_root_volume: bool,
    /// One for each member; none: all disks of the machine.
    pub physical_disks: Vec<BTreeMap<String, String>>,
}

const FIELDS: [&str; 6] = ["size_gb", "raid_level", "controller", "is_root_volume", "volume_name", "physical_disks"];
const SOFTWARE: &str = "software";
const LEVELS: [(&str, RaidLevel); 5] = [
    ("0", RaidLevel::Raid0),
    ("1", RaidLevel::Raid1),
    ("5", RaidLevel::Raid5),
    ("6", RaidLevel::Raid6),
    ("1+0", RaidLevel::Raid10),
];
const MIB_OF_GIB: u64 = 1024;
/// More than any disk has.
const LARGEST_GIB: u64 = 1 << 30;
/// The agent of Ironic makes no more.
const MOST_OF_SOFTWARE: usize = 2;

impl Config {
    /// `{"logical_disks": […]}`.
    ///
    /// # Errors
    /// All that is wrong with it, each with its place.
    pub fn read(value: &Value) -> Result<Config, Vec<Problem>> {
        let mut problems = Vec::new();
        let Some(fields) = value.as_object() else {
            return Err(vec![Problem::new("", "this is an object with logical_disks")]);
        };
        for name in fields.keys().filter(|name| *name != "logical_disks") {
            problems.push(Problem::new(name, "there is no such field; there is logical_disks"));
        }
        let listed = fields.get("logical_disks").and_then(Value::as_array).filter(|disks| !disks.is_empty());
        let Some(listed) = listed else {
            problems.push(Problem::new("logical_disks", "this is a list of at least one logical disk"));
            return Err(problems);
        };
        let read = listed.iter().enumerate().map(|(index, disk)| read_disk(&format!("logical_disks[{index}]"), disk));
        let read: Vec<_> = read.collect();
        problems.extend(of_all(listed));
        problems.extend(read.iter().filter_map(|disk| disk.as_ref().err()).flatten().cloned());
        match problems.is_empty() {
            true => Ok(Config { logical_disks: read.into_iter().flatten().collect() }),
            false => Err(problems),
        }
    }

    /// The one that holds `/`.
    pub fn root(&self) -> usize {
        self.logical_disks.iter().position(|disk| disk.is_root_volume).unwrap_or(0)
    }
}

/// What no logical disk can say alone.
fn of_all(listed: &[Value]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut say = |index: usize, field: &str, message: String| {
        problems.push(Problem::new(format!("logical_disks[{index}].{field}"), message));
    };
    let places = |is: &dyn Fn(&Value) -> bool| -> Vec<usize> {
        listed.iter().enumerate().filter(|(_, disk)| is(disk)).map(|(index, _)| index).collect()
    };
    for index in places(&|disk| disk["size_gb"] == "MAX").into_iter().skip(1) {
        say(index, "size_gb", "only one logical disk can have all that is left".to_owned());
    }
    for index in places(&|disk| disk["is_root_volume"] == true).into_iter().skip(1) {
        say(index, "is_root_volume", "only one logical disk can be the root volume".to_owned());
    }
    for (index, disk) in listed.iter().enumerate() {
        let name = disk["volume_name"].as_str();
        if name.is_some() && listed[..index].iter().any(|earlier| earlier["volume_name"].as_str() == name) {
            say(index, "volume_name", format!("another logical disk is called {} already", name.unwrap_or_default()));
        }
    }
    let software = places(&|disk| disk["controller"] == SOFTWARE);
    if software.is_empty() {
        return problems;
    }
    for index in places(&|disk| disk.get("controller").is_none()) {
        say(index, "controller", format!("where one logical disk has controller: {SOFTWARE}, each has it"));
    }
    if listed[0]["raid_level"] != "1" {
        say(0, "raid_level", format!("with controller: {SOFTWARE} the first logical disk has level 1"));
    }
    for index in MOST_OF_SOFTWARE..listed.len() {
        let message = format!("with controller: {SOFTWARE} there are {MOST_OF_SOFTWARE} logical disks at most");
        say(index, "controller", message);
    }
    problems
}

fn read_disk(place: &str, value: &Value) -> Result<LogicalDisk, Vec<Problem>> {
    let Some(fields) = value.as_object() else { return Err(vec![Problem::new(place, "a logical disk is an object")]) };
    let mut problems = Vec::new();
    let mut say = |field: &str, message: String| problems.push(Problem::new(format!("{place}.{field}"), message));
    for name in fields.keys().filter(|name| !FIELDS.contains(&name.as_str())) {
        say(name, format!("arrays of software have no such field; there is {}", FIELDS.join(", ")));
    }
    let size = size(fields.get("size_gb"));
    if size.is_none() {
        say("size_gb", "this is a whole number of GiB above 0, or MAX".to_owned());
    }
    let level = fields.get("raid_level").and_then(Value::as_str);
    let level = LEVELS.iter().find(|(name, _)| Some(*name) == level).map(|(_, level)| *level);
    if level.is_none() {
        say("raid_level", format!("this is one of {}, as a text", LEVELS.map(|(name, _)| name).join(", ")));
    }
    if fields.get("controller").is_some_and(|controller| controller != SOFTWARE) {
        say("controller", format!("only {SOFTWARE} is known"));
    }
    if fields.get("is_root_volume").is_some_and(|is| !is.is_boolean()) {
        say("is_root_volume", "this is true or false".to_owned());
    }
    let name = fields.get("volume_name");
    if name.is_some_and(|name| name.as_str().is_none_or(str::is_empty)) {
        say("volume_name", "this is a text that is not empty".to_owned());
    }
    let hints = physical_disks(fields, &mut say);
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

fn size(value: Option<&Value>) -> Option<Size> {
    match value? {
        Value::String(text) if text == "MAX" => Some(Size::Rest),
        Value::Number(gib) => {
            let gib = gib.as_u64().filter(|gib| (1..=LARGEST_GIB).contains(gib))?;
            Some(Size::from(gib * MIB_OF_GIB))
        }
        _ => None,
    }
}

/// A hint's value is a text, a number or a truth: all of them are expressions as texts.
fn physical_disks(fields: &Map<String, Value>, say: &mut impl FnMut(&str, String)) -> Vec<BTreeMap<String, String>> {
    let Some(given) = fields.get("physical_disks") else { return Vec::new() };
    let Some(listed) = given.as_array().filter(|listed| listed.len() >= 2) else {
        say("physical_disks", "this is a list of hints, one for each member, two at least".to_owned());
        return Vec::new();
    };
    let mut all = Vec::new();
    for (index, value) in listed.iter().enumerate() {
        let at = |hint: &str| format!("physical_disks[{index}]{hint}");
        let Some(fields) = value.as_object().filter(|fields| !fields.is_empty()) else {
            say(&at(""), "this is an object of hints".to_owned());
            continue;
        };
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let of_disk: BTreeMap<String, String> = fields.iter().map(|(name, value)| (name.clone(), text(value))).gather();
        for (hint, why) in hints::problems(&of_disk) {
            say(&at(&format!(".{hint}")), why);
        }
        all.push(of_disk);
    }
    all
}
