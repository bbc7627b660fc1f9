//! `drophammer template`: the deploy templates of a server.

use super::connection::ServerOptions;
use super::watched_output::{WatchedListOptions, print_watched_list};
use super::{OperatorClient, OperatorResponse, encode_segment, print_json, print_refusal};
use crate::local_commands::check::DocumentType;
use crate::local_commands::read_text;
use crate::object_list::{DocumentOptions, ListColumn, ObjectList, print_object, text_of_field};
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::replace_hidden;
use common::output::print_text;
use reqwest::Method;
use serde_json::{Value, json};
use site::operator_files::parse_unvalidated;
use std::path::{Path, PathBuf};

const AT: &str = "/v1/deploy-templates";
/// Fields of a template's file that contain times. The server sets them.
const TIMES: [&str; 2] = ["created_at", "updated_at"];

#[derive(Debug, Args)]
pub struct TemplateOptions {
    #[command(subcommand)]
    pub command: TemplateCommand,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, global = true, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum TemplateCommand {
    /// List the deploy templates: name and steps.
    #[command(visible_alias = "ls")]
    List(WatchedListOptions),
    /// Print a deploy template as YAML.
    Show {
        /// Name of the deploy template.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: DocumentOptions,
    },
    /// Create a deploy template from a file. Fails if the server already has a template with this name.
    #[command(visible_alias = "add")]
    Create {
        /// File with the template; - reads standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Create a deploy template from a file, or replace the steps and `extra` of the template with this name.
    Apply {
        /// File with the template; - reads standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete a deploy template.
    #[command(visible_alias = "rm")]
    Delete {
        /// Name of the deploy template.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Lists, shows or changes the deploy templates.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does, or if a file cannot be read.
pub fn run_template_command(options: &TemplateOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    match &options.command {
        TemplateCommand::List(list) => {
            print_watched_list(&template_columns(), list, options.json, || fetch_templates(&server))
        }
        TemplateCommand::Show { name, format } => match fetch_templates(&server)? {
            OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
            OperatorResponse::Good(all) => {
                print_object(&template_columns(), &all, name, format.show_format(options.json)?)
            }
        },
        TemplateCommand::Create { file } => match read_template_file(file)? {
            Err(why) => Ok(print_refusal(&why)),
            Ok(template) => create_template(&server, &template, options.json),
        },
        TemplateCommand::Apply { file } => match read_template_file(file)? {
            Err(why) => Ok(print_refusal(&why)),
            Ok(template) => apply_template(&server, &template, options.json),
        },
        TemplateCommand::Delete { name } => delete_template(&server, name),
    }
}

pub(super) fn fetch_templates(server: &OperatorClient) -> Result<OperatorResponse<Vec<Value>>> {
    let all = server.send_json::<Value>(server.request(Method::GET, AT))?;
    Ok(all.map(|mut all| all["deploy-templates"].as_array_mut().map(std::mem::take).unwrap_or_default()))
}

/// Reads a template from the operator's file. The inner error lists the problems as `drophammer check` does.
fn read_template_file(file: &Path) -> Result<std::result::Result<Value, String>> {
    let text = read_text(file)?;
    let template = DocumentType::Template.check_file(file, &text).and_then(|()| parse_unvalidated(&text));
    Ok(template.map(|mut template| {
        if let Some(fields) = template.as_object_mut() {
            fields.retain(|name, _| !TIMES.contains(&name.as_str()));
        }
        template
    }))
}

fn create_template(server: &OperatorClient, template: &Value, as_json: bool) -> Result<CommandOutcome> {
    print_done(server.send_json(server.request(Method::POST, AT).json(template))?, as_json, "was created")
}

fn apply_template(server: &OperatorClient, template: &Value, as_json: bool) -> Result<CommandOutcome> {
    let all = match fetch_templates(server)? {
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
        OperatorResponse::Good(all) => all,
    };
    if !all.iter().any(|one| one["name"] == template["name"]) {
        return create_template(server, template, as_json);
    }
    let path = format!("{AT}{}", encode_segment(&text_of_field(template, "name")));
    let request = server.request(Method::PATCH, &path).json(&replacement_patch(template));
    print_done(server.send_json(request)?, as_json, "was updated from the file")
}

/// Returns the JSON patch that replaces steps and `extra`.
fn replacement_patch(template: &Value) -> Value {
    let extra = template.get("extra").filter(|extra| extra.is_object()).cloned().unwrap_or_else(|| json!({}));
    json!([
        {"op": "replace", "path": "/steps", "value": template["steps"]},
        {"op": "replace", "path": "/extra", "value": extra},
    ])
}

fn delete_template(server: &OperatorClient, name: &str) -> Result<CommandOutcome> {
    let path = format!("{AT}{}", encode_segment(name));
    match server.send_text(server.request(Method::DELETE, &path))? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(_) => print_text(&format!("Deploy template {} was deleted.\n", replace_hidden(name)))
            .map(|()| CommandOutcome::Good),
    }
}

fn print_done(answer: OperatorResponse<Value>, as_json: bool, done: &str) -> Result<CommandOutcome> {
    match answer {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(template) if as_json => print_json(&template),
        OperatorResponse::Good(template) => {
            let name = replace_hidden(&text_of_field(&template, "name"));
            print_text(&format!("Deploy template {name} {done}.\n")).map(|()| CommandOutcome::Good)
        }
    }
}

pub(super) fn template_columns() -> ObjectList<'static, Value> {
    let columns = vec![
        ListColumn::new("name", |template| text_of_field(template, "name")),
        ListColumn::new("steps", |template: &Value| {
            let steps = template["steps"].as_array().into_iter().flatten();
            let names =
                steps.map(|step| format!("{}.{}", text_of_field(step, "interface"), text_of_field(step, "step")));
            names.collect::<Vec<_>>().join(", ")
        })
        .with_prose(),
        ListColumn::new("uuid", |template| text_of_field(template, "uuid")).only_wide(),
    ];
    ObjectList {
        command: "template",
        noun: "deploy templates",
        name: |template| text_of_field(template, "name"),
        columns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;

    #[test]
    fn a_file_becomes_a_request_without_times() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let step = "{interface: raid, step: apply_configuration, args: {}, priority: 10}";
        let text = format!("name: CUSTOM_A\nsteps: [{step}]\ncreated_at: '2026-11-29T10:00:00Z'\n");
        std::fs::write(&file, text).unwrap();
        let template = read_template_file(&file).unwrap().unwrap();
        assert_eq!(template.as_object().unwrap().keys().collect::<Vec<_>>(), ["name", "steps"]);
        let patch = replacement_patch(&template);
        assert_eq!((&patch[0]["value"], &patch[1]["value"]), (&template["steps"], &json!({})));
        std::fs::write(&file, "name: CUSTOM_A\nsteps: 5\n").unwrap();
        let why = read_template_file(&file).unwrap().unwrap_err();
        assert!(why.contains("steps: must be a list, found a number"), "{why}");
    }

    #[test]
    fn templates_are_listed_with_their_steps() {
        let steps = json!([{"interface": "raid", "step": "apply"}, {"interface": "deploy", "step": "install"}]);
        let table = format_wide(&template_columns(), &[json!({"name": "CUSTOM_MIRROR", "uuid": "u", "steps": steps})]);
        assert_eq!(
            table,
            "NAME           STEPS                       UUID\nCUSTOM_MIRROR  raid.apply, deploy.install  u\n"
        );
    }
}
