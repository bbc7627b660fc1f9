//! Endpoints that record installations which the server has not carried out.

use super::description::{ApiRoute, delete_route, post_route, put_route};
use crate::json_schemas::{request_schema, response_schema};
use crate::machine_adoption::{self, AdoptionRequest, RemovedAdoption};
use crate::openapi::parameters::query_parameters;
use crate::operator_api::{self, MachineSummary};

pub(super) fn adoption_routes() -> Vec<ApiRoute> {
    vec![
        post_route("/v1/machine/{id}/adopt", operator_api::adopt_machine, "Record a machine as installed")
            .with_parameters(query_parameters::<operator_api::AdoptionQuery>)
            .with_response(response_schema::<MachineSummary>),
        put_route(
            "/v1/machine/{id}/adopt",
            machine_adoption::register_adopted_machine,
            "Register a machine that another installer has installed",
        )
        .with_request(request_schema::<AdoptionRequest>)
        .with_response(response_schema::<MachineSummary>),
        delete_route(
            "/v1/machine/{id}/adopt",
            machine_adoption::remove_adopted_machine,
            "Remove the registration of an adopted machine; its disks are unchanged",
        )
        .with_parameters(query_parameters::<machine_adoption::AdoptionRemovalQuery>)
        .with_response(response_schema::<RemovedAdoption>),
    ]
}
