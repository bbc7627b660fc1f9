//! `/rollouts`: all rollouts. `/rollouts/ID`: one rollout with its machines. Both pages can halt and resume rollouts.

use super::page_frame::{self, show_age, show_time};
use super::rack_drawing::{MachineSquare, draw_machines};
use super::session::LoggedIn;
use super::submitted_forms::ChangeForm;
use api::AppState;
use api::access;
use api::machine_details::RolloutMembership;
use api::rollouts::{self, MemberState, MemberView, RolloutChange, RolloutState, RolloutView};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use common::format::{format_bytes, format_count};
use http_server::api_error::ApiError;
use maud::{Markup, html};
use std::sync::Arc;

/// Maximum number of machines in the table of a rollout.
const MAXIMUM_ROWS: usize = 1000;

/// `GET /rollouts`: shows one row per rollout.
pub(crate) async fn get_rollouts(State(app): State<Arc<AppState>>, person: LoggedIn) -> Result<Response, Response> {
    let all = rollouts::list_views(&app).await;
    let all = all.map_err(|error| page_frame::render_error(&app, Some(&person), error))?;
    let main = html! {
        h1 { (format_count(all.len(), "rollout", "rollouts")) }
        @if all.is_empty() {
            p.faint { "A rollout reinstalls many machines, but only a limited number at the same time: "
                code { "drophammer machine reinstall ID… --image IMAGE --at-most N" } }
        } @else {
            div.scroll tabindex="0" { table.cards {
                thead { tr { th { "Rollout" } th { "State" } th { "Progress" } th { "Image" } th { "Ordered" } th { "Actions" } } }
                tbody { @for rollout in &all { (show_row(&person, rollout)) } }
            } }
        }
    };
    Ok(page_frame::render_page(&app, &person, "Rollouts", "/rollouts", main))
}

fn show_row(person: &LoggedIn, rollout: &RolloutView) -> Markup {
    html! {
        tr {
            td { a href={ "/rollouts/" (rollout.id) } { (rollout.id) } }
            td data-label="State" { (show_state(rollout)) }
            td data-label="Progress" { (show_progress(rollout)) }
            td data-label="Image" { (rollout.images.join(", ")) }
            td data-label="Ordered" { (show_age(&rollout.created)) " by " (rollout.created_by) }
            td data-label="Actions" { (show_actions(person, rollout)) }
        }
    }
}

fn show_state(rollout: &RolloutView) -> Markup {
    let is_problem = rollout.state == RolloutState::Stopped;
    html! {
        span.problem[is_problem] { (rollout.state) }
        @if !rollout.reason.is_empty() { br; span.faint { (access::visible_message(&rollout.reason)) } }
    }
}

/// Shows how many members have ended (reinstalled, failed or skipped) as a bar, and the number of members in each
/// state.
fn show_progress(rollout: &RolloutView) -> Markup {
    let counts = rollout.counts;
    let ended = counts.done + counts.failed + counts.skipped;
    let states = [
        (counts.waiting, MemberState::Waiting),
        (counts.ordered, MemberState::Ordered),
        (counts.installing, MemberState::Installing),
        (counts.failed, MemberState::Failed),
        (counts.skipped, MemberState::Skipped),
    ];
    html! {
        progress max=(rollout.total) value=(ended) aria-label={ "Progress of rollout " (rollout.id) } {}
        " " (counts.done) " of " (rollout.total) " done"
        @for (count, state) in states { @if count > 0 { ", " (count) " " (state) } }
    }
}

/// Shows the buttons that halt or resume the rollout.
fn show_actions(person: &LoggedIn, rollout: &RolloutView) -> Markup {
    let action = match rollout.state {
        RolloutState::Running => Some(("halt", "Halt")),
        RolloutState::Halted | RolloutState::Stopped => Some(("resume", "Resume")),
        RolloutState::Canceled | RolloutState::Finished => None,
    };
    html! {
        @if let Some((path, word)) = action.filter(|_| person.is_operator()) {
            form method="post" action={ "/rollouts/" (rollout.id) "/" (path) } {
                (page_frame::form_token(person))
                button aria-label={ (word) " rollout " (rollout.id) } { (word) }
            }
        }
    }
}

/// `GET /rollouts/{id}`: shows a rollout with its members.
pub(crate) async fn get_rollout(
    State(app): State<Arc<AppState>>,
    person: LoggedIn,
    Path(id): Path<String>,
) -> Result<Response, Response> {
    let rollout = rollouts::find_view(&app, &id).await;
    let rollout = rollout.map_err(|error| page_frame::render_error(&app, Some(&person), error))?;
    let rows = select_rows(&rollout.members);
    let main = html! {
        p { a href="/rollouts" { "Rollouts" } }
        div.head { h1 { "Rollout " (rollout.id) } (show_actions(&person, &rollout)) }
        p { (show_state(&rollout)) }
        p { (show_progress(&rollout)) }
        (draw_members(&rollout.members))
        (show_limits(&rollout))
        @if rows.len() < rollout.members.len() {
            p.faint { "The table contains " (rows.len()) " of " (rollout.members.len())
                " machines, beginning with those that have failed or are in progress. "
                code { "drophammer rollout show " (rollout.id) } " lists all machines." }
        }
        div.scroll tabindex="0" { table.cards {
            thead { tr { th { "Machine" } th { "State" } th { "Ordered" } th { "Ended" } th.number { "Data lost" } th { "Reason" } } }
            tbody { @for member in rows { (show_member(member)) } }
        } }
    };
    Ok(page_frame::render_page(&app, &person, &format!("Rollout {id}"), "/rollouts", main))
}

