//! Parser of the list of resources: `Volume`s and the `StorageClass`es that they refer to. All problems are reported
//! at once.

use super::{Class, Content, Source, Volume, quantity};
use crate::layout::{Filesystem, Format, LvmType, excessive_name, hints};
use crate::problem::Problem;
use serde_json::Value;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Maximum length of volume, storage class and node names, which are DNS subdomain names in Kubernetes.
const NAME_BYTES: usize = 253;
/// Maximum length of an LVM name (lvm(8)).
const LVM_NAME_BYTES: usize = 127;
/// Maximum length of a partition name in UTF-16 code units (UEFI specification 5.3.3); names here are ASCII.
const PARTITION_NAME_BYTES: usize = 36;

/// Parses a list of resources and returns its volumes in order. Null is an empty list.
///
/// A resource without a kind is a volume, as in MetalK8s' own pillar. A storage class may be an item of the list, or
/// be embedded in the volume as `spec.storageClass`, as in that pillar.
///
/// # Errors
/// All problems, each with its path: `volumes[2].spec.mode`.
pub fn read(list: &Value) -> Result<Vec<Volume>, Vec<Problem>> {
    let mut reading = Reading::default();
    let items = match list {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items.as_slice(),
        _ => return Err(vec![Problem::new("volumes", "must be a list of Volume and StorageClass resources")]),
    };
    let places: Vec<(At, &str)> = items.iter().enumerate().map(|(index, item)| reading.kind(index, item)).collect();
    for (at, _) in places.iter().filter(|(_, kind)| *kind == CLASS) {
        reading.class(at);
    }
    let volumes: Vec<(String, Volume)> = places
        .iter()
        .filter(|(_, kind)| *kind == VOLUME)
        .filter_map(|(at, _)| Some((at.place.clone(), reading.volume(at)?)))
        .collect();
    reading.refuse_twins(&volumes);
    match reading.problems.is_empty() {
        true => Ok(volumes.into_iter().map(|(_, volume)| volume).collect()),
        false => Err(reading.problems),
    }
}

const VOLUME: &str = "Volume";
const CLASS: &str = "StorageClass";
/// Required prefix of `apiVersion`.
const GROUPS: [(&str, &str); 2] = [(VOLUME, "storage.metalk8s.scality.com/"), (CLASS, "storage.k8s.io/")];

/// Value and its path.
#[derive(Debug, Clone)]
struct At<'a> {
    place: String,
    value: &'a Value,
}

impl<'a> At<'a> {
    /// Returns a field; `None` if it is null or absent.
    fn get(&self, name: &str) -> Option<At<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(At { place: self.at(name), value })
    }

    fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.place)
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.value.get(name)?.as_str()
    }
}

#[derive(Default)]
struct Reading {
    problems: Vec<Problem>,
    classes: BTreeMap<String, Formatted>,
}

/// Storage class as listed.
#[derive(Debug, Clone)]
struct Formatted {
    class: Class,
    format: Option<Format>,
    options: Vec<String>,
}

