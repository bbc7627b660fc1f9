//! Types that describe the operations of routes, and the functions that build these descriptions.

use crate::AppState;
use crate::json_schemas::SchemaGenerators;
use crate::openapi::parameters::ParameterFn;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use serde_json::Value;
use std::sync::Arc;

pub(crate) type SchemaFn = fn(&mut SchemaGenerators) -> Value;

/// HTTP route: its path, its handler, and the descriptions of its operations.
pub struct ApiRoute {
    pub path: &'static str,
    pub(super) handler: MethodRouter<Arc<AppState>>,
    /// Operations of the route. Most routes have one operation. Routes that dispatch on method or path have several.
    pub described: Vec<OperationDoc>,
}

/// Description of an operation.
pub struct OperationDoc {
    pub method: &'static str,
    pub path: &'static str,
    pub summary: &'static str,
    pub token: RequiredToken,
    /// Parameters in the query and in headers.
    pub(crate) parameters: Option<ParameterFn>,
    pub asks: Option<SchemaFn>,
    pub answers: Vec<(u16, ResponseContent)>,
    pub error_format: ErrorFormat,
}

/// Format of error responses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ErrorFormat {
    MetalApi,
    Ironic,
}

/// Token that authorizes an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RequiredToken {
    Operator,
    /// Token for metrics, or the operator's token.
    Metrics,
    Machine,
    MachineOrOperator,
    None,
}

pub enum ResponseContent {
    Nothing,
    Text,
    Json(SchemaFn),
}

impl OperationDoc {
    pub(super) fn new(method: &'static str, path: &'static str, summary: &'static str) -> OperationDoc {
        let (token, error_format) = (RequiredToken::Operator, ErrorFormat::MetalApi);
        OperationDoc { method, path, summary, token, parameters: None, asks: None, answers: Vec::new(), error_format }
    }

    pub(super) fn with_parameters(self, parameters: ParameterFn) -> OperationDoc {
        OperationDoc { parameters: Some(parameters), ..self }
    }

    pub(super) fn with_request(self, schema: SchemaFn) -> OperationDoc {
        OperationDoc { asks: Some(schema), ..self }
    }

    pub(super) fn with_response(mut self, status: u16, content: ResponseContent) -> OperationDoc {
        self.answers.push((status, content));
        self
    }
}

fn new_route<H: Handler<T, Arc<AppState>>, T: 'static>(
    (method, filter): (&'static str, MethodFilter),
    path: &'static str,
    handler: H,
    summary: &'static str,
) -> ApiRoute {
    ApiRoute { path, handler: on(filter, handler), described: vec![OperationDoc::new(method, path, summary)] }
}

pub(super) fn get_route<H: Handler<T, Arc<AppState>>, T: 'static>(
    path: &'static str,
    handler: H,
    summary: &'static str,
) -> ApiRoute {
    new_route(("GET", MethodFilter::GET), path, handler, summary)
}

pub(super) fn put_route<H: Handler<T, Arc<AppState>>, T: 'static>(
    path: &'static str,
    handler: H,
    summary: &'static str,
) -> ApiRoute {
    new_route(("PUT", MethodFilter::PUT), path, handler, summary)
}

pub(super) fn post_route<H: Handler<T, Arc<AppState>>, T: 'static>(
    path: &'static str,
    handler: H,
    summary: &'static str,
) -> ApiRoute {
    new_route(("POST", MethodFilter::POST), path, handler, summary)
}

pub(super) fn delete_route<H: Handler<T, Arc<AppState>>, T: 'static>(
    path: &'static str,
    handler: H,
    summary: &'static str,
) -> ApiRoute {
    new_route(("DELETE", MethodFilter::DELETE), path, handler, summary)
}

/// Builder methods, each of which changes the operation that was added last.
impl ApiRoute {
    fn map_last(mut self, change: impl FnOnce(OperationDoc) -> OperationDoc) -> ApiRoute {
        let last = self.described.pop().map(change);
        self.described.extend(last);
        self
    }

    pub(super) fn with_request(self, schema: SchemaFn) -> ApiRoute {
        self.map_last(|described| described.with_request(schema))
    }

    pub(super) fn with_response(self, schema: SchemaFn) -> ApiRoute {
        self.with_status(200, ResponseContent::Json(schema))
    }

    pub(super) fn with_created(self, schema: SchemaFn) -> ApiRoute {
        self.with_status(201, ResponseContent::Json(schema))
    }

    pub(super) fn with_status(self, status: u16, content: ResponseContent) -> ApiRoute {
        self.map_last(|described| described.with_response(status, content))
    }

    pub(super) fn with_parameters(self, parameters: ParameterFn) -> ApiRoute {
        self.map_last(|described| described.with_parameters(parameters))
    }

    pub(super) fn with_token(self, token: RequiredToken) -> ApiRoute {
        self.map_last(|described| OperationDoc { token, ..described })
    }

    /// Sets the concrete path of the operation. Used for routes that dispatch on the path.
    pub(super) fn at_path(self, path: &'static str) -> ApiRoute {
        self.map_last(|described| OperationDoc { path, ..described })
    }

    /// Adds an operation with the same method at another concrete path.
    pub(super) fn and_path(mut self, path: &'static str, summary: &'static str) -> ApiRoute {
        let method = self.described.last().map_or("GET", |last| last.method);
        self.described.push(OperationDoc::new(method, path, summary));
        self
    }
}
