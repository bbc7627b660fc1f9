//! Steps, which operators and conductors name: `interface.step` with a priority and arguments. No I/O.
//!
//! The phases inside of a step are stages; `plan` assigns stages to steps.

mod catalogue;
mod merge;
mod offered;
#[cfg(any(feature = "desk", feature = "serve"))]
pub mod template;
#[cfg(any(feature = "desk", feature = "serve"))]
pub mod trait_form;

pub use catalogue::{Argument, CATALOGUE, Entry, Kind, MAKE_THE_LAYOUT, core};
pub use merge::{Step, Wanted, Wrong, merge};
pub use offered::{OFFERED, Offer, offered};

use serde::{Deserialize, Serialize};

/// Thoroughness of erasing a disk before it is recreated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Erase {
    /// Methods that take seconds: destroying keys, discard. At least all locations of signatures are zeroed.
    #[default]
    Quick,
    /// Makes old contents unrecoverable, or fails the installation.
    Secure,
    /// Zeroes only the locations of signatures.
    None,
}

/// Steps of a run, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    list: Vec<Step>,
    /// Problems of a received list, which cannot be run.
    wrong: Vec<String>,
}

impl Default for Steps {
    /// Returns the steps without templates.
    fn default() -> Steps {
        Steps::from(merge::defaults(&CATALOGUE))
    }
}

impl Steps {
    /// Returns the default steps with this thoroughness.
    pub fn erasing(erase: Erase) -> Steps {
        let mut steps = Steps::default();
        for step in steps.list.iter_mut().filter(|step| step.entry.name == "deploy.apply_layout") {
            step.arguments.insert("erase".to_owned(), serde_json::json!(erase));
        }
        steps
    }

    /// Parses the complete list that a control plane has merged. Steps that are not listed do not run.
    pub fn told(list: &[Wanted]) -> Steps {
        let mut steps = Steps { list: Vec::new(), wrong: Vec::new() };
        for wanted in list {
            match merge::step(&CATALOGUE, wanted) {
                Ok(step) => steps.list.push(step),
                Err(why) => steps.wrong.extend(why.into_iter().map(|(_, message)| message)),
            }
        }
        steps
    }

    /// Returns all problems of the received list, which prevent the run.
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// Returns the steps in order.
    pub fn list(&self) -> &[Step] {
        &self.list
    }

    /// Returns whether a step is listed.
    pub fn include(&self, name: &str) -> bool {
        self.list.iter().any(|step| step.entry.name == name)
    }

    /// Returns how thoroughly disks are erased.
    pub fn erase(&self) -> Erase {
        let values = self.list.iter().filter_map(|step| step.arguments.get("erase"));
        // Invalid values were rejected before.
        values.filter_map(|value| Erase::deserialize(value).ok()).next_back().unwrap_or_default()
    }
}

impl From<Vec<Step>> for Steps {
    fn from(steps: Vec<Step>) -> Steps {
        Steps { list: steps, wrong: Vec::new() }
    }
}
