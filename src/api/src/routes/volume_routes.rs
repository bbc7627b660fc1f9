//! Endpoints for Kubernetes volumes.

use super::description::{ApiRoute, ResponseContent, delete_route, get_route, post_route};
use crate::json_schemas::list_schema;
use crate::metal_api::volumes;
use crate::openapi::parameters::query_parameters;
use crate::page_query::PageQuery;

pub(super) fn volume_routes() -> Vec<ApiRoute> {
    vec![
        get_route("/v1/volumes", volumes::list_volumes, "Kubernetes volumes of all machines, with their states")
            .with_parameters(query_parameters::<PageQuery>)
            .with_response(list_schema::<volumes::VolumeResponse>),
        get_route("/v1/volumes/manifests", volumes::get_manifests, "PersistentVolumes of available volumes, as YAML")
            .with_status(200, ResponseContent::Text),
        post_route(
            "/v1/machine/{id}/volumes",
            volumes::add_volumes,
            "Add volumes and storage classes to a machine file",
        )
        .with_request(volumes::request_schema)
        .with_response(list_schema::<volumes::VolumeResponse>),
        delete_route("/v1/machine/{id}/volumes/{name}", volumes::remove_volume, "Remove a volume from a machine file")
            .with_parameters(query_parameters::<volumes::RemovalQuery>)
            .with_response(list_schema::<volumes::VolumeResponse>),
    ]
}
