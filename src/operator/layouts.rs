//! `drophammer layout`: the layouts of a server.

use super::options::{LayoutCommand, LayoutOptions};
use super::{Answer, Server, print_json, refused, step};
use crate::error::{Context, Phase, Result};
use crate::exit::Exit;
use crate::layout::{canonical_yaml, read_json, read_yaml};
use crate::problem::lines;
use crate::stdout::print;
use crate::text::{clean, columns};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;

const AT: &str = "/v1/filesystemlayout";

/// Performs the command and prints the result.
///
/// # Errors
/// As [`super::run`]; a file cannot be read.
pub fn run(options: &LayoutOptions) -> Result<Exit> {
    let server = Server::new(&options.of)?;
    let ask = |method: Method, path: &str| server.request(method, &format!("{AT}{path}"));
    match &options.command {
        LayoutCommand::List => match server.ask::<Vec<Value>>(ask(Method::GET, ""))? {
            Answer::Refused(why) => Ok(refused(&why)),
            Answer::Good(all) if options.json => print_json(&all),
            Answer::Good(all) => print(&table(&all)).map(|()| Exit::Good),
        },
        LayoutCommand::Show { id } => shown(server.ask(ask(Method::GET, &step(id)))?, options.json),
        LayoutCommand::Delete { id } => done(server.ask(ask(Method::DELETE, &step(id)))?, options.json, "was deleted"),
        LayoutCommand::Create { file } => match layout(file)? {
            Err(why) => Ok(refused(&why)),
            Ok(layout) => done(server.ask(ask(Method::PUT, "").json(&layout))?, options.json, "was created"),
        },
        LayoutCommand::Apply { file } => {
            let layout = match layout(file)? {
                Err(why) => return Ok(refused(&why)),
                Ok(layout) => layout,
            };
            let all = match server.ask::<Vec<Value>>(ask(Method::GET, ""))? {
                Answer::Refused(why) => return Ok(refused(&why)),
                Answer::Good(all) => all,
            };
            let (method, word) = match all.iter().any(|one| one["id"] == layout["id"]) {
                true => (Method::POST, "was updated from the file"),
                false => (Method::PUT, "was created"),
            };
            done(server.ask(ask(method, "").json(&layout))?, options.json, word)
        }
    }
}

/// Reads a layout from the operator's file, in any spelling. The inner error lists its problems with line and column.
fn layout(file: &Path) -> Result<Result<Value, String>> {
    let text = std::fs::read_to_string(file).context(Phase::Settings, || format!("read {}", file.display()))?;
    Ok(match read_yaml(&text) {
        Ok(parsed) => Ok(json!(parsed.layout)),
        Err(problems) => {
            let said = lines(&problems);
            Err(said.lines().map(|line| format!("{}:{line}", file.display())).collect::<Vec<_>>().join("\n"))
        }
    })
}

fn shown(answer: Answer<Value>, as_json: bool) -> Result<Exit> {
    match answer {
        Answer::Refused(why) => Ok(refused(&why)),
        Answer::Good(layout) if as_json => print_json(&layout),
        Answer::Good(layout) => match read_json(&layout) {
            Ok(parsed) => print(&canonical_yaml(&parsed.layout)).map(|()| Exit::Good),
            // A newer server may have layouts that are not supported here.
            Err(_) => print_json(&layout),
        },
    }
}

fn done(answer: Answer<Value>, as_json: bool, word: &str) -> Result<Exit> {
    match answer {
        Answer::Refused(why) => Ok(refused(&why)),
        Answer::Good(layout) if as_json => print_json(&layout),
        Answer::Good(layout) => {
            print(&format!("Layout {} {word}.\n", clean(layout["id"].as_str().unwrap_or_default())))
                .map(|()| Exit::Good)
        }
    }
}

/// Formats the layouts with the columns of metal-stack's first proposal, and their filesystems.
fn table(all: &[Value]) -> String {
    let mut rows = vec![["id", "description", "filesystems", "sizes", "images"].map(str::to_owned)];
    let text = |value: &Value| clean(value.as_str().unwrap_or_default());
    let list = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(", ");
    rows.extend(all.iter().map(|layout| {
        let filesystems = layout["filesystems"].as_array().into_iter().flatten();
        let paths = filesystems.filter_map(|filesystem| filesystem["path"].as_str()).map(clean);
        let images = layout["constraints"]["images"].as_object().into_iter().flatten();
        let images = images.map(|(os, version)| format!("{} {}", clean(os), text(version)));
        [
            text(&layout["id"]),
            text(&layout["description"]),
            paths.collect::<Vec<_>>().join(", "),
            list(&layout["constraints"]["sizes"]),
            images.collect::<Vec<_>>().join(", "),
        ]
    }));
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let table = table(&all);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "id       description  filesystems  sizes                        images");
        assert_eq!(lines[1], "default  fs [2J       /, /var      c1-large-x86, c1-xlarge-x86  debian >= 10, ubuntu *");
        assert_eq!(lines[2], "devel    fs [2J       /, /var");
    }
}
