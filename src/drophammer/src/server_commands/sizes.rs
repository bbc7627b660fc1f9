//! `drophammer size`: the sizes of a server.

use super::connection::ServerOptions;
use super::document_endpoint::DocumentEndpoint;
use super::watched_output::{WatchedListOptions, print_watched_list};
use super::{OperatorClient, OperatorResponse, print_refusal};
use crate::local_commands::check::DocumentType;
use crate::local_commands::read_text;
use crate::object_list::{DocumentOptions, ListCell, ListColumn, ObjectList, print_object, text_of_field};
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::format_bytes;
use reqwest::Method;
use serde_json::{Value, json};
use site::sizes::MachineSize;
use std::path::{Path, PathBuf};

const AT: &str = "/v1/size";

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
    List(WatchedListOptions),
    /// Print a size as YAML.
    Show {
        /// Id of the size.
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        format: DocumentOptions,
    },
    /// Create a size from a file. Fails if the server already has a size with this id.
    #[command(visible_alias = "add")]
    Create {
        /// File with the size; - reads standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Create or update a size from FILE. Comments in the server's file are preserved. If FILE omits the name or the
    /// description, the server's value is preserved.
    Apply {
        /// File with the size; - reads standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete a size. Machine files that name the size are not changed.
    #[command(visible_alias = "rm")]
    Delete {
        /// Id of the size.
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Lists, shows or changes the sizes.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does, or if a file cannot be read.
pub fn run_size_command(options: &SizeOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let endpoint = DocumentEndpoint { server: &server, noun: "Size", path: AT, list: AT, as_json: options.json };
    match &options.command {
        SizeCommand::List(list) => print_watched_list(&size_columns(), list, options.json, || fetch_sizes(&server)),
        SizeCommand::Show { id, format } => match fetch_sizes(&server)? {
            OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
            OperatorResponse::Good(all) => print_object(&size_columns(), &all, id, format.show_format(options.json)?),
        },
        SizeCommand::Create { file } => match read_size_file(file)? {
            Err(why) => Ok(print_refusal(&why)),
            Ok(size) => endpoint.create_document(&size),
        },
        SizeCommand::Apply { file } => match read_size_file(file)? {
            Err(why) => Ok(print_refusal(&why)),
            Ok(size) => endpoint.apply_document(&size),
        },
        SizeCommand::Delete { id } => endpoint.delete_document(id),
    }
}

fn fetch_sizes(server: &OperatorClient) -> Result<OperatorResponse<Vec<Value>>> {
    server.send_json(server.request(Method::GET, AT))
}

/// Reads a size from the operator's file. The inner error lists the problems as `drophammer check` does.
fn read_size_file(file: &Path) -> Result<std::result::Result<Value, String>> {
    let text = read_text(file)?;
    let size = DocumentType::Size.check_file(file, &text).and_then(|()| MachineSize::parse_size(&text));
    Ok(size.map(|size| json!(size)))
}

pub(super) fn size_columns() -> ObjectList<'static, Value> {
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

/// Returns the range of values that a size's constraint permits, such as `8` or `16.0 GB - 70.0 GB`. The sort key is
/// the minimum.
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
    fn an_invalid_file_is_reported_as_by_check() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c1.yaml");
        std::fs::write(&file, "id: c1\nconstraints: [{type: cores, max: 4}]\n").unwrap();
        assert_eq!(read_size_file(&file).unwrap().unwrap()["constraints"][0]["max"], 4);
        std::fs::write(&file, "id: c1\nconstraints: [{type: gpu, max: 4}]\n").unwrap();
        let why = read_size_file(&file).unwrap().unwrap_err();
        assert!(why.starts_with(&format!("{}:2:22: unknown value \"gpu\"; supported: cores", file.display())), "{why}");
    }
}
