//! Pages of actions on several machines: the review with its confirmation, and the results.

use super::allocate::show_common_fields;
use super::bulk_actions::{BulkAction, TIME_LIMIT};
use super::bulk_review::{RefusedMachine, ReviewedMachine};
use super::page_frame;
use super::session::LoggedIn;
use api::AppState;
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
    let count = reviewed.len();
    html! {
        p { a href="/" { "Machines" } }
        h1 { (action.title(count)) }
        (show_allocation_form(app, person, action, (reviewed, refused, unreached)))
        (show_refused("Machines that will be skipped", refused))
        (show_unreached(app, person, action, unreached))
        @if !reviewed.is_empty() {
            (show_effect(action, reviewed))
            (show_reviewed(action, reviewed))
            (show_confirmation(person, action, reviewed))
        }
    }
}

/// Renders the fields of an allocation, and a button that reviews all selected machines again with these fields.
fn show_allocation_form(
    app: &AppState,
    person: &LoggedIn,
    action: &BulkAction,
    (reviewed, refused, unreached): (&[ReviewedMachine], &[RefusedMachine], &[String]),
) -> Markup {
    let BulkAction::Allocate(new) = action else { return html! {} };
    let ids = reviewed.iter().map(|machine| &machine.id).chain(refused.iter().map(|machine| &machine.id));
    html! {
        form.stack method="post" action="/bulk/review" {
            (page_frame::form_token(person))
            input type="hidden" name="action" value="allocate";
            @for id in ids.chain(unreached) { input type="hidden" name="machine" value=(id); }
            (show_common_fields(&app.directory(), new))
            p { button { "Review again" } " " span.faint { "Nothing is written yet. The name of each machine becomes its hostname." } }
        }
    }
}

/// Explains the effect that all machines have in common.
fn show_effect(action: &BulkAction, reviewed: &[ReviewedMachine]) -> Markup {
    let lost = reviewed.iter().fold(0, |sum: u64, machine| sum.saturating_add(machine.lost));
    html! {
        @match action {
            BulkAction::Allocate(new) => p.problem {
                "The machines will be installed with " (new.image) ": at once if they wait in the ramdisk, and otherwise at their next boot over PXE."
            },
            BulkAction::Free => p {
                "Removes the allocations from the machine files, and switches a machine off if its management controller is known. "
                "The disks are unchanged until the machines are allocated and installed again."
            },
            BulkAction::Lock(_) => p {
                "Nothing can be ordered for a locked machine, and it can be neither freed nor allocated. The reason is written to the machine files."
            },
            BulkAction::Reinstall(_) | BulkAction::Cancel | BulkAction::Unlock | BulkAction::Power(_) => {}
        }
        @if has_plans(action) { p { strong { "Data lost: " (format_bytes(lost)) } } }
    }
}

/// Returns whether the action installs the machines, so that the review shows their plans.
fn has_plans(action: &BulkAction) -> bool {
    matches!(action, BulkAction::Reinstall(_) | BulkAction::Allocate(_))
}

/// Renders a row for each machine on which the action can be carried out.
fn show_reviewed(action: &BulkAction, reviewed: &[ReviewedMachine]) -> Markup {
    let detail = match action {
        BulkAction::Free => Some("Installed image"),
        BulkAction::Unlock => Some("Locked because"),
        _ => None,
    };
    html! {
        div.scroll tabindex="0" { table.cards {
            thead { tr {
                th { "Machine" }
                @if reviewed.iter().any(|machine| machine.phase.is_some()) { th { "Phase" } }
                @if let Some(title) = detail { th { (title) } }
                @if has_plans(action) { th.number { "Data lost" } th { "Wiped disks" } }
            } }
            @for machine in reviewed {
                tr {
                    td { a href={ "/machines/" (machine.id) } { (machine.name) } }
                    @if let Some(phase) = machine.phase {
                        td.phase.(phase.kind.css_class()) data-label="Phase" { span.word { (phase.word) } }
                    }
                    @if let Some(title) = detail { td.words data-label=(title) { (machine.detail) } }
                    @if has_plans(action) {
                        td.number data-label="Data lost" { (format_bytes(machine.lost)) }
                        td data-label="Wiped disks" {
                            (if machine.wiped.is_empty() { "none".to_owned() } else { machine.wiped.join(", ") })
                            @if let Some(why) = machine.foreseen { p.faint { (why) ": " (PREVIEW_REMARK) } }
                        }
                    }
                }
            }
        } }
    }
}

/// Renders the form that carries out the action. Hidden fields contain the machines and the digests of their plans.
fn show_confirmation(person: &LoggedIn, action: &BulkAction, reviewed: &[ReviewedMachine]) -> Markup {
    let count = reviewed.len();
    html! {
        form.stack method="post" action="/bulk/confirm" {
            (page_frame::form_token(person))
            (show_action_fields(action))
            @for machine in reviewed {
                input type="hidden" name="machine" value=(machine.id);
                input type="hidden" name="shown" value=(machine.digest);
            }
            @if let BulkAction::Lock(reason) = action {
                label for="reason" { "Reason" }
                input #reason name="reason" value=(reason) autocomplete="off" required;
            }
            label for="count" { "Type " strong { (count) } ", the number of machines, to confirm" }
            input #count name="count" data-name=(count) inputmode="numeric" autocomplete="off" required;
            button.danger { (action.title(count)) }
        }
    }
}

/// Renders hidden fields that describe the action.
fn show_action_fields(action: &BulkAction) -> Markup {
    html! { @for (name, value) in action.form_fields() { input type="hidden" name=(name) value=(value); } }
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
                (show_action_fields(action))
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
        let count = changed.len() + refused.len() + unreached.len();
        html! {
            p { a href="/" { "Machines" } }
            h1 { (changed.len()) " of " (format_count(count, "machine", "machines")) " changed" }
            (show_unreached(app, person, action, unreached))
            (show_refused("Unchanged machines", refused))
            @if !changed.is_empty() {
                h2 { (action.result_heading()) ": " (changed.len()) }
                ul { @for (id, name) in changed { li { a href={ "/machines/" (id) } { (name) } } } }
            }
        }
    }
}
