//! Endpoints for Kubernetes volumes.

use super::description::{ApiRoute, ResponseContent, delete_route, get_route, post_route};
use crate::json_schemas::list_schema;
use crate::metal_api::volumes;
use crate::page_query::PAGE_PARAMETERS;

pub(super) fn volume_routes() -> Vec<ApiRoute> {
    vec![
        get_route("/v1/volumes", volumes::list_volumes, "Kubernetes volumes of all machines, with their states")
            .with_query(&PAGE_PARAMETERS)
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
            .with_query(&["persistent_volume"])
            .with_response(list_schema::<volumes::VolumeResponse>),
    ]
}
