//! `drophammer layout from-machine`: derives a layout from a machine that another installer has installed.

use super::installed_crypttab::{read_crypttab_copy, read_system_crypttab};
use super::plan::{PlanArgs, read_inventory};
use super::read_text;
use crate::server_commands::machine_plan::{fetch_machine_preview, registered_inventory};
use crate::server_commands::{OperatorClient, ServerOptions};
use clap::Args;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output::{print_note, print_text};
use layout_discovery::{assess_reinstall, discover_layout_with_keys, format_layout};
use model::inventory::Inventory;
use std::path::{Path, PathBuf};

/// Path of the running system's fstab.
const FSTAB: &str = "/etc/fstab";

/// Options of `drophammer layout from-machine`.
#[derive(Debug, Default, Args)]
pub struct FromMachineOptions {
    /// Output of `drophammer inventory`; by default, the inventory of this machine.
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    pub inventory: Option<PathBuf>,
    /// Machine of a server, by its id or name. Its registered inventory is used.
    #[arg(long, value_name = "ID")]
    pub machine: Option<String>,
    /// The installed system's /etc/fstab. By default, the fstab in the inventory is used or, if this command reads the
    /// machine on which it runs, the /etc/fstab of this machine.
    #[arg(long, value_name = "FILE")]
    pub fstab: Option<PathBuf>,
    /// The installed system's /etc/crypttab. By default, if this command reads the machine on which it runs, the
    /// /etc/crypttab of this machine is used. A machine with encrypted data requires a crypttab.
    #[arg(long, value_name = "FILE")]
    pub crypttab: Option<PathBuf>,
    /// Id of the layout.
    #[arg(long, value_name = "ID", default_value = "from-machine")]
    pub id: String,
    /// Device whose content a reinstall may erase, although neither fstab nor a mount shows that it belongs to the
    /// system; may be given several times.
    #[arg(long, value_name = "DEVICE")]
    pub give_up: Vec<String>,
}

/// Prints the layout on standard output. Prints on standard error which properties of the machine the layout does not
/// express, and what a reinstall would do.
///
/// # Errors
/// Fails if the inventory, the fstab or the crypttab cannot be read.
pub fn run_from_machine(options: &FromMachineOptions, of: &ServerOptions) -> Result<CommandOutcome> {
    let inventory = collect_inventory(options, of)?;
    let is_this_machine = options.inventory.is_none() && options.machine.is_none();
    let fstab = match &options.fstab {
        Some(path) => Some(read_text(path)?),
        None if is_this_machine => Some(read_text(Path::new(FSTAB))?),
        None => None,
    };
    let crypttab = match &options.crypttab {
        Some(path) => Some(read_crypttab_copy(path)?),
        None if is_this_machine => Some(read_system_crypttab(Path::new("/"))?),
        None => None,
    };
    let mut found = discover_layout_with_keys(&inventory, fstab.as_deref(), crypttab.as_ref(), &options.id);
    options.give_up.iter().for_each(|device| found.give_up(device));
    let assessment = assess_reinstall(&found, &inventory);
    print_text(&format_layout(&found, &assessment))?;
    found.notes.iter().for_each(|note| print_note(&note.text));
    print_note(&assessment.to_string());
    Ok(if assessment.is_safe() { CommandOutcome::Good } else { CommandOutcome::Refused })
}

fn collect_inventory(options: &FromMachineOptions, of: &ServerOptions) -> Result<Inventory> {
    if let Some(machine) = &options.machine {
        let server = OperatorClient::new(of)?;
        let (preview, _) = fetch_machine_preview(&server, &PlanArgs::default(), machine)?;
        let (inventory, note) = registered_inventory(machine, preview.registered.as_ref())?;
        note.iter().for_each(|note| print_note(note));
        return Ok(inventory);
    }
    match &options.inventory {
        Some(path) => read_inventory(path),
        None => linux::probe::read_inventory(linux::probe::ProbeDepth::Deep),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::output_capture::recorded;

    /// Returns the output and the outcome, which determines the exit status.
    fn run(machine: &str) -> (String, CommandOutcome) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/foreign-installations/");
        let file = |name: &str| Some(PathBuf::from(format!("{folder}{machine}/{name}")));
        let options = FromMachineOptions {
            inventory: file("inventory.json"),
            fstab: file("fstab"),
            id: "web".to_owned(),
            ..FromMachineOptions::default()
        };
        let mut outcome = CommandOutcome::Erases;
        let output = recorded(|| {
            let run = run_from_machine(&options, &ServerOptions::default());
            outcome = *run.as_ref().unwrap();
            run
        });
        (output, outcome)
    }

    #[test]
    fn the_layout_and_the_effect_of_a_reinstall_are_printed() {
        let (output, outcome) = run("almalinux-uefi");
        assert_eq!(outcome, CommandOutcome::Good);
        for text in [
            "id: web",
            "  # contains only data: preserved completely\n  - device: sdb\n    wipeonreinstall: false",
            "# Reinstall: the system is renewed, everything else is preserved (1 found).",
        ] {
            assert!(output.contains(text), "{text}: {output}");
        }
    }

    /// The outcome `Refused` sets the exit status 2.
    #[test]
    fn a_reinstall_that_would_be_refused_has_its_own_outcome() {
        for (machine, expected) in
            [("fedora", "contains the system and data in one filesystem"), ("state-degraded-mirror", "degraded")]
        {
            let (output, outcome) = run(machine);
            assert_eq!(outcome, CommandOutcome::Refused, "{machine}");
            assert!(output.contains(expected) && output.contains("id: web"), "{machine}: {output}");
        }
    }
}
