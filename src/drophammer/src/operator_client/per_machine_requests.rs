//! Sends the same request for each of several machines.

use super::{OperatorClient, OperatorResponse, find_machine, print_refusal};
use api::operator::MachineSummary;
use common::error::Result;
use common::exit_status::CommandOutcome;
use common::output::print_text;
use reqwest::blocking::RequestBuilder;

/// Function that describes the effect of a request on a machine. The arguments are the summaries of the machine before
/// and after the request.
type ChangeDescription = dyn Fn(&MachineSummary, &MachineSummary) -> String;

/// Sends the request that `build` returns for the id of each named machine, and prints the refusals. Returns the machines
/// that accepted the request, in their new state, and the exit status. If `describe` is specified, prints the text that
/// `describe` returns for each of these machines.
///
/// # Errors
/// Returns an error if the server cannot be reached, or the text cannot be printed.
pub(crate) fn send_for_each(
    server: &OperatorClient,
    all: &[MachineSummary],
    names: &[String],
    build: &dyn Fn(&str) -> RequestBuilder,
    describe: Option<&ChangeDescription>,
) -> Result<(Vec<MachineSummary>, CommandOutcome)> {
    // If a machine is not found, its name is most likely misspelled: no request is sent for any machine.
    let machines: Result<Vec<&MachineSummary>, String> =
        names.iter().map(|machine| find_machine(all, machine)).collect();
    let machines = match machines {
        Ok(machines) => machines,
        Err(why) => return Ok((Vec::new(), print_refusal(&why))),
    };
    let (mut accepted, mut outcome) = (Vec::new(), CommandOutcome::Good);
    for machine in machines {
        match server.send_json::<MachineSummary>(build(&machine.id))? {
            OperatorResponse::Refused(why) => outcome = print_refusal(&why),
            OperatorResponse::Good(listed) => {
                if let Some(describe) = describe {
                    print_text(&describe(machine, &listed))?;
                }
                accepted.push(listed);
            }
        }
    }
    Ok((accepted, outcome))
}
