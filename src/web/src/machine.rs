//! `/machines/ID`: page of a machine.

use super::allocation_differences::AllocationChanges;
use super::machine_list::MachineRow;
use super::machine_name_confirmation::confirmation_name;
use super::plan_preview::{self, PlanPreview};
use super::session::LoggedIn;
use super::static_addresses::list_static_addresses;
use super::{
    discovered_layout, disk_drawings, install_report, installed_disks, machine_events, machine_hardware,
    machine_timeline, page_frame, rollouts, volumes,
};
use api::base_url::BaseUrls;
use api::display_phase::ObjectFate;
use api::migration_requests::certificate_approval::CertificateTrust;
use api::operator_api::{self, MachineFailure, MachineSummary, ReinstallOrder};
use api::{AppState, access, install_state_enrichment, machine_details, metal_api};
use axum::extract::{Path, State};
use axum::response::Response;
use control::agent_api_types::{InstallReport, RegisterRequest};
use http_server::api_error::ApiError;
use maud::{Markup, html};
use plan::DiskVerdict;
use site::operator_files::MachineSpec;
use std::sync::Arc;
use store::StoredRegistration;
use store::boot_activity::ACTIVE_BOOT_TIMEOUT;

/// Maximum number of events shown; an installation causes a few hundred.
const EVENTS: u32 = 500;

