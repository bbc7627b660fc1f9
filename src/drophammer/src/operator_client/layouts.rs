//! `drophammer layout`: the layouts of a server.

use super::options::{LayoutCommand, LayoutOptions};
use super::{OperatorClient, OperatorResponse, encode_segment, print_json, print_refusal};
use crate::commands::layout_from_machine::run_from_machine;
use crate::commands::{check_layout_text, read_text};
use crate::object_list::{ListColumn, ObjectList, print_list, text_of_field};
use common::error::Result;
use common::exit_status::CommandOutcome;
use common::format::replace_hidden;
use common::output::print_text;
use model::layout::{canonical_yaml, read_json};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;

const AT: &str = "/v1/filesystemlayout";

/// Performs the command and prints the result.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does, or if a file cannot be read.
pub fn run_layout_command(options: &LayoutOptions) -> Result<CommandOutcome> {
    let server = match &options.command {
        // A server is needed only for the inventory of a registered machine.
        LayoutCommand::FromMachine(machine) => return run_from_machine(machine, &options.of),
        _ => OperatorClient::new(&options.of)?,
    };
    let ask = |method: Method, path: &str| server.request(method, &format!("{AT}{path}"));
    match &options.command {
        LayoutCommand::FromMachine(machine) => run_from_machine(machine, &options.of),
        LayoutCommand::List(list) => match server.send_json::<Vec<Value>>(ask(Method::GET, ""))? {
            OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
            OperatorResponse::Good(all) => print_list(&layout_columns(), &all, list, options.json),
        },
        LayoutCommand::Show { id } => {
            print_layout(server.send_json(ask(Method::GET, &encode_segment(id)))?, options.json)
        }
        LayoutCommand::Delete { id } => {
            print_done(server.send_json(ask(Method::DELETE, &encode_segment(id)))?, options.json, "was deleted")
        }
        LayoutCommand::Create { file } => match read_layout_file(file)? {
            Err(why) => Ok(print_refusal(&why)),
            Ok(layout) => {
                print_done(server.send_json(ask(Method::PUT, "").json(&layout))?, options.json, "was created")
            }
        },
        LayoutCommand::Apply { file } => {
            let layout = match read_layout_file(file)? {
                Err(why) => return Ok(print_refusal(&why)),
                Ok(layout) => layout,
            };
            let all = match server.send_json::<Vec<Value>>(ask(Method::GET, ""))? {
                OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
                OperatorResponse::Good(all) => all,
            };
            let (method, word) = match all.iter().any(|one| one["id"] == layout["id"]) {
                true => (Method::POST, "was updated from the file"),
                false => (Method::PUT, "was created"),
            };
            print_done(server.send_json(ask(method, "").json(&layout))?, options.json, word)
        }
    }
}

/// Reads a layout from the operator's file, in any spelling. The inner error lists the problems of the layout with line
/// and column, as `drophammer check` does.
fn read_layout_file(file: &Path) -> Result<Result<Value, String>> {
    Ok(check_layout_text(file, &read_text(file)?).map(|parsed| json!(parsed.layout)))
}

fn print_layout(answer: OperatorResponse<Value>, as_json: bool) -> Result<CommandOutcome> {
    match answer {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(layout) if as_json => print_json(&layout),
        OperatorResponse::Good(layout) => match read_json(&layout) {
            Ok(parsed) => print_text(&canonical_yaml(&parsed.layout)).map(|()| CommandOutcome::Good),
            // A newer server may have layouts that are not supported here.
            Err(_) => print_json(&layout),
        },
    }
}

fn print_done(answer: OperatorResponse<Value>, as_json: bool, word: &str) -> Result<CommandOutcome> {
    match answer {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(layout) if as_json => print_json(&layout),
        OperatorResponse::Good(layout) => {
            print_text(&format!("Layout {} {word}.\n", replace_hidden(layout["id"].as_str().unwrap_or_default())))
                .map(|()| CommandOutcome::Good)
        }
    }
}

/// Returns the columns of metal-stack's first proposal, and a column for the filesystems.
fn layout_columns() -> ObjectList<'static, Value> {
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
    fn an_invalid_layout_is_reported_as_by_check() {
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
    fn the_table_is_that_of_the_proposal() {
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