impl Reading {
    fn problem(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem::new(place, message));
    }

    fn kind<'a>(&mut self, index: usize, value: &'a Value) -> (At<'a>, &'static str) {
        let at = At { place: format!("volumes[{index}]"), value };
        let said = at.text("kind").unwrap_or(VOLUME);
        let Some((kind, group)) = GROUPS.into_iter().find(|(kind, _)| *kind == said) else {
            self.problem(at.at("kind"), format!("must be {VOLUME} or {CLASS}, found {said}"));
            return (at, "");
        };
        if let Some(version) = at.text("apiVersion").filter(|version| !version.starts_with(group)) {
            self.problem(at.at("apiVersion"), format!("must start with {group} for a {kind}, found {version}"));
        }
        (at, kind)
    }

    /// Returns a required name.
    fn name(&mut self, at: Option<&At>, parent: &str, field: &str) -> Option<String> {
        let place = format!("{parent}.{field}");
        let Some(text) = at.and_then(|at| at.text(field)).filter(|text| !text.is_empty()) else {
            self.problem(place, format!("{field} is missing"));
            return None;
        };
        let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.';
        let starts = text.as_bytes()[0].is_ascii_alphanumeric();
        if !starts || text.len() > NAME_BYTES || !text.bytes().all(is_plain) {
            self.problem(place, format!("must be a name of small letters, digits, hyphens and dots, found {text:?}"));
            return None;
        }
        Some(text.to_owned())
    }

    fn class(&mut self, at: &At) {
        let metadata = at.get("metadata");
        let Some(name) = self.name(metadata.as_ref(), &at.at("metadata"), "name") else { return };
        let class = self.formatted(at, name.clone());
        if self.classes.insert(name.clone(), class).is_some() {
            self.problem(at.at("metadata.name"), format!("the storage class {name} is in the list twice"));
        }
    }

    fn formatted(&mut self, at: &At, name: String) -> Formatted {
        let parameters = at.get("parameters");
        let fs_type = parameters.as_ref().and_then(|at| at.get("fsType"));
        let format = fs_type.and_then(|at| match at.value.as_str() {
            Some("ext4") => Some(Format::Ext4),
            Some("xfs") => Some(Format::Xfs),
            _ => {
                self.problem(&at.place, format!("must be ext4 or xfs, found {}", at.value));
                None
            }
        });
        let options = parameters.as_ref().and_then(|at| at.get("mkfsOptions"));
        let options = options.map(|at| self.options(&at, format)).unwrap_or_default();
        let mount_options = at.get("mountOptions").map(|at| self.texts(&at)).unwrap_or_default();
        Formatted { class: Class { name, fs_type: format, mount_options }, format, options }
    }

    /// Parses mkfs options from JSON in a string: Kubernetes allows only strings in `parameters`.
    fn options(&mut self, at: &At, format: Option<Format>) -> Vec<String> {
        let read = at.value.as_str().and_then(|text| serde_json::from_slice::<Vec<String>>(text.as_bytes()).ok());
        let Some(options) = read else {
            self.problem(&at.place, format!("must be a list of words as JSON in a string, found {}", at.value));
            return Vec::new();
        };
        let Some(format) = format else { return options };
        let made = Filesystem {
            path: None,
            device: "/dev/x".into(),
            format,
            label: None,
            mountoptions: Vec::new(),
            createoptions: options,
            reinstall: Default::default(),
            grow: false,
            encrypted: None,
        };
        for problem in made.option_problems() {
            self.problem(&at.place, problem);
        }
        made.createoptions
    }

    fn texts(&mut self, at: &At) -> Vec<String> {
        let read = serde_json::from_value(at.value.clone());
        read.unwrap_or_else(|_| {
            self.problem(&at.place, "must be a list of strings");
            Vec::new()
        })
    }

    fn volume(&mut self, at: &At) -> Option<Volume> {
        let before = self.problems.len();
        let (metadata, spec) = (at.get("metadata"), at.get("spec"));
        let name = self.name(metadata.as_ref(), &at.at("metadata"), "name");
        let uid = self.uid(metadata.as_ref(), &at.at("metadata"));
        let node = self.name(spec.as_ref(), &at.at("spec"), "nodeName");
        let spec = spec?;
        let source = self.source(&spec);
        let content = self.content(&spec);
        let template = spec.value.get("template").cloned().unwrap_or_default();
        let (name, uid, node, source, (content, class)) = (name?, uid?, node?, source?, content?);
        self.require_short(&at.at("metadata.name"), &name, &source, &content);
        let deleted = metadata.is_some_and(|at| at.get("deletionTimestamp").is_some());
        let volume = Volume { name, uid, node, source, content, class, template, deleted };
        (self.problems.len() == before).then_some(volume)
    }

    fn uid(&mut self, metadata: Option<&At>, parent: &str) -> Option<Uuid> {
        let place = format!("{parent}.uid");
        let text = metadata.and_then(|at| at.text("uid")).unwrap_or_default();
        match Uuid::try_parse(text) {
            // Only the format that Kubernetes generates: mkfs interprets the simple form and the one in braces
            // differently.
            Ok(uid) if text.len() == 36 && !uid.is_nil() => Some(uid),
            _ if text.is_empty() => {
                let why = "uid is missing: create the Volume in the cluster first, and export it with its uid";
                self.problem(place, why);
                None
            }
            _ => {
                self.problem(place, format!("must be a UUID, found {text:?}"));
                None
            }
        }
    }

    fn source(&mut self, spec: &At) -> Option<Source> {
        let kinds = ["rawBlockDevice", "lvmLogicalVolume", "sparseLoopDevice"];
        let given: Vec<At> = kinds.iter().filter_map(|kind| spec.get(kind)).collect();
        let [one] = given.as_slice() else {
            let found = if given.is_empty() { "none" } else { "several" };
            self.problem(&spec.place, format!("must have one of {}, found {found}", kinds.join(", ")));
            return None;
        };
        if one.place.ends_with(kinds[0]) {
            return self.raw(one);
        }
        let group = one.place.ends_with(kinds[1]).then(|| self.group(one));
        let size_bytes = self.size(one);
        match group {
            Some(group) => Some(Source::Logical { group: group?, size_bytes: size_bytes? }),
            None => Some(Source::Sparse { size_bytes: size_bytes? }),
        }
    }

    fn raw(&mut self, at: &At) -> Option<Source> {
        match (at.get("devicePath"), at.get("discover")) {
            (Some(path), None) => match path.value.as_str() {
                Some(text) if text.starts_with("/dev/") && !text.contains("/../") => Some(Source::Raw(text.into())),
                _ => {
                    self.problem(&path.place, format!("must be a path below /dev, found {}", path.value));
                    None
                }
            },
            (None, Some(discover)) => {
                let Ok(wanted) = serde_json::from_value::<BTreeMap<String, String>>(discover.value.clone()) else {
                    self.problem(
                        &discover.place,
                        "must be hints, each a string: {size: \">= 100\", rotational: \"false\"}",
                    );
                    return None;
                };
                for (hint, why) in hints::problems(&wanted) {
                    self.problem(discover.at(&hint), why);
                }
                Some(Source::Discover(wanted))
            }
            _ => {
                self.problem(&at.place, "must have devicePath, or discover with the hints of a blank disk");
                None
            }
        }
    }

    fn group(&mut self, at: &At) -> Option<String> {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"+_.-".contains(&c);
        let name = at.text("vgName").unwrap_or_default();
        let is_name = !name.is_empty() && name.len() <= LVM_NAME_BYTES && name.bytes().all(is_plain);
        if !is_name || name.starts_with('-') {
            self.problem(at.at("vgName"), format!("must be the name of a volume group, found {name:?}"));
            return None;
        }
        Some(name.to_owned())
    }

    fn size(&mut self, at: &At) -> Option<u64> {
        let text = match at.value.get("size") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        quantity::bytes(&text).map_err(|why| self.problem(at.at("size"), why)).ok()
    }

    fn content(&mut self, spec: &At) -> Option<(Content, Class)> {
        let is_block = match spec.value.get("mode") {
            None | Some(Value::Null) => false,
            Some(Value::String(mode)) if mode == "Filesystem" || mode.is_empty() => false,
            Some(Value::String(mode)) if mode == "Block" => true,
            Some(other) => {
                self.problem(spec.at("mode"), format!("must be Filesystem or Block, found {other}"));
                return None;
            }
        };
        let name = self.name(Some(spec), &spec.place, "storageClassName")?;
        let found = match spec.get("storageClass").filter(|at| at.value.is_object()) {
            Some(inside) => Some(self.formatted(&inside, name.clone())),
            None => self.classes.get(&name).cloned(),
        };
        if is_block {
            let class = found.map_or_else(|| Class { name, ..Class::default() }, |found| found.class);
            return Some((Content::Block, class));
        }
        let Some(Formatted { class, format, options }) = found else {
            self.problem(spec.at("storageClassName"), format!("the storage class {name} is not in the list"));
            return None;
        };
        let Some(format) = format else {
            let why = format!("parameters.fsType of the storage class {name} is missing: it must be ext4 or xfs");
            self.problem(spec.at("storageClassName"), why);
            return None;
        };
        Some((Content::Filesystem { format, options }, class))
    }

    /// Checks that the name fits where it becomes the name of an object on the disk.
    fn require_short(&mut self, place: &str, name: &str, source: &Source, content: &Content) {
        let most = match (source, content) {
            (Source::Logical { .. }, _) => LVM_NAME_BYTES,
            (_, Content::Block) => PARTITION_NAME_BYTES,
            (_, Content::Filesystem { .. }) => NAME_BYTES,
        };
        if name.len() > most {
            self.problem(place, format!("has {} characters, but at most {most} are supported", name.len()));
        }
        if let Source::Logical { group, .. } = source
            && let Some(why) = excessive_name(group, name, LvmType::Linear)
        {
            self.problem(
                place,
                format!("has with vg:{group} {why}: choose shorter names, or names with fewer hyphens"),
            );
        }
        // Names reserved by LVM (lvm(8)).
        let reserved = name.starts_with("snapshot") || name.starts_with("pvmove");
        if matches!(source, Source::Logical { .. }) && reserved {
            self.problem(place, format!("{name} is a name reserved by LVM"));
        }
    }

    fn refuse_twins(&mut self, volumes: &[(String, Volume)]) {
        for (index, (place, volume)) in volumes.iter().enumerate() {
            let earlier = &volumes[..index];
            if let Some((other, _)) = earlier.iter().find(|(_, other)| other.uid == volume.uid) {
                self.problem(format!("{place}.metadata.uid"), format!("{other} has the same uid {}", volume.uid));
            }
            if let Some((other, _)) = earlier.iter().find(|(_, other)| other.name == volume.name) {
                self.problem(format!("{place}.metadata.name"), format!("{other} has the same name {}", volume.name));
            }
        }
    }
}
