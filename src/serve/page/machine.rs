//! `/machines/ID`: page of a machine.

use super::machines::Row;
use super::outlook::{self, Outlook};
use super::phase::Kind;
use super::session::Person;
use super::{disks, history, shell, volumes};
use crate::control::wire::{Register, Report};
use crate::inventory::Inventory;
use crate::plan::Verdict;
use crate::serve::App;
use crate::serve::api_error::ApiError;
use crate::serve::base::Base;
use crate::serve::input::Machine;
use crate::serve::moves::approval::CertificateTrust;
use crate::serve::operator::{self, Order};
use crate::serve::state::Registered;
use crate::serve::v1;
use crate::serve::wanted;
use crate::text::bytes;
use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};
use std::sync::Arc;

/// Maximum number of events shown; an installation causes a few hundred.
const EVENTS: u32 = 500;

/// `GET /machines/{id}`.
pub async fn machine(
    State(app): State<Arc<App>>,
    base: Base,
    person: Person,
    Path(id): Path<String>,
) -> Result<Response, Response> {
    let id = id.to_lowercase();
    let shown = shown(&app, &base, &person, &id).await;
    let (title, main) = shown.map_err(|error| shell::refused(&app, Some(&person), error))?;
    Ok(shell::page(&app, &person, &title, "", main))
}

async fn shown(app: &App, base: &Base, person: &Person, id: &str) -> Result<(String, Markup), ApiError> {
    let directory = app.directory();
    let machine = directory.machine(id);
    let registered = app.state.registered(id).await?;
    let is_registered = registered.is_some();
    let has_begun_since = registered.as_ref().is_some_and(|registered| registered.has_begun_since);
    let register = match registered {
        Some(row) => app.planner.compute(id, move || read_registration(&row)).await?,
        None => None,
    };
    if machine.is_none() && !is_registered {
        return Err(ApiError::not_found(format!(
            "machines/ contains no machine {id}, and no machine with this id has registered"
        )));
    }
    let history = history::events(&app.state.events(id, EVENTS).await?, &history::Log::of(app, id).await?);
    let inventory = register.as_ref().and_then(|register| register.inventory.as_ref());
    let Some(machine) = machine else {
        let main = html! {
            h1 { (id) }
            p { "This machine does not have a file in machines/. Create one with " code { "drophammer machine add " (id) " --name …" } "." }
            @if let Some(register) = &register { (hardware(register)) }
            @if let Some(inventory) = inventory { h2 { "Disks" } (disks::disks(inventory, |_| None)) }
            (history)
        };
        return Ok((id.to_owned(), main));
    };
    let row = Row::new(app, operator::listed(app, machine).await?);
    let of_kubernetes = v1::volumes::of_machine(app, machine).await?;
    let report = report(app, machine).await?;
    let plan = plan(app, base, machine, &row, report.is_some()).await?;
    let verdict = |device: &str| match &plan {
        Some(Outlook::Planned(planned, _)) => {
            let of_plan = planned.plan.iter().flat_map(|plan| &plan.disks);
            of_plan.filter(|disk| disk.device == *device).map(|disk| disk.verdict).next()
        }
        _ => None,
    };
    let main = html! {
        div data-machine=(id) { (head(person, machine, &row)) }
        @if let Some(register) = &register { (hardware(register)) }
        @if let Some(inventory) = inventory { (of_disks(inventory, has_begun_since, verdict)) }
        (volumes::volumes(&of_kubernetes))
        @match &plan {
            None => {}
            Some(Outlook::Unknown(why)) => { h2 { "Plan" } p.faint { (why) } }
            Some(Outlook::Refused(why)) => { h2 { "Plan refused" } pre.problem tabindex="0" { (why) } }
            Some(Outlook::Planned(planned, registered)) => {
                h2 { "Plan" }
                (outlook::made_of(registered))
                (outlook::markup(planned))
            }
        }
        @if let Some(report) = &report { (history::report(report)) }
        (history)
    };
    Ok((directory.name(id).to_owned(), main))
}

/// Parses the registration as far as this version supports it, without an unsupported inventory.
fn read_registration(row: &Registered) -> Option<Register> {
    let register: Register = serde_json::from_str(&row.document).ok()?;
    let is_supported = register.exceeded().is_none();
    Some(Register { inventory: register.inventory.filter(|_| is_supported), ..register })
}

