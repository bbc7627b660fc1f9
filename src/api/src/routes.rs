//! Table of the JSON endpoints, from which both the routers and `/openapi.json` are built.

mod administration_routes;
mod adoption_routes;
mod description;
mod machine_detail_routes;
mod os_routes;
mod rollout_routes;
mod site_document_routes;
mod template_routes;
mod volume_routes;

pub use description::{ApiRoute, ErrorFormat, OperationDoc, RequiredToken, ResponseContent};

use super::json_schemas::{
    SchemaGenerators, empty_schema, list_schema, object_schema, request_schema, response_schema,
};
use super::machine_file_creation::{CreatedMachineFile, MachineFileRequest};
use super::metal_api::machine_response::{MachineResponse, ReinstallResponse};
use super::metal_api::{image_states, images, layouts, machines, sizes};
use super::migration_requests::{machine_requests, operator_requests as moving};
use super::openapi::parameters::{query_parameters, version_parameter};
use super::operator_api::reinstalls::ReinstallRequest;
use super::operator_api::{self, MachineSummary, RenameRequest, machine_list, restored_machine_confirmation};
use super::page_query::PageQuery;
use super::plan_input::{self, PlanInput};
use super::power::{self, PowerRequest, PowerStateResponse};
use super::{AppState, agent_api, boot_digest, console_log, machine_file_creation, metrics, netboot, openapi};
use axum::Router;
use axum::handler::Handler;
use control::ReportAcknowledgement;
use control::agent_api_types::{InstallReport, LogPart, NextBoot, PointOfNoReturn, RegisterRequest};
use description::{delete_route, get_route, post_route, put_route};
use model::allocation::{AssignedMachine, ReleasedSecrets, SecretsRequest};
use model::install_report::ProgressEvent;
use model::layout::Layout;
use model::machine_migration::MigrationReport;
use serde_json::Value;
use site::image_states::ImageStates;
use site::sizes::{MachineSize, SizeConstraint};
use std::sync::Arc;

/// Paths that metal-api's clients also request with a trailing `/`.
const TRAILING_SLASH_PATHS: [&str; 4] = ["/v1/filesystemlayout", "/v1/image", "/v1/machine", "/v1/size"];

pub fn build_router(calls: Vec<ApiRoute>) -> Router<Arc<AppState>> {
    calls.into_iter().fold(Router::new(), |router, ApiRoute { path, handler, .. }| {
        match TRAILING_SLASH_PATHS.contains(&path) {
            true => router.route(path, handler.clone()).route(&format!("{path}/"), handler),
            false => router.route(path, handler),
        }
    })
}

/// Returns the endpoints for agents. Files that firmware loads are not included, since they are not JSON.
pub fn machine_routes() -> Vec<ApiRoute> {
    let running =
        get_route("/boot.json", netboot::boot_json, "Boot information for a running machine before its reinstall")
            .with_token(RequiredToken::None)
            .with_parameters(query_parameters::<netboot::BootQuery>)
            .with_response(response_schema::<NextBoot>);
    let with_token = [allocation_routes(), installation_routes()].into_iter().flatten();
    with_token.map(|call| call.with_token(RequiredToken::Machine)).chain([running]).collect()
}

/// Returns the endpoint for one machine. `handler` depends on whether the listener serves agents, or only operators.
pub fn one_machine_route<H: Handler<T, Arc<AppState>>, T: 'static>(handler: H) -> ApiRoute {
    get_route(
        "/v1/machine/{id}",
        handler,
        "One machine: the machine itself receives its allocation, operators receive metal-api's format",
    )
    .with_token(RequiredToken::MachineOrOperator)
    .with_response(one_machine_schema)
}

fn one_machine_schema(schemas: &mut SchemaGenerators) -> Value {
    // Generated clients decode a response as the first type that matches. If unknown fields are ignored, a machine in
    // metal-api's format is also a valid `AssignedMachine`.
    let (for_operator, for_machine) =
        (response_schema::<MachineResponse>(schemas), response_schema::<AssignedMachine>(schemas));
    serde_json::json!({"anyOf": [for_operator, for_machine]})
}

/// Returns all endpoints that [`super::openapi`] describes.
pub fn all_routes() -> Vec<ApiRoute> {
    let both = one_machine_route(machines::get_machine_for_caller);
    machine_routes().into_iter().chain([both]).chain(operator_routes()).collect()
}

