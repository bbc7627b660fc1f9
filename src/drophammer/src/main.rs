//! Program for workstations and servers, which also contains the agent.

use clap::CommandFactory;
use common::error::Result;
use common::exit_status::{CommandOutcome, report_refusal};
use drophammer::cli::{Cli, CliCommand, ImageArgs, ImageCommand};
use drophammer::environment_variables::{add_variables, is_variable_set};
use drophammer::{commands, completions, live_completion, machine_adoption, man_pages, operator_client};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = add_variables(Cli::command(), is_variable_set);
    agent::cli::run_program(command, |cli: Cli| report_outcome(cli.command))
}

/// Runs a command. A refusal, for example of an invalid file or URL, is printed, and has its own exit status in all
/// commands of workstations and servers.
fn report_outcome(command: CliCommand) -> Result<CommandOutcome> {
    let is_of_agent = matches!(command, CliCommand::Agent(_));
    let result = run_command(command);
    if is_of_agent { result } else { report_refusal(result) }
}

fn run_command(command: CliCommand) -> Result<CommandOutcome> {
    match command {
        CliCommand::Agent(command) => agent::cli::run_agent_command(&command),
        CliCommand::Image(ImageArgs { command }) => run_image_command(&command),
        CliCommand::Serve(serve) => server::run_serve(*serve),
        CliCommand::Machine(options) => operator_client::run_machine_command(&options),
        CliCommand::Adopt(options) => machine_adoption::run_adopt(&options),
        CliCommand::Rollout(options) => operator_client::rollouts::run_rollout_command(&options),
        CliCommand::Layout(options) => operator_client::layouts::run_layout_command(&options),
        CliCommand::Os(options) => operator_client::os_definitions::run_os_command(&options),
        CliCommand::Volume(options) => operator_client::volumes::run_volume_command(&options),
        CliCommand::Plan(options) => commands::run_plan(&options),
        CliCommand::Login(options) => operator_client::login::run_login(&options),
        CliCommand::Config(options) => operator_client::contexts::run_config(&options),
        CliCommand::Template(options) => operator_client::templates::run_template_command(&options),
        CliCommand::Size(options) => operator_client::sizes::run_size_command(&options),
        CliCommand::User(options) => operator_client::users::run_user_command(&options),
        CliCommand::Whoami(options) => operator_client::users::run_whoami(&options),
        CliCommand::Audit(options) => operator_client::audit::run_audit(&options),
        CliCommand::Apply(options) => operator_client::documents::run_apply(&options),
        CliCommand::Export(options) => operator_client::documents::run_export(&options),
        CliCommand::Site(options) => commands::run_site(options),
        CliCommand::Store(options) => commands::run_store(&options),
        CliCommand::Rack(options) => commands::run_rack(&options),
        CliCommand::Check(options) => commands::run_check(&options),
        CliCommand::Tree(options) => commands::run_tree(&options),
        CliCommand::Explain(options) => commands::run_explain(&options),
        CliCommand::Schema(options) => commands::run_schema(&options),
        CliCommand::Completion { shell } => completions::print_completion(shell),
        CliCommand::Complete { line } => live_completion::print_names(&line),
        CliCommand::Man { folder } => man_pages::write_man_pages(&folder),
    }
}

fn run_image_command(command: &ImageCommand) -> Result<CommandOutcome> {
    match command {
        ImageCommand::List(options) => operator_client::images::list_images(options),
        ImageCommand::Show(options) => operator_client::images::show_image(options),
        ImageCommand::Apply(options) => operator_client::images::apply_image(options),
        ImageCommand::Modify(options) => operator_client::images::modify_image(options),
        ImageCommand::Delete(options) => operator_client::images::delete_image(options),
        ImageCommand::Add(options) => commands::image_add::add_image(options),
        ImageCommand::Burn(options) => agent::image_burn::run(options),
        ImageCommand::Pack(options) => image::pack::run_pack(options),
    }
}
