//! `drophammer machine free`: removes the allocation of a machine.

use super::{OperatorClient, OperatorResponse, find_machine, print_json, print_refusal};
use ::api::operator::MachineSummary;
use common::error::Result;
use common::exit_status::CommandOutcome;
use common::format::terminal_escaping::escape_line;
use common::output::print_text;
use reqwest::Method;
use serde_json::Value;

/// Frees the machine with this id or name.
///
/// # Errors
/// Returns an error if the server cannot be reached, rejects the token, or fails.
pub(super) fn free_machine(
    server: &OperatorClient,
    all: &[MachineSummary],
    name: &str,
    json: bool,
) -> Result<CommandOutcome> {
    let machine = match find_machine(all, name) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let request = server.request(Method::DELETE, &format!("/v1/machine/{}/free", machine.id));
    match server.send_json::<Value>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(freed) if json => print_json(&freed),
        OperatorResponse::Good(_) => {
            print_text(&describe_freed(machine))?;
            Ok(CommandOutcome::Good)
        }
    }
}

/// Describes the effect on a machine, in its state before the request.
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
    fn the_effect_depends_on_the_allocation() {
        let free = MachineSummary { id: "4c-1".to_owned(), ..MachineSummary::default() };
        assert_eq!(describe_freed(&free), "4c-1 had no allocation: nothing was changed.\n");
        let name = "web-1".to_owned();
        let text = describe_freed(&MachineSummary { name, allocation: Some("a1".to_owned()), ..free });
        assert!(text.starts_with("web-1 is free: allocation a1 was removed from its file. The disks are"), "{text}");
    }
}
