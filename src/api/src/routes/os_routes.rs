//! Endpoints for OS definitions and their parameters. The endpoints for images also set the states (hidden,
//! blacklisted) of definitions.

use super::ApiRoute;
use super::description::{get_route, post_route};
use crate::json_schemas::{list_schema, request_schema, response_schema};
use crate::metal_api::os_definitions::{self, OsDefinitionResponse, OsQuery};
use crate::metal_api::os_parameters::{self, OsParameterChanges, StoredOsParameters};
use crate::openapi::parameters::query_parameters;

pub(super) fn os_routes() -> Vec<ApiRoute> {
    vec![
        get_route("/v1/os", os_definitions::list_definitions, "OS definitions")
            .with_parameters(query_parameters::<OsQuery>)
            .with_response(list_schema::<OsDefinitionResponse>),
        get_route(
            "/v1/os/{name}",
            os_definitions::get_definition,
            "One OS definition, even if it is hidden, with the machines that use it",
        )
        .with_response(response_schema::<OsDefinitionResponse>),
        post_route(
            "/v1/os/{name}/parameters",
            os_parameters::change_site_parameters,
            "Change the OS parameters of all machines that use a definition or a variant",
        )
        .with_request(request_schema::<OsParameterChanges>)
        .with_response(response_schema::<StoredOsParameters>),
        post_route(
            "/v1/machine/{id}/os-parameters",
            os_parameters::change_machine_parameters,
            "Change the OS parameters in a machine file",
        )
        .with_request(request_schema::<OsParameterChanges>)
        .with_response(response_schema::<StoredOsParameters>),
    ]
}
