//! `drophammer rollout`, and `drophammer machine reinstall` for several machines.

use super::connection::ServerOptions;
use super::machine_list::machine_columns;
use super::reinstall_options::{ReinstallOrderOptions, RolloutLimitOptions};
use super::rollout_confirmation::OrderedMachines;
use super::watched_output::{WatchOptions, WatchedListOptions, print_watched_list, watch_responses};
use super::{OperatorClient, OperatorResponse, find_machine, print_refusal, saved_plan_reinstall};
use crate::object_list::{
    ListColumn, ObjectList, RecordOptions, ShowFormat, format_value, print_value, select_objects,
};
use crate::terminal_output::table_width;
use ::api::operator_api::MachineSummary;
use ::api::operator_api::reinstalls::ReinstallRequest;
use ::api::rollouts::{MemberView, RolloutCounts, RolloutRequest, RolloutState, RolloutView};
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::table::{TableCell, TableColumn, TableFormat, format_table};
use common::format::terminal_escaping::escape_line;
use common::format::{compare_natural, format_bytes, format_count};
use reqwest::Method;
use reqwest::blocking::RequestBuilder;
use std::io::{IsTerminal, stdin};
use std::time::Duration;
use time::OffsetDateTime;

/// Timeout of the request that orders a rollout, for which the server plans the reinstall of each machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1800);
/// Maximum number of machines in the output of commands other than `rollout show`.
const MAXIMUM_LISTED_MACHINES: usize = 20;
/// Minimum width of a terminal for the column with the times of the orders.
const WIDE_ENOUGH_FOR_ORDER_TIMES: usize = 100;

#[derive(Debug, Args)]
pub struct RolloutOptions {
    #[command(subcommand)]
    pub command: RolloutCommand,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, global = true, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// List the rollouts: state, progress, image, and the reason for a stop. The newest is last.
    #[command(visible_alias = "ls")]
    List(WatchedListOptions),
    /// Print a rollout with its machines.
    Show {
        /// Id of the rollout, as printed by `drophammer rollout list`.
        #[arg(value_name = "ID")]
        id: u32,
        #[command(flatten)]
        format: RecordOptions,
        #[command(flatten)]
        watch: WatchOptions,
    },
    /// Order no further reinstalls. Machines whose reinstall is ordered or in progress are not affected.
    Halt {
        /// Id of the rollout, as printed by `drophammer rollout list`.
        #[arg(value_name = "ID")]
        id: u32,
    },
    /// Order reinstalls again after a halt, or after failures. Previous failures no longer count towards --stop-after.
    Resume {
        /// Id of the rollout, as printed by `drophammer rollout list`.
        #[arg(value_name = "ID")]
        id: u32,
    },
    /// End a rollout: order no further reinstalls, and cancel the reinstalls that have not passed their point of no
    /// return.
    Cancel {
        /// Id of the rollout, as printed by `drophammer rollout list`.
        #[arg(value_name = "ID")]
        id: u32,
    },
}

/// Performs the command and prints the result.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn run_rollout_command(options: &RolloutOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let request = match &options.command {
        RolloutCommand::List(list) => {
            let fetch = || server.send_json(server.request(Method::GET, "/v1/rollouts"));
            return print_watched_list(&rollout_columns(), list, options.json, fetch);
        }
        RolloutCommand::Show { id, format, watch } => {
            return show_rollout(&server, *id, format.show_format(options.json)?, *watch);
        }
        RolloutCommand::Halt { id } => server.request(Method::POST, &format!("/v1/rollouts/{id}/halt")),
        RolloutCommand::Resume { id } => server.request(Method::POST, &format!("/v1/rollouts/{id}/resume")),
        RolloutCommand::Cancel { id } => server.request(Method::DELETE, &format!("/v1/rollouts/{id}")),
    };
    print_rollout(&server, request, ShowFormat::from_json_switch(options.json), MAXIMUM_LISTED_MACHINES)
}

fn show_rollout(server: &OperatorClient, id: u32, format: ShowFormat, watch: WatchOptions) -> Result<CommandOutcome> {
    let request = || server.request(Method::GET, &format!("/v1/rollouts/{id}"));
    if !watch.watch {
        return print_rollout(server, request(), format, usize::MAX);
    }
    let describe = |rollout: &RolloutView| format_rollout(rollout, usize::MAX);
    watch_responses(|| server.send_json(request()), |rollout| format_value(rollout, format, describe))
}