/// Returns the endpoints for agents before an installation.
fn allocation_routes() -> Vec<ApiRoute> {
    vec![
        post_route("/v1/machine/register", agent_api::register_boot, "Register a boot of the machine")
            .with_request(request_schema::<RegisterRequest>)
            .with_response(empty_schema),
        post_route(
            "/v1/machine/{id}/secrets",
            agent_api::secrets::release_secrets,
            "Secrets of the allocation, which the server sends only while the installation needs them",
        )
        .with_request(request_schema::<SecretsRequest>)
        .with_response(response_schema::<ReleasedSecrets>),
        get_route(
            "/v1/machine/{id}/wait",
            agent_api::wait_for_allocation,
            "Wait until the machine has an allocation; 204 if the machine has none when the time limit is reached",
        )
        .with_parameters(query_parameters::<agent_api::WaitQuery>)
        .with_response(empty_schema)
        .with_status(204, ResponseContent::Nothing),
    ]
}

/// Returns the endpoints for agents during an installation or a migration.
fn installation_routes() -> Vec<ApiRoute> {
    vec![
        post_route("/v1/machine/{id}/event", agent_api::post_event, "Record an event")
            .with_request(request_schema::<ProgressEvent>)
            .with_response(empty_schema),
        post_route("/v1/machine/{id}/log", console_log::receive_log, "Console output")
            .with_request(request_schema::<LogPart>)
            .with_response(empty_schema),
        post_route(
            "/v1/machine/{id}/point-of-no-return",
            agent_api::point_of_no_return::pass_point_of_no_return,
            "Announce the point of no return of an installation, and request permission to erase data",
        )
        .with_request(request_schema::<PointOfNoReturn>)
        .with_response(empty_schema),
        post_route(
            "/v1/machine/{id}/moving",
            machine_requests::register_endpoint,
            "Report that a machine of a migration is ready in its ramdisk",
        )
        .with_request(request_schema::<MigrationReport>)
        .with_response(empty_schema),
        post_route(
            "/v1/machine/{id}/report",
            agent_api::install_reports::post_report,
            "Report the end of an installation",
        )
        .with_request(request_schema::<InstallReport>)
        .with_response(response_schema::<ReportAcknowledgement>),
    ]
}

/// Returns the endpoints for operators.
pub fn operator_routes() -> Vec<ApiRoute> {
    let all = [
        layout_routes(),
        image_routes(),
        os_routes::os_routes(),
        site_document_routes::document_routes(),
        size_routes(),
        machine_management_routes(),
        adoption_routes::adoption_routes(),
        machine_detail_routes::machine_detail_routes(),
        migration_routes(),
        host_routes(),
        volume_routes::volume_routes(),
        template_routes::template_routes(),
        administration_routes::user_routes(),
        rollout_routes::rollout_routes(),
        server_routes(),
    ];
    all.into_iter().flatten().collect()
}

/// Returns the endpoints for layouts, compatible with metal-api.
fn layout_routes() -> Vec<ApiRoute> {
    let (layout, one_layout) = ("/v1/filesystemlayout", "/v1/filesystemlayout/{id}");
    vec![
        get_route(layout, layouts::list_layouts, "Layouts")
            .with_parameters(query_parameters::<PageQuery>)
            .with_response(list_schema::<Layout>),
        put_route(layout, layouts::create_layout, "Create a layout")
            .with_request(layouts::request_schema)
            .with_created(response_schema::<Layout>),
        post_route(layout, layouts::update_layout, "Update a layout")
            .with_parameters(version_parameter)
            .with_request(layouts::request_schema)
            .with_response(response_schema::<Layout>),
        get_route(one_layout, layouts::get_layout, "One layout").with_response(response_schema::<Layout>),
        delete_route(one_layout, layouts::delete_layout, "Delete a layout that is not in use")
            .with_parameters(version_parameter)
            .with_response(response_schema::<Layout>),
        post_route(one_layout, layouts::query_layout, "The layout for a size and an image")
            .at_path("/v1/filesystemlayout/try")
            .with_request(request_schema::<layouts::LayoutQuery>)
            .with_response(response_schema::<Layout>)
            .and_path("/v1/filesystemlayout/matches", "The layout, if the layout fits the disks of a machine")
            .with_request(request_schema::<layouts::LayoutMatchQuery>)
            .with_response(response_schema::<Layout>),
    ]
}

