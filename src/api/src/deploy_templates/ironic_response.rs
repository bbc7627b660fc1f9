//! Responses in Ironic's format. The body of an error is a JSON object with one string, which in turn contains JSON.
//! The fields in this inner JSON depend on whether a handler or the router refuses the request. The field `error_code`
//! next to `error_message` contains the code of the error in the manual.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use common::error_code::ErrorCode;
use common::format::os_error_messages::without_os_error_numbers;
use http_server::api_error::{ApiError, attach_error, find_error_code};
use serde_json::json;

/// Refusal of a request.
#[derive(Debug)]
pub(crate) struct IronicRefusal {
    status: StatusCode,
    message: String,
    form: RefusalForm,
    error_code: Option<ErrorCode>,
}

#[derive(Debug, Clone, Copy)]
enum RefusalForm {
    /// Error of the request's handler.
    Call,
    /// Error of the router: the route does not exist, or does not exist in the requested API version.
    Router,
}

pub(crate) type TemplateResult<T = Response> = std::result::Result<T, IronicRefusal>;

impl IronicRefusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> IronicRefusal {
        let message = without_os_error_numbers(&message.into()).into_owned();
        IronicRefusal { status, message, form: RefusalForm::Call, error_code: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> IronicRefusal {
        IronicRefusal::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn unknown_template(ident: &str) -> IronicRefusal {
        IronicRefusal::new(StatusCode::NOT_FOUND, format!("deploy template {ident} not found"))
    }

    pub(crate) fn conflict(message: impl Into<String>) -> IronicRefusal {
        IronicRefusal::new(StatusCode::CONFLICT, message)
    }

    pub(crate) fn from_router(status: StatusCode, message: impl Into<String>) -> IronicRefusal {
        IronicRefusal { status, message: message.into(), form: RefusalForm::Router, error_code: None }
    }
}

impl From<ApiError> for IronicRefusal {
    fn from(error: ApiError) -> IronicRefusal {
        let error_code = error.specific_error_code();
        let (status, message) = error.parts();
        IronicRefusal { error_code, ..IronicRefusal::new(status, message) }
    }
}

impl IntoResponse for IronicRefusal {
    fn into_response(self) -> Response {
        let IronicRefusal { status, message, form, error_code } = self;
        let error_code = find_error_code(error_code, status, &message);
        let who = if status.is_server_error() { "Server" } else { "Client" };
        let inner = match form {
            RefusalForm::Call => json!({"faultcode": who, "faultstring": message, "debuginfo": null}),
            RefusalForm::Router => {
                let title = status.canonical_reason().unwrap_or_default();
                json!({"code": status.as_u16(), "title": title, "description": message})
            }
        };
        let body = json!({"error_message": inner.to_string(), "error_code": error_code});
        let mut response = (status, Json(body)).into_response();
        attach_error(&mut response, message, error_code);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_server::server_health::ErrorMessage;

    #[test]
    fn response_retains_the_code_and_the_message() {
        let outage =
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "why").with_error_code(ErrorCode::DatabaseUnavailable);
        let response = IronicRefusal::from(outage).into_response();
        assert_eq!(response.extensions().get::<ErrorCode>(), Some(&ErrorCode::DatabaseUnavailable));
        assert_eq!(response.extensions().get::<ErrorMessage>().unwrap().0, "why");
    }
}
