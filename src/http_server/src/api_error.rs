//! Error responses.

use crate::server_health::ErrorMessage;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use common::error::Error;
use common::error_code::ErrorCode;
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

    /// Returns the error code that the manual explains, such as `DH-310`.
    pub fn error_code(&self) -> Option<ErrorCode> {
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

    /// Returns the message, with the error code that the manual explains at its end if the error has one.
    pub fn into_coded_message(self) -> String {
        match self.error_code {
            Some(code) => code.annotate(self.message),
            None => self.message,
        }
    }

    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }
}

/// Value of `Retry-After`: seconds after which a client should repeat a request to a busy server.
const RETRY_AFTER: &str = "5";

/// Value of `Retry-After` if the database is unavailable. A restart of PostgreSQL takes seconds, and agents
/// lengthen their pauses by themselves during a longer outage.
const RETRY_AFTER_OUTAGE: &str = "1";

/// Attaches the message and the code of an error to its response. The log and the audit log read the message, and
/// [`set_retry_after`] reads the code.
pub fn attach_error(response: &mut Response, message: String, code: Option<ErrorCode>) {
    response.extensions_mut().insert(ErrorMessage(message));
    if let Some(code) = code {
        response.extensions_mut().insert(code);
    }
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
        let (code, error_code) = (self.code.map(str::to_owned), self.error_code.map(|code| code.to_string()));
        let body = ErrorBody { statuscode: self.status.as_u16(), message: self.message.clone(), code, error_code };
        let mut response = (self.status, Json(body)).into_response();
        attach_error(&mut response, self.message, self.error_code);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_depends_on_status_and_code() {
        let outage = Some(ErrorCode::DatabaseUnavailable);
        for (status, code, seconds) in [
            (StatusCode::SERVICE_UNAVAILABLE, None, Some("5")),
            (StatusCode::SERVICE_UNAVAILABLE, outage, Some("1")),
            (StatusCode::TOO_MANY_REQUESTS, None, Some("5")),
            (StatusCode::INTERNAL_SERVER_ERROR, None, None),
            (StatusCode::OK, None, None),
        ] {
            let mut response = status.into_response();
            attach_error(&mut response, "why".to_owned(), code);
            set_retry_after(&mut response);
            let actual = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(actual, seconds, "{status} {code:?}");
        }
    }
}
