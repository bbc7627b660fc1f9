//! Error responses: `statuscode` and `message` as in metal-api, with additional fields.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use common::diagnostic::{Diagnostic, join_problems};
use common::error::Error;
use common::error_code::ErrorCode;
use common::format::os_error_messages::without_os_error_numbers;
use http_server::api_error::{ApiError, attach_error, find_error_code};
use serde::Serialize;
use serde_json::Value;

/// Body of an error response.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct RefusalBody {
    statuscode: u16,
    message: String,
    /// Problems of the request's document, each with its position.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Diagnostic>,
    /// Both versions of an object that was changed concurrently.
    #[serde(skip_serializing_if = "Option::is_none")]
    conflict: Option<Value>,
    /// Stable code that names the reason of the refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// Error code as in the manual, such as `DH-310`.
    error_code: ErrorCode,
}

#[derive(Debug)]
pub struct ApiRefusal {
    status: StatusCode,
    message: String,
    /// Problems of the request's document, each with its position.
    problems: Vec<Diagnostic>,
    /// Both versions of an object that was changed concurrently.
    conflict: Option<Value>,
    code: Option<&'static str>,
    error_code: Option<ErrorCode>,
}

pub(crate) type ApiResult<T = Response> = std::result::Result<T, ApiRefusal>;

impl ApiRefusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiRefusal {
        ApiRefusal {
            status,
            message: without_os_error_numbers(&message.into()).into_owned(),
            problems: Vec::new(),
            conflict: None,
            code: None,
            error_code: None,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> ApiRefusal {
        ApiRefusal::new(StatusCode::BAD_REQUEST, message)
    }

    /// Adds the error code as in the manual, unless the refusal already has one.
    pub(crate) fn with_error_code(self, code: ErrorCode) -> ApiRefusal {
        ApiRefusal { error_code: self.error_code.or(Some(code)), ..self }
    }

    /// Returns metal-api's error for an unknown object.
    pub(crate) fn not_found(kind: &str, id: &str) -> ApiRefusal {
        ApiRefusal::new(StatusCode::NOT_FOUND, format!("no {kind} with id {id:?} found"))
    }

    pub(crate) fn unprocessable(message: impl Into<String>) -> ApiRefusal {
        ApiRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    pub(crate) fn internal_error(message: impl Into<String>) -> ApiRefusal {
        ApiRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> ApiRefusal {
        ApiRefusal::new(StatusCode::CONFLICT, message)
    }

    /// Returns metal-api's error for a concurrent change, with both versions.
    pub(crate) fn concurrent_change(kind: &str, id: &str, conflict: Value) -> ApiRefusal {
        let message = format!("cannot update {kind} ({id}): the entity was changed from another, please retry");
        ApiRefusal { conflict: Some(conflict), ..ApiRefusal::conflict(message) }
    }

    /// Adds an effect that the refused request has nevertheless had to the message.
    pub(crate) fn with_consequence(self, consequence: &str) -> ApiRefusal {
        ApiRefusal { message: format!("{}; {consequence}", self.message), ..self }
    }

    /// Returns only the message, and drops the status and the details.
    pub(crate) fn into_message(self) -> String {
        self.message
    }

    /// Converts the refusal to an [`ApiError`] with its status, its message and its codes, but without its details.
    pub fn into_error(self) -> ApiError {
        let error = ApiError::new(self.status, self.message);
        let error = self.code.into_iter().fold(error, ApiError::with_code);
        self.error_code.into_iter().fold(error, ApiError::with_error_code)
    }

    /// Adds the problems of the request's document.
    pub(crate) fn with_problems(self, problems: Vec<Diagnostic>) -> ApiRefusal {
        ApiRefusal { problems, ..self }
    }

    /// Returns an error with the problems. The message lists the problems without their positions; the field `problems`
    /// contains the positions.
    pub(crate) fn from_problems(status: StatusCode, problems: Vec<Diagnostic>) -> ApiRefusal {
        let words: Vec<Diagnostic> = problems.iter().map(|problem| Diagnostic::new("", &problem.message)).collect();
        ApiRefusal { problems, ..ApiRefusal::new(status, join_problems(&words)) }
    }
}

impl From<ApiError> for ApiRefusal {
    fn from(error: ApiError) -> ApiRefusal {
        let (code, error_code) = (error.code(), error.specific_error_code());
        let (status, message) = error.parts();
        ApiRefusal { code, error_code, ..ApiRefusal::new(status, message) }
    }
}

impl From<Error> for ApiRefusal {
    fn from(error: Error) -> ApiRefusal {
        ApiError::from(error).into()
    }
}

impl IntoResponse for ApiRefusal {
    fn into_response(self) -> Response {
        let ApiRefusal { status, message, problems, conflict, code, error_code } = self;
        let error_code = find_error_code(error_code, status, &message);
        let statuscode = status.as_u16();
        let body = RefusalBody { statuscode, message: message.clone(), problems, conflict, code, error_code };
        let mut response = (status, Json(body)).into_response();
        attach_error(&mut response, message, error_code);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::error::Phase;

    #[test]
    fn conversions_preserve_the_codes() {
        let error = || ApiError::bad_request("no").with_code("a-code").with_error_code(ErrorCode::Plan);
        let refusal = ApiRefusal::from(error());
        assert_eq!((refusal.code, refusal.error_code), (Some("a-code"), Some(ErrorCode::Plan)));
        let back = refusal.into_error();
        assert_eq!((back.code(), back.specific_error_code()), (Some("a-code"), Some(ErrorCode::Plan)));
        let uncoded = ApiRefusal::from(ApiError::bad_request("no")).into_error();
        assert_eq!((uncoded.code(), uncoded.specific_error_code()), (None, None));
    }

    #[test]
    fn unavailable_database_requests_a_retry() {
        let error = Error::new(Phase::Serve, "PostgreSQL lacks free space").with_code(ErrorCode::DatabaseUnavailable);
        let response = ApiRefusal::from(error).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.extensions().get::<ErrorCode>(), Some(&ErrorCode::DatabaseUnavailable));
        let other = ApiRefusal::from(Error::new(Phase::Serve, "no")).into_response();
        assert_eq!(other.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
