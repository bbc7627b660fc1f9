//! Endpoints for rollouts.

use super::description::{ApiRoute, delete_route, get_route, post_route};
use crate::json_schemas::{list_schema, request_schema, response_schema};
use crate::openapi::parameters::query_parameters;
use crate::page_query::PageQuery;
use crate::rollouts::{self, RolloutRequest, RolloutView};

pub(super) fn rollout_routes() -> Vec<ApiRoute> {
    let (all, one) = ("/v1/rollouts", "/v1/rollouts/{id}");
    vec![
        get_route(all, rollouts::list_rollouts, "Rollouts without their members, the newest first")
            .with_parameters(query_parameters::<PageQuery>)
            .with_response(list_schema::<RolloutView>),
        post_route(all, rollouts::post_rollout, "Order reinstalls of several machines in waves")
            .with_request(request_schema::<RolloutRequest>)
            .with_created(response_schema::<RolloutView>),
        get_route(one, rollouts::get_rollout, "One rollout with its members")
            .with_response(response_schema::<RolloutView>),
        delete_route(one, rollouts::cancel_rollout, "Cancel a rollout").with_response(response_schema::<RolloutView>),
        post_route(
            "/v1/rollouts/{id}/halt",
            rollouts::halt_rollout,
            "Halt a rollout: no further machines are reinstalled",
        )
        .with_response(response_schema::<RolloutView>),
        post_route("/v1/rollouts/{id}/resume", rollouts::resume_rollout, "Resume a halted rollout")
            .with_response(response_schema::<RolloutView>),
    ]
}
