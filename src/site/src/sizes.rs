//! `sizes/*.yaml`: named classes of hardware, in metal-api's format.

use crate::operator_files::suggest_name;
use crate::operator_files::yaml_node::{deserialize_node, format_at, parse_document};
use common::format;
use control::agent_api_types::RegisteredHardware;
use marked_yaml::Spanned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const FOLDER: &str = "sizes";

/// Size of machines, as defined in a YAML file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[derive(schemars::JsonSchema)]
pub struct MachineSize {
    pub id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub constraints: Vec<SizeConstraint>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[derive(schemars::JsonSchema)]
pub struct SizeConstraint {
    #[serde(rename = "type")]
    pub kind: ConstraintKind,
    #[serde(default)]
    pub min: u64,
    pub max: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(schemars::JsonSchema)]
pub enum ConstraintKind {
    Cores,
    /// Memory in bytes.
    Memory,
    /// Total size of all disks in bytes.
    Storage,
}

/// Size as deserialized from its YAML file, with the positions of its values.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSize {
    id: Spanned<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    description: String,
    constraints: Vec<RawConstraint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConstraint {
    #[serde(rename = "type")]
    kind: Spanned<ConstraintKind>,
    #[serde(default)]
    min: u64,
    max: u64,
}

impl MachineSize {
    /// Parses and validates a file.
    ///
    /// # Errors
    /// Fails as [`crate::operator_files::parse_image`] does.
    pub fn parse_size(text: &str) -> Result<MachineSize, String> {
        let raw: RawSize = deserialize_node(&parse_document(text)?)?;
        if raw.id.trim().is_empty() {
            return Err(format_at(&raw.id, "the size's id is empty"));
        }
        if raw.constraints.is_empty() {
            return Err(format_at(&raw.id, "a size without constraints would match every machine"));
        }
        let backwards = raw.constraints.iter().find(|one| one.min > one.max);
        if let Some(RawConstraint { kind, min, max }) = backwards {
            let place = Spanned::new(*kind.span(), String::new());
            return Err(format_at(&place, &format!("`min` ({min}) must not exceed `max` ({max})")));
        }
        let constraint = |one: &RawConstraint| SizeConstraint { kind: *one.kind, min: one.min, max: one.max };
        let constraints = raw.constraints.iter().map(constraint).collect();
        Ok(MachineSize { id: raw.id.to_string(), name: raw.name, description: raw.description, constraints })
    }

    fn matches_hardware(&self, hardware: &RegisteredHardware) -> bool {
        self.constraints.iter().all(|one| (one.min..=one.max).contains(&one.kind.measure(hardware)))
    }
}

impl ConstraintKind {
    pub const ALL: [ConstraintKind; 3] = [ConstraintKind::Cores, ConstraintKind::Memory, ConstraintKind::Storage];

    pub fn name(self) -> &'static str {
        match self {
            ConstraintKind::Cores => "cores",
            ConstraintKind::Memory => "memory",
            ConstraintKind::Storage => "storage",
        }
    }

    /// Returns the amount of this resource that the machine has, in the unit of the constraint.
    pub fn measure(self, hardware: &RegisteredHardware) -> u64 {
        match self {
            ConstraintKind::Cores => u64::from(hardware.cpu_cores),
            ConstraintKind::Memory => hardware.memory,
            ConstraintKind::Storage => total_storage(hardware),
        }
    }
}

/// Returns the total size of all disks in bytes. The sum saturates, since machines can report arbitrary sizes.
fn total_storage(hardware: &RegisteredHardware) -> u64 {
    hardware.disks.iter().fold(0, |sum, disk| sum.saturating_add(disk.size))
}