/// Returns the members for the table: all members in their order or, if there are too many, those that need attention.
fn select_rows(members: &[MemberView]) -> Vec<&MemberView> {
    let mut rows: Vec<&MemberView> = members.iter().collect();
    if rows.len() > MAXIMUM_ROWS {
        rows.sort_by_key(|member| match member.state {
            MemberState::Failed | MemberState::Skipped => 0,
            MemberState::Ordered | MemberState::Installing => 1,
            MemberState::Waiting => 2,
            MemberState::Done => 3,
        });
        rows.truncate(MAXIMUM_ROWS);
    }
    rows
}

/// Draws the members in the order in which they are reinstalled.
fn draw_members(members: &[MemberView]) -> Markup {
    draw_machines(members.iter().map(|member| MachineSquare {
        path: format!("/machines/{}", member.machine),
        name: member_name(member),
        state: member.state.as_str(),
        class: member_class(member.state).unwrap_or("idle"),
        matches: true,
    }))
}

fn member_name(member: &MemberView) -> &str {
    if member.name.is_empty() { &member.machine } else { &member.name }
}

fn show_limits(rollout: &RolloutView) -> Markup {
    let limits = &rollout.limits;
    html! {
        dl.facts {
            dt { "Image" } dd { (rollout.images.join(", ")) }
            dt { "Ordered" } dd { (show_age(&rollout.created)) " by " (rollout.created_by) }
            dt { "In progress" } dd { "at most " (limits.at_most) @if limits.power_cycle { "; the server power-cycles the machines" } }
            dt { "Stops after" } dd { (format_count(usize::try_from(limits.stop_after).unwrap_or(usize::MAX), "failure", "failures")) }
            @if let Some(start) = &limits.start { dt { "Start" } dd { (show_time(start)) " UTC" } }
            @if let Some(window) = &limits.window { dt { "Window" } dd { (window) " UTC" } }
        }
    }
}

fn show_member(member: &MemberView) -> Markup {
    html! {
        tr class=[member_class(member.state)] {
            td { a href={ "/machines/" (member.machine) } { (member_name(member)) } }
            td.phase data-label="State" { span.word { (member.state) } }
            td data-label="Ordered" { @if !member.ordered.is_empty() { (show_age(&member.ordered)) } }
            td data-label="Ended" { @if !member.ended.is_empty() { (show_age(&member.ended)) } }
            td.number data-label="Data lost" { (member.lost_bytes.map_or_else(|| "unknown".to_owned(), format_bytes)) }
            td.words data-label="Reason" { (access::visible_message(&member.reason)) }
        }
    }
}

/// Returns the CSS class of a row, which determines the symbol and the color of the state, as in the list of machines.
fn member_class(state: MemberState) -> Option<&'static str> {
    match state {
        MemberState::Waiting => None,
        MemberState::Ordered | MemberState::Installing => Some("busy"),
        MemberState::Done => Some("good"),
        MemberState::Failed | MemberState::Skipped => Some("bad"),
    }
}

/// Shows the newest rollout of which a machine is a member, if the user may see it.
pub(crate) async fn show_membership(app: &AppState, machine: &str) -> Result<Markup, ApiError> {
    Ok(html! {
        @if let Some(RolloutMembership { id, state, member }) = RolloutMembership::find_newest(app, machine).await? {
            p { "Member of " a href={ "/rollouts/" (id) } { "rollout " (id) } " (" (state) "): "
                (member.state) @if !member.reason.is_empty() { ", " (access::visible_message(&member.reason)) } "." }
        }
    })
}

/// `POST /rollouts/{id}/halt`: halts the rollout, so that no further reinstalls are ordered.
pub(crate) async fn post_halt(change: ChangeForm) -> Response {
    let reason = RolloutChange::Halt(format!("halted by {}", change.person.identity.user));
    change_rollout(&change, reason).await
}

/// `POST /rollouts/{id}/resume`: resumes the rollout.
pub(crate) async fn post_resume(change: ChangeForm) -> Response {
    change_rollout(&change, RolloutChange::Resume).await
}

async fn change_rollout(change: &ChangeForm, wanted: RolloutChange) -> Response {
    let ChangeForm { app, person, .. } = change;
    match rollouts::change_rollout(app, change.machine_id(), &person.identity, wanted).await {
        Ok(rollout) => Redirect::to(&format!("/rollouts/{}", rollout.id)).into_response(),
        Err(error) => change.show_error(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_a_large_rollout_contains_the_machines_that_need_attention() {
        let member = |number: usize, state| MemberView {
            machine: format!("m{number}"),
            name: String::new(),
            image: String::new(),
            state,
            reason: String::new(),
            order: String::new(),
            ordered: String::new(),
            ended: String::new(),
            lost_bytes: None,
            approved: None,
        };
        let mut members: Vec<MemberView> = (0..1500).map(|number| member(number, MemberState::Done)).collect();
        members[1400].state = MemberState::Installing;
        members[1499].state = MemberState::Failed;
        let names = |rows: &[&MemberView]| rows.iter().map(|row| row.machine.clone()).collect::<Vec<_>>();
        let rows = select_rows(&members);
        assert_eq!(names(&rows[..3]), ["m1499", "m1400", "m0"]);
        assert_eq!(rows.len(), MAXIMUM_ROWS);
        let rows = select_rows(&members[1398..]);
        assert_eq!(names(&rows[..3]), ["m1398", "m1399", "m1400"]);
        assert_eq!(rows.len(), 102);
    }
}
