//! `drophammer machine boot-digest`: prints the command that starts a reinstall on the running machine. The command
//! contains the digest of the kernel, the ramdisk and the kernel command line.

use super::{OperatorClient, OperatorResponse, encode_segment, find_machine, print_json, print_refusal};
use api::boot_digest::BootDigestResponse;
use api::operator_api::MachineSummary;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output::print_text;
use reqwest::Method;

/// Prints the command that starts the reinstall of a machine.
///
/// # Errors
/// Returns an error if the server cannot be reached or fails.
pub(crate) fn print_boot_digest(
    server: &OperatorClient,
    all: &[MachineSummary],
    machine: &str,
    at: Option<&str>,
    json: bool,
) -> Result<CommandOutcome> {
    let machine = match find_machine(all, machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    match request_boot_digest(server, &machine.id, at)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(shown) if json => print_json(&shown),
        OperatorResponse::Good(shown) => {
            print_text(&format!("{}\n", reinstall_command(&shown))).map(|()| CommandOutcome::Good)
        }
    }
}

/// Returns the command that starts an ordered reinstall; `None` if the server cannot be reached or returns no digest,
/// for example because its own URL is not configured.
pub(crate) fn reinstall_command_for(server: &OperatorClient, machine: &MachineSummary) -> Option<String> {
    match request_boot_digest(server, &machine.id, None) {
        Ok(OperatorResponse::Good(shown)) => Some(reinstall_command(&shown)),
        // The reinstall was ordered, so the reason why there is no command is not printed here. `drophammer machine
        // boot-digest` prints the reason.
        Ok(OperatorResponse::Refused(_)) | Err(_) => None,
    }
}

fn request_boot_digest(
    server: &OperatorClient,
    id: &str,
    at: Option<&str>,
) -> Result<OperatorResponse<BootDigestResponse>> {
    // A value that is escaped for a URL path is also escaped for a query.
    let query = at.map(|at| format!("?server={}", encode_segment(at).trim_start_matches('/'))).unwrap_or_default();
    server.send_json(server.request(Method::GET, &format!("/v1/machine{}/boot-digest{query}", encode_segment(id))))
}

fn reinstall_command(shown: &BootDigestResponse) -> String {
    format!(
        "drophammer reinstall --server {server} --boot-digest {digest}",
        server = shown.server,
        digest = shown.digest
    )
}
