//! Steps that operators and conductors name, such as `deploy.burn_image`. Each step has a priority and arguments. This
//! module does no I/O.
//!
//! A step consists of stages; `plan` assigns stages to steps.

mod catalog;
mod merge;
mod offered_steps;
mod out_of_band;
pub mod template;
pub mod traits;

pub use catalog::{CATALOG, CatalogStep, LAYOUT_DEFINITION_STEPS, StepArgument, StepKind, core_steps};
pub use merge::{PlannedStep, StepProblem, TemplateStep, merge_templates};
pub use offered_steps::{OFFERED, OfferedStep, steps_for_kind};
pub use out_of_band::{BiosSetting, BootDevice, OutOfBandStep, find_misplaced_step, is_same_value};

use serde::{Deserialize, Serialize};

/// Method of erasing a disk before new contents are written to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum EraseMode {
    /// Destroys the disk's encryption key or discards the whole disk, if the disk supports one of these methods. Each
    /// method takes only seconds. The locations of signatures are zeroed in any case.
    #[default]
    Quick,
    /// Makes the old contents unrecoverable. If the disk supports no method for this, the installation fails.
    Secure,
    /// Zeroes only the locations of signatures.
    None,
}

/// Steps of an installation, in the order in which they run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepList {
    list: Vec<PlannedStep>,
    /// Problems of a list of steps that was received from a control plane. A list with problems cannot be run.
    wrong: Vec<String>,
}

impl Default for StepList {
    /// Returns the steps of an installation without templates.
    fn default() -> StepList {
        StepList::from(merge::default_steps(&CATALOG))
    }
}

impl StepList {
    /// Returns the default steps, with disks erased in this mode.
    pub fn with_erase_mode(erase: EraseMode) -> StepList {
        let mut steps = StepList::default();
        for step in steps.list.iter_mut().filter(|step| step.entry.name == "deploy.apply_layout") {
            step.arguments.insert("erase".to_owned(), serde_json::json!(erase));
        }
        steps
    }

    /// Parses the complete list of steps that a control plane has merged from templates. No other steps run.
    pub fn from_received(list: &[TemplateStep]) -> StepList {
        let mut steps = StepList { list: Vec::new(), wrong: Vec::new() };
        for wanted in list {
            match merge::parse_step(&CATALOG, wanted) {
                Ok(step) if step.entry.out_of_band => steps.wrong.push(format!(
                    "step {step} runs through the management controller, before the agent starts, but the server has sent this step to the agent", step = step.entry.name)),
                Ok(step) => steps.list.push(step),
                Err(why) => steps.wrong.extend(why.into_iter().map(|(_, message)| message)),
            }
        }
        steps
    }

    /// Returns all problems of a received list of steps. A list with problems must not be run.
    pub fn problems(&self) -> &[String] {
        &self.wrong
    }

    /// Returns the steps in the order in which they run.
    pub fn list(&self) -> &[PlannedStep] {
        &self.list
    }

    /// Returns whether the list contains the step with this name.
    pub fn includes_step(&self, name: &str) -> bool {
        self.list.iter().any(|step| step.entry.name == name)
    }

    /// Returns the mode in which disks are erased.
    pub fn erase_mode(&self) -> EraseMode {
        let values = self.list.iter().filter_map(|step| step.arguments.get("erase"));
        // Invalid values of the argument are ignored, because they were already reported as problems.
        values.filter_map(|value| EraseMode::deserialize(value).ok()).next_back().unwrap_or_default()
    }
}

impl From<Vec<PlannedStep>> for StepList {
    fn from(steps: Vec<PlannedStep>) -> StepList {
        StepList { list: steps, wrong: Vec::new() }
    }
}
