//! Commands that send the same request for each of several machines.

use super::machine_list::name_or_id;
use super::{OperatorClient, OperatorResponse, find_machine, print_refusal};
use api::operator_api::MachineSummary;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output::print_text;
use reqwest::blocking::RequestBuilder;
use serde::de::DeserializeOwned;

/// Function that describes the effect of a request on a machine. Its arguments are the summary of the machine before
/// the request, and the response.
type ChangeDescription<'a, T> = dyn Fn(&MachineSummary, &T) -> String + 'a;

/// Sends one request for each named machine, and prints refusals. `build` returns the request for a machine. Returns
/// the responses to the accepted requests, and the outcome. If `describe` is given, also prints its text for each
/// accepted request.
///
/// # Errors
/// Returns an error if the server cannot be reached, or the text cannot be printed.
pub(crate) fn send_for_each<T: DeserializeOwned>(
    server: &OperatorClient,
    all: &[MachineSummary],
    names: &[String],
    build: &dyn Fn(&MachineSummary) -> RequestBuilder,
    describe: Option<&ChangeDescription<'_, T>>,
) -> Result<(Vec<T>, CommandOutcome)> {
    // A name that is not found is probably misspelled. In this case, no request is sent for any machine.
    let machines: Result<Vec<&MachineSummary>, String> =
        names.iter().map(|machine| find_machine(all, machine)).collect();
    let machines = match machines {
        Ok(machines) => machines,
        Err(why) => return Ok((Vec::new(), print_refusal(&why))),
    };
    let (mut accepted, mut outcome) = (Vec::new(), CommandOutcome::Good);
    for machine in machines {
        match server.send_json::<T>(build(machine))? {
            OperatorResponse::Refused(why) => outcome = print_refusal(&name_subject(machine, names.len(), why)),
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

/// Adds the name of the machine to the reason of a refusal. The name is omitted if the reason already contains it, or
/// if there is only one machine and the reason does not begin with `machine is`.
fn name_subject(machine: &MachineSummary, count: usize, why: String) -> String {
    let name = name_or_id(machine);
    match why.strip_prefix("machine is ") {
        Some(rest) => format!("machine {name} is {rest}"),
        None if count == 1 || why.contains(name) => why,
        None => format!("{name}: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_one_of_several_machines_contains_its_name() {
        let machine = MachineSummary { name: "web-1".to_owned(), ..MachineSummary::default() };
        for (count, why, expected) in [
            (1, "no image", "no image"),
            (2, "no image", "web-1: no image"),
            (1, "machine is locked: repair", "machine web-1 is locked: repair"),
            (2, "machine web-1 is locked", "machine web-1 is locked"),
        ] {
            assert_eq!(name_subject(&machine, count, why.to_owned()), expected);
        }
    }
}