async fn report(app: &App, machine: &Machine) -> Result<Option<Report>, ApiError> {
    let Some(allocation) = &machine.allocation else { return Ok(None) };
    let report = app.state.last_report(&machine.id, &allocation.id).await?;
    // A report of another version may have another format.
    Ok(report.and_then(|report| serde_json::from_str(&report).ok()))
}

/// Returns the plan as long as something is pending. Afterwards, the report contains the plan as it was printed.
async fn plan(
    app: &App,
    base: &Base,
    machine: &Machine,
    row: &Row,
    is_reported: bool,
) -> Result<Option<Outlook>, ApiError> {
    let Some(allocation) = &machine.allocation else { return Ok(None) };
    let is_busy = row.phase.kind == Kind::Busy;
    if !is_busy && row.listed.order.is_none() && (row.listed.installed || is_reported) {
        return Ok(None);
    }
    let standing = wanted::standing(app, &machine.id, allocation, &app.directory().known).await?;
    let installs = !standing.is_installed() || standing.order.is_some();
    match installs {
        true => outlook::of(app, base, machine, standing, is_busy).await.map(Some),
        false => Ok(None),
    }
}

fn head(person: &Person, machine: &Machine, row: &Row) -> Markup {
    let listed = &row.listed;
    let name = if machine.name.is_empty() { &machine.id } else { &machine.name };
    let moved = row.moved.clone().unwrap_or_default();
    let layout =
        listed.layout.clone().or_else(|| Some(machine.allocation.as_ref()?.filesystemlayout.as_ref()?.to_string()));
    html! {
        div.head {
            h1 { (name) }
            @if listed.installed && machine.locked.is_none() {
                a.button href={ "/machines/" (machine.id) "/reinstall" } { "Reinstall…" }
            }
        }
        div data-progress class=(row.phase.kind.class()) {
            p.phase {
                span.word { (row.phase.word) }
                " " progress max="100" value=[moved.percent] hidden[moved.percent.is_none()] aria-label="Progress" {}
                span.percent { @if let Some(percent) = moved.percent { (percent) " %" } }
                " " span.rate { (moved.rate) } " " span.left { (moved.left) }
                span.what { (moved.what) }
            }
        }
        @if let (Some(moving), Some(words)) = (&listed.moving, &row.moving) {
            p { strong { "Migration" } ": the machine " (words) ". " a href={ "/machines/" (moving.other) } { "Other machine" } }
            @if let Some(certificate) = &moving.certificate {
                p class=(if certificate.trust == CertificateTrust::Unapproved { "problem" } else { "" }) {
                    "Certificate of its last boot for this migration: " code { (certificate.fingerprint) } ", " (certificate.trust.in_words())
                    @if certificate.trust == CertificateTrust::Unapproved {
                        ". Compare it with the console of the machine: "
                        code { "drophammer machine move " (machine.id) " --approve " (certificate.fingerprint) }
                    }
                }
            }
        }
        @if let Some(why) = &machine.locked { p.problem { "Locked: " (why) } }
        @if listed.needs_confirmation {
            p.problem {
                "The database was restored from a backup. This record of the machine may be outdated, so nothing is installed or migrated"
                @if let Some(on_disk) = &listed.on_disk {
                    "; the machine has reported an installation that is not on record (image " (on_disk.image) ", " (shell::time(&on_disk.time)) ")"
                }
                ". If the record is correct: " code { "drophammer machine confirm " (machine.id) }
            }
        }
        @if listed.not_clean {
            p.problem {
                "The system of a previous tenant may still run on this machine: it has not booted the ramdisk since it was freed. Power it off, then boot it over PXE"
            }
        }
        @if let Some(waits) = &listed.waits {
            p.problem {
                "The machine waits with an install marker of its allocation (image " (waits.image) ", " (shell::time(&waits.time))
                "), but this server lacks a record of that installation. If the marker is right: "
                code { "drophammer machine adopt " (machine.id) }
            }
        }
        @if let Some(order) = &listed.order { (ordered(person, machine, order, listed.attempts)) }
        @if let Some(outcome) = &listed.outcome {
            p.words.problem[!outcome.success] {
                "Last reinstall, with " (outcome.image) ", " (shell::time(&outcome.time)) ": "
                @if !outcome.success { strong { "failed: " } } (outcome.message)
            }
        }
        dl.facts {
            dt { "Id" } dd { code { (machine.id) } }
            @if !machine.macs.is_empty() { dt { "MACs" } dd { code { (machine.macs.join(" ")) } } }
            @if let Some(size) = &machine.size { dt { "Size" } dd { (size) } }
            @if let Some(allocation) = &listed.allocation { dt { "Allocation" } dd { code { (allocation) } } }
            @if let Some(image) = &listed.image {
                dt { "Image" }
                dd { (image) @if listed.claimed { " (claimed by its install marker, which was adopted)" } }
            }
            @if let Some(wanted) = row.wanted.as_ref().filter(|_| listed.image.is_none()) { dt { "Image" } dd { "wanted: " (wanted) } }
            @if let Some(layout) = &layout { dt { "Layout" } dd { a href={ "/layouts#" (layout) } { (layout) } } }
            @if let Some(seen) = &listed.last_seen { dt { "Last seen (UTC)" } dd { (shell::time(seen)) } }
        }
    }
}

