//! Steps: what an operator or a conductor names, as `interface.step` with a priority and arguments. Pure.
//!
//! What runs inside a step are stages: `plan` knows which stages belong to which step.

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

/// How thoroughly a disk is erased before it is made anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Erase {
    /// What takes seconds: throw away keys, discard. At least every place where signatures live is zero.
    #[default]
    Quick,
    /// Nothing of the old content can be read again, or the install fails.
    Secure,
    /// Only the places where signatures live.
    None,
}

/// The steps of one run, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    list: Vec<Step>,
    /// Why a list that was told cannot be run.
    wrong: Vec<String>,
}

impl Default for Steps {
    /// What runs where no template says otherwise.
    fn default() -> Steps {
        Steps::from(merge::defaults(&CATALOGUE))
    }
}

impl Steps {
    /// The default steps, with disks erased that thoroughly.
    pub fn erasing(erase: Erase) -> Steps {
        let mut steps = Steps::default();
        for step in steps.list.iter_mut().filter(|step| step.entry.name == "deploy.apply_layout") {
            step.arguments.insert("erase".to_owned(), serde_json::json!(erase));
        }
        steps
    }

    /// The whole list, as a control plane has merged it. What is not in it does not run.
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

    /// Why nothing can be run: all that is wrong with what was told.
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// In their order.
    pub fn list(&self) -> &[Step] {
        &self.list
    }

    pub fn include(&self, name: &str) -> bool {
        self.list.iter().any(|step| step.entry.name == name)
    }

    /// How thoroughly disks are erased.
    pub fn erase(&self) -> Erase {
        let values = self.list.iter().filter_map(|step| step.arguments.get("erase"));
        // The merge has refused what is none of them.
        values.filter_map(|value| Erase::deserialize(value).ok()).next_back().unwrap_or_default()
    }
}

impl From<Vec<Step>> for Steps {
    fn from(steps: Vec<Step>) -> Steps {
        Steps { list: steps, wrong: Vec::new() }
    }
}
