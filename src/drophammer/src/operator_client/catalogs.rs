//! `drophammer template` and `drophammer size`: the deploy templates and the sizes of a server.

use super::options::ServerOptions;
use super::{OperatorClient, OperatorResponse, print_refusal};
use crate::object_list::{ListCell, ListColumn, ListOptions, ObjectList, print_list, print_object, text_of_field};
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use common::error::Result;
use common::exit_status::CommandOutcome;
use common::format::format_bytes;
use reqwest::Method;
use serde_json::Value;

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
    List(ListOptions),
    /// Print a deploy template as YAML.
    Show {
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct SizeOptions {
    #[command(subcommand)]
    pub command: SizeCommand,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, global = true, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum SizeCommand {
    /// List the sizes: id, description, and the hardware that machines of the size have.
    #[command(visible_alias = "ls")]
    List(ListOptions),
    /// Print a size as YAML.
    Show {
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Lists the deploy templates, or prints one of them.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn run_template_command(options: &TemplateOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let mut all = match server.send_json::<Value>(server.request(Method::GET, "/v1/deploy-templates"))? {
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
        OperatorResponse::Good(all) => all,
    };
    let all = all["deploy-templates"].as_array_mut().map(std::mem::take).unwrap_or_default();
    match &options.command {
        TemplateCommand::List(list) => print_list(&template_columns(), &all, list, options.json),
        TemplateCommand::Show { name } => print_object(&template_columns(), &all, name, options.json),
    }
}

/// Lists the sizes, or prints one of them.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn run_size_command(options: &SizeOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let all = match server.send_json::<Vec<Value>>(server.request(Method::GET, "/v1/size"))? {
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
        OperatorResponse::Good(all) => all,
    };
    match &options.command {
        SizeCommand::List(list) => print_list(&size_columns(), &all, list, options.json),
        SizeCommand::Show { id } => print_object(&size_columns(), &all, id, options.json),
    }
}

fn template_columns() -> ObjectList<'static, Value> {
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

fn size_columns() -> ObjectList<'static, Value> {
    let columns = vec![
        ListColumn::new("id", |size| text_of_field(size, "id")),
        ListColumn::new("name", |size| text_of_field(size, "name")).only_wide(),
        ListColumn::new("description", |size| text_of_field(size, "description")).with_prose(),
        ListColumn::new("cores", |size| describe_range(size, "cores", |count| count.to_string())),
        ListColumn::new("memory", |size| describe_range(size, "memory", format_bytes)),
        ListColumn::new("storage", |size| describe_range(size, "storage", format_bytes)),
    ];
    ObjectList { command: "size", noun: "sizes", name: |size| text_of_field(size, "id"), columns }
}

/// Returns the values that a size's constraint allows: `8`, or `16.0 GB - 70.0 GB`. The column is sorted by the least value.
fn describe_range(size: &Value, kind: &str, format: fn(u64) -> String) -> ListCell {
    let constraints = size["constraints"].as_array().into_iter().flatten();
    let ranges = constraints.filter(|constraint| constraint["type"] == kind);
    let ranges = ranges.map(|range| ["min", "max"].map(|bound| range[bound].as_u64().unwrap_or_default()));
    let ranges: Vec<[u64; 2]> = ranges.collect();
    let texts = ranges.iter().map(|[min, max]| match min == max {
        true => format(*min),
        false => format!("{} - {}", format(*min), format(*max)),
    });
    ListCell {
        order: ranges.iter().map(|[min, _]| min).min().map(u64::to_string),
        ..ListCell::from(texts.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;
    use serde_json::json;

    #[test]
    fn sizes_are_listed_with_their_hardware() {
        let all = [
            json!({"id": "s1-large", "constraints": [{"type": "cores", "min": 8, "max": 16},
                {"type": "memory", "min": 16_000_000_000_u64, "max": 70_000_000_000_u64}]}),
            json!({"id": "c1-small", "description": "old", "constraints": [{"type": "cores", "min": 4, "max": 4}]}),
        ];
        let table = format_wide(&size_columns(), &all);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "c1-small  -     old          4       -                  -");
        assert_eq!(lines[2], "s1-large  -     -            8 - 16  16.0 GB - 70.0 GB  -");
    }

    #[test]
    fn sizes_are_sorted_by_their_values() {
        let size =
            |id: &str, bytes: u64| json!({"id": id, "constraints": [{"type": "memory", "min": bytes, "max": bytes}]});
        let all = [size("a", 2_000_000_000), size("b", 128_000_000), size("c", 16_000_000_000)];
        let mut sorted: Vec<&Value> = all.iter().collect();
        size_columns().sort(&mut sorted, Some("memory")).unwrap();
        assert_eq!(sorted.iter().map(|size| text_of_field(size, "id")).collect::<String>(), "bac");
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
