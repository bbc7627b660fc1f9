//! `drophammer image list`, `image show`, `image apply`, `image modify` and `image delete`: the images of a server.

use super::connection::ServerOptions;
use super::document_endpoint::DocumentEndpoint;
use super::watched_output::{WatchedListOptions, print_watched_list};
use super::{OperatorClient, OperatorResponse, encode_segment, print_json, print_refusal};
use crate::local_commands::check::DocumentType;
use crate::local_commands::read_text;
use crate::object_list::{DocumentOptions, ListColumn, ObjectList, print_object, text_of_field};
use clap::Args;
use clap::builder::FalseyValueParser;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::{replace_hidden, without_secrets};
use common::output::print_text;
use reqwest::Method;
use serde_json::Value;
use site::operator_files::parse_unvalidated;
use std::path::{Path, PathBuf};

/// List of all images, including hidden and blacklisted images.
const ALL_IMAGES: &str = "/v1/image?hidden=true&blacklisted=true";

#[derive(Debug, Args)]
pub struct ListImagesOptions {
    /// Include hidden and blacklisted images.
    #[arg(long, env = "DROPHAMMER_ALL", value_parser = FalseyValueParser::new())]
    pub all: bool,
    #[command(flatten)]
    pub list: WatchedListOptions,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowImageOptions {
    /// Id of the image.
    #[arg(value_name = "ID")]
    pub image: String,
    #[command(flatten)]
    pub format: DocumentOptions,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ApplyImageOptions {
    /// File with the description of the image, in the format of the server's directory images/; - reads standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DeleteImageOptions {
    /// Id of the image.
    #[arg(value_name = "ID")]
    pub image: String,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ModifyImageOptions {
    /// Id of the image, or name of an OS definition. The image or definition need not exist yet.
    #[arg(value_name = "ID")]
    pub image: String,
    /// A hidden image is not listed, but can be installed.
    #[arg(long, value_name = "true|false")]
    pub hidden: Option<bool>,
    /// A blacklisted image is not listed, and is not used for new installations; machines that run this image can be
    /// reinstalled with it.
    #[arg(long, value_name = "true|false")]
    pub blacklisted: Option<bool>,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

/// Lists the images.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn list_images(options: &ListImagesOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let path = format!("/v1/image?hidden={0}&blacklisted={0}", options.all);
    let fetch = || server.send_json(server.request(Method::GET, &path));
    print_watched_list(&image_columns(), &options.list, options.json, fetch)
}

/// Prints an image, even if the image is hidden or blacklisted.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn show_image(options: &ShowImageOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let all = server.request(Method::GET, ALL_IMAGES);
    match server.send_json::<Vec<Value>>(all)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(all) => {
            let format = options.format.show_format(options.json)?;
            print_object(&image_columns(), &all, &options.image, format)
        }
    }
}

/// Creates or updates an image from a file.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does, or if the file cannot be read.
pub fn apply_image(options: &ApplyImageOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    match read_image_file(&options.file)? {
        Err(why) => Ok(print_refusal(&why)),
        Ok(image) => image_endpoint(&server, options.json).apply_document(&image),
    }
}

/// Reads an image file. The inner error lists the problems as `drophammer check` does.
fn read_image_file(file: &Path) -> Result<std::result::Result<Value, String>> {
    let text = read_text(file)?;
    let image = DocumentType::Image.check_file(file, &text).and_then(|()| parse_unvalidated(&text));
    Ok(image.and_then(|image| match image.get("pull_secret") {
        None => Ok(image),
        Some(_) => Err(format!(
            "{file}: `pull_secret` cannot be sent to the server: add it to the file in images/ of the server, or use registries.json",
            file = file.display()
        )),
    }))
}

fn image_endpoint(server: &OperatorClient, as_json: bool) -> DocumentEndpoint<'_> {
    DocumentEndpoint { server, noun: "Image", path: "/v1/image", list: ALL_IMAGES, as_json }
}

/// Deletes the file of an image that no machine uses.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn delete_image(options: &DeleteImageOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    image_endpoint(&server, options.json).delete_document(&options.image)
}

/// Sets or clears the flags `hidden` and `blacklisted` of an image.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn modify_image(options: &ModifyImageOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let mut last = None;
    for (state, requested_state) in [("hidden", options.hidden), ("blacklisted", options.blacklisted)] {
        let Some(is) = requested_state else { continue };
        let method = if is { Method::PUT } else { Method::DELETE };
        let path = format!("/v1/image{}/{state}", encode_segment(&options.image));
        match server.send_json::<Value>(server.request(method, &path))? {
            OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
            OperatorResponse::Good(states) => last = Some(states),
        }
    }
    match last {
        Some(states) if options.json => print_json(&states),
        Some(states) => {
            let names = |state: &str| {
                let names =
                    states[state].as_array().into_iter().flatten().filter_map(Value::as_str).map(replace_hidden);
                let names = names.collect::<Vec<_>>().join(", ");
                if names.is_empty() { "none".to_owned() } else { names }
            };
            print_text(&format!("Hidden: {}. Blacklisted: {}.\n", names("hidden"), names("blacklisted")))
                .map(|()| CommandOutcome::Good)
        }
        None => Ok(print_refusal("nothing to change: specify --hidden or --blacklisted, with true or false")),
    }
}

pub(super) fn image_columns() -> ObjectList<'static, Value> {
    let columns = vec![
        ListColumn::new("id", |image| text_of_field(image, "id")),
        ListColumn::new("name", |image| text_of_field(image, "name")).with_prose(),
        ListColumn::new("from", |image: &Value| match image["file"].is_string() {
            true => text_of_field(image, "file"),
            false => without_secrets(&text_of_field(image, "url")),
        }),
        ListColumn::new("state", |image: &Value| {
            let states = ["hidden", "blacklisted"].into_iter().filter(|state| image[*state] == true);
            states.chain((image["ready"] == false).then_some("no digest yet")).collect::<Vec<_>>().join(", ")
        }),
    ];
    ObjectList { command: "image", noun: "images", name: |image| text_of_field(image, "id"), columns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;
    use serde_json::json;

    #[test]
    fn an_image_with_credentials_is_not_sent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("i.yaml");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read_image_file(&file).unwrap()
        };
        assert_eq!(read("id: i\nfile: i.tar\n").unwrap(), json!({"id": "i", "file": "i.tar"}));
        let why = read("id: i\nurl: oci://h/i:1\npull_secret: {username: u, password: hunter2}\n").unwrap_err();
        assert!(why.contains("`pull_secret` cannot be sent") && !why.contains("hunter2"), "{why}");
        assert!(read("id: i\nfile: [a]\n").unwrap_err().contains(":2:7: must be text, but is a list"));
    }

    #[test]
    fn image_table_shows_state_without_credentials() {
        let all = [
            json!({"id": "debian-12", "name": "Debian", "file": "d.tar", "url": "http://h/images/d.tar", "ready": true}),
            json!({"id": "debian-11", "name": "", "url": "https://u:p@h/d.tar", "ready": false, "hidden": true, "blacklisted": true}),
        ];
        let table = format_wide(&image_columns(), &all);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[2], "debian-12  Debian  d.tar              -");
        assert!(lines[1].ends_with("hidden, blacklisted, no digest yet") && !lines[1].contains("u:p"), "{}", lines[1]);
    }
}