/// Returns the endpoints for images, compatible with metal-api, and for the states of images.
fn image_routes() -> Vec<ApiRoute> {
    let (image, one_image, state) = ("/v1/image", "/v1/image/{id}", "/v1/image/{id}/{state}");
    let (hidden, blacklisted) = ("/v1/image/{id}/hidden", "/v1/image/{id}/blacklisted");
    vec![
        get_route(image, images::list_images, "Images")
            .with_parameters(images::list_parameters)
            .with_response(list_schema::<images::ImageResponse>),
        put_route(image, images::create_image, "Create an image")
            .with_request(images::request_schema)
            .with_created(response_schema::<images::ImageResponse>),
        post_route(image, images::update_image, "Update an image")
            .with_parameters(version_parameter)
            .with_request(images::request_schema)
            .with_response(response_schema::<images::ImageResponse>),
        get_route(one_image, images::get_image, "One image, even if the image is hidden")
            .with_response(response_schema::<images::ImageResponse>),
        delete_route(one_image, images::delete_image, "Delete an image that is not in use")
            .with_parameters(version_parameter)
            .with_response(response_schema::<images::ImageResponse>),
        get_route("/v1/image-states", image_states::get_states, "List of hidden and blacklisted images")
            .with_response(response_schema::<ImageStates>),
        put_route(state, image_states::set_image_state, "Hide an image, which need not exist yet")
            .at_path(hidden)
            .with_response(response_schema::<ImageStates>)
            .and_path(blacklisted, "Blacklist an image, which need not exist yet")
            .with_response(response_schema::<ImageStates>),
        delete_route(state, image_states::set_image_state, "Unhide an image")
            .at_path(hidden)
            .with_response(response_schema::<ImageStates>)
            .and_path(blacklisted, "Remove an image from the blacklist")
            .with_response(response_schema::<ImageStates>),
    ]
}

/// Returns the endpoints for sizes, compatible with metal-api.
fn size_routes() -> Vec<ApiRoute> {
    let (size, one_size) = ("/v1/size", "/v1/size/{id}");
    vec![
        get_route(size, sizes::list_sizes, "Sizes")
            .with_parameters(query_parameters::<PageQuery>)
            .with_response(list_schema::<sizes::SizeResponse>),
        put_route(size, sizes::create_size, "Create a size")
            .with_request(request_schema::<MachineSize>)
            .with_created(response_schema::<sizes::SizeResponse>),
        post_route(size, sizes::update_size, "Update a size")
            .with_parameters(version_parameter)
            .with_request(sizes::request_schema)
            .with_response(response_schema::<sizes::SizeResponse>),
        get_route(one_size, sizes::get_size, "One size").with_response(response_schema::<sizes::SizeResponse>),
        delete_route(one_size, sizes::delete_size, "Delete a size")
            .with_parameters(version_parameter)
            .with_response(response_schema::<sizes::SizeResponse>),
        post_route(one_size, sizes::suggest_size, "Constraints of a size that exactly match a machine's hardware")
            .at_path("/v1/size/suggest")
            .with_request(request_schema::<sizes::SizeSuggestion>)
            .with_response(list_schema::<SizeConstraint>),
    ]
}

/// Returns the endpoints for machines, their reinstalls and their records.
fn machine_management_routes() -> Vec<ApiRoute> {
    let (machine, reinstall) = ("/v1/machine", "/v1/machine/{id}/reinstall");
    vec![
        get_route(machine, machines::list_machines, "Machines in metal-api's format")
            .with_parameters(query_parameters::<PageQuery>)
            .with_response(list_schema::<MachineResponse>),
        post_route("/v1/machine/find", machines::find_machines, "Machines that match all criteria")
            .with_request(machines::search_schema)
            .with_response(list_schema::<MachineResponse>),
        post_route("/v1/machine/allocate", machines::allocate_machine, "Allocate a machine")
            .with_request(machines::request_schema)
            .with_response(response_schema::<MachineResponse>),
        delete_route("/v1/machine/{id}/free", machines::free_machine, "Free a machine; its disks are unchanged")
            .with_response(response_schema::<MachineResponse>),
        get_route("/v1/machines", machine_list::get_machines, "Machines with their orders and results")
            .with_parameters(query_parameters::<machine_list::MachineListQuery>)
            .with_response(list_schema::<MachineSummary>),
        post_route(reinstall, machines::reinstall_machine, "Order a reinstall")
            .with_parameters(query_parameters::<machines::OrderQuery>)
            .with_request(request_schema::<ReinstallRequest>)
            .with_response(response_schema::<ReinstallResponse>),
        delete_route(reinstall, operator_api::reinstalls::cancel_reinstall, "Cancel an order that has not started")
            .with_response(response_schema::<MachineSummary>),
        post_route(
            "/v1/machine/{id}/confirm",
            restored_machine_confirmation::confirm_machine,
            "Confirm the record of a machine after the database was restored from a backup",
        )
        .with_response(response_schema::<MachineSummary>),
        post_route(
            "/v1/machines/confirm",
            restored_machine_confirmation::confirm_all_machines,
            "Confirm the records of all machines after the database was restored from a backup",
        )
        .with_response(list_schema::<MachineSummary>),
        post_route("/v1/machine/{id}/rename", operator_api::rename_machine, "Change the id of a machine")
            .with_request(request_schema::<RenameRequest>)
            .with_response(response_schema::<MachineSummary>),
    ]
}