/// Sends a request, and prints the rollout that the response contains. Also prints the machines of the rollout if there
/// are at most `most`.
fn print_rollout(
    server: &OperatorClient,
    request: RequestBuilder,
    format: ShowFormat,
    most: usize,
) -> Result<CommandOutcome> {
    match server.send_json::<RolloutView>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(rollout) => print_value(&rollout, format, |rollout| format_rollout(rollout, most)),
    }
}

/// Orders a rollout of the selected machines.
pub(super) fn order_rollout(
    server: &OperatorClient,
    all: &[MachineSummary],
    reinstall_order_options: &ReinstallOrderOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let members = match collect_members(server, all, reinstall_order_options)? {
        Ok(members) => members,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let RolloutLimitOptions { at_most, stop_after, start, window, .. } = reinstall_order_options.rollout.clone();
    let Some(at_most) = at_most.or((members.len() == 1).then_some(1)) else {
        let count = format_count(members.len(), "machine", "machines");
        return Ok(print_refusal(&format!(
            "{count} cannot be reinstalled all at once; specify --at-most N, the maximum number of reinstalls at the same time"
        )));
    };
    if (members.len() > 1
        || !reinstall_order_options.rollout.filter.is_empty()
        || reinstall_order_options.yes.is_some())
        && let Err(why) =
            OrderedMachines::new(all, &members).confirm(reinstall_order_options.yes, stdin().is_terminal())?
    {
        return Ok(print_refusal(&why));
    }
    let body = RolloutRequest { members, at_most, stop_after, start, window, power_cycle: reinstall_order_options.now };
    let request = server.request(Method::POST, "/v1/rollouts").timeout(REQUEST_TIMEOUT).json(&body);
    print_rollout(server, request, ShowFormat::from_json_switch(json), MAXIMUM_LISTED_MACHINES)
}

/// Returns the reinstalls in the order in which they will start. The inner error is the reason why nothing can be
/// ordered.
fn collect_members(
    server: &OperatorClient,
    all: &[MachineSummary],
    reinstall_order_options: &ReinstallOrderOptions,
) -> Result<std::result::Result<Vec<ReinstallRequest>, String>> {
    if !reinstall_order_options.plans.is_empty() {
        let mut members = Vec::new();
        for file in &reinstall_order_options.plans {
            match saved_plan_reinstall::read_planned_order(server, all, None, file)? {
                Ok((_, order)) => members.extend(order),
                Err(why) => return Ok(Err(why)),
            }
        }
        let is_planned =
            |name: &String| find_machine(all, name).map(|named| members.iter().any(|it| it.id == named.id));
        return Ok(match reinstall_order_options.machines.iter().find(|name| is_planned(name) != Ok(true)) {
            Some(name) => Err(format!(
                "{name}: none of the plans in --plan is for this machine; if plans are specified, omit the names of machines"
            )),
            None => Ok(members),
        });
    }
    let Some(image) = &reinstall_order_options.image else {
        return Ok(Err("the image is missing: specify --image ID".to_owned()));
    };
    let selected = match reinstall_order_options.rollout.filter.is_empty() {
        true => reinstall_order_options.machines.iter().map(|name| find_machine(all, name)).collect(),
        false => {
            let selected = select_objects(
                &machine_columns(all, OffsetDateTime::now_utc()),
                all,
                &reinstall_order_options.rollout.filter,
            );
            selected.map(sort_naturally)
        }
    };
    Ok(selected.and_then(|machines| match machines.is_empty() {
        true => Err("no machine matches the filters; `drophammer machine list` lists the machines".to_owned()),
        false => Ok(machines
            .iter()
            .map(|machine| reinstall_order_options.overrides.to_request(&machine.id, image))
            .collect()),
    }))
}

/// Sorts the machines in the order of `machine list`.
fn sort_naturally(mut machines: Vec<&MachineSummary>) -> Vec<&MachineSummary> {
    machines.sort_by(|one, other| compare_natural(&one.name, &other.name));
    machines
}

pub(super) fn rollout_columns() -> ObjectList<'static, RolloutView> {
    let columns = vec![
        ListColumn::new("id", |rollout: &RolloutView| rollout.id.to_string()),
        ListColumn::new("state", |rollout: &RolloutView| state_word(rollout).to_owned()),
        ListColumn::new("progress", |rollout: &RolloutView| describe_counts(rollout)),
        ListColumn::new("image", |rollout: &RolloutView| rollout.images.join(", ")),
        ListColumn::new("user", |rollout: &RolloutView| rollout.created_by.clone()),
        ListColumn::new("created", |rollout: &RolloutView| to_minute(&rollout.created)).only_wide(),
        ListColumn::new("start", |rollout: &RolloutView| {
            to_minute(rollout.limits.start.as_deref().unwrap_or_default())
        })
        .only_wide(),
        ListColumn::new("message", |rollout: &RolloutView| rollout.reason.clone()).with_prose(),
    ];
    ObjectList { command: "rollout", noun: "rollouts", name: |rollout| rollout.id.to_string(), columns }
}

