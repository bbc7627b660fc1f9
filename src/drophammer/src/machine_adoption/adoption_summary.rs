//! Output of `drophammer adopt`: the plan of a later reinstall, and the files that were written.

use super::adoption_record::AdoptionRecord;
use super::foreign_system::ForeignSystem;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::error_code::ErrorCode;
use common::format::terminal_escaping::escape_line;
use common::output::{print_error, print_text, to_json};
use layout_discovery::{AdoptionPlan, DiscoveredLayout};
use model::install_marker::{PATH, RecordedDisk};
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
    /// Disks in the install marker.
    #[serde(skip)]
    disks: Vec<String>,
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
            disks: planned.map(|planned| planned.marker.disks.iter().map(describe_disk).collect()).unwrap_or_default(),
        }
    }

    /// Returns the differences between this summary, which the operator has confirmed, and the present summary, or
    /// `None` if both describe the same machine.
    pub(crate) fn explain_changes(&self, present: &AdoptionSummary) -> Option<String> {
        let lists = [
            ("system", &self.system, &present.system),
            ("data", &self.data, &present.data),
            ("notes", &self.notes, &present.notes),
            ("obstacles", &self.obstacles, &present.obstacles),
            ("disks", &self.disks, &present.disks),
        ];
        let mut changes: Vec<String> =
            lists.into_iter().flat_map(|(name, old, new)| list_changes(name, old, new)).collect();
        if self.installed != present.installed {
            changes.push(format!("the installed system is now {}", present.installed));
        }
        if changes.is_empty() && self.layout != present.layout {
            changes.push("the layout has changed".to_owned());
        }
        (!changes.is_empty()).then(|| changes.join("; "))
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

/// Describes the identity of a disk.
fn describe_disk(disk: &RecordedDisk) -> String {
    let RecordedDisk { device, serial, wwn, size_bytes, guid, .. } = disk;
    let table = guid.as_deref().unwrap_or("none");
    format!("{device}, serial number {serial:?}, WWN {wwn:?}, {size_bytes} bytes, GUID of the partition table {table}")
}

/// Lists the lines that only one of the two lists contains.
fn list_changes(name: &str, old: &[String], new: &[String]) -> Vec<String> {
    let gone =
        old.iter().filter(|line| !new.contains(line)).map(|line| format!("{name}: no longer {}", escape_line(line)));
    let added = new.iter().filter(|line| !old.contains(line)).map(|line| format!("{name}: now {}", escape_line(line)));
    gone.chain(added).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(data: &[&str], serial: &str) -> AdoptionSummary {
        let disk = RecordedDisk { device: "/dev/sda".to_owned(), serial: serial.to_owned(), ..RecordedDisk::default() };
        AdoptionSummary {
            machine: "m".to_owned(),
            name: "web-1".to_owned(),
            installed: "debian-13".to_owned(),
            system: vec!["/dev/sda1 (/)".to_owned()],
            data: data.iter().map(|line| (*line).to_owned()).collect(),
            notes: Vec::new(),
            obstacles: Vec::new(),
            layout: Layout::default(),
            plan: None,
            disks: vec![describe_disk(&disk)],
        }
    }

    #[test]
    fn changes_since_the_confirmation_are_listed() {
        let confirmed = summary(&["/dev/sda2 (/srv)"], "S1");
        assert_eq!(confirmed.explain_changes(&summary(&["/dev/sda2 (/srv)"], "S1")), None);
        let why = confirmed.explain_changes(&summary(&["/dev/sdb1 (/srv)"], "S1")).unwrap();
        assert_eq!(why, "data: no longer /dev/sda2 (/srv); data: now /dev/sdb1 (/srv)");
        let why = confirmed.explain_changes(&summary(&["/dev/sda2 (/srv)"], "S2")).unwrap();
        assert!(why.contains("no longer /dev/sda, serial number \"S1\"") && why.contains("\"S2\""), "{why}");
    }
}
