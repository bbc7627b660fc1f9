//! Completion of the values of `--filter`, from the objects of the server.

use super::images::image_columns;
use super::layouts::layout_columns;
use super::machine_list::machine_columns;
use super::os_definitions::definition_columns;
use super::rollouts::rollout_columns;
use super::sizes::size_columns;
use super::templates::{fetch_templates, template_columns};
use super::users::user_columns;
use super::volumes::{fetch_volumes, volume_columns};
use super::{OperatorClient, OperatorResponse, ServerOptions};
use crate::object_list::ObjectList;
use api::operator_api::MachineSummary;
use common::error::Result;
use reqwest::Method;
use serde::de::DeserializeOwned;
use time::OffsetDateTime;

/// Returns the filters of the list of a noun that begin with this text.
///
/// # Errors
/// Returns an error if the server cannot be reached.
pub(crate) fn complete_filter(server: &ServerOptions, noun: &str, prefix: &str) -> Result<Vec<String>> {
    let server = OperatorClient::new(server)?;
    match noun {
        "machine" => {
            let all: Vec<MachineSummary> = fetch_objects(&server, "/v1/machines")?;
            Ok(machine_columns(&all, OffsetDateTime::now_utc()).complete_filter(&all, prefix))
        }
        "volume" => Ok(match fetch_volumes(&server)? {
            OperatorResponse::Good((machines, all)) => volume_columns(&machines).complete_filter(&all, prefix),
            OperatorResponse::Refused(_) => Vec::new(),
        }),
        "template" => Ok(match fetch_templates(&server)? {
            OperatorResponse::Good(all) => template_columns().complete_filter(&all, prefix),
            OperatorResponse::Refused(_) => Vec::new(),
        }),
        "image" => complete_column(&server, &image_columns(), "/v1/image?hidden=true&blacklisted=true", prefix),
        "layout" => complete_column(&server, &layout_columns(), "/v1/filesystemlayout", prefix),
        "os" => complete_column(&server, &definition_columns(), "/v1/os?hidden=true&blacklisted=true", prefix),
        "rollout" => complete_column(&server, &rollout_columns(), "/v1/rollouts", prefix),
        "size" => complete_column(&server, &size_columns(), "/v1/size", prefix),
        "user" => complete_column(&server, &user_columns(), "/v1/users", prefix),
        _ => Ok(Vec::new()),
    }
}

fn complete_column<T: DeserializeOwned>(
    server: &OperatorClient,
    columns: &ObjectList<'_, T>,
    path: &str,
    prefix: &str,
) -> Result<Vec<String>> {
    Ok(columns.complete_filter(&fetch_objects(server, path)?, prefix))
}

/// Requests a list of objects. Returns none if the server refuses the request.
fn fetch_objects<T: DeserializeOwned>(server: &OperatorClient, path: &str) -> Result<Vec<T>> {
    match server.send_json(server.request(Method::GET, path))? {
        OperatorResponse::Good(all) => Ok(all),
        OperatorResponse::Refused(_) => Ok(Vec::new()),
    }
}