fn state_word(rollout: &RolloutView) -> &'static str {
    match rollout.state {
        RolloutState::Running if rollout.counts.waiting == rollout.total && rollout.limits.start.is_some() => {
            "scheduled"
        }
        state => state.as_str(),
    }
}

/// Describes the progress of a rollout, such as `3 of 8 done, 2 in progress, 1 failed`.
fn describe_counts(rollout: &RolloutView) -> String {
    let RolloutCounts { ordered, installing, done, failed, skipped, .. } = rollout.counts;
    let parts = [(ordered + installing, "in progress"), (failed, "failed"), (skipped, "skipped")];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!(", {count} {word}"));
    format!("{done} of {} done{}", rollout.total, parts.collect::<String>())
}

fn to_minute(time: &str) -> String {
    time.get(..16).map_or_else(|| time.to_owned(), |minute| minute.replace('T', " "))
}

/// Formats a rollout and the next steps of the operator. The members of the rollout are included if there are at most
/// `most`.
fn format_rollout(rollout: &RolloutView, most: usize) -> String {
    let RolloutView { id, limits, images, created, created_by, reason, .. } = rollout;
    let reason = if reason.is_empty() { String::new() } else { format!(": {}", escape_line(reason)) };
    let start = limits.start.as_deref().map(|start| format!(", not before {} UTC", to_minute(start)));
    let window = limits.window.as_ref().map(|window| format!(", only {window} UTC"));
    let power = if limits.power_cycle { ", machines are power-cycled" } else { "" };
    let head = format!(
        "rollout {id}: {state}, {counts}{reason}\n{images}; at most {at_most} in progress, stops after {failures}{start}{window}{power}\nordered by {user} at {time} UTC\n\n",
        state = state_word(rollout),
        counts = describe_counts(rollout),
        images = escape_line(&images.join(", ")),
        at_most = limits.at_most,
        failures = format_count(usize::try_from(limits.stop_after).unwrap_or(usize::MAX), "failure", "failures"),
        start = start.unwrap_or_default(),
        window = window.unwrap_or_default(),
        user = escape_line(created_by),
        time = to_minute(created),
    );
    if rollout.members.len() > most {
        return head + &format!("List the machines:\n  drophammer rollout show {id}\n") + &describe_next_steps(rollout);
    }
    let table = TableFormat { width: table_width(), has_titles: true, is_styled: false };
    head + &format_members(&rollout.members, table) + &describe_next_steps(rollout)
}

fn format_members(members: &[MemberView], table: TableFormat) -> String {
    let column = |title: &str| TableColumn { title: title.to_owned(), ..TableColumn::default() };
    let mut columns = Vec::from(["MACHINE", "STATE", "ORDERED", "ENDED", "DATA LOST", "REASON"].map(column));
    columns[5].is_prose = true;
    let mut rows: Vec<Vec<TableCell>> = members.iter().map(member_row).collect();
    // On a narrow terminal, the ORDERED column is dropped to make room for failure reasons.
    if table.width.is_some_and(|width| width < WIDE_ENOUGH_FOR_ORDER_TIMES) {
        drop(columns.remove(2));
        rows.iter_mut().for_each(|row| drop(row.remove(2)));
    }
    format_table(&columns, &rows, table)
}

fn member_row(member: &MemberView) -> Vec<TableCell> {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let lost = member.lost_bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
    let cells = [
        or_dash(if member.name.is_empty() { &member.machine } else { &member.name }),
        member.state.to_string(),
        or_dash(&to_minute(&member.ordered)),
        or_dash(&to_minute(&member.ended)),
        lost,
        or_dash(member.reason.lines().next().unwrap_or_default()),
    ];
    cells.into_iter().map(|text| TableCell { text, style: None }).collect()
}

fn describe_next_steps(rollout: &RolloutView) -> String {
    let id = rollout.id;
    match rollout.state {
        RolloutState::Running => format!("\nStart no further machines:\n  drophammer rollout halt {id}\n"),
        RolloutState::Halted | RolloutState::Stopped => {
            format!(
                "\nContinue, or end the rollout:\n  drophammer rollout resume {id}\n  drophammer rollout cancel {id}\n"
            )
        }
        RolloutState::Canceled | RolloutState::Finished => String::new(),
    }
}

#[cfg(test)]
mod tests;
