//! Error responses.

use crate::server_health::ErrorMessage;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use common::error::Error;
use common::error_code::{ErrorCode, find_in_parentheses};
use common::format::os_error_messages::without_os_error_numbers;
use control::agent_api_types::ErrorBody;

/// Error response with its HTTP status.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    code: Option<&'static str>,
    error_code: Option<ErrorCode>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        let message = without_os_error_numbers(&message.into()).into_owned();
        ApiError { status, message, code: None, error_code: None }
    }

    /// Adds the stable code by which clients recognize a refusal, such as `controller-busy`.
    pub fn with_code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// Adds the error code that the manual explains, unless the error already has one.
    pub fn with_error_code(self, code: ErrorCode) -> ApiError {
        ApiError { error_code: self.error_code.or(Some(code)), ..self }
    }

    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the message without its error code.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the error code that the manual explains, such as `DH-310`.
    pub fn error_code(&self) -> ErrorCode {
        find_error_code(self.error_code, self.status, &self.message)
    }

    /// Returns the error code that was set for this error; `None` if only the general code of its status applies.
    pub fn specific_error_code(&self) -> Option<ErrorCode> {
        self.error_code
    }

    /// Returns the stable code by which clients recognize the refusal.
    pub fn code(&self) -> Option<&'static str> {
        self.code
    }

    /// Returns status and message, for callers that respond in another format.
    pub fn parts(self) -> (StatusCode, String) {
        (self.status, self.message)
    }

    /// Returns the message, with the error code that the manual explains at its end.
    pub fn into_coded_message(self) -> String {
        self.error_code().annotate(self.message)
    }

    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }
}

/// Returns the error code of a refusal: its specific code, or else the code in its message, or else the general code of
/// its status.
pub fn find_error_code(specific: Option<ErrorCode>, status: StatusCode, message: &str) -> ErrorCode {
    let in_message = || ErrorCode::parse(find_in_parentheses(message)?.trim_matches(['(', ')']));
    specific.or_else(in_message).unwrap_or_else(|| general_code(status))
}

/// Returns the code for refusals with this status that have no more specific code.
fn general_code(status: StatusCode) -> ErrorCode {
    match status {
        StatusCode::BAD_REQUEST => ErrorCode::Settings,
        StatusCode::UNAUTHORIZED => ErrorCode::OperatorToken,
        StatusCode::FORBIDDEN => ErrorCode::AccessDenied,
        StatusCode::NOT_FOUND => ErrorCode::ObjectMissing,
        StatusCode::METHOD_NOT_ALLOWED => ErrorCode::ServerUrl,
        StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::RequestTooLarge,
        StatusCode::MISDIRECTED_REQUEST => ErrorCode::UnknownServerName,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            ErrorCode::RequestDeferred
        }
        status if status.is_server_error() => ErrorCode::ServerProblem,
        _ => ErrorCode::ControlPlane,
    }
}

/// Value of `Retry-After`: seconds after which a client should repeat a request to a busy server.
const RETRY_AFTER: &str = "5";

/// Value of `Retry-After` if the database is unavailable. A restart of PostgreSQL takes seconds, and agents
/// lengthen their pauses by themselves during a longer outage.
const RETRY_AFTER_OUTAGE: &str = "1";

/// Attaches the message and the code of an error to its response. The log and the audit log read the message, and
/// [`set_retry_after`] reads the code.
pub fn attach_error(response: &mut Response, message: String, code: ErrorCode) {
    response.extensions_mut().insert(ErrorMessage(message));
    response.extensions_mut().insert(code);
}

/// Sets `Retry-After` if the client should repeat the request. Called for all responses, so that it does not depend on
/// the format of an error.
pub(crate) fn set_retry_after(response: &mut Response) {
    if [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&response.status()) {
        let is_outage = response.extensions().get::<ErrorCode>() == Some(&ErrorCode::DatabaseUnavailable);
        let seconds = if is_outage { RETRY_AFTER_OUTAGE } else { RETRY_AFTER };
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(seconds));
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        let status = match error.code() {
            // With this status, the client repeats the request.
            ErrorCode::DatabaseUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, error.to_string()).with_error_code(error.code())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let error_code = self.error_code();
        let (code, error_text) = (self.code.map(str::to_owned), Some(error_code.to_string()));
        let statuscode = self.status.as_u16();
        let body = ErrorBody { statuscode, message: self.message.clone(), code, error_code: error_text };
        let mut response = (self.status, Json(body)).into_response();
        attach_error(&mut response, self.message, error_code);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_depends_on_status_and_code() {
        for (status, code, seconds) in [
            (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::RequestDeferred, Some("5")),
            (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::DatabaseUnavailable, Some("1")),
            (StatusCode::TOO_MANY_REQUESTS, ErrorCode::RequestDeferred, Some("5")),
            (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::ServerProblem, None),
            (StatusCode::OK, ErrorCode::ServerProblem, None),
        ] {
            let mut response = status.into_response();
            attach_error(&mut response, "why".to_owned(), code);
            set_retry_after(&mut response);
            let actual = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(actual, seconds, "{status} {code:?}");
        }
    }

    #[test]
    fn every_error_has_one_code() {
        for (error, code, message) in [
            (ApiError::not_found("none"), ErrorCode::ObjectMissing, "none (DH-609)"),
            (ApiError::bad_request("no").with_error_code(ErrorCode::Plan), ErrorCode::Plan, "no (DH-201)"),
            (ApiError::bad_request("refused: no (DH-310)"), ErrorCode::Mkfs, "refused: no (DH-310)"),
            (ApiError::new(StatusCode::CONFLICT, "no (DH-1)"), ErrorCode::ControlPlane, "no (DH-1) (DH-600)"),
            (ApiError::new(StatusCode::BAD_GATEWAY, "no"), ErrorCode::ServerProblem, "no (DH-714)"),
            (ApiError::new(StatusCode::TOO_MANY_REQUESTS, "no"), ErrorCode::RequestDeferred, "no (DH-611)"),
        ] {
            assert_eq!((error.error_code(), error.into_coded_message().as_str()), (code, message));
        }
    }
}
