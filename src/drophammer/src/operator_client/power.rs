//! `drophammer machine power`: carries out a power action on a machine through the server, or directly through its
//! management controller.

use super::options::{ControllerOptions, PowerOptions};
use super::{OperatorClient, OperatorResponse, find_machine, print_json, print_refusal};
use api::operator::MachineSummary;
use api::power::PowerRequest;
use bmc::{PowerAction, TargetMachine, switch_power};
use common::error::{Context, Error, Phase, Result};
use common::exit_status::{CommandOutcome, report_refusal};
use common::output::{print_error, print_text};
use model::bmc::{Bmc, BmcAddress};
use model::inventory::FirmwareType;
use model::registry_auth::SecretText;
use reqwest::Method;
use std::time::Duration;

/// Timeout of a request to the server. Controllers are slow, and the server sends them several requests for each action.
const ANSWER: Duration = Duration::from_secs(300);

/// Environment variable that contains the password if no password file is specified.
const PASSWORD: &str = "DROPHAMMER_BMC_PASSWORD";

/// Carries out the power action directly through the controller named on the command line. Returns `None` if no
/// controller is named.
pub(crate) fn switch_directly(asked: &PowerOptions, json: bool) -> Option<Result<CommandOutcome>> {
    let address = asked.controller.bmc.as_deref()?;
    let done = read_controller(address, &asked.controller).and_then(|bmc| {
        let uuid = uuid::Uuid::parse_str(&asked.machine).ok().map(|id| id.to_string());
        let firmware = asked.controller.firmware.map(FirmwareType::from);
        let warning = switch_power(&bmc, asked.action, &TargetMachine { uuid, firmware })?;
        warning.into_iter().for_each(|warning| print_error(&warning));
        Ok(())
    });
    Some(report_refusal(done.and_then(|()| print_action(&asked.machine, asked.action, json))))
}

fn read_controller(address: &str, asked: &ControllerOptions) -> Result<Bmc> {
    let refuse = |why: String| Error::refusal(Phase::Control, why);
    let at = BmcAddress::parse(address).map_err(|why| refuse(format!("--bmc {address}: {why}")))?;
    let password = match &asked.bmc_password_file {
        Some(file) => std::fs::read_to_string(file)
            .context(Phase::Control, || format!("read the password from --bmc-password-file {}", file.display()))?,
        None => std::env::var(PASSWORD).map_err(|_| {
            refuse(format!(
                "--bmc requires a password: specify --bmc-password-file FILE, or set {PASSWORD} in the environment"
            ))
        })?,
    };
    let username = asked.bmc_user.clone().unwrap_or_default();
    Ok(Bmc {
        at,
        username,
        password: SecretText::new(password.trim_end_matches(['\r', '\n'])),
        insecure: asked.bmc_insecure,
    })
}

/// Carries out the power action through the server.
pub(crate) fn switch_through_server(
    server: &OperatorClient,
    all: &[MachineSummary],
    asked: &PowerOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let machine = match find_machine(all, &asked.machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    match request_power(server, machine, asked.action)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(PowerRequest { action }) => print_action(&asked.machine, action, json),
    }
}

/// Power-cycles the machine into PXE, so that the machine carries out its reinstall or migration order now. If the
/// power cycle fails, the reinstall or migration order remains open.
pub(crate) fn power_cycle_now(
    server: &OperatorClient,
    machine: &MachineSummary,
    ordered: &str,
    json: bool,
) -> Result<CommandOutcome> {
    let name = if machine.name.is_empty() { &machine.id } else { &machine.name };
    for action in [PowerAction::Pxe, PowerAction::Cycle] {
        match request_power(server, machine, action)? {
            OperatorResponse::Refused(why) => {
                return Ok(print_refusal(&format!(
                    "the {ordered} is ordered, but {name} could not be restarted: {why}"
                )));
            }
            OperatorResponse::Good(PowerRequest { action }) if !json => {
                print_action(name, action, json)?;
            }
            OperatorResponse::Good(_) => {}
        }
    }
    Ok(CommandOutcome::Good)
}

fn request_power(
    server: &OperatorClient,
    machine: &MachineSummary,
    action: PowerAction,
) -> Result<OperatorResponse<PowerRequest>> {
    let path = format!("/v1/machine/{}/power", machine.id);
    server.send_json(server.request(Method::POST, &path).timeout(ANSWER).json(&PowerRequest { action }))
}

fn print_action(machine: &str, action: PowerAction, json: bool) -> Result<CommandOutcome> {
    match json {
        true => print_json(&PowerRequest { action }),
        false => print_text(&format!("{machine}: {action}\n")).map(|()| CommandOutcome::Good),
    }
}
