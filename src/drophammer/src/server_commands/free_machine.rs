//! `drophammer machine free`: removes the allocations of machines.

use super::per_machine_requests::send_for_each;
use super::{OperatorClient, print_json};
use ::api::operator_api::MachineSummary;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::terminal_escaping::escape_line;
use reqwest::Method;
use serde_json::Value;

/// Frees the machines.
///
/// # Errors
/// Returns an error if the server cannot be reached, rejects the token, or fails.
pub(super) fn free_machines(
    server: &OperatorClient,
    all: &[MachineSummary],
    names: &[String],
    json: bool,
) -> Result<CommandOutcome> {
    let build = |machine: &MachineSummary| server.request(Method::DELETE, &format!("/v1/machine/{}/free", machine.id));
    let describe = |machine: &MachineSummary, _: &Value| describe_freed(machine);
    let describe = (!json).then_some(&describe as &dyn Fn(&_, &_) -> _);
    let (freed, outcome) = send_for_each::<Value>(server, all, names, &build, describe)?;
    match &freed[..] {
        [one] if json && names.len() == 1 => print_json(one).map(|_| outcome),
        [_, ..] if json => print_json(&freed).map(|_| outcome),
        _ => Ok(outcome),
    }
}

/// Describes the effect of the request on a machine, from its state before the request.
fn describe_freed(machine: &MachineSummary) -> String {
    let name = escape_line(if machine.name.is_empty() { &machine.id } else { &machine.name });
    match &machine.allocation {
        None => format!("{name} had no allocation: nothing was changed.\n"),
        Some(allocation) => format!(
            "{name} is free: allocation {} was removed from its file. The disks are unchanged, and the machine waits in the ramdisk after \
             its next boot over PXE.\n",
            escape_line(allocation)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_of_freeing_depends_on_the_allocation() {
        let free = MachineSummary { id: "4c-1".to_owned(), ..MachineSummary::default() };
        assert_eq!(describe_freed(&free), "4c-1 had no allocation: nothing was changed.\n");
        let name = "web-1".to_owned();
        let text = describe_freed(&MachineSummary { name, allocation: Some("a1".to_owned()), ..free });
        assert!(text.starts_with("web-1 is free: allocation a1 was removed from its file. The disks are"), "{text}");
    }
}