/// `GET /machines/{id}`: shows the page of a machine.
pub(crate) async fn get_machine(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Result<Response, Response> {
    let id = id.to_lowercase();
    let shown = build_page(&app, &base, &person, &id).await;
    let (title, main) = shown.map_err(|error| page_frame::render_error(&app, Some(&person), error))?;
    Ok(page_frame::render_page(&app, &person, &title, "", main))
}

async fn build_page(
    app: &AppState,
    base: &BaseUrls,
    person: &LoggedIn,
    id: &str,
) -> Result<(String, Markup), ApiError> {
    let directory = app.directory();
    let machine = directory.find_machine(id);
    let registered = app.state.find_registration(id).await?;
    let is_registered = registered.is_some();
    let has_begun_since = registered.as_ref().is_some_and(|registered| registered.has_begun_since);
    let register = match registered {
        Some(row) => app.planner.run_job(id, move || read_registration(&row)).await?,
        None => None,
    };
    if let Some(error) = operator_api::explain_file_error(&directory, id) {
        return Err(error);
    }
    if machine.is_none() && !is_registered {
        return Err(ApiError::not_found(format!(
            "machines/ contains no machine {id}, and no machine with this id has registered"
        )));
    }
    let log = read_visible_log(app, person, id).await?;
    let events = machine_events::show_events(&app.state.list_events(id, EVENTS).await?, &log);
    let inventory = register.as_ref().and_then(|register| register.inventory.as_ref());
    let layout = inventory.map(|inventory| discovered_layout::show_layout_link(id, inventory, has_begun_since));
    let layout = layout.unwrap_or_default();
    let Some(machine) = machine else {
        return Ok((id.to_owned(), show_unknown_machine(person, id, register.as_ref(), &html! { (layout) (events) })));
    };
    let row = MachineRow::new(app, operator_api::summarize_machine(app, machine).await?);
    let of_kubernetes = metal_api::volumes::volumes_of(app, machine).await?;
    let report = read_last_report(app, machine).await?;
    let plan = pending_plan(app, base, machine, &row, report.is_some()).await?;
    let timeline = machine_details::read_timeline(app, &row.listed).await?;
    let membership = rollouts::show_membership(app, id).await?;
    let verdict = |device: &str| find_verdict(plan.as_ref()?, device);
    let main = html! {
        div data-machine=(id) { (show_header(person, machine, &row)) } (membership)
        div.sides {
            div { (show_facts(machine, &row)) }
            @if let Some(register) = &register { div { (machine_hardware::show_hardware(register)) } }
        }
        (show_changes(&row))
        (machine_timeline::show_timeline(&timeline))
        @if let Some(layout) = row.listed.layout.as_ref().filter(|_| row.listed.installed && has_begun_since) {
            (installed_disks::show_installed_disks(id, layout))
        }
        @if let Some(inventory) = inventory { (machine_hardware::show_disks(inventory, has_begun_since, verdict)) (layout) }
        (volumes::show_volumes(&of_kubernetes))
        @if let Some(plan) = &plan { (show_pending_plan(plan)) }
        @if let Some(report) = &report { (install_report::show_report(report)) }
        (machine_timeline::show_history(&app.state.list_history(id).await?))
        (events)
    };
    Ok((format!("{}: {}", directory.display_name(id), row.phase.word), main))
}

/// Returns the console log of the machine; empty for viewers, because the log can contain passwords.
async fn read_visible_log(app: &AppState, person: &LoggedIn, id: &str) -> Result<machine_events::PageLog, ApiError> {
    match person.is_operator() {
        true => machine_events::PageLog::read_log(app, id).await,
        false => Ok(machine_events::PageLog::default()),
    }
}

/// Returns what the plan does with a disk, such as wiping or keeping it.
fn find_verdict(plan: &PlanPreview, device: &str) -> Option<DiskVerdict> {
    let PlanPreview::Planned(planned, _) = plan else { return None };
    let of_plan = planned.plan.iter().flat_map(|plan| &plan.disks);
    of_plan.filter(|disk| disk.device == *device).map(|disk| disk.verdict).next()
}

/// Renders the page of a machine that has registered, but does not have a machine file.
fn show_unknown_machine(person: &LoggedIn, id: &str, register: Option<&RegisterRequest>, events: &Markup) -> Markup {
    html! {
        h1 { (id) }
        p { "This machine is new: it does not have a file in machines/. " @if person.is_operator() { a.button href={ "/machines/" (id) "/add" } { "Add…" } } }
        @if let Some(register) = register { (machine_hardware::show_hardware(register)) }
        @if let Some(inventory) = register.and_then(|register| register.inventory.as_ref()) {
            h2 { "Disks" } (disk_drawings::draw_disks(inventory, |_| None))
        }
        (events)
    }
}

fn show_pending_plan(plan: &PlanPreview) -> Markup {
    html! {
        @match plan {
            PlanPreview::Unknown(why) => { h2 #plan { "Plan" } p.faint { (why) } }
            PlanPreview::Refused(why) => { h2 #plan { "Plan refused" } pre.problem tabindex="0" { (access::visible_lines(why)) } }
            PlanPreview::Planned(planned, registered) => {
                h2 #plan { "Plan" }
                (plan_preview::show_inventory_source(registered))
                (plan_preview::show_plan(planned))
            }
        }
    }
}

/// Parses a registration. An inventory that exceeds the limits of this version is omitted.
fn read_registration(row: &StoredRegistration) -> Option<RegisterRequest> {
    let register: RegisterRequest = serde_json::from_str(&row.document).ok()?;
    let is_supported = register.exceeded_limit().is_none();
    Some(RegisterRequest { inventory: register.inventory.filter(|_| is_supported), ..register })
}

async fn read_last_report(app: &AppState, machine: &MachineSpec) -> Result<Option<InstallReport>, ApiError> {
    let Some(allocation) = &machine.allocation else { return Ok(None) };
    let report = app.state.last_report(&machine.id, &allocation.id).await?;
    // A report that cannot be parsed is ignored: another version of drophammer may have stored it in another format.
    Ok(report.and_then(|report| serde_json::from_str(&report).ok()))
}

/// Returns the plan of a pending installation or reinstall; `None` if nothing is pending. The plan of a completed
/// installation is in its report.
async fn pending_plan(
    app: &AppState,
    base: &BaseUrls,
    machine: &MachineSpec,
    row: &MachineRow,
    is_reported: bool,
) -> Result<Option<PlanPreview>, ApiError> {
    if machine.allocation.is_none() {
        return Ok(None);
    }
    let is_busy = row.phase.kind == ObjectFate::Busy && is_running(app, &machine.id).await?;
    if !is_busy && row.listed.order.is_none() && (row.listed.installed || is_reported) {
        return Ok(None);
    }
    let install_state = install_state_enrichment::read_full_state(app, machine, &app.directory().known).await?;
    let installs = install_state.will_install();
    match installs {
        true => plan_preview::load_preview(app, base, machine, install_state, is_busy).await.map(Some),
        false => Ok(None),
    }
}

/// Returns whether the agent runs on the machine: the last boot has sent a request recently, and has not reported the
/// end of its installation. The last event alone is not sufficient, because the event with which an agent ends its work
/// may be lost.
async fn is_running(app: &AppState, id: &str) -> Result<bool, ApiError> {
    let boot = app.state.read_contact(id).await?.boot;
    Ok(boot
        .is_some_and(|boot| boot.over.is_none() && app.state.heard.time_since_call(&boot.hash) < ACTIVE_BOOT_TIMEOUT))
}

fn show_header(person: &LoggedIn, machine: &MachineSpec, row: &MachineRow) -> Markup {
    let listed = &row.listed;
    let name = if machine.name.is_empty() { &machine.id } else { &machine.name };
    html! {
        div.head {
            h1 { (name) }
            p.actions hidden[!person.is_operator()] {
              @if person.is_operator() {
                @if listed.installed && machine.locked.is_none() {
                    a.button href={ "/machines/" (machine.id) "/reinstall" } { "Reinstall…" } " "
                }
                @if machine.allocation.is_none() && machine.locked.is_none() {
                    a.button href={ "/machines/" (machine.id) "/allocate" } { "Allocate…" } " "
                }
                a.button href={ "/machines/" (machine.id) "/file" } { "Edit file…" } " "
                a.button href={ "/machines/" (machine.id) "/actions" } { "Power, lock, free…" } " "
                a.button href={ "/machines/" (machine.id) "/log" } { "Console log" }
              }
            }
        }
        (show_failure(row))
        (show_progress(row))
        (show_migration(machine, row))
        (show_warnings(machine, row))
        @if let Some(order) = &listed.order { (show_order(person, machine, order, listed.attempts)) }
        @if let Some(outcome) = &listed.outcome {
            p.words.problem[!outcome.success] {
                "Last reinstall, with " (outcome.image) ", " (page_frame::show_age(&outcome.time)) ": "
                @if !outcome.success { strong { "failed: " } } (page_frame::reword_message(&outcome.message))
            }
        }
    }
}

/// Shows the differences between the machine file and the installed allocation, and their effects on the open order. A
/// missing record of the installed allocation is mentioned only if an order is open.
fn show_changes(row: &MachineRow) -> Markup {
    let MachineSummary { differences, allocation_unrecorded, order, .. } = &row.listed;
    let is_unrecorded = *allocation_unrecorded && order.is_some();
    AllocationChanges { differences: differences.clone(), is_unrecorded }.show()
}

fn show_progress(row: &MachineRow) -> Markup {
    let moved = row.moved.clone().unwrap_or_default();
    html! {
        div data-progress class=(row.phase.kind.css_class()) {
            p.phase {
                span.word { (row.phase.word) }
                " " progress max="100" value=[moved.percent] hidden[moved.percent.is_none()] aria-label="Progress" {}
                span.percent { @if let Some(percent) = moved.percent { (percent) " %" } }
                " " span.rate { (moved.rate) } " " span.left { (moved.left) }
                span.what { (moved.what) }
            }
        }
    }
}

/// Shows the reason why the last attempt to install the machine has failed. The reason precedes all other contents of
/// the page.
fn show_failure(row: &MachineRow) -> Markup {
    html! {
        @if let Some(MachineFailure { attempt, remedy }) = row.failure() {
            section.problem.failure role="alert" {
                h2 { "Failed" @if let Some(stage) = &attempt.stage { " at " (stage) } @if let Some(code) = &attempt.code { ": " (code) } }
                p.words { (page_frame::reword_message(&attempt.message)) }
                p { strong { "Next: " } (remedy) ". " span.faint { (page_frame::show_age(&attempt.time)) } }
            }
        }
    }
}

fn show_migration(machine: &MachineSpec, row: &MachineRow) -> Markup {
    html! {
        @if let (Some(moving), Some(words)) = (&row.listed.moving, &row.moving) {
            p { strong { "Migration" } ": the machine " (words) ". " @if !moving.other.is_empty() { a href={ "/machines/" (moving.other) } { "Other machine" } } }
            @if let Some(certificate) = &moving.certificate {
                p class=(if certificate.trust == CertificateTrust::Unapproved { "problem" } else { "" }) {
                    "Certificate of the machine's last boot for this migration: " code { (certificate.fingerprint) } ", " (certificate.trust.describe())
                    @if certificate.trust == CertificateTrust::Unapproved {
                        ". Compare this fingerprint with the one on the machine's console, then run "
                        code { "drophammer machine move " (confirmation_name(machine)) " --approve " (certificate.fingerprint) }
                    }
                }
            }
        }
    }
}

/// Shows why the machine is not installed, migrated or booted as ordered.
fn show_warnings(machine: &MachineSpec, row: &MachineRow) -> Markup {
    let listed = &row.listed;
    html! {
        @if let Some(why) = &machine.locked { p.problem { "Locked: " (why) } }
        @if listed.needs_confirmation {
            p.problem {
                "The database was restored from a backup. This record of the machine may be outdated, so nothing is installed or migrated"
                @if let Some(on_disk) = &listed.on_disk {
                    "; the machine has reported an installation that this server has not recorded (image " (on_disk.image) ", " (page_frame::show_time(&on_disk.time)) ")"
                }
                ". If the record is correct: " code { "drophammer machine confirm " (confirmation_name(machine)) }
                @if listed.order.is_some() {
                    ". If the order was canceled or replaced after the backup: " code { "drophammer machine reinstall " (confirmation_name(machine)) " --cancel" }
                }
            }
        }
        @if listed.not_clean {
            p.problem {
                "This machine has not booted the ramdisk since it was freed, so the system of the previous tenant may still run. Power the machine off, then boot it over PXE"
            }
        }
        @if let Some(progress) = &listed.out_of_band {
            p.problem[progress.failed] { "Before the installation, over Redfish: " (access::visible_message(&progress.describe())) }
        }
        @if let Some(waits) = &listed.waits {
            p.problem {
                "The machine waits with an install marker of its allocation (image " (waits.image) ", " (page_frame::show_time(&waits.time))
                "), but this server lacks a record of that installation. If the machine was installed with this image: "
                code {
                    "drophammer machine adopt " (confirmation_name(machine))
                    @if let Some(digest) = waits.short_digest() { " --marker " (digest) }
                }
            }
        }
    }
}

fn show_facts(machine: &MachineSpec, row: &MachineRow) -> Markup {
    let listed = &row.listed;
    let allocation = machine.allocation.as_ref();
    let addresses = allocation.map(|allocation| list_static_addresses(&allocation.passed_on)).unwrap_or_default();
    html! {
        h2 { "Machine" }
        dl.facts {
            dt { "Id" } dd { code { (machine.id) } }
            @if !machine.macs.is_empty() { dt { "MACs" } dd { code { (machine.macs.join(" ")) } } }
            @if let Some(size) = &machine.size { dt { "Size" } dd { (size) } }
            @if let Some(project) = &machine.project { dt { "Project" } dd { (project) } }
            @if let Some(allocation) = &listed.allocation { dt { "Allocation" } dd { code { (allocation) } } }
            @if let Some(image) = &listed.image {
                dt { "Image" }
                dd { (image) @if listed.claimed { " (according to the adopted install marker)" } }
            }
            @if let Some(wanted) = row.wanted.as_ref().filter(|_| listed.image.is_none()) { dt { "Image" } dd { "wanted: " (wanted) } }
            @if let Some(layout) = &row.layout { dt { "Layout" } dd { a href={ "/layouts#" (layout) } { (layout) } } }
            @if !addresses.is_empty() { dt { "Addresses" } dd { code { (addresses.join(" ")) } } }
            @if let Some(address) = &listed.address { dt { "Registered from" } dd { code { (address) } } }
            @if let Some(seen) = &listed.last_seen { dt { "Last seen" } dd { (page_frame::show_age(seen)) } }
        }
    }
}

fn show_order(person: &LoggedIn, machine: &MachineSpec, order: &ReinstallOrder, attempts: u32) -> Markup {
    html! {
        div.head {
            p {
                strong { "Reinstall ordered" } ": image " (order.image) ", " (page_frame::show_age(&order.created))
                ", attempt " (order.attempts) " of " (attempts)
                @if order.without_marker { ", without the marker" }
                @if order.change_promise { ", with the layout of the machine file" }
                @if order.replace_newer { ", replacing a newer installation" }
                @for serial in &order.give_up { ", erasing " (serial) }
                @for uuid in &order.leave_locked { ", leaving " (uuid) " locked" }
                @if order.apply_allocation { ", with the allocation of the machine file" }
                @if order.started { ". The reinstall has passed its point of no return" }
                @if order.is_suspended() { ". The order is suspended, and the machine boots its disk: remove the cause, then order the reinstall again" }
                @else if order.given_up { ", and was abandoned: the machine waits at its console" }
                "."
            }
            @if !order.started && person.is_operator() {
                form method="post" action={ "/machines/" (machine.id) "/cancel" } {
                    (page_frame::form_token(person)) button { "Cancel the order" }
                }
            }
        }
    }
}
