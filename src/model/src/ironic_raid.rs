//! Software arrays in Ironic's format (`logical_disks`), and conversion of such arrays to a layout for a machine. This
//! module does no I/O.
//!
//! A list is processed in two steps. Parsing ([`RaidConfig::parse_config`]) does not depend on a machine. Building the
//! layout ([`RaidConfig::build_layout`]) selects disks of a machine. A list with `controller: software` is a
//! `target_raid_config` of Ironic's agent, and has the restrictions of that format. A list without `controller` has the
//! format of the proposal for deploy templates.

mod config;
mod member_selection;
mod raid_layout;
#[cfg(test)]
mod tests;

pub use config::{LogicalDisk, RaidConfig};

use common::diagnostic::Diagnostic;
use serde_json::{Map, Value};

/// Parses the arrays in the arguments of a step `raid.create_configuration` or `raid.apply_configuration`.
///
/// # Errors
/// Returns all problems, each with its path, such as `logical_disks[0].raid_level`.
pub fn read_step_arrays(name: &str, arguments: &Map<String, Value>) -> Result<RaidConfig, Vec<Diagnostic>> {
    let (outer, delete) = match name {
        "raid.apply_configuration" => (Some("raid_config"), "delete_existing"),
        _ => (None, "delete_configuration"),
    };
    let mut problems = Vec::new();
    if !matches!(arguments.get(delete), None | Some(Value::Bool(true))) {
        let message = "must be true: disks for arrays are always recreated";
        problems.push(Diagnostic::new(delete, message));
    }
    let read = match outer {
        None => RaidConfig::parse_config(&Value::Object(
            arguments.iter().filter(|(name, _)| *name != delete).map(clone_entry).collect(),
        )),
        Some(outer) => RaidConfig::parse_config(arguments.get(outer).unwrap_or(&Value::Null))
            .map_err(|problems| prefix_problems(outer, problems)),
    };
    match read {
        Ok(config) if problems.is_empty() => Ok(config),
        Ok(_) => Err(problems),
        Err(more) => Err(problems.into_iter().chain(more).collect()),
    }
}

fn clone_entry((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

fn prefix_problems(outer: &str, problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let place = |place: &str| if place.is_empty() { outer.to_owned() } else { format!("{outer}.{place}") };
    problems.into_iter().map(|problem| Diagnostic { place: place(&problem.place), ..problem }).collect()
}
