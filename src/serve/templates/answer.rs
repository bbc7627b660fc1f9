//! Responses in Ironic's format. An error is JSON text in a JSON object, and has two forms, depending on the component that refuses.

use crate::serve::api_error::ApiError;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Refusal of a request.
#[derive(Debug)]
pub struct Refused {
    status: StatusCode,
    message: String,
    form: Form,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    /// The handler of the request refuses.
    Call,
    /// The route does not exist, or not in this version.
    Router,
}

pub type Answered<T = Response> = std::result::Result<T, Refused>;

impl Refused {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Refused {
        Refused { status, message: message.into(), form: Form::Call }
    }

    pub fn bad(message: impl Into<String>) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn unknown(ident: &str) -> Refused {
        Refused::new(StatusCode::NOT_FOUND, format!("deploy template {ident} not found"))
    }

    pub fn conflict(message: impl Into<String>) -> Refused {
        Refused::new(StatusCode::CONFLICT, message)
    }

    pub fn router(status: StatusCode, message: impl Into<String>) -> Refused {
        Refused { status, message: message.into(), form: Form::Router }
    }
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Refused {
        let (status, message) = error.parts();
        Refused::new(status, message)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused { status, message, form } = self;
        let who = if status.is_server_error() { "Server" } else { "Client" };
        let inner = match form {
            Form::Call => json!({"faultcode": who, "faultstring": message, "debuginfo": null}),
            Form::Router => {
                let title = status.canonical_reason().unwrap_or_default();
                json!({"code": status.as_u16(), "title": title, "description": message})
            }
        };
        (status, Json(json!({"error_message": inner.to_string()}))).into_response()
    }
}
