//! Software arrays in Ironic's words (`logical_disks`), and the layout that they mean on a machine. Pure.
//!
//! A list is read in two steps: what it says ([`Config::read`], on any desk), and which disks of a machine that are
//! ([`Config::layout`]). With `controller: software` it is a `target_raid_config` as the agent of Ironic takes it, and what that agent
//! refuses is refused here too. Without, it is the example of the proposal for deploy templates, which says nothing about controllers.

mod config;
mod members;
mod partitions;
#[cfg(test)]
mod tests;

pub use config::{Config, LogicalDisk};

use crate::order::Gather;
use crate::problem::Problem;
use serde_json::{Map, Value};

/// The arrays of a step `raid.create_configuration` or `raid.apply_configuration`, by its arguments.
///
/// # Errors
/// All that is wrong with the arguments, each with its place: `logical_disks[0].raid_level`.
pub fn of_step(name: &str, arguments: &Map<String, Value>) -> Result<Config, Vec<Problem>> {
    let (outer, delete) = match name {
        "raid.apply_configuration" => (Some("raid_config"), "delete_existing"),
        _ => (None, "delete_configuration"),
    };
    let mut problems = Vec::new();
    if !matches!(arguments.get(delete), None | Some(Value::Bool(true))) {
        let message = "disks that get arrays are made anew: this can only be true";
        problems.push(Problem::new(delete, message));
    }
    let read = match outer {
        None => Config::read(&Value::Object(arguments.iter().filter(|(name, _)| *name != delete).map(owned).gather())),
        Some(outer) => {
            Config::read(arguments.get(outer).unwrap_or(&Value::Null)).map_err(|problems| below(outer, problems))
        }
    };
    match read {
        Ok(config) if problems.is_empty() => Ok(config),
        Ok(_) => Err(problems),
        Err(more) => Err(problems.into_iter().chain(more).collect()),
    }
}

fn owned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

fn below(outer: &str, problems: Vec<Problem>) -> Vec<Problem> {
    let place = |place: &str| if place.is_empty() { outer.to_owned() } else { format!("{outer}.{place}") };
    problems.into_iter().map(|problem| Problem { place: place(&problem.place), ..problem }).collect()
}
