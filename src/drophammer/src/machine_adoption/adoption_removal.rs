//! `drophammer adopt --undo`: removes the registration and the install marker of an adoption.

use super::marker_storage::MarkerStorage;
use super::registration::remove_registration;
use super::{AdoptionHost, MachineAdoptionOptions, machine_name_confirmation, require_privileges};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output::{print_text, to_json};
use model::install_marker::PATH;
use serde_json::json;

/// Removes the registration, and then the marker. In the reverse order, an interruption would leave a machine that is
/// registered as installed but lacks the marker; such a machine waits in the ramdisk.
pub(crate) fn remove_adoption(options: &MachineAdoptionOptions, host: &AdoptionHost) -> Result<CommandOutcome> {
    require_privileges(host)?;
    let storage = MarkerStorage::new(&host.root);
    let record = storage.read_record()?;
    storage.check_marker(&record)?;
    machine_name_confirmation::confirm_name(&record.name, options.yes.as_deref(), host.is_interactive)?;
    if record.server.is_some() {
        remove_registration(options, &record)?;
    }
    storage.remove(&record)?;
    if options.json {
        print_text(&(to_json(&json!({"state": "removed", "adoption": record}))? + "\n"))?;
        return Ok(CommandOutcome::Good);
    }
    let registration = match &record.server {
        Some(server) => format!("The registration at {server} was removed."),
        None => "Also remove the machine file from the web server.".to_owned(),
    };
    print_text(&format!("{PATH} was removed. {registration}\n"))?;
    Ok(CommandOutcome::Good)
}
