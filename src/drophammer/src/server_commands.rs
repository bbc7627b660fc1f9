//! `drophammer machine`, `rollout`, `layout`, `os`, `volume`, `size`, `template`, `user`, `audit`, `apply`, `export`,
//! `image list`, `image show`, `image apply`, `image modify` and `image delete`: the operator's client for `drophammer
//! serve`.

mod add_machine;
mod allocate_machine;
mod api_client;
pub mod apply_and_export;
pub mod audit;
mod boot_digest;
mod confirm_restored;
pub(crate) mod connection;
pub mod contexts;
mod document_endpoint;
mod fact_sections;
pub(crate) mod filter_completion;
mod free_machine;
pub mod images;
pub mod layouts;
mod locks;
pub mod login;
mod machine_details;
mod machine_list;
pub(crate) mod machine_plan;
pub(crate) mod machine_plan_forecast;
mod message_rewording;
mod migration;
mod oidc_login;
pub mod os_definitions;
mod per_machine_requests;
mod power;
mod reinstall;
mod reinstall_options;
mod rollout_confirmation;
pub mod rollouts;
mod saved_plan_reinstall;
mod server_problems;
pub mod sizes;
mod subcommand_options;
pub mod templates;
#[cfg(test)]
mod tests;
mod unrecorded_installations;
pub mod users;
pub mod volumes;
pub(crate) mod watched_output;

pub(crate) use api_client::{OperatorClient, OperatorResponse};
pub(crate) use connection::ServerOptions;
pub(crate) use images::{
    ApplyImageOptions, DeleteImageOptions, ListImagesOptions, ModifyImageOptions, ShowImageOptions,
};
pub(crate) use reinstall::describe_differences;
pub(crate) use reinstall_options::ReinstallOverrideOptions;
pub(crate) use saved_plan_reinstall::fetch_reinstall_preview;
pub(crate) use subcommand_options::{LayoutOptions, MachineOptions, VolumeOptions};

use crate::local_commands::plan::{PlanArgs, run_plan};
use ::api::operator_api::{MachineSummary, RenameRequest};
use common::command_outcome::CommandOutcome;
use common::encoding::percent_encode;
use common::error::Result;
use common::error_code::ErrorCode;
use common::output::{print_error, print_text, to_json};
use reqwest::Method;
use serde::Serialize;
use subcommand_options::MachineCommand;

/// Performs the command and prints the result.
///
/// # Errors
/// Returns an error if the server cannot be reached, rejects the token, or fails.
pub fn run_machine_command(options: &MachineOptions) -> Result<CommandOutcome> {
    if let MachineCommand::Power(command_options) = &options.command
        && let Some(done) = power::switch_directly(command_options, options.json)
    {
        return done;
    }
    let server = OperatorClient::new(&options.of)?;
    let fetched = match &options.command {
        MachineCommand::List(command_options) => machine_list::fetch_machines(&server, command_options)?,
        _ => server.send_json(server.request(Method::GET, "/v1/machines"))?,
    };
    let all: Vec<MachineSummary> = match fetched {
        OperatorResponse::Good(all) => all,
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
    };
    match &options.command {
        MachineCommand::List(command_options) => {
            machine_list::list_machines(&server, &all, command_options, options.json)
        }
        MachineCommand::Add(command_options) => add_machine::add_machine(&server, &all, command_options, options.json),
        MachineCommand::Show(command_options) => {
            machine_details::show_machine(&server, &all, command_options, options.json)
        }
        MachineCommand::Events(command_options) => {
            machine_details::event_lists::show_events(&server, &all, command_options, options.json)
        }
        MachineCommand::History(command_options) => {
            machine_details::event_lists::show_history(&server, &all, command_options, options.json)
        }
        MachineCommand::Logs(command_options) => {
            machine_details::show_logs(&server, &all, command_options, options.json)
        }
        MachineCommand::Plan(command_options) => plan_machine(options, command_options),
        MachineCommand::Lock(command_options) => locks::lock_machines(&server, &all, command_options, options.json),
        MachineCommand::Unlock(command_options) => locks::unlock_machines(&server, &all, command_options, options.json),
        MachineCommand::Free(command_options) => {
            free_machine::free_machines(&server, &all, &command_options.machines, options.json)
        }
        MachineCommand::Allocate(command_options) => {
            allocate_machine::allocate_machines(&server, &all, command_options, options.json)
        }
        MachineCommand::Rename(command_options) => rename_machine(&server, command_options, options.json),
        MachineCommand::Modify(command_options) => match find_machine(&all, &command_options.machine) {
            Ok(machine) => {
                let path = format!("/v1/machine/{}/os-parameters", machine.id);
                os_definitions::change_parameters(&server, &path, &command_options.parameters, options.json)
            }
            Err(why) => Ok(print_refusal(&why)),
        },
        MachineCommand::Power(command_options) => {
            power::switch_through_server(&server, &all, command_options, options.json)
        }
        MachineCommand::Move(command_options) => {
            migration::run_move_command(&server, &all, command_options, options.json)
        }
        MachineCommand::Adopt(command_options) => {
            unrecorded_installations::adopt_machines(&server, &all, command_options, options.json)
        }
        MachineCommand::BootDigest(command_options) => boot_digest::print_boot_digest(
            &server,
            &all,
            &command_options.machine,
            command_options.at.as_deref(),
            options.json,
        ),
        MachineCommand::Confirm(command_options) => {
            confirm_restored::confirm_machines(&server, &all, command_options, options.json)
        }
        MachineCommand::Reinstall(command_options) => {
            reinstall::reinstall_machine(&server, &all, command_options, options.json)
        }
    }
}