/// Returns the size of a machine. If a size is named, returns this size. Otherwise returns the only size whose
/// constraints match the hardware, or `None` if no sizes are defined.
///
/// # Errors
/// Returns an error if sizes are defined, but the named size is not one of them. If no size is named, returns an error
/// if sizes are defined, but none or several of them match.
pub fn choose_size(
    sizes: &BTreeMap<String, MachineSize>,
    hardware: &RegisteredHardware,
    named: Option<&str>,
) -> Result<Option<String>, String> {
    if let Some(name) = named {
        return match sizes.is_empty() || sizes.contains_key(name) {
            true => Ok(Some(name.to_owned())),
            false => Err(format!(
                "size {name:?} not found in sizes/{suggestion}",
                suggestion = suggest_name(name, sizes.keys().map(String::as_str))
            )),
        };
    }
    let found: Vec<&str> =
        sizes.values().filter(|size| size.matches_hardware(hardware)).map(|size| size.id.as_str()).collect();
    let (cores, memory, disks) = (hardware.cpu_cores, hardware.memory, hardware.disks.len());
    let has = format!(
        "{cores} cores, {memory} bytes of memory, {} on {disks} disks ({} bytes)",
        format::format_bytes(total_storage(hardware)),
        total_storage(hardware)
    );
    match found[..] {
        _ if sizes.is_empty() => Ok(None),
        [size] => Ok(Some(size.to_owned())),
        [] => Err(format!(
            "no size in sizes/ matches this machine, which has {has}: select a size with --size, or correct the constraints of the machine's size"
        )),
        _ => Err(format!(
            "{count} sizes match this machine, which has {has}: {sizes}. Select one with --size",
            count = found.len(),
            sizes = found.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::agent_api_types::HardwareDisk;

    fn hardware(cpu_cores: u32, memory: u64, disks: &[u64]) -> RegisteredHardware {
        let disk = |size: &u64| HardwareDisk { name: "/dev/sda".to_owned(), size: *size };
        RegisteredHardware { cpu_cores, memory, disks: disks.iter().map(disk).collect(), nics: vec![] }
    }

    fn sizes(texts: &[&str]) -> BTreeMap<String, MachineSize> {
        let sizes = texts.iter().map(|text| MachineSize::parse_size(text).unwrap());
        sizes.map(|size| (size.id.clone(), size)).collect()
    }

    #[test]
    fn machine_gets_the_matching_size() {
        let small = "id: small\nname: Small\ndescription: d\nconstraints:\n  - {type: cores, min: 1, max: 4}\n  - {type: memory, min: 1000, max: 2000}\n";
        let large = "id: large\nconstraints: [{type: cores, min: 4, max: 64}, {type: storage, min: 100, max: 200}]\n";
        let sizes = sizes(&[small, large]);
        let size = |hardware: &RegisteredHardware| choose_size(&sizes, hardware, None);
        assert_eq!(size(&hardware(2, 1500, &[])), Ok(Some("small".to_owned())));
        assert_eq!(size(&hardware(16, 1500, &[60, 60])), Ok(Some("large".to_owned())));
        let why = size(&hardware(4, 1500, &[120])).unwrap_err();
        assert!(why.starts_with("2 sizes match this machine, which has 4 cores, 1500 bytes of memory"), "{why}");
        let why = size(&hardware(16, 1, &[u64::MAX, 1])).unwrap_err();
        assert!(why.starts_with("no size in sizes/ matches this machine"), "{why}");
        assert_eq!(choose_size(&sizes, &hardware(1, 1, &[]), Some("large")), Ok(Some("large".to_owned())));
        let why = choose_size(&sizes, &hardware(1, 1, &[]), Some("larg")).unwrap_err();
        assert_eq!(why, "size \"larg\" not found in sizes/; did you mean \"large\"?");
        let none = BTreeMap::new();
        assert_eq!(choose_size(&none, &hardware(1, 1, &[]), None), Ok(None));
        assert_eq!(choose_size(&none, &hardware(1, 1, &[]), Some("any")), Ok(Some("any".to_owned())));
    }

    #[test]
    fn invalid_size_is_reported_with_its_location() {
        for (text, expected) in [
            ("id: a\n", "constraints is missing"),
            ("id: a\nconstraints: []\n", "1:5: a size without constraints would match every machine"),
            ("id: ''\nconstraints: [{type: cores, max: 1}]\n", "1:5: the size's id is empty"),
            ("id: a\nconstraints: [{type: cores, min: 2, max: 1}]\n", "2:22: `min` (2) must not exceed `max` (1)"),
            ("id: a\nconstraints: [{type: gpu, max: 1}]\n", "2:22: "),
            ("id: a\nconstraints: [{type: cores, min: x, max: 1}]\n", "2:34: "),
            ("id: a\nconstraint: []\n", "unknown field \"constraint\"; did you mean \"constraints\"?"),
        ] {
            let why = MachineSize::parse_size(text).unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }
}
