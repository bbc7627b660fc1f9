//! Preview of what would be done to a machine, based on its registered inventory: the plan that its agent would make, as far as known.

use crate::allocation;
use crate::assigned::preview::{NOBODY_LOOKED, Planned, PlannedDisk, planned};
use crate::plan::verdicts::Kind;
use crate::plan::{DiskPlan, Verdict};
use crate::serve::App;
use crate::serve::api::told::on_the_wire;
use crate::serve::api_error::ApiError;
use crate::serve::base::Base;
use crate::serve::input::Machine;
use crate::serve::preview::{Registered, WAITS, of_row};
use crate::serve::resolve::resolve;
use crate::serve::state::{Order, Registered as Row, Standing};
use crate::text::bytes;
use axum::http::StatusCode;
use maud::{Markup, html};

pub enum Outlook {
    /// The plan cannot be determined, for this reason.
    Unknown(String),
    /// The plan is refused, with the text that `drophammer plan` prints.
    Refused(String),
    Planned(Box<Planned>, Box<Registered>),
}

/// Plans with the allocation that the machine would receive in that state. If `now`, its agent is running and plans with the registered
/// inventory.
pub async fn of(app: &App, base: &Base, machine: &Machine, standing: Standing, now: bool) -> Result<Outlook, ApiError> {
    let directory = app.directory();
    let is_installed = standing.is_installed();
    let assigned = match resolve(machine, &standing, &directory.known) {
        Ok(Some(assigned)) => assigned,
        Ok(None) => return Ok(Outlook::Unknown(WAITS.to_owned())),
        Err(why) => return Ok(Outlook::Refused(why)),
    };
    let Some(row) = app.state.registered(&machine.id).await? else { return Ok(Outlook::unregistered()) };
    let told = on_the_wire(&assigned, if now { unbegun(standing) } else { standing }, &base.calls, false);
    let told = allocation::Machine {
        id: machine.id.clone(),
        name: machine.name.clone(),
        size: machine.size.clone().map(|id| allocation::Named { id }),
        allocation: Some(told),
        newest_move: None,
    };
    let computed = app.planner.compute(&machine.id, move || by_registration(&told, row, is_installed, now)).await;
    match computed.map_err(ApiError::parts) {
        Ok(outlook) => outlook.map_err(|why| ApiError::new(StatusCode::CONFLICT, why)),
        // The rest of the page is still worth showing.
        Err((StatusCode::SERVICE_UNAVAILABLE, why)) => Ok(Outlook::Unknown(why)),
        Err((status, why)) => Err(ApiError::new(status, why)),
    }
}

/// Plans with the inventory of a registration.
fn by_registration(told: &allocation::Machine, row: Row, is_installed: bool, now: bool) -> Result<Outlook, String> {
    let Some(registered) = of_row(row, &told.id, is_installed)? else { return Ok(Outlook::unregistered()) };
    if let Some(why) = registered.inventory.impossible() {
        return Ok(Outlook::Unknown(format!("its inventory is invalid: {why}")));
    }
    let inventory = registered.inventory.clone();
    let allocation = told.allocation.clone().unwrap_or_default();
    let is_outdated = registered.outdated && !now;
    Ok(match planned(told, allocation, inventory, is_outdated) {
        Ok(planned) => Outlook::Planned(Box::new(planned), Box::new(registered)),
        Err(refused) => Outlook::Refused(refused.printed),
    })
}

impl Outlook {
    fn unregistered() -> Outlook {
        let why = "it has never registered, so its disks are unknown: boot it over PXE once";
        Outlook::Unknown(why.to_owned())
    }
}

/// Returns the state in which the agent made its plan: the current attempt is the first one.
fn unbegun(standing: Standing) -> Standing {
    let first = standing.first.filter(|first| !first.only);
    let order = standing.order.map(|order| match order.attempts {
        ..2 => Order { begun: false, disks: Vec::new(), ..order },
        _ => order,
    });
    Standing { first, order, ..standing }
}

/// Describes the inventory that the plan is based on.
pub fn made_of(registered: &Registered) -> Markup {
    let since = match registered.seconds_ago {
        ..60 => "just now".to_owned(),
        seconds => format!("{} ago", crate::text::seconds(seconds as f64)),
    };
    html! {
        p.faint {
            "Based on the registered inventory"
            @if !registered.time.is_empty() { ", " (super::shell::time(&registered.time)) ", " (since) }
            ". UUIDs are placeholders until the plan is carried out."
        }
    }
}

/// Shows what is lost and what is preserved, disk by disk, and the plan.
pub fn markup(planned: &Planned) -> Markup {
    let of = |verdict: Verdict| planned.disks.iter().filter(move |disk| disk.verdict == verdict);
    let lost = planned.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes));
    let details = |disk: &PlannedDisk| {
        let plan = planned.plan.as_ref()?;
        plan.disks.iter().find(|planned| planned.device.as_str() == disk.device)
    };
    let not_ours = planned.plan.iter().flat_map(|plan| &plan.disks).filter(|disk| disk.verdict == Verdict::NotOurs);
    let not_ours: Vec<&DiskPlan> = not_ours.collect();
    html! {
        @if let Some(why) = planned.foreseen { p.problem { (why) ": " (NOBODY_LOOKED) } }
        @if planned.plan.as_ref().is_some_and(|plan| plan.already.is_some()) {
            p { "The ordered installation already exists: it is booted, and nothing is written." }
        }
        div.sides {
            section.dies {
                h2 { "Data lost: " (bytes(lost)) }
                ul {
                    @for disk in of(Verdict::Wipe) { li { (this(disk, details(disk))) } }
                    @if of(Verdict::Wipe).next().is_none() { li { "nothing" } }
                    @for torn in planned.plan.iter().flat_map(|plan| &plan.torn) {
                        li { strong { "dismantled: " } (torn.whole) }
                    }
                }
            }
            section.stays {
                h2 { "Preserved" }
                ul {
                    @for disk in of(Verdict::Keep) { li { (this(disk, details(disk))) } }
                    @for disk in of(Verdict::Make) {
                        li { (this(disk, details(disk))) ": would be preserved, but is blank: recreated" }
                    }
                    @for disk in of(Verdict::Volumes) {
                        li { (this(disk, details(disk))) ": for Kubernetes volumes, only written while blank" }
                    }
                    @for thing in planned.verdicts.iter().flat_map(|verdicts| &verdicts.things) {
                        @match thing.fate {
                            Kind::Kept => li { (thing.name) },
                            Kind::Added => li { (thing.name) ": added to preserved data" },
                            Kind::Made => {}
                        }
                    }
                    @for disk in &not_ours {
                        li { code { (disk.name) } " " (bytes(disk.size_bytes)) " " (disk.serial) ": not in the layout, untouched" }
                    }
                    @if planned.plan.is_none() { li { "every disk that the layout does not list" } }
                }
            }
        }
        @if let Some(plan) = &planned.plan { h2 { "Plan, as printed" } pre tabindex="0" { (plan) } }
    }
}

fn this(disk: &PlannedDisk, details: Option<&DiskPlan>) -> Markup {
    let name = disk.device.strip_prefix("/dev/").unwrap_or(&disk.device);
    let printed = if disk.serial.is_empty() { &disk.wwn } else { &disk.serial };
    html! {
        code { (name) } " " (bytes(disk.size_bytes)) " " strong { (printed) }
        @if let Some(details) = details { " " (details.model) ": " (details.now) }
    }
}
