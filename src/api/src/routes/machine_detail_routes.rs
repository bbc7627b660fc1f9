//! Endpoints for the details, events, history and console log of a machine, and for its lock.

use super::description::{ApiRoute, delete_route, get_route, post_route};
use crate::json_schemas::{list_schema, request_schema, response_schema};
use crate::machine_details::{self, ConsoleText, LogQuery, MachineDetails, StoredEvent};
use crate::metal_api::machine_lock::{self, LockRequest};
use crate::openapi::parameters::query_parameters;
use crate::operator_api::MachineSummary;
use store::HistoryEntry;

pub(super) fn machine_detail_routes() -> Vec<ApiRoute> {
    vec![
        post_route("/v1/machine/{id}/lock", machine_lock::lock_machine, "Lock a machine")
            .with_request(request_schema::<LockRequest>)
            .with_response(response_schema::<MachineSummary>),
        delete_route("/v1/machine/{id}/lock", machine_lock::unlock_machine, "Unlock a machine")
            .with_response(response_schema::<MachineSummary>),
        get_route("/v1/machine/{id}/details", machine_details::get_details, "All details of one machine")
            .with_response(response_schema::<MachineDetails>),
        get_route("/v1/machine/{id}/events", machine_details::get_events, "Stored events of a machine")
            .with_response(list_schema::<StoredEvent>),
        get_route(
            "/v1/machine/{id}/history",
            machine_details::get_history,
            "Orders and finished installations of a machine",
        )
        .with_response(list_schema::<HistoryEntry>),
        get_route("/v1/machine/{id}/log", machine_details::get_log, "Console log of a machine")
            .with_parameters(query_parameters::<LogQuery>)
            .with_response(response_schema::<ConsoleText>),
    ]
}
