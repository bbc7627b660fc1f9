//! `drophammer machine power`: switches a machine through the server, or directly through its management controller.

use super::options::{Controller, Switch};
use super::{Answer, Server, find, print_json, refused};
use crate::bmc::{Action, Address, Bmc};
use crate::error::{Context, Error, Phase, Result};
use crate::exit::{Exit, or_refused};
use crate::pull::Secret;
use crate::serve::operator::Listed;
use crate::serve::power::Power;
use crate::stdout::{complain, print};
use reqwest::Method;
use std::time::Duration;

/// Timeout of a request. Controllers are slow, and the server sends them several requests.
const ANSWER: Duration = Duration::from_secs(300);

/// Environment variable with the password, if no file is given.
const PASSWORD: &str = "DROPHAMMER_BMC_PASSWORD";

/// Switches the machine directly through the controller named on the command line. Returns `None` if none is named.
pub fn from_here(asked: &Switch, json: bool) -> Option<Result<Exit>> {
    let address = asked.controller.bmc.as_deref()?;
    let done = controller(address, &asked.controller).and_then(|bmc| {
        let id = uuid::Uuid::parse_str(&asked.machine).ok().map(|id| id.to_string());
        let warning = bmc.act(asked.action, id.as_deref())?;
        warning.into_iter().for_each(|warning| complain(&warning));
        Ok(())
    });
    Some(or_refused(done.and_then(|()| said(&asked.machine, asked.action, json))))
}

fn controller(address: &str, asked: &Controller) -> Result<Bmc> {
    let refuse = |why: String| Error::refusal(Phase::Control, why);
    let at = Address::read(address).map_err(|why| refuse(format!("--bmc {address}: {why}")))?;
    let password = match &asked.bmc_password_file {
        Some(file) => std::fs::read_to_string(file)
            .context(Phase::Control, || format!("read the password of --bmc-password-file {}", file.display()))?,
        None => std::env::var(PASSWORD).map_err(|_| {
            refuse(format!(
                "--bmc requires a password: give --bmc-password-file FILE, or set {PASSWORD} in the environment"
            ))
        })?,
    };
    let username = asked.bmc_user.clone().unwrap_or_default();
    Ok(Bmc {
        at,
        username,
        password: Secret::new(password.trim_end_matches(['\r', '\n'])),
        insecure: asked.bmc_insecure,
    })
}

/// Switches the machine through the server.
pub fn switch(server: &Server, all: &[Listed], asked: &Switch, json: bool) -> Result<Exit> {
    let machine = match find(all, &asked.machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(refused(&why)),
    };
    match ask(server, machine, asked.action)? {
        Answer::Refused(why) => Ok(refused(&why)),
        Answer::Good(Power { action }) => said(&asked.machine, action, json),
    }
}

/// Power-cycles the machine into PXE, so that it carries out the order now. The order remains even if this fails.
pub fn now(server: &Server, machine: &Listed, ordered: &str, json: bool) -> Result<Exit> {
    let name = if machine.name.is_empty() { &machine.id } else { &machine.name };
    for action in [Action::Pxe, Action::Cycle] {
        match ask(server, machine, action)? {
            Answer::Refused(why) => {
                return Ok(refused(&format!("the {ordered} is ordered, but {name} could not be restarted: {why}")));
            }
            Answer::Good(Power { action }) if !json => drop(said(name, action, json)?),
            Answer::Good(_) => {}
        }
    }
    Ok(Exit::Good)
}

fn ask(server: &Server, machine: &Listed, action: Action) -> Result<Answer<Power>> {
    let path = format!("/v1/machine/{}/power", machine.id);
    server.ask(server.request(Method::POST, &path).timeout(ANSWER).json(&Power { action }))
}

fn said(machine: &str, action: Action, json: bool) -> Result<Exit> {
    match json {
        true => print_json(&Power { action }),
        false => print(&format!("{machine}: {action}\n")).map(|()| Exit::Good),
    }
}
