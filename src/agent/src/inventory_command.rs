//! `drophammer inventory`: the inventory of this machine as JSON.

use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output::{print_note, print_text, to_json};
use linux::ipmi;
use linux::probe::{self, ProbeDepth};
use model::bmc::InBandBmc;
use model::inventory::{Inventory, OpaqueObject};
use serde::Serialize;
use std::path::Path;

/// Inventory with derived fields. The derived fields are recomputed when the JSON is parsed.
#[derive(Serialize)]
struct InventoryListing<'a> {
    #[serde(flatten)]
    inventory: &'a Inventory,
    /// Objects whose content could not be read.
    opaque: Vec<OpaqueObject>,
    /// BMC, read in-band; absent if the machine does not have a device for access to a BMC.
    #[serde(skip_serializing_if = "Option::is_none")]
    bmc: Option<InBandBmc>,
}

/// Options of `drophammer inventory`.
#[derive(Debug, clap::Args)]
pub struct InventoryOptions {
    /// Print only the JSON, without notes on standard error. The JSON lists unreadable objects as `opaque`.
    #[arg(long)]
    pub json: bool,
}

/// Prints the inventory of this machine as JSON, and lists on standard error the objects that could not be read.
///
/// # Errors
/// Fails if sysfs cannot be read.
pub(crate) fn run_inventory(options: &InventoryOptions) -> Result<CommandOutcome> {
    let inventory = probe::read_inventory(ProbeDepth::Deep)?;
    let opaque = inventory.find_opaque_objects();
    for object in opaque.iter().filter(|_| !options.json) {
        print_note(&format!("not inspected: {object}: {}; {}", object.reason, object.remedy));
    }
    let bmc = ipmi::read_bmc(Path::new(ipmi::DEVICE)).unwrap_or_else(|error| {
        if !options.json {
            print_note(&format!("{device}: cannot read the BMC: {error}", device = ipmi::DEVICE));
        }
        None
    });
    print_text(&(to_json(&InventoryListing { inventory: &inventory, opaque, bmc })? + "\n"))?;
    Ok(CommandOutcome::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_inventory_is_parsed_back() {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/inventories/orphans.json"))
                .unwrap();
        let inventory: Inventory = serde_json::from_str(&text).unwrap();
        let opaque = inventory.find_opaque_objects();
        assert!(!opaque.is_empty());
        let bmc = Some(InBandBmc { version: "1.74".into(), ..InBandBmc::default() });
        let text = to_json(&InventoryListing { inventory: &inventory, opaque, bmc }).unwrap();
        assert_eq!(serde_json::from_str::<Inventory>(&text).unwrap(), inventory);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let [first, ..] = &value["opaque"].as_array().unwrap()[..] else { panic!("{text}") };
        for field in ["kind", "name", "devices", "reason", "remedy"] {
            assert!(!first[field].is_null(), "{field}: {first}");
        }
    }
}
