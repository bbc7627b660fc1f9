//! `drophammer layout`: the layouts of a server.

use super::document_endpoint::DocumentEndpoint;
use super::subcommand_options::{LayoutCommand, LayoutOptions};
use super::watched_output::print_watched_list;
use super::{OperatorClient, OperatorResponse, encode_segment, print_json, print_refusal};
use crate::local_commands::layout_from_machine::run_from_machine;
use crate::local_commands::{check_layout_text, read_text};
use crate::object_list::{ListColumn, ObjectList, ShowFormat, text_of_field};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output::print_text;
use model::layout::{canonical_yaml, read_json};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;

const LAYOUTS_PATH: &str = "/v1/filesystemlayout";

/// Performs the command and prints the result.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does, or if a file cannot be read.
pub fn run_layout_command(options: &LayoutOptions) -> Result<CommandOutcome> {
    let server = match &options.command {
        // This command needs a server only for the inventory of a registered machine.
        LayoutCommand::FromMachine(machine) => return run_from_machine(machine, &options.of),
        _ => OperatorClient::new(&options.of)?,
    };
    let endpoint = DocumentEndpoint {
        server: &server,
        noun: "Layout",
        path: LAYOUTS_PATH,
        list: LAYOUTS_PATH,
        as_json: options.json,
    };
    match &options.command {
        LayoutCommand::FromMachine(machine) => run_from_machine(machine, &options.of),
        LayoutCommand::List(list) => print_watched_list(&layout_columns(), list, options.json, || {
            server.send_json(server.request(Method::GET, LAYOUTS_PATH))
        }),
        LayoutCommand::Show { id, format } => {
            let request = server.request(Method::GET, &format!("{LAYOUTS_PATH}{}", encode_segment(id)));
            print_layout(server.send_json(request)?, format.show_format(options.json)?)
        }
        LayoutCommand::Delete { id } => endpoint.delete_document(id),
        LayoutCommand::Create { file } => match read_layout_file(file)? {
            Err(why) => Ok(print_refusal(&why)),
            Ok(layout) => endpoint.create_document(&layout),
        },
        LayoutCommand::Apply { file } => match read_layout_file(file)? {
            Err(why) => Ok(print_refusal(&why)),
            Ok(layout) => endpoint.apply_document(&layout),
        },
    }
}

/// Reads a layout in any supported syntax from a file. The inner error lists the problems of the layout, with line and
/// column, in the format of `drophammer check`.
fn read_layout_file(file: &Path) -> Result<Result<Value, String>> {
    Ok(check_layout_text(file, &read_text(file)?).map(|parsed| json!(parsed.layout)))
}

fn print_layout(answer: OperatorResponse<Value>, format: ShowFormat) -> Result<CommandOutcome> {
    match answer {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(layout) if format == ShowFormat::Json => print_json(&layout),
        OperatorResponse::Good(layout) => match read_json(&layout) {
            Ok(parsed) => print_text(&canonical_yaml(&parsed.layout)).map(|()| CommandOutcome::Good),
            // The layout may be from a newer server, and use features that this version does not support.
            Err(_) => print_json(&layout),
        },
    }
}

/// Returns the columns of metal-stack's first proposal, and a column for the filesystems.
pub(super) fn layout_columns() -> ObjectList<'static, Value> {
    let columns = vec![
        ListColumn::new("id", |layout| text_of_field(layout, "id")),
        ListColumn::new("description", |layout| text_of_field(layout, "description")).with_prose(),
        ListColumn::new("filesystems", |layout: &Value| {
            let filesystems = layout["filesystems"].as_array().into_iter().flatten();
            filesystems.filter_map(|filesystem| filesystem["path"].as_str()).collect::<Vec<_>>().join(", ")
        }),
        ListColumn::new("sizes", |layout: &Value| {
            let sizes = layout["constraints"]["sizes"].as_array().into_iter().flatten();
            sizes.filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }),
        ListColumn::new("images", |layout: &Value| {
            let images = layout["constraints"]["images"].as_object().into_iter().flatten();
            let image = |(os, version): (&String, &Value)| format!("{os} {}", version.as_str().unwrap_or_default());
            images.map(image).collect::<Vec<_>>().join(", ")
        }),
    ];
    ObjectList { command: "layout", noun: "layouts", name: |layout| text_of_field(layout, "id"), columns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;

    #[test]
    fn invalid_layout_is_reported_like_the_check_command() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let text = "id: a\ndisks: [{device: /dev/sda, partitions: [{number: 1, size: 100%}]}]\n\
                    raid: [{arrayname: /dev/md0, level: raid1, devices: [/dev/sda1]}]\nfilesystems: []\n";
        std::fs::write(&file, text).unwrap();
        let why = read_layout_file(&file).unwrap().unwrap_err();
        let lines: Vec<&str> = why.lines().collect();
        assert!(lines[0].contains(":2:") && lines[0].contains("use size 0 for all remaining space (DH-200)"), "{why}");
        assert!(why.contains("RAID level raid1 is not supported") && why.contains("; use 1"), "{why}");
        assert!(!why.contains("given raidlevel"), "{why}");
    }

    #[test]
    fn layout_table_has_the_columns_of_metalctl() {
        let layout = |id: &str, sizes: &[&str], images: Value| {
            json!({"id": id, "description": "fs\u{1b}[2J", "constraints": {"sizes": sizes, "images": images},
                "filesystems": [{"path": "/"}, {"path": null}, {"path": "/var"}]})
        };
        let all = [
            layout("default", &["c1-large-x86", "c1-xlarge-x86"], json!({"debian": ">= 10", "ubuntu": "*"})),
            layout("devel", &[], json!({})),
        ];
        let table = format_wide(&layout_columns(), &all);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "ID       DESCRIPTION  FILESYSTEMS  SIZES                        IMAGES");
        assert_eq!(lines[1], "default  fs [2J       /, /var      c1-large-x86, c1-xlarge-x86  debian >= 10, ubuntu *");
        assert_eq!(lines[2], "devel    fs [2J       /, /var      -                            -");
    }
}
