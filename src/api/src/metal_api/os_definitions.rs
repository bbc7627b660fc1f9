//! `/v1/os`: the OS definitions in the server's directory, with endpoints like those for images.

use super::api_refusal::{ApiRefusal, ApiResult};
use crate::AppState;
use crate::operator_api::OperatorAuth;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use model::ganeti_os_definition::{OsDefinition, OsSelector, SystemSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use site::snapshot::SiteSnapshot;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An OS definition in a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OsDefinitionResponse {
    pub name: String,
    /// Version of the definition (`os_version`), if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// Version of Ganeti's OS interface that the definition uses; absent if the definition cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<u32>,
    /// Id of the image; absent if the definition creates the system itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Variants; the first one is the default.
    pub variants: Vec<String>,
    pub parameters: Vec<OsParameterResponse>,
    /// Names of the parameters that the operator has set or removed for all machines, by definition or variant. The
    /// values are omitted, since they may be secret.
    pub preset: BTreeMap<String, Vec<String>>,
    pub hidden: bool,
    pub blacklisted: bool,
    /// Reason why the definition cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Machines whose allocations name the definition. Absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<Vec<OsMachineResponse>>,
}

/// A parameter of an OS definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OsParameterResponse {
    pub name: String,
    pub description: String,
}

/// A machine whose allocation names an OS definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OsMachineResponse {
    /// Id of the machine.
    pub id: String,
    pub name: String,
    /// OS definition that the machine file specifies, with the variant if the file specifies one.
    pub os: String,
    /// OS definition with which the machine was installed, with the variant if the installation used one. Absent if the
    /// machine is not installed, or its install marker does not contain a definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed_os: Option<String>,
    /// Version of the definition (`os_version`) when the machine was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed_os_version: Option<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct OsQuery {
    /// Include hidden definitions.
    hidden: bool,
    /// Include blacklisted definitions.
    blacklisted: bool,
}

/// `GET /v1/os`: lists the definitions, sorted by name.
pub(crate) async fn list_definitions(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    query: Result<Query<OsQuery>, QueryRejection>,
) -> ApiResult<Json<Vec<OsDefinitionResponse>>> {
    let Query(list_query) = query.map_err(|error| ApiRefusal::bad_request(error.to_string()))?;
    let directory = app.directory();
    let all = directory.os_definitions.definitions.keys();
    let all = all.filter_map(|name| definition_response(&directory, name));
    let is_shown = |shown: &OsDefinitionResponse| {
        (list_query.hidden || !shown.hidden) && (list_query.blacklisted || !shown.blacklisted)
    };
    Ok(Json(all.filter(is_shown).collect()))
}

/// `GET /v1/os/{name}`: returns one definition, even if hidden.
pub(crate) async fn get_definition(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    _: OperatorAuth,
) -> ApiResult<Json<OsDefinitionResponse>> {
    let directory = app.directory();
    let shown = definition_response(&directory, &name).ok_or_else(|| ApiRefusal::not_found("os", &name))?;
    let machines = Some(find_machines(&app, &directory, &name).await?);
    Ok(Json(OsDefinitionResponse { machines, ..shown }))
}

/// Returns a definition without the machines that use it, or `None` if the definition does not exist.
fn definition_response(directory: &SiteSnapshot, name: &str) -> Option<OsDefinitionResponse> {
    let states = &directory.known.states;
    let shown = OsDefinitionResponse {
        name: name.to_owned(),
        preset: directory.os_definitions.preset_names(name),
        hidden: states.is_hidden(name),
        blacklisted: states.is_blacklisted(name),
        ..OsDefinitionResponse::default()
    };
    Some(match directory.os_definitions.definitions.get(name)? {
        Ok(definition) => add_contents(shown, definition),
        Err(why) => OsDefinitionResponse { problem: Some(why.clone()), ..shown },
    })
}

fn add_contents(shown: OsDefinitionResponse, definition: &OsDefinition) -> OsDefinitionResponse {
    let parameters = definition
        .parameters
        .iter()
        .map(|parameter| OsParameterResponse { name: parameter.name.clone(), description: parameter.about.clone() });
    let image = match &definition.source {
        SystemSource::Image(image) => Some(image.clone()),
        SystemSource::Create => None,
    };
    OsDefinitionResponse {
        os_version: definition.os_version().map(str::to_owned),
        api: Some(definition.api),
        image,
        variants: definition.variants.clone(),
        parameters: parameters.collect(),
        ..shown
    }
}

/// Returns the machines whose allocations name the definition, sorted by id.
async fn find_machines(app: &AppState, directory: &SiteSnapshot, name: &str) -> ApiResult<Vec<OsMachineResponse>> {
    let mut machines = Vec::new();
    for machine in directory.machines() {
        let Some(allocation) = &machine.allocation else { continue };
        let named = allocation.os.as_ref().filter(|os| OsSelector::parse(os).is_ok_and(|os| os.name == name));
        let Some(os) = named else { continue };
        let install_state = app.state.read_install_state(&machine.id, &allocation.id).await?;
        let installed = install_state.marker.filter(|_| install_state.succeeded).and_then(|marker| marker.definition);
        let (installed_os, installed_os_version) =
            installed.map_or((None, None), |installed| (Some(installed.os), installed.os_version));
        machines.push(OsMachineResponse {
            id: machine.id.clone(),
            name: machine.name.clone(),
            os: os.to_string(),
            installed_os,
            installed_os_version,
        });
    }
    machines.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(machines)
}
