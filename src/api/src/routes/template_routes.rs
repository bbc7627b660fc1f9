//! Endpoints for deploy templates, in two APIs: Ironic's API, and the API of the Ironic specification that proposed
//! deploy templates.

use super::description::{ApiRoute, ErrorFormat, OperationDoc, ResponseContent, SchemaFn};
use crate::AppState;
use crate::deploy_templates;
use crate::openapi::parameters::ParameterFn;
use axum::routing::{MethodRouter, any};
use std::sync::Arc;

/// Paths, schemas and parameters of an API.
struct TemplateApi {
    paths: [&'static str; 3],
    /// Path of one template.
    template_path: &'static str,
    handler: MethodRouter<Arc<AppState>>,
    list_schema: SchemaFn,
    list_parameters: ParameterFn,
    template_parameters: ParameterFn,
    change_parameters: ParameterFn,
}

pub(super) fn template_routes() -> Vec<ApiRoute> {
    let ironic = TemplateApi {
        paths: ["/v1/deploy_templates", "/v1/deploy_templates/", "/v1/deploy_templates/{*path}"],
        template_path: "/v1/deploy_templates/{ident}",
        handler: any(deploy_templates::handle_ironic),
        list_schema: deploy_templates::ironic_list_schema,
        list_parameters: deploy_templates::ironic_list_parameters,
        template_parameters: deploy_templates::ironic_template_parameters,
        change_parameters: deploy_templates::version_parameters,
    };
    let proposed = TemplateApi {
        paths: ["/v1/deploy-templates", "/v1/deploy-templates/", "/v1/deploy-templates/{*path}"],
        template_path: "/v1/deploy-templates/{ident}",
        handler: any(deploy_templates::handle_proposed),
        list_schema: deploy_templates::proposed_list_schema,
        list_parameters: deploy_templates::list_parameters,
        template_parameters: deploy_templates::template_parameters,
        change_parameters: Vec::new,
    };
    [ironic, proposed].into_iter().flat_map(describe_routes).collect()
}

/// Returns the routes of an API. The first route describes the operations of all of them.
fn describe_routes(api: TemplateApi) -> [ApiRoute; 3] {
    let TemplateApi { paths, template_path, handler, .. } = api;
    let [all, ..] = paths;
    let operation = |method, path, summary, parameters| {
        OperationDoc { error_format: ErrorFormat::Ironic, ..OperationDoc::new(method, path, summary) }
            .with_parameters(parameters)
    };
    let template = || ResponseContent::Json(deploy_templates::template_schema);
    let described = vec![
        operation("GET", all, "Deploy templates", api.list_parameters)
            .with_response(200, ResponseContent::Json(api.list_schema)),
        operation("POST", all, "Create a template", api.change_parameters)
            .with_request(deploy_templates::request_schema)
            .with_response(201, template()),
        operation("GET", template_path, "One template", api.template_parameters).with_response(200, template()),
        operation("PATCH", template_path, "Update a template with a JSON Patch", api.change_parameters)
            .with_request(deploy_templates::patch_schema)
            .with_response(200, template()),
        operation("DELETE", template_path, "Delete a template", api.change_parameters)
            .with_response(204, ResponseContent::Nothing),
    ];
    let mut routes = paths.map(|path| ApiRoute { path, handler: handler.clone(), described: Vec::new() });
    routes[0].described = described;
    routes
}
