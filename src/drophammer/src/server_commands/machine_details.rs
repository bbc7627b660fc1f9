//! `drophammer machine show`, `events`, `logs` and `history`: print the server's information about one machine.

pub(super) mod event_lists;
mod sections;

use super::{OperatorClient, OperatorResponse, find_machine, print_json, print_refusal};
use crate::object_list::{RecordOptions, print_value};
use ::api::machine_details::{ConsoleText, MachineDetails};
use ::api::operator_api::MachineSummary;
use clap::Args;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::replace_hidden;
use common::format::terminal_escaping::escape_hidden;
use common::output::{is_output_closed, print_text};
use reqwest::Method;
use std::time::Duration;

/// Interval between two requests for new console output (`logs --follow`).
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct ShowMachineOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    #[command(flatten)]
    pub format: RecordOptions,
}

#[derive(Debug, Args)]
pub struct LogOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    /// Print new output as it arrives, until the command is interrupted.
    #[arg(short, long)]
    pub follow: bool,
}

pub(super) fn show_machine(
    server: &OperatorClient,
    all: &[MachineSummary],
    show_machine_options: &ShowMachineOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let format = show_machine_options.format.show_format(json)?;
    let machine = match find_machine(all, &show_machine_options.machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let request = server.request(Method::GET, &format!("/v1/machine/{}/details", machine.id));
    match server.send_json::<MachineDetails>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(details) => {
            print_value(&details, format, |details| sections::format_details(details, all))
        }
    }
}

/// Prints the console log. With `--follow`, then prints new output until the command is interrupted.
pub(super) fn show_logs(
    server: &OperatorClient,
    all: &[MachineSummary],
    log_options: &LogOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let machine = match find_machine(all, &log_options.machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let mut after = 0;
    loop {
        let request = server.request(Method::GET, &format!("/v1/machine/{}/log?after={after}", machine.id));
        let log: ConsoleText = match server.send_json(request)? {
            OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
            OperatorResponse::Good(log) => log,
        };
        match json {
            _ if log.text.is_empty() && log_options.follow => {}
            true => drop(print_json(&log)?),
            false if log.text.is_empty() => print_text("The server has no console output of this machine.\n")?,
            false => print_text(&escape_hidden(&log.text))?,
        }
        if !log_options.follow || is_output_closed() {
            return Ok(CommandOutcome::Good);
        }
        after = log.next;
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Formats a time as `2026-11-28 10:00:00`, in UTC.
fn format_time(time: &str) -> String {
    time.get(..19).map_or_else(|| replace_hidden(time), |second| replace_hidden(second).replace('T', " "))
}
