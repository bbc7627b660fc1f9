//! Parser for a list of `Volume` and `StorageClass` resources, which reports all problems together.

use super::{K8sVolume, StorageClass, VolumeContent, VolumeSource, quantity};
use crate::layout::{FilesystemFormat, FilesystemSpec, LvmType, explain_excessive_name, root_device_hints};
use common::diagnostic::Diagnostic;
use serde_json::Value;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Maximum length of a volume, storage class or node name. In Kubernetes, these names are DNS subdomain names.
const NAME_BYTES: usize = 253;
/// Maximum length of an LVM name (lvm(8)).
const LVM_NAME_BYTES: usize = 127;
/// Maximum length of a partition name in UTF-16 code units (UEFI specification 5.3.3). Names in Kubernetes are ASCII,
/// so the limit is the same in bytes.
const PARTITION_NAME_BYTES: usize = 36;

/// Parses a list of resources, and returns its volumes in the same order. Null is parsed as an empty list.
///
/// The Salt pillar of MetalK8s is also accepted: a resource without a kind is a volume, and a storage class may
/// be embedded in the volume as `spec.storageClass` instead of being an item of the list.
///
/// # Errors
/// Returns all problems, each with its path, such as `volumes[2].spec.mode`.
pub fn parse_volumes(list: &Value) -> Result<Vec<K8sVolume>, Vec<Diagnostic>> {
    match list {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => parse_items(items, false),
        _ => Err(vec![Diagnostic::new("volumes", "must be a list of Volume and StorageClass resources")]),
    }
}

/// Parses the items of a list. If `is_addition` is set, the list will be added to another list, and the storage classes
/// of its volumes may be missing.
pub(super) fn parse_items(items: &[Value], is_addition: bool) -> Result<Vec<K8sVolume>, Vec<Diagnostic>> {
    let mut reading = ResourceParser { is_addition, ..ResourceParser::default() };
    let places: Vec<(LocatedValue, &str)> =
        items.iter().enumerate().map(|(index, item)| reading.parse_kind(index, item)).collect();
    for (at, _) in places.iter().filter(|(_, kind)| *kind == CLASS) {
        reading.add_class(at);
    }
    let volumes: Vec<(String, K8sVolume)> = places
        .iter()
        .filter(|(_, kind)| *kind == VOLUME)
        .filter_map(|(at, _)| Some((at.place.clone(), reading.parse_volume(at)?)))
        .collect();
    reading.check_duplicates(&volumes);
    match reading.problems.is_empty() {
        true => Ok(volumes.into_iter().map(|(_, volume)| volume).collect()),
        false => Err(reading.problems),
    }
}

pub(super) const VOLUME: &str = "Volume";
const CLASS: &str = "StorageClass";
/// The `apiVersion` of MetalK8s' `Volume` resources.
pub(super) const VOLUME_VERSION: &str = "storage.metalk8s.scality.com/v1alpha1";
/// Supported values of `apiVersion`, by kind of resource.
const VERSIONS: [(&str, &[&str]); 2] =
    [(VOLUME, &[VOLUME_VERSION]), (CLASS, &["storage.k8s.io/v1", "storage.k8s.io/v1beta1"])];

/// Value with its path in the document.
#[derive(Debug, Clone)]
struct LocatedValue<'a> {
    place: String,
    value: &'a Value,
}

impl<'a> LocatedValue<'a> {
    /// Returns a field; `None` if it is null or absent.
    fn get(&self, name: &str) -> Option<LocatedValue<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(LocatedValue { place: self.child_path(name), value })
    }

    fn child_path(&self, name: &str) -> String {
        format!("{}.{name}", self.place)
    }

    fn get_text(&self, name: &str) -> Option<&'a str> {
        self.value.get(name)?.as_str()
    }
}

#[derive(Default)]
struct ResourceParser {
    problems: Vec<Diagnostic>,
    classes: BTreeMap<String, ListedClass>,
    /// True if the resources will be added to a list that may already contain their storage classes.
    is_addition: bool,
}

/// Storage class of the list, with the properties that determine how a filesystem is created.
#[derive(Debug, Clone)]
struct ListedClass {
    class: StorageClass,
    format: Option<FilesystemFormat>,
    options: Vec<String>,
}

