//! `drophammer plan`: what an installation would do.

use super::{Outcome, json, print, print_problems, read, read_layout};
use crate::cli;
use crate::error::{Context, Phase, Result};
use crate::inventory::{self, Inventory};
use crate::marker::Marker;
use crate::plan::{self, Mode, Request, Subject};
use std::path::Path;
use uuid::Uuid;

/// Prints what an installation would do.
///
/// # Errors
/// A file cannot be read, or the inventory is not one.
pub fn plan(options: &cli::Plan) -> Result<Outcome> {
    let parsed = match read_layout(&options.layout)? {
        Ok(parsed) => parsed,
        Err(problems) => {
            print_problems(&options.layout, &problems);
            return Ok(Outcome::Refused);
        }
    };
    let inventory = match &options.inventory {
        Some(path) => read_inventory(path)?,
        None => inventory::read()?,
    };
    let mode = if options.reinstall { Mode::Reinstall } else { Mode::Install };
    let subject = Subject {
        machine: inventory.system.uuid.clone(),
        image: "the image".to_owned(),
        url: "the image's server".to_owned(),
        ..Subject::default()
    };
    let request = Request { mode, erase: options.erase, subject, claim: None };
    match plan::make(&parsed.layout, &inventory, request, &mut Uuid::new_v4) {
        Ok(mut plan) => {
            plan.warnings.extend(installed(mode, &inventory));
            print(&if options.json { json(&plan)? + "\n" } else { plan.to_string() })?;
            Ok(Outcome::Good)
        }
        Err(refusal) => {
            let refusal = refusal.located(|problem| parsed.locate(problem));
            print(&format!("{}\n", if options.json { json(&refusal)? } else { refusal.to_string() }))?;
            Ok(Outcome::Refused)
        }
    }
}

/// On a desk nobody knows for which allocation the machine asks.
fn installed(mode: Mode, inventory: &Inventory) -> Vec<String> {
    let marked = inventory.filesystems.iter().filter(|_| mode == Mode::Install);
    let marked = marked.filter_map(|filesystem| Some((&filesystem.device, filesystem.marker.as_ref()?)));
    let said = |(device, marker): (&String, &Marker)| {
        let (image, allocation) = (&marker.image, &marker.allocation);
        format!(
            "{device} holds {image}, installed for allocation {allocation}: for that allocation nothing of this is done, and what is installed is booted"
        )
    };
    marked.map(said).collect()
}

fn read_inventory(path: &Path) -> Result<Inventory> {
    let text = read(path)?;
    serde_json::from_str(&text).context(Phase::Inventory, || {
        format!("{} is not an inventory as `drophammer inventory` prints it", path.display())
    })
}
