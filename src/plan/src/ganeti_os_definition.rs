//! The OS definition of the image: its `verify` and `create` programs, and the environment of the image's installer.

use super::plan_decisions::PlanDecisions;
use super::{DiskVerdict, PlanRequest};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::ganeti_os_definition::{GanetiDisk, GanetiInstance, GanetiNic, SelectedDefinition};
use model::inventory::{self, Nic};
use model::layout::Layout;
use model::storage_graph::LayoutMatch;
use operations::{BurnDisk, CreateSystem, FindPrograms, FinishInputs, MachineFiles, SessionOp, VerifyDefinition};
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Value of `HYPERVISOR` for Ganeti's OS definitions, because the machine does not run on a hypervisor.
const HYPERVISOR: &str = "none";
/// NIC mode for Ganeti's OS definitions: `routed`, because the NIC of a machine is not a bridge port.
const ROUTED_NIC_MODE: &str = "routed";

/// Returns the reasons why the definition is invalid, or why its `create` program cannot create a system on the disks
/// of the layout.
pub(crate) fn refuse_definition(layout: &Layout, request: &PlanRequest) -> Vec<Diagnostic> {
    let Some(chosen) = &request.assigned.allocation.definition else { return Vec::new() };
    let impossible = chosen
        .find_problem()
        .map(|why| Diagnostic::new("allocation.definition", why).with_code(ErrorCode::OsDefinition));
    let (os, url) = (chosen.selector(), &request.assigned.allocation.image.url);
    let image = (chosen.has_create() && !url.is_empty()).then(|| {
        Diagnostic::new(
            "allocation.image.url",
            format!("the create program of {os} creates the system, so the allocation must not have an image"),
        )
        .with_code(ErrorCode::OsDefinition)
    });
    let disk = (chosen.has_create() && !layout.disks.iter().any(|disk| disk.image)).then(|| {
        let why = format!(
            "the create program of {os} fills a whole disk; set image: true for one disk that has no partitions"
        );
        Diagnostic::new("disks", why).with_code(ErrorCode::OsDefinition)
    });
    impossible.into_iter().chain(image).chain(disk).collect()
}

fn creating_definition(request: &PlanRequest) -> Option<&SelectedDefinition> {
    request.assigned.allocation.definition.as_ref().filter(|chosen| chosen.has_create())
}

/// Returns whether the request has an image.
pub(crate) fn has_image(request: &PlanRequest) -> bool {
    creating_definition(request).is_none()
}

/// Returns the operation that checks that the programs required by `create` are available; `None` if the definition
/// does not have a `create` program.
pub(crate) fn find_programs(request: &PlanRequest) -> Option<SessionOp> {
    let chosen = creating_definition(request)?;
    // An invalid definition is ignored, because the plan was already refused.
    Some(SessionOp::FindPrograms(FindPrograms {
        os: chosen.selector().to_string(),
        programs: chosen.required_programs().unwrap_or_default(),
    }))
}

/// Returns the operation that fills the disk, either by writing the image or by running the `create` program.
pub(crate) fn fill_disk(
    onto: BurnDisk,
    meant: &LayoutMatch,
    decided: &PlanDecisions,
    finishing: &FinishInputs,
) -> SessionOp {
    let definition = finishing.files.assigned.allocation.definition.as_ref();
    let Some(chosen) = definition.filter(|chosen| chosen.has_create()) else { return SessionOp::BurnDisk(onto) };
    SessionOp::CreateSystem(Box::new(CreateSystem {
        os: chosen.selector().to_string(),
        disks: visible_disks(meant, decided).map(|disk| disk.device.clone()).collect(),
        onto,
        environment: finishing.environment.clone(),
        chosen: Box::new(chosen.clone()),
    }))
}

/// Returns the operation that runs the `verify` program; `None` if the definition has no such program.
pub(crate) fn verify_parameters(request: &PlanRequest) -> Option<SessionOp> {
    let chosen = request.assigned.allocation.definition.as_ref().filter(|chosen| chosen.has_verify())?;
    let (os, parameters) = (chosen.selector().to_string(), chosen.parameters.keys().cloned().collect());
    Some(SessionOp::VerifyDefinition(VerifyDefinition { os, parameters, chosen: Box::new(chosen.clone()) }))
}

/// Returns the environment of the image's installer, with the variables that Ganeti passes to `create`; empty if the
/// allocation has no OS definition.
pub(crate) fn installer_environment(
    meant: &LayoutMatch,
    decided: &PlanDecisions,
    files: &MachineFiles,
) -> BTreeMap<String, String> {
    let definition = files.assigned.allocation.definition.as_ref();
    definition.map(|chosen| create_environment(chosen, meant, decided, files)).unwrap_or_default()
}

fn create_environment(
    chosen: &SelectedDefinition,
    meant: &LayoutMatch,
    decided: &PlanDecisions,
    files: &MachineFiles,
) -> BTreeMap<String, String> {
    let allocation = &files.assigned.allocation;
    let created = OffsetDateTime::parse(&allocation.created, &Rfc3339).map_or(0, OffsetDateTime::unix_timestamp);
    let is_serial = files.assigned.consoles.last().is_some_and(|console| console.starts_with("ttyS"));
    let serial = if is_serial { "True" } else { "False" };
    chosen.create_environment(&GanetiInstance {
        name: allocation.hostname.clone(),
        uuid: allocation.id.clone(),
        created: format!("{created}.0"),
        changed: format!("{created}.0"),
        primary_node: files.machine.clone(),
        hypervisor: HYPERVISOR.to_owned(),
        disks: instance_disks(meant, decided),
        nics: files.nics.iter().map(instance_nic).collect(),
        settings: [("serial_console".to_owned(), serial.to_owned())].into(),
        reinstall: allocation.reinstall,
    })
}

/// Returns the recreated disks in the order of the layout: the only disks that `create` and the image's installer can
/// access.
fn visible_disks<'a>(
    meant: &'a LayoutMatch,
    decided: &'a PlanDecisions,
) -> impl Iterator<Item = &'a inventory::InventoryDisk> {
    let is_made = |verdict: DiskVerdict| matches!(verdict, DiskVerdict::Wipe | DiskVerdict::Make);
    let found = (0..meant.graph.layout.disks.len()).filter_map(|listed| meant.matched_disk(listed));
    found.filter(move |found| decided.disks.iter().any(|disk| disk.device == found.device && is_made(disk.verdict)))
}

fn instance_disks(meant: &LayoutMatch, decided: &PlanDecisions) -> Vec<GanetiDisk> {
    let disk = |found: &inventory::InventoryDisk| {
        let table = decided.tables.iter().find(|table| table.device == found.device);
        GanetiDisk {
            path: found.device.to_string(),
            uuid: table.map(|table| table.guid.to_string()).unwrap_or_default(),
            size_mib: found.size_bytes >> 20,
            name: None,
        }
    };
    visible_disks(meant, decided).map(disk).collect()
}

fn instance_nic(nic: &Nic) -> GanetiNic {
    let name = Some(nic.name.clone()).filter(|name| !name.is_empty());
    GanetiNic {
        mac: nic.mac.clone(),
        uuid: String::new(),
        name,
        ip: None,
        mode: ROUTED_NIC_MODE.to_owned(),
        link: None,
    }
}
