//! Pages of actions on several machines: the review with its confirmation, and the results.

use super::bulk_actions::{BulkAction, RefusedMachine, ReviewedMachine, TIME_LIMIT};
use super::page_frame;
use super::session::LoggedIn;
use api::AppState;
use bmc::PowerAction;
use common::format::{format_bytes, format_count};
use maud::{Markup, html};
use plan::request_from_allocation::preview::PREVIEW_REMARK;

/// Renders the effect on each machine, and the form that confirms the action.
pub(crate) fn show_review(
    app: &AppState,
    person: &LoggedIn,
    action: &BulkAction,
    reviewed: &[ReviewedMachine],
    refused: &[RefusedMachine],
    unreached: &[String],
) -> Markup {
    let lost = reviewed.iter().fold(0, |sum: u64, machine| sum.saturating_add(machine.lost));
    let count = reviewed.len();
    html! {
        p { a href="/" { "Machines" } }
        h1 { (action.title(count)) }
        (show_refused("Machines that will be skipped", refused))
        (show_unreached(app, person, action, unreached))
        @if !reviewed.is_empty() {
            @if let BulkAction::Reinstall(_) = action { p { strong { "Data lost: " (format_bytes(lost)) } } }
            div.scroll tabindex="0" { table.cards {
                thead { tr {
                    th { "Machine" }
                    @if let BulkAction::Power(_) = action { th { "Phase" } }
                    @if let BulkAction::Reinstall(_) = action { th.number { "Data lost" } th { "Wiped disks" } }
                } }
                @for machine in reviewed {
                    tr {
                        td { a href={ "/machines/" (machine.id) } { (machine.name) } }
                        @if let Some(phase) = machine.phase {
                            td.phase.(phase.kind.css_class()) data-label="Phase" { span.word { (phase.word) } }
                        }
                        @if let BulkAction::Reinstall(_) = action {
                            td.number data-label="Data lost" { (format_bytes(machine.lost)) }
                            td data-label="Wiped disks" {
                                (if machine.wiped.is_empty() { "none".to_owned() } else { machine.wiped.join(", ") })
                                @if let Some(why) = machine.foreseen { p.faint { (why) ": " (PREVIEW_REMARK) } }
                            }
                        }
                    }
                }
            } }
            (show_confirmation(person, action, reviewed))
        }
    }
}

/// Renders the form that carries out the action. Hidden fields contain the machines and the digests of their plans.
fn show_confirmation(person: &LoggedIn, action: &BulkAction, reviewed: &[ReviewedMachine]) -> Markup {
    let count = reviewed.len();
    html! {
        form.stack method="post" action="/bulk/confirm" {
            (page_frame::form_token(person))
            input type="hidden" name="action" value=(action.word());
            input type="hidden" name="image" value=(action.image());
            @for machine in reviewed {
                input type="hidden" name="machine" value=(machine.id);
                input type="hidden" name="shown" value=(machine.digest);
            }
            label for="count" { "Type " strong { (count) } ", the number of machines, to confirm" }
            input #count name="count" data-name=(count) inputmode="numeric" autocomplete="off" required;
            button.danger { (action.title(count)) }
        }
    }
}

fn show_refused(title: &str, refused: &[RefusedMachine]) -> Markup {
    html! {
        @if !refused.is_empty() {
            h2 { (title) ": " (refused.len()) }
            div.scroll tabindex="0" { table.cards {
                thead { tr { th { "Machine" } th { "Reason" } } }
                @for machine in refused {
                    tr { td { a href={ "/machines/" (machine.id) } { (machine.name) } } td.words.bad { (machine.reason) } }
                }
            } }
        }
    }
}

/// Lists the machines that a request did not process within its time limit, with a button to review them.
fn show_unreached(app: &AppState, person: &LoggedIn, action: &BulkAction, unreached: &[String]) -> Markup {
    let directory = app.directory();
    html! {
        @if !unreached.is_empty() {
            h2 { "Not reached within " (TIME_LIMIT.as_secs()) " s, unchanged: " (unreached.len()) }
            p.words { (unreached.iter().map(|id| directory.display_name(id)).collect::<Vec<_>>().join(", ")) }
            form method="post" action="/bulk/review" {
                (page_frame::form_token(person))
                input type="hidden" name="action" value=(action.word());
                input type="hidden" name="image" value=(action.image());
                @for id in unreached { input type="hidden" name="machine" value=(id); }
                button { "Review " (format_count(unreached.len(), "machine", "machines")) " again…" }
            }
        }
    }
}

/// Results of an action on several machines.
#[derive(Default)]
pub(crate) struct BulkResults {
    /// Ids and names of the changed machines.
    pub changed: Vec<(String, String)>,
    pub refused: Vec<RefusedMachine>,
    /// Ids of the machines that the request did not process within its time limit.
    pub unreached: Vec<String>,
}

impl BulkResults {
    /// Renders the results.
    pub(crate) fn show(&self, app: &AppState, person: &LoggedIn, action: &BulkAction) -> Markup {
        let BulkResults { changed, refused, unreached } = self;
        let done = match action {
            BulkAction::Reinstall(_) => "Reinstall ordered",
            BulkAction::Cancel => "Order canceled",
            BulkAction::Power(PowerAction::Pxe) => "PXE selected",
            BulkAction::Power(_) => "Switched",
        };
        let count = changed.len() + refused.len() + unreached.len();
        html! {
            p { a href="/" { "Machines" } }
            h1 { (changed.len()) " of " (format_count(count, "machine", "machines")) " changed" }
            (show_unreached(app, person, action, unreached))
            (show_refused("Unchanged machines", refused))
            @if !changed.is_empty() {
                h2 { (done) ": " (changed.len()) }
                ul { @for (id, name) in changed { li { a href={ "/machines/" (id) } { (name) } } } }
            }
        }
    }
}
