//! Install marker for a machine that another installer has installed, and the plan of a reinstall with this marker.

use crate::DiscoveredLayout;
use crate::reinstall_assessment::{parse_discovered, plan_reinstall};
use model::install_marker::InstallMarker;
use model::inventory::{FilesystemContents, Inventory};
use model::layout::Layout;
use model::storage_graph::LayoutMatch;
use operations::{Operation, SessionOp, WriteMarker};
use plan::{InstallClaim, MarkerWaiver, Plan};

/// Identity of an installation that another installer has made.
#[derive(Debug, Clone, Copy)]
pub struct AdoptedInstallation<'a> {
    /// Id of the machine.
    pub machine: &'a str,
    /// Id of the allocation.
    pub allocation: &'a str,
    /// Name of the installed system, in the format of an image id: `debian-13`.
    pub image: &'a str,
}

/// Install marker for an existing installation, and the plan of a reinstall that relies on this marker.
#[derive(Debug, Clone)]
pub struct AdoptionPlan {
    /// Install marker, whose time of installation is not set.
    pub marker: InstallMarker,
    /// Plan of a reinstall, as `drophammer plan` prints it.
    pub plan_text: String,
}

/// Returns the install marker for the machine, and the plan of a reinstall that finds this marker on the root
/// filesystem.
///
/// # Errors
/// Returns the reasons why a reinstall would be refused, although the root filesystem contains the marker.
pub fn plan_adoption(
    found: &DiscoveredLayout,
    inventory: &Inventory,
    adopted: AdoptedInstallation,
) -> Result<AdoptionPlan, Vec<String>> {
    let layout = parse_discovered(found)?;
    let claim = |waiver| InstallClaim {
        machine: adopted.machine.to_owned(),
        allocation: adopted.allocation.to_owned(),
        succeeded: true,
        waiver,
        ..InstallClaim::default()
    };
    let plan = plan_reinstall(&layout, inventory, claim(Some(MarkerWaiver::Operator)), adopted.image)?;
    let marker = find_marker(&plan).ok_or_else(|| vec!["the plan does not write an install marker".to_owned()])?;
    let marker = describe_present_disks(marker, &layout, inventory);
    let inventory = add_marker(inventory, found, &marker)?;
    let plan = plan_reinstall(&layout, &inventory, claim(None), adopted.image)?;
    Ok(AdoptionPlan { marker, plan_text: plan.to_string() })
}

/// Returns the marker that the plan writes.
fn find_marker(plan: &Plan) -> Option<InstallMarker> {
    let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    let mut markers = operations.filter_map(|operation| match operation {
        Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => Some(marker.clone()),
        _ => None,
    });
    markers.next()
}

/// Returns the marker for the existing installation: with the GUIDs of the partition tables that are on the disks, and
/// without data of an installation attempt.
fn describe_present_disks(marker: InstallMarker, layout: &Layout, inventory: &Inventory) -> InstallMarker {
    let matched = LayoutMatch::new(layout, inventory);
    let mut disks = marker.disks;
    for disk in &mut disks {
        let listed = layout.disks.iter().position(|listed| listed.device == *disk.device.as_str());
        let present = listed.and_then(|listed| matched.matched_disk(listed));
        let guid = present.and_then(|present| present.table.as_ref()?.guid);
        disk.guid = guid.map(|guid| guid.to_string());
    }
    InstallMarker { disks, secret: None, supersedes: Vec::new(), ..marker }
}

/// Returns the inventory of the machine after the marker was written.
fn add_marker(
    inventory: &Inventory,
    found: &DiscoveredLayout,
    marker: &InstallMarker,
) -> Result<Inventory, Vec<String>> {
    let mut inventory = inventory.clone();
    let is_root = |filesystem: &&mut FilesystemContents| Some(&filesystem.device) == found.root.as_ref();
    let Some(root) = inventory.filesystems.iter_mut().find(is_root) else {
        return Err(vec![explain_invisible_root(found)]);
    };
    root.marker = Some(marker.clone());
    Ok(inventory)
}

fn explain_invisible_root(found: &DiscoveredLayout) -> String {
    match &found.root {
        Some(device) => format!(
            "{device} is mounted at /, but / is not the root directory of this filesystem (for example, a subvolume or a bind mount), so an \
             install marker in /etc/metal would not be found: order the reinstall with --without-marker instead"
        ),
        None => "no device with a filesystem is mounted at /, so an install marker in /etc/metal would not be found"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover_layout;
    use std::fs;

    const ADOPTED: AdoptedInstallation =
        AdoptedInstallation { machine: "bbca83d4-6259-55a9-898f-c6a3c90bd93e", allocation: "a-1", image: "debian-13" };

    fn read_machine(name: &str) -> (Inventory, DiscoveredLayout) {
        let folder = format!("{}/../../testdata/foreign-installations/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(format!("{folder}/inventory.json")).unwrap();
        let inventory: Inventory = serde_json::from_str(&text).unwrap();
        let found = discover_layout(&inventory, fs::read_to_string(format!("{folder}/fstab")).ok().as_deref(), "web");
        (inventory, found)
    }

    #[test]
    fn the_marker_describes_the_present_disks_and_permits_the_reinstall() {
        for name in ["debian-plain", "almalinux-uefi", "ubuntu-subiquity-lvm", "maas-flat"] {
            let (inventory, found) = read_machine(name);
            let AdoptionPlan { marker, plan_text } = plan_adoption(&found, &inventory, ADOPTED).unwrap();
            assert_eq!((marker.machine.as_str(), marker.allocation.as_str()), (ADOPTED.machine, "a-1"), "{name}");
            assert_eq!((marker.image.as_str(), marker.layout.as_str()), ("debian-13", "web"), "{name}");
            assert!(marker.secret.is_none() && marker.order.is_none() && marker.time.is_empty(), "{name}");
            assert_eq!(marker.disks.len(), found.layout.disks.len(), "{name}");
            let present = inventory.disks.iter().map(|disk| disk.table.as_ref()?.guid.map(|guid| guid.to_string()));
            let present: Vec<Option<String>> = present.collect();
            assert!(marker.disks.iter().all(|disk| present.contains(&disk.guid)), "{name}: {marker:?}");
            assert!(!plan_text.contains("--without-marker") && !plan_text.is_empty(), "{name}: {plan_text}");
        }
    }

    /// The planner accepts the marker only for its own machine and allocation.
    #[test]
    fn the_marker_of_another_allocation_does_not_permit_the_reinstall() {
        let (inventory, found) = read_machine("debian-plain");
        let AdoptionPlan { marker, .. } = plan_adoption(&found, &inventory, ADOPTED).unwrap();
        let marked = add_marker(&inventory, &found, &marker).unwrap();
        let layout = parse_discovered(&found).unwrap();
        for (machine, allocation) in [(ADOPTED.machine, "a-2"), ("m-2", "a-1")] {
            let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
            let claim = InstallClaim { machine, allocation, succeeded: true, ..InstallClaim::default() };
            let obstacles = plan_reinstall(&layout, &marked, claim, "debian-13").unwrap_err();
            assert!(!obstacles.is_empty());
        }
    }

    #[test]
    fn a_root_that_the_agent_would_not_find_is_refused() {
        let (mut inventory, found) = read_machine("debian-plain");
        inventory.filesystems.clear();
        let obstacles = plan_adoption(&found, &inventory, ADOPTED).unwrap_err();
        assert!(obstacles[0].contains("is not the root directory of this filesystem"), "{obstacles:?}");
    }
}
