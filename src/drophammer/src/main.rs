//! Program for workstations and servers, which also contains the agent.

use clap::CommandFactory;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::Result;
use drophammer::cli::{Cli, CliCommand, ImageArgs, ImageCommand};
use drophammer::command_examples::add_examples;
use drophammer::missing_verbs::explain_missing_verb;
use drophammer::option_environment_variables::{add_variables, is_variable_set};
use drophammer::{completions, live_completion, local_commands, machine_adoption, man_pages, server_commands};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = add_examples(add_variables(Cli::command(), is_variable_set));
    agent::cli::run_program(command, explain_missing_verb, |cli: Cli| report_outcome(cli.command))
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
        CliCommand::Machine(options) => server_commands::run_machine_command(&options),
        CliCommand::Adopt(options) => machine_adoption::run_adopt(&options),
        CliCommand::Rollout(options) => server_commands::rollouts::run_rollout_command(&options),
        CliCommand::Layout(options) => server_commands::layouts::run_layout_command(&options),
        CliCommand::Os(options) => server_commands::os_definitions::run_os_command(&options),
        CliCommand::Volume(options) => server_commands::volumes::run_volume_command(&options),
        CliCommand::Plan(options) => local_commands::run_plan(&options),
        CliCommand::Login(options) => server_commands::login::run_login(&options),
        CliCommand::Config(options) => server_commands::contexts::run_config(&options),
        CliCommand::Template(options) => server_commands::templates::run_template_command(&options),
        CliCommand::Size(options) => server_commands::sizes::run_size_command(&options),
        CliCommand::User(options) => server_commands::users::run_user_command(&options),
        CliCommand::Whoami(options) => server_commands::users::run_whoami(&options),
        CliCommand::Audit(options) => server_commands::audit::run_audit(&options),
        CliCommand::Apply(options) => server_commands::apply_and_export::run_apply(&options),
        CliCommand::Export(options) => server_commands::apply_and_export::run_export(&options),
        CliCommand::Site(options) => local_commands::run_site(options),
        CliCommand::Store(options) => local_commands::run_store(&options),
        CliCommand::Rack(options) => local_commands::run_rack(&options),
        CliCommand::Check(options) => local_commands::run_check(&options),
        CliCommand::Tree(options) => local_commands::run_tree(&options),
        CliCommand::Explain(options) => local_commands::run_explain(&options),
        CliCommand::Schema(options) => local_commands::run_schema(&options),
        CliCommand::Completion { shell } => completions::print_completion(shell),
        CliCommand::Complete { line } => live_completion::print_names(&line),
        CliCommand::Man { folder } => man_pages::write_man_pages(&folder),
    }
}

fn run_image_command(command: &ImageCommand) -> Result<CommandOutcome> {
    match command {
        ImageCommand::List(options) => server_commands::images::list_images(options),
        ImageCommand::Show(options) => server_commands::images::show_image(options),
        ImageCommand::Apply(options) => server_commands::images::apply_image(options),
        ImageCommand::Modify(options) => server_commands::images::modify_image(options),
        ImageCommand::Delete(options) => server_commands::images::delete_image(options),
        ImageCommand::Add(options) => local_commands::image_add::add_image(options),
        ImageCommand::Burn(options) => agent::image_burn_command::run(options),
        ImageCommand::Pack(options) => image::pack::run_pack(options),
    }
}
