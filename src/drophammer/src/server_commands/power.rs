//! `drophammer machine power`: performs a power action on a machine, or prints its power state, through the server or
//! directly through the machine's management controller.

use super::subcommand_options::{ControllerOptions, PowerOptions};
use super::{OperatorClient, OperatorResponse, find_machine, print_json, print_refusal};
use api::operator_api::MachineSummary;
use api::power::{PowerRequest, PowerStateResponse};
use bmc::{PowerAction, PowerState, TargetMachine, Unguarded, read_power_state, switch_power};
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use common::output::{print_error, print_text};
use model::bmc::{Bmc, BmcAddress};
use model::inventory::FirmwareType;
use model::secret_text::SecretText;
use reqwest::Method;
use std::fmt::Display;
use std::time::Duration;

/// Timeout of a request to the server. Controllers are slow, and each action requires several requests to them.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Environment variable with the password for the controller, for use without a password file.
const PASSWORD: &str = "DROPHAMMER_BMC_PASSWORD";

/// Result of a power command.
#[derive(Debug, Clone, Copy)]
enum PowerResult {
    Switched(PowerAction),
    State(PowerState),
}

/// Performs the command directly through the controller on the command line. Returns `None` if the command line names
/// no controller.
pub(crate) fn switch_directly(power_options: &PowerOptions, json: bool) -> Option<Result<CommandOutcome>> {
    let address = power_options.controller.bmc.as_deref()?;
    let done = read_controller(address, &power_options.controller).and_then(|bmc| {
        let uuid = uuid::Uuid::parse_str(&power_options.machine).ok().map(|id| id.to_string());
        let firmware = power_options.controller.firmware.map(FirmwareType::from);
        let target = TargetMachine { uuid, firmware, ..TargetMachine::default() };
        let (result, warning) = match power_options.action.action() {
            Some(action) => (PowerResult::Switched(action), switch_power(&bmc, action, &target, &Unguarded)?),
            None => read_power_state(&bmc, &target).map(|(state, warning)| (PowerResult::State(state), warning))?,
        };
        warning.into_iter().for_each(|warning| print_error(&warning));
        Ok(result)
    });
    Some(report_refusal(done.and_then(|result| print_result(&power_options.machine, result, json))))
}

fn read_controller(address: &str, controller_options: &ControllerOptions) -> Result<Bmc> {
    let refuse = |why: String| Error::refusal(Phase::Control, why);
    let at = BmcAddress::parse(address).map_err(|why| refuse(format!("--bmc {address}: {why}")))?;
    let password = match &controller_options.bmc_password_file {
        Some(file) => std::fs::read_to_string(file).context(Phase::Control, || {
            format!("read the password from --bmc-password-file {file}", file = file.display())
        })?,
        None => std::env::var(PASSWORD).map_err(|_| {
            refuse(format!(
                "--bmc requires a password: specify --bmc-password-file FILE, or set {PASSWORD} in the environment"
            ))
        })?,
    };
    let username = controller_options.bmc_user.clone().unwrap_or_default();
    Ok(Bmc {
        at,
        username,
        password: SecretText::new(password.trim_end_matches(['\r', '\n'])),
        insecure: controller_options.bmc_insecure,
    })
}

/// Performs the command through the server.
pub(crate) fn switch_through_server(
    server: &OperatorClient,
    all: &[MachineSummary],
    power_options: &PowerOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let machine = match find_machine(all, &power_options.machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let response = match power_options.action.action() {
        Some(action) => {
            request_power(server, machine, action)?.map(|PowerRequest { action }| PowerResult::Switched(action))
        }
        None => request_state(server, machine)?.map(|PowerStateResponse { state }| PowerResult::State(state)),
    };
    match response {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(result) => print_result(&power_options.machine, result, json),
    }
}

/// Power-cycles the machine into PXE, so that it carries out its reinstall order or migration now. If the power cycle
/// fails, the order remains open.
///
/// # Errors
/// Returns an error if the machine cannot be power-cycled.
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
                // The order was placed, so the refused restart is reported as a failure (exit status 1) and not as a
                // refusal.
                let what = format!("the {ordered} is ordered, but {name} could not be restarted: {why}");
                return Err(Error::new(Phase::Control, what));
            }
            OperatorResponse::Good(PowerRequest { action }) if !json => {
                print_result(name, PowerResult::Switched(action), json)?;
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
    server.send_json(server.request(Method::POST, &path).timeout(REQUEST_TIMEOUT).json(&PowerRequest { action }))
}

fn request_state(server: &OperatorClient, machine: &MachineSummary) -> Result<OperatorResponse<PowerStateResponse>> {
    let path = format!("/v1/machine/{}/power", machine.id);
    server.send_json(server.request(Method::GET, &path).timeout(REQUEST_TIMEOUT))
}

fn print_result(machine: &str, result: PowerResult, json: bool) -> Result<CommandOutcome> {
    match (result, json) {
        (PowerResult::Switched(action), true) => print_json(&PowerRequest { action }),
        (PowerResult::State(state), true) => print_json(&PowerStateResponse { state }),
        (PowerResult::Switched(action), false) => print_line(machine, &action),
        (PowerResult::State(state), false) => print_line(machine, &state),
    }
}

fn print_line(machine: &str, what: &dyn Display) -> Result<CommandOutcome> {
    print_text(&format!("{machine}: {what}\n")).map(|()| CommandOutcome::Good)
}
