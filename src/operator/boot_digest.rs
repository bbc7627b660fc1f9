//! The command that starts a reinstall on the running machine, with the digest of what it boots.

use super::{Answer, Server, find, print_json, refused, step};
use crate::error::Result;
use crate::exit::Exit;
use crate::serve::boot_digest::BootDigestShown;
use crate::serve::operator::Listed;
use crate::stdout::print;
use reqwest::Method;

/// Prints the command for one machine.
///
/// # Errors
/// The server cannot be reached or fails.
pub fn run(server: &Server, all: &[Listed], machine: &str, at: Option<&str>, json: bool) -> Result<Exit> {
    let machine = match find(all, machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(refused(&why)),
    };
    match request(server, &machine.id, at)? {
        Answer::Refused(why) => Ok(refused(&why)),
        Answer::Good(shown) if json => print_json(&shown),
        Answer::Good(shown) => print(&format!("{}\n", command(&shown))).map(|()| Exit::Good),
    }
}

/// Returns the command for an ordered reinstall, or `None` if the server does not know its own URL or cannot compute the digest.
pub fn command_for(server: &Server, machine: &Listed) -> Option<String> {
    match request(server, &machine.id, None) {
        Ok(Answer::Good(shown)) => Some(command(&shown)),
        // The order has been placed; `drophammer machine boot-digest` prints the reason.
        Ok(Answer::Refused(_)) | Err(_) => None,
    }
}

fn request(server: &Server, id: &str, at: Option<&str>) -> Result<Answer<BootDigestShown>> {
    // A value that is escaped for a path is also valid in a query.
    let query = at.map(|at| format!("?server={}", step(at).trim_start_matches('/'))).unwrap_or_default();
    server.ask(server.request(Method::GET, &format!("/v1/machine{}/boot-digest{query}", step(id))))
}

fn command(shown: &BootDigestShown) -> String {
    format!("drophammer reinstall --server {} --boot-digest {}", shown.server, shown.digest)
}