/// Runs `drophammer plan --machine`.
fn plan_machine(
    options: &MachineOptions,
    plan_machine_options: &reinstall_options::PlanMachineOptions,
) -> Result<CommandOutcome> {
    run_plan(&PlanArgs {
        machine: Some(plan_machine_options.machine.clone()),
        of: options.of.clone(),
        reinstall: plan_machine_options.reinstall,
        image: plan_machine_options.image.clone(),
        overrides: plan_machine_options.overrides.clone(),
        out: plan_machine_options.out.clone(),
        force: plan_machine_options.force,
        inventory: plan_machine_options.inventory.clone(),
        json: options.json,
        detailed_exitcode: plan_machine_options.detailed_exitcode,
        ..PlanArgs::default()
    })
}

/// Moves the records of a machine to its new id. The old id is not looked up in the list of machines, because a machine
/// file with the old id may no longer exist.
fn rename_machine(
    server: &OperatorClient,
    rename_options: &subcommand_options::RenameOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let (old, new) = (rename_options.old.to_lowercase(), rename_options.new.to_lowercase());
    let is_id = |text: &str| uuid::Uuid::parse_str(text).is_ok();
    if let Some(bad) = [&old, &new].into_iter().find(|text| !is_id(text)) {
        return Ok(print_refusal(&format!(
            "{bad:?} is not a machine id (a UUID); to change a machine's name, edit its file in machines/"
        )));
    }
    let request =
        server.request(Method::POST, &format!("/v1/machine/{old}/rename")).json(&RenameRequest { id: new.clone() });
    match server.send_json::<MachineSummary>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(listed) if json => print_json(&listed),
        OperatorResponse::Good(_) => {
            print_text(&format!(
                "The records of {old} belong to {new} now. The machine file in machines/ must contain `id: {new}`.\n"
            ))?;
            Ok(CommandOutcome::Good)
        }
    }
}

/// Encodes a name as one segment of a URL path.
fn encode_segment(name: &str) -> String {
    format!("/{}", percent_encode(name, ""))
}

fn print_refusal(why: &str) -> CommandOutcome {
    print_error(&ErrorCode::Settings.annotate_uncoded(why));
    CommandOutcome::Refused
}

fn print_json(value: &impl Serialize) -> Result<CommandOutcome> {
    print_text(&(to_json(value)? + "\n"))?;
    Ok(CommandOutcome::Good)
}

/// Finds the machine with this id or this name.
pub(crate) fn find_machine<'a>(all: &'a [MachineSummary], wanted: &str) -> Result<&'a MachineSummary, String> {
    let by_id = all.iter().find(|machine| machine.id.eq_ignore_ascii_case(wanted));
    let by_name: Vec<&MachineSummary> =
        all.iter().filter(|machine| machine.name == wanted && !wanted.is_empty()).collect();
    match (by_id, &by_name[..]) {
        (Some(machine), _) => Ok(machine),
        (None, [machine]) => Ok(machine),
        (None, []) => {
            let why = format!("the server has no machine {wanted:?}; `drophammer machine list` lists its machines");
            Err(ErrorCode::ObjectMissing.annotate(why))
        }
        (None, several) => {
            let ids: Vec<&str> = several.iter().map(|machine| machine.id.as_str()).collect();
            Err(format!(
                "{count} machines are named {wanted:?}: use one of the ids {ids}",
                count = several.len(),
                ids = ids.join(" or ")
            ))
        }
    }
}