fn ordered(person: &Person, machine: &Machine, order: &Order, attempts: u32) -> Markup {
    html! {
        div.head {
            p {
                strong { "Reinstall ordered" } ": image " (order.image) ", " (shell::time(&order.created))
                ", attempt " (order.attempts) " of " (attempts)
                @if order.without_marker { ", without the marker" }
                @if order.change_promise { ", with the layout of its file" }
                @if order.replace_newer { ", replacing a newer installation" }
                @for serial in &order.give_up { ", erasing " (serial) }
                @if order.begun { ". It has passed its point of no return" }
                @if order.given_up { ", and was abandoned: the machine waits at its console" }
                "."
            }
            @if !order.begun {
                form method="post" action={ "/machines/" (machine.id) "/cancel" } {
                    (shell::form_token(person)) button { "Cancel the order" }
                }
            }
        }
    }
}

fn hardware(register: &Register) -> Markup {
    let none = Inventory::default();
    let inventory = register.inventory.as_ref().unwrap_or(&none);
    let system = &inventory.system;
    let said = |parts: [&str; 3]| parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" ");
    html! {
        h2 { "Hardware" }
        dl.facts {
            dt { "Machine" } dd { (said([&system.vendor, &system.product, &system.serial])) }
            dt { "Firmware" } dd { (said([&register.bios.vendor, &register.bios.version, &register.bios.date])) }
            dt { "Processors" }
            dd {
                @for cpu in &inventory.cpus { (cpu.model) ", " (cpu.cores) " cores, " (cpu.threads) " threads. " }
                @if inventory.cpus.is_empty() { (register.hardware.cpu_cores) " cores" }
            }
            dt { "Memory" } dd { (bytes(register.hardware.memory)) }
            dt { "NICs" }
            dd {
                @for nic in &register.hardware.nics { code { (nic.mac) } " " (nic.name) " " }
                @if register.hardware.nics.is_empty() { "none" }
            }
            @if !register.agent.is_empty() { dt { "Agent" } dd { (register.agent) } }
        }
    }
}

fn of_disks(inventory: &Inventory, has_begun_since: bool, verdict: impl Fn(&str) -> Option<Verdict>) -> Markup {
    html! {
        h2 { "Disks, as registered" }
        @if has_begun_since { p.faint { "An installation has started since then: the contents of the disks have changed." } }
        (disks::disks(inventory, verdict))
        @if inventory.disks.is_empty() { p.faint { "none" } }
        @if !inventory.arrays.is_empty() || !inventory.groups.is_empty() {
            dl.facts {
                @for array in &inventory.arrays { dt { "Array" } dd { (array.level) " " (array.name) " " span.faint { (array.uuid) } } }
                @for group in &inventory.groups {
                    dt { "Volume group" }
                    dd { (group.name) ": " @for volume in &group.volumes { (volume.name) " " span.faint { (bytes(volume.size_bytes)) } " " } }
                }
            }
        }
    }
}
