//! Output of `drophammer adopt`: the plan of a later reinstall, and the files that were written.

use super::adoption_record::AdoptionRecord;
use super::foreign_system::ForeignSystem;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::error_code::ErrorCode;
use common::format::terminal_escaping::escape_line;
use common::output::{print_error, print_text, to_json};
use layout_discovery::{AdoptionPlan, DiscoveredLayout};
use model::install_marker::PATH;
use model::layout::Layout;
use serde::Serialize;

/// Result of `drophammer adopt`.
#[derive(Debug, Clone)]
pub(crate) enum AdoptionState {
    /// Only the plan of a reinstall was requested, so nothing was written.
    Planned,
    /// A reinstall would be refused, or the marker cannot be written. Nothing was written.
    Refused,
    Adopted(AdoptionRecord),
}

/// Contents of the machine, and the plan of a reinstall.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AdoptionSummary {
    machine: String,
    name: String,
    /// Name of the installed system.
    installed: String,
    system: Vec<String>,
    data: Vec<String>,
    notes: Vec<String>,
    /// Reasons why the machine must not be adopted.
    pub obstacles: Vec<String>,
    layout: Layout,
    /// Plan of a reinstall; absent if the plan is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
}

impl AdoptionSummary {
    pub(crate) fn new(
        system: &ForeignSystem,
        found: &DiscoveredLayout,
        planned: Option<&AdoptionPlan>,
        obstacles: Vec<String>,
    ) -> AdoptionSummary {
        AdoptionSummary {
            machine: system.machine.clone(),
            name: system.name.clone(),
            installed: system.image.clone(),
            system: found.system.clone(),
            data: found.data.clone(),
            notes: found.notes.iter().filter(|note| !note.is_obstacle).map(|note| note.text.clone()).collect(),
            obstacles,
            layout: found.layout.clone(),
            plan: planned.map(|planned| planned.plan_text.clone()),
        }
    }

    /// Prints the summary of a machine that was not adopted.
    pub(crate) fn print_planned(&self, json: bool) -> Result<CommandOutcome> {
        let is_possible = self.obstacles.is_empty();
        let state = if is_possible { AdoptionState::Planned } else { AdoptionState::Refused };
        match json {
            true => self.print_json(&state)?,
            false => self.print_text()?,
        }
        for obstacle in &self.obstacles {
            print_error(&ErrorCode::Settings.annotate_uncoded(format!("drophammer adopt: {obstacle}")));
        }
        Ok(CommandOutcome::good_if(is_possible))
    }

    /// Prints the result of an adoption.
    pub(crate) fn print_adopted(&self, state: &AdoptionState, json: bool) -> Result<CommandOutcome> {
        match (json, state) {
            (true, _) => self.print_json(state)?,
            (false, AdoptionState::Adopted(record)) => print_text(&format_adopted(record))?,
            (false, _) => {}
        }
        Ok(CommandOutcome::Good)
    }

    pub(crate) fn print_text(&self) -> Result<()> {
        let mut text = format!("Machine {} ({}), installed system {}\n", self.name, self.machine, self.installed);
        for (heading, items) in [
            ("The system, which a reinstall renews:", &self.system),
            ("Data, which a reinstall preserves:", &self.data),
            ("Objects that the layout does not describe, or that you must check:", &self.notes),
        ] {
            if !items.is_empty() {
                text += &format!("{heading}\n");
                items.iter().for_each(|item| text += &format!("  {}\n", escape_line(item)));
            }
        }
        if let Some(plan) = &self.plan {
            text += &format!("\nPlan of a later reinstall:\n{}\n", plan.trim_end());
            text += &format!("\nThe adoption writes {PATH}, and changes nothing else on the disks.\n");
        }
        print_text(&text)
    }

    fn print_json(&self, state: &AdoptionState) -> Result<()> {
        #[derive(Serialize)]
        struct AdoptionDocument<'a> {
            state: &'static str,
            #[serde(flatten)]
            summary: &'a AdoptionSummary,
            #[serde(skip_serializing_if = "Option::is_none")]
            adoption: Option<&'a AdoptionRecord>,
        }
        let (state, adoption) = match state {
            AdoptionState::Planned => ("planned", None),
            AdoptionState::Refused => ("refused", None),
            AdoptionState::Adopted(record) => ("adopted", Some(record)),
        };
        print_text(&(to_json(&AdoptionDocument { state, summary: self, adoption })? + "\n"))
    }
}

fn format_adopted(record: &AdoptionRecord) -> String {
    let AdoptionRecord { name, machine, allocation, server, .. } = record;
    let registered = match server {
        Some(server) => format!(
            "{name} ({machine}) is registered at {server} as installed, with allocation {allocation}.\n\
             Reinstall it later, and preserve the data: drophammer machine reinstall {name} --image IMAGE\n"
        ),
        None => "Serve the machine file before the machine boots the ramdisk.\n".to_owned(),
    };
    format!("{PATH} was written. {registered}Undo: drophammer adopt --undo\n")
}