fn migration_routes() -> Vec<ApiRoute> {
    let moves = "/v1/machine/{id}/move";
    vec![
        get_route(moves, moving::show_migration, "The newest migration of a machine")
            .with_response(response_schema::<moving::MigrationView>),
        post_route(
            moves,
            moving::order_migration,
            "Order the migration of a machine to the hardware of another machine",
        )
        .with_request(request_schema::<moving::MigrationRequest>)
        .with_response(response_schema::<moving::MigrationView>),
        delete_route(moves, moving::cancel_migration, "Cancel a migration")
            .with_parameters(query_parameters::<moving::CancelQuery>)
            .with_response(response_schema::<moving::MigrationView>),
        post_route(
            "/v1/machine/{id}/move/approve",
            moving::approve_certificates,
            "Approve the certificates of a migration",
        )
        .with_request(request_schema::<moving::CertificateApproval>)
        .with_response(response_schema::<moving::MigrationView>),
        post_route(
            "/v1/machine/{id}/move/finish",
            moving::finish_migration,
            "Confirm that the migrated system runs on the target, which completes the migration",
        )
        .with_response(response_schema::<moving::MigrationView>),
    ]
}

/// Returns the endpoints for the file of a machine, its power, its next boot, and its plan.
fn host_routes() -> Vec<ApiRoute> {
    vec![
        post_route(
            "/v1/machine/{id}/file",
            machine_file_creation::create_machine_file,
            "Create the file of a machine that has registered",
        )
        .with_request(request_schema::<MachineFileRequest>)
        .with_response(response_schema::<CreatedMachineFile>),
        get_route(
            "/v1/machine/{id}/power",
            power::get_power,
            "Power state of a machine, as its management controller reports it",
        )
        .with_response(response_schema::<PowerStateResponse>),
        post_route("/v1/machine/{id}/power", power::post_power, "Switch a machine")
            .with_request(request_schema::<PowerRequest>)
            .with_response(response_schema::<PowerRequest>),
        get_route(
            "/v1/machine/{id}/boot-digest",
            boot_digest::get_boot_digest,
            "Digest of kernel, ramdisk and kernel command line, for `drophammer reinstall`",
        )
        .with_parameters(query_parameters::<boot_digest::DigestQuery>)
        .with_response(response_schema::<boot_digest::BootDigestResponse>),
        get_route("/v1/machine/{id}/preview", plan_input::get_preview, "Data for planning a machine")
            .with_parameters(query_parameters::<operator_api::reinstall_plan::ReinstallQuery>)
            .with_response(response_schema::<PlanInput>),
    ]
}

fn server_routes() -> Vec<ApiRoute> {
    vec![
        get_route("/metrics", metrics::get_metrics, "Metrics for Prometheus")
            .with_token(RequiredToken::Metrics)
            .with_status(200, ResponseContent::Text),
        get_route("/livez", metrics::get_livez, "Whether the process is alive")
            .with_token(RequiredToken::None)
            .with_status(200, ResponseContent::Text),
        get_route("/readyz", metrics::get_readyz, "Whether the server is ready, including its database")
            .with_token(RequiredToken::None)
            .with_status(200, ResponseContent::Text),
        get_route("/openapi.json", openapi::get_openapi, "This document")
            .with_token(RequiredToken::None)
            .with_response(object_schema),
    ]
}
