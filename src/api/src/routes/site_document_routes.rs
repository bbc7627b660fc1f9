//! Endpoints that store and return all documents of the operator at once.

use super::ApiRoute;
use super::description::post_route;
use crate::json_schemas::{request_schema, response_schema};
use crate::site_documents::{self, DocumentApplication, DocumentExport, DocumentReport};

pub(super) fn document_routes() -> Vec<ApiRoute> {
    vec![
        post_route(
            "/v1/documents/apply",
            site_documents::apply_documents,
            "Store all documents, or none if one of them is invalid, in the database that several servers share",
        )
        .with_request(request_schema::<DocumentApplication>)
        .with_response(response_schema::<DocumentReport>),
        post_route("/v1/documents/export", site_documents::export_documents, "All documents, including their secrets")
            .with_response(response_schema::<DocumentExport>),
    ]
}
