//! The OS definition of the image: its `verify` and `create` programs, and the environment of the image's installer.

use super::verdict::Decided;
use super::{BurnDisk, CreateSystem, Finishing, MachineFiles, OfRun, Request, Verdict};
use crate::definition::{Card, Chosen, Disk, Instance};
use crate::inventory::{self, Nic};
use crate::layout::Layout;
use crate::problem::Problem;
use crate::topology::Match;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Value of `HYPERVISOR` for Ganeti's definitions: there is no hypervisor below the machine.
const HYPERVISOR: &str = "none";
/// NIC mode for Ganeti's definitions: a NIC of the machine is not a port of a bridge.
const CARD: &str = "routed";

/// Returns the reasons why the definition is invalid, or does not fit a layout whose system it creates.
pub fn refused(layout: &Layout, request: &Request) -> Vec<Problem> {
    let Some(chosen) = &request.assigned.allocation.definition else { return Vec::new() };
    let impossible = chosen.impossible().map(|why| Problem::new("allocation.definition", why));
    let (os, url) = (chosen.os(), &request.assigned.allocation.image.url);
    let image = (chosen.creates() && !url.is_empty()).then(|| {
        Problem::new(
            "allocation.image.url",
            format!("create of {os} creates the system, so the allocation must not have an image"),
        )
    });
    let disk = (chosen.creates() && !layout.disks.iter().any(|disk| disk.image)).then(|| {
        let why = format!("create of {os} fills a whole disk; set image: true for one disk, without partitions");
        Problem::new("disks", why)
    });
    impossible.into_iter().chain(image).chain(disk).collect()
}

fn creating(request: &Request) -> Option<&Chosen> {
    request.assigned.allocation.definition.as_ref().filter(|chosen| chosen.creates())
}

/// Returns whether the request has an image.
pub fn has_image(request: &Request) -> bool {
    creating(request).is_none()
}

/// Returns a check for the programs that `create` needs, if the definition has one.
pub fn programs(request: &Request) -> Option<OfRun> {
    let chosen = creating(request)?;
    // Invalid definitions were refused before.
    Some(OfRun::FindPrograms { os: chosen.os().to_string(), programs: chosen.needs().unwrap_or_default() })
}

/// Returns the operation that fills the disk: writing the image, or running `create`.
pub fn fill(onto: BurnDisk, meant: &Match, decided: &Decided, finishing: &Finishing) -> OfRun {
    let definition = finishing.files.assigned.allocation.definition.as_ref();
    let Some(chosen) = definition.filter(|chosen| chosen.creates()) else { return OfRun::BurnDisk(onto) };
    OfRun::CreateSystem(Box::new(CreateSystem {
        os: chosen.os().to_string(),
        disks: given(meant, decided).map(|disk| disk.device.clone()).collect(),
        onto,
        environment: finishing.environment.clone(),
        chosen: Box::new(chosen.clone()),
    }))
}

/// Returns the operation that runs `verify`, if the definition has one.
pub fn verify(request: &Request) -> Option<OfRun> {
    let chosen = request.assigned.allocation.definition.as_ref().filter(|chosen| chosen.has_verify())?;
    let (os, parameters) = (chosen.os().to_string(), chosen.parameters.keys().cloned().collect());
    Some(OfRun::VerifyDefinition { os, parameters, chosen: Box::new(chosen.clone()) })
}

/// Returns the environment of the image's installer, as Ganeti passes it to `create`; empty without a definition.
pub fn environment(meant: &Match, decided: &Decided, files: &MachineFiles) -> BTreeMap<String, String> {
    let definition = files.assigned.allocation.definition.as_ref();
    definition.map(|chosen| of_create(chosen, meant, decided, files)).unwrap_or_default()
}

fn of_create(chosen: &Chosen, meant: &Match, decided: &Decided, files: &MachineFiles) -> BTreeMap<String, String> {
    let allocation = &files.assigned.allocation;
    let created = OffsetDateTime::parse(&allocation.created, &Rfc3339).map_or(0, OffsetDateTime::unix_timestamp);
    let is_serial = files.assigned.consoles.last().is_some_and(|console| console.starts_with("ttyS"));
    let serial = if is_serial { "True" } else { "False" };
    chosen.environment_for(&Instance {
        name: allocation.hostname.clone(),
        uuid: allocation.id.clone(),
        created: format!("{created}.0"),
        changed: format!("{created}.0"),
        primary_node: files.machine.clone(),
        hypervisor: HYPERVISOR.to_owned(),
        disks: disks(meant, decided),
        cards: files.nics.iter().map(card).collect(),
        settings: [("serial_console".to_owned(), serial.to_owned())].into(),
        reinstall: allocation.reinstall,
    })
}

/// Returns the recreated disks in the order of the layout. `create` and the image's installer have access to no others.
fn given<'a>(meant: &'a Match, decided: &'a Decided) -> impl Iterator<Item = &'a inventory::Disk> {
    let is_made = |verdict: Verdict| matches!(verdict, Verdict::Wipe | Verdict::Make);
    let found = (0..meant.graph.layout.disks.len()).filter_map(|listed| meant.disk(listed));
    found.filter(move |found| decided.disks.iter().any(|disk| disk.device == found.device && is_made(disk.verdict)))
}

fn disks(meant: &Match, decided: &Decided) -> Vec<Disk> {
    let disk = |found: &inventory::Disk| {
        let table = decided.tables.iter().find(|table| table.device == found.device);
        Disk {
            path: found.device.to_string(),
            uuid: table.map(|table| table.guid.to_string()).unwrap_or_default(),
            size_mib: found.size_bytes >> 20,
            name: None,
        }
    };
    given(meant, decided).map(disk).collect()
}

fn card(nic: &Nic) -> Card {
    let name = Some(nic.name.clone()).filter(|name| !name.is_empty());
    Card { mac: nic.mac.clone(), uuid: String::new(), name, ip: None, mode: CARD.to_owned(), link: None }
}