impl ResourceParser {
    fn add_problem(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Diagnostic::new(place, message));
    }

    fn parse_kind<'a>(&mut self, index: usize, value: &'a Value) -> (LocatedValue<'a>, &'static str) {
        let at = LocatedValue { place: format!("volumes[{index}]"), value };
        let actual = at.get("kind").map_or_else(|| Value::from(VOLUME), |kind| kind.value.clone());
        let Some((kind, versions)) = VERSIONS.into_iter().find(|(kind, _)| actual == *kind) else {
            let actual = actual.as_str().map_or_else(|| actual.to_string(), str::to_owned);
            self.add_problem(at.child_path("kind"), format!("must be {VOLUME} or {CLASS}, found {actual}"));
            return (at, "");
        };
        if let Some(version) = at.get("apiVersion")
            && !versions.iter().any(|supported| version.value == *supported)
        {
            let (expected, actual) = (versions[0], &version.value);
            let why = format!("must be {expected} for a {kind}, found {actual}");
            self.add_problem(version.place, why);
        }
        (at, kind)
    }

    /// Parses a required name. Reports a name that is missing or invalid.
    fn parse_name(&mut self, at: Option<&LocatedValue>, parent: &str, field: &str) -> Option<String> {
        let place = format!("{parent}.{field}");
        let Some(text) = at.and_then(|at| at.get_text(field)).filter(|text| !text.is_empty()) else {
            self.add_problem(place, format!("{field} is missing"));
            return None;
        };
        let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.';
        let starts = text.as_bytes()[0].is_ascii_alphanumeric();
        if !starts || text.len() > NAME_BYTES || !text.bytes().all(is_plain) {
            self.add_problem(
                place,
                format!("must be a name of lower-case letters, digits, hyphens and dots, found {text:?}"),
            );
            return None;
        }
        Some(text.to_owned())
    }

    fn add_class(&mut self, at: &LocatedValue) {
        let metadata = at.get("metadata");
        let Some(name) = self.parse_name(metadata.as_ref(), &at.child_path("metadata"), "name") else { return };
        let class = self.parse_class(at, name.clone());
        if self.classes.insert(name.clone(), class).is_some() {
            self.add_problem(at.child_path("metadata.name"), format!("the storage class {name} is in the list twice"));
        }
    }

    fn parse_class(&mut self, at: &LocatedValue, name: String) -> ListedClass {
        let parameters = at.get("parameters");
        let fs_type = parameters.as_ref().and_then(|at| at.get("fsType"));
        let format = fs_type.and_then(|at| match at.value.as_str() {
            Some("ext4") => Some(FilesystemFormat::Ext4),
            Some("xfs") => Some(FilesystemFormat::Xfs),
            _ => {
                self.add_problem(&at.place, format!("must be ext4 or xfs, found {actual}", actual = at.value));
                None
            }
        });
        let options = parameters.as_ref().and_then(|at| at.get("mkfsOptions"));
        let options = options.map(|at| self.parse_mkfs_options(&at, format)).unwrap_or_default();
        let mount_options = at.get("mountOptions").map(|at| self.parse_strings(&at)).unwrap_or_default();
        ListedClass { class: StorageClass { name, fs_type: format, mount_options }, format, options }
    }

    /// Parses mkfs options: a JSON list within a string, because Kubernetes allows only strings in `parameters`.
    fn parse_mkfs_options(&mut self, at: &LocatedValue, format: Option<FilesystemFormat>) -> Vec<String> {
        let read = at.value.as_str().and_then(|text| serde_json::from_slice::<Vec<String>>(text.as_bytes()).ok());
        let Some(options) = read else {
            self.add_problem(
                &at.place,
                format!("must be a string that contains a JSON list of words, found {actual}", actual = at.value),
            );
            return Vec::new();
        };
        let Some(format) = format else { return options };
        let made = FilesystemSpec {
            path: None,
            device: "/dev/x".into(),
            format,
            label: None,
            mountoptions: Vec::new(),
            createoptions: options,
            reinstall: Default::default(),
            grow: false,
            encrypted: None,
            preserve: false,
        };
        for problem in made.check_options() {
            self.add_problem(&at.place, problem);
        }
        made.createoptions
    }

    fn parse_strings(&mut self, at: &LocatedValue) -> Vec<String> {
        let read = serde_json::from_value(at.value.clone());
        read.unwrap_or_else(|_| {
            self.add_problem(&at.place, "must be a list of strings");
            Vec::new()
        })
    }

    fn parse_volume(&mut self, at: &LocatedValue) -> Option<K8sVolume> {
        let before = self.problems.len();
        let (metadata, spec) = (at.get("metadata"), at.get("spec"));
        let name = self.parse_name(metadata.as_ref(), &at.child_path("metadata"), "name");
        let uid = self.parse_uid(metadata.as_ref(), &at.child_path("metadata"));
        let node = self.parse_name(spec.as_ref(), &at.child_path("spec"), "nodeName");
        let spec = spec?;
        let source = self.parse_source(&spec);
        let content = self.parse_content(&spec);
        let template = spec.value.get("template").cloned().unwrap_or_default();
        let (name, uid, node, source, (content, class)) = (name?, uid?, node?, source?, content?);
        self.check_name_length(&at.child_path("metadata.name"), &name, &source, &content);
        let deleted = metadata.is_some_and(|at| at.get("deletionTimestamp").is_some());
        let is_exported = at.get("apiVersion").is_some();
        let volume = K8sVolume { name, uid, node, source, content, class, template, deleted, is_exported };
        (self.problems.len() == before).then_some(volume)
    }

    fn parse_uid(&mut self, metadata: Option<&LocatedValue>, parent: &str) -> Option<Uuid> {
        let place = format!("{parent}.uid");
        let text = metadata.and_then(|at| at.get_text("uid")).unwrap_or_default();
        match Uuid::try_parse(text) {
            // Only the UUID format that Kubernetes generates is accepted, because mkfs does not interpret other formats
            // (without hyphens, or in braces) in the same way.
            Ok(uid) if text.len() == 36 && !uid.is_nil() => Some(uid),
            _ if text.is_empty() => {
                let why =
                    "uid is missing: create the Volume in the cluster first, and export the resource with its uid";
                self.add_problem(place, why);
                None
            }
            _ => {
                self.add_problem(place, format!("must be a UUID, found {text:?}"));
                None
            }
        }
    }

    fn parse_source(&mut self, spec: &LocatedValue) -> Option<VolumeSource> {
        let kinds = ["rawBlockDevice", "lvmLogicalVolume", "sparseLoopDevice"];
        let given: Vec<LocatedValue> = kinds.iter().filter_map(|kind| spec.get(kind)).collect();
        let [one] = given.as_slice() else {
            let found = if given.is_empty() { "none" } else { "several" };
            let fields = kinds.join(", ");
            self.add_problem(&spec.place, format!("must have exactly one of {fields}, found {found}"));
            return None;
        };
        if one.place.ends_with(kinds[0]) {
            return self.parse_raw_source(one);
        }
        let group = one.place.ends_with(kinds[1]).then(|| self.parse_group_name(one));
        let size_bytes = self.parse_size(one);
        match group {
            Some(group) => Some(VolumeSource::Logical { group: group?, size_bytes: size_bytes? }),
            None => Some(VolumeSource::Sparse { size_bytes: size_bytes? }),
        }
    }

    fn parse_raw_source(&mut self, at: &LocatedValue) -> Option<VolumeSource> {
        match (at.get("devicePath"), at.get("discover")) {
            (Some(path), None) => match path.value.as_str() {
                Some(text) if text.starts_with("/dev/") && !text.contains("/../") => {
                    Some(VolumeSource::Raw(text.into()))
                }
                _ => {
                    let why = format!("must be a path below /dev, found {actual}", actual = path.value);
                    self.add_problem(&path.place, why);
                    None
                }
            },
            (None, Some(discover)) => {
                let Ok(wanted) = serde_json::from_value::<BTreeMap<String, String>>(discover.value.clone()) else {
                    self.add_problem(
                        &discover.place,
                        "must be an object of hints with strings as values: {size: \">= 100\", rotational: \"false\"}",
                    );
                    return None;
                };
                for (hint, why) in root_device_hints::check_hints(&wanted) {
                    self.add_problem(discover.child_path(&hint), why);
                }
                Some(VolumeSource::Discover(wanted))
            }
            _ => {
                self.add_problem(
                    &at.place,
                    "must contain either `devicePath`, or `discover` with hints that select a blank disk",
                );
                None
            }
        }
    }

    fn parse_group_name(&mut self, at: &LocatedValue) -> Option<String> {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"+_.-".contains(&c);
        let name = at.get_text("vgName").unwrap_or_default();
        let is_name = !name.is_empty() && name.len() <= LVM_NAME_BYTES && name.bytes().all(is_plain);
        if !is_name || name.starts_with('-') {
            self.add_problem(at.child_path("vgName"), format!("must be the name of a volume group, found {name:?}"));
            return None;
        }
        Some(name.to_owned())
    }

    fn parse_size(&mut self, at: &LocatedValue) -> Option<u64> {
        let text = match at.value.get("size") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        quantity::parse_quantity(&text).map_err(|why| self.add_problem(at.child_path("size"), why)).ok()
    }

    fn parse_content(&mut self, spec: &LocatedValue) -> Option<(VolumeContent, StorageClass)> {
        let is_block = match spec.value.get("mode") {
            None | Some(Value::Null) => false,
            Some(Value::String(mode)) if mode == "Filesystem" || mode.is_empty() => false,
            Some(Value::String(mode)) if mode == "Block" => true,
            Some(other) => {
                self.add_problem(spec.child_path("mode"), format!("must be Filesystem or Block, found {other}"));
                return None;
            }
        };
        let name = self.parse_name(Some(spec), &spec.place, "storageClassName")?;
        let found = match spec.get("storageClass").filter(|at| at.value.is_object()) {
            Some(inside) => Some(self.parse_class(&inside, name.clone())),
            None => self.classes.get(&name).cloned(),
        };
        if is_block {
            let class = found.map_or_else(|| StorageClass { name, ..StorageClass::default() }, |found| found.class);
            return Some((VolumeContent::Block, class));
        }
        let Some(ListedClass { class, format, options }) = found else {
            if self.is_addition {
                return None;
            }
            self.add_problem(
                spec.child_path("storageClassName"),
                format!("the storage class {name} is not in the list"),
            );
            return None;
        };
        let Some(format) = format else {
            let why = format!("parameters.fsType of the storage class {name} is missing: it must be ext4 or xfs");
            self.add_problem(spec.child_path("storageClassName"), why);
            return None;
        };
        Some((VolumeContent::Filesystem { format, options }, class))
    }

    /// Checks that the name of a volume is not too long. The object that will be created for the volume on the disk
    /// gets this name, and the maximum length depends on the type of the object.
    fn check_name_length(&mut self, place: &str, name: &str, source: &VolumeSource, content: &VolumeContent) {
        let most = match (source, content) {
            (VolumeSource::Logical { .. }, _) => LVM_NAME_BYTES,
            (_, VolumeContent::Block) => PARTITION_NAME_BYTES,
            (_, VolumeContent::Filesystem { .. }) => NAME_BYTES,
        };
        if name.len() > most {
            let length = name.len();
            self.add_problem(place, format!("has {length} characters, but at most {most} are supported"));
        }
        if let VolumeSource::Logical { group, .. } = source
            && let Some(why) = explain_excessive_name(group, name, LvmType::Linear)
        {
            self.add_problem(
                place,
                format!(
                    "the name, together with vg:{group}, has {why}: choose shorter names, or names with fewer hyphens"
                ),
            );
        }
        // LVM reserves names with these prefixes (lvm(8)).
        let reserved = name.starts_with("snapshot") || name.starts_with("pvmove");
        if matches!(source, VolumeSource::Logical { .. }) && reserved {
            self.add_problem(place, format!("{name} is a name reserved by LVM"));
        }
    }

    fn check_duplicates(&mut self, volumes: &[(String, K8sVolume)]) {
        for (index, (place, volume)) in volumes.iter().enumerate() {
            let earlier = &volumes[..index];
            if let Some((_, other)) = earlier.iter().find(|(_, other)| other.uid == volume.uid) {
                let why = format!("the volume {volume} has the same uid {uid}", volume = other.name, uid = volume.uid);
                self.add_problem(format!("{place}.metadata.uid"), why);
            }
            if let Some((_, other)) = earlier.iter().find(|(_, other)| other.name == volume.name) {
                let why =
                    format!("the volume with uid {uid} has the same name {name}", uid = other.uid, name = volume.name);
                self.add_problem(format!("{place}.metadata.name"), why);
            }
        }
    }
}
