//! `drophammer machine boot-digest`: prints the command that starts a reinstall on the running machine. The command contains the digest of
//! kernel, ramdisk and kernel command line.

use super::{OperatorClient, OperatorResponse, encode_segment, find_machine, print_json, print_refusal};
use api::boot_digest::BootDigestResponse;
use api::operator::MachineSummary;
use common::error::Result;
use common::exit_status::CommandOutcome;
use common::output::print_text;
use reqwest::Method;

/// Prints the reinstall command for one machine.
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

/// Returns the command for an ordered reinstall, or `None` if the server cannot be reached or does not return a digest,
/// for example because its own URL is not configured.
pub(crate) fn reinstall_command_for(server: &OperatorClient, machine: &MachineSummary) -> Option<String> {
    match request_boot_digest(server, &machine.id, None) {
        Ok(OperatorResponse::Good(shown)) => Some(reinstall_command(&shown)),
        // The order has been placed; `drophammer machine boot-digest` prints the reason.
        Ok(OperatorResponse::Refused(_)) | Err(_) => None,
    }
}

fn request_boot_digest(
    server: &OperatorClient,
    id: &str,
    at: Option<&str>,
) -> Result<OperatorResponse<BootDigestResponse>> {
    // A value that is escaped for a path is also valid in a query.
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
