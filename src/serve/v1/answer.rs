//! Error responses: `statuscode` and `message` as in metal-api, with additional fields.

use crate::error::Error;
use crate::problem::{Problem, lines};
use crate::serve::api_error::ApiError;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

/// Body of an error response.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Refusal {
    statuscode: u16,
    message: String,
    /// Problems of a document, each with its position.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Problem>,
    /// Both versions in a conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    conflict: Option<Value>,
}

#[derive(Debug)]
pub struct Refused {
    status: StatusCode,
    message: String,
    /// Problems of a document, each with its position.
    problems: Vec<Problem>,
    /// Both versions in a conflict.
    conflict: Option<Value>,
}

pub type Answered<T = Response> = std::result::Result<T, Refused>;

impl Refused {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Refused {
        Refused { status, message: message.into(), problems: Vec::new(), conflict: None }
    }

    pub fn bad(message: impl Into<String>) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns metal-api's error for an unknown object.
    pub fn unknown(kind: &str, id: &str) -> Refused {
        Refused::new(StatusCode::NOT_FOUND, format!("no {kind} with id {id:?} found"))
    }

    pub fn unprocessable(message: impl Into<String>) -> Refused {
        Refused::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    pub fn failed(message: impl Into<String>) -> Refused {
        Refused::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub fn taken(message: impl Into<String>) -> Refused {
        Refused::new(StatusCode::CONFLICT, message)
    }

    /// Returns metal-api's error for a concurrent change, with both versions.
    pub fn changed(kind: &str, id: &str, conflict: Value) -> Refused {
        let message = format!("cannot update {kind} ({id}): the entity was changed from another, please retry");
        Refused { conflict: Some(conflict), ..Refused::taken(message) }
    }

    /// Returns the message alone.
    pub fn words(self) -> String {
        self.message
    }

    /// Adds details.
    pub fn beside(self, problems: Vec<Problem>) -> Refused {
        Refused { problems, ..self }
    }

    /// Lists the problems in the message, without their positions, which are in a separate field.
    pub fn wrong(status: StatusCode, problems: Vec<Problem>) -> Refused {
        let words: Vec<Problem> = problems.iter().map(|problem| Problem::new("", &problem.message)).collect();
        Refused { problems, ..Refused::new(status, lines(&words)) }
    }
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Refused {
        let (status, message) = error.parts();
        Refused::new(status, message)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::failed(error.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused { status, message, problems, conflict } = self;
        (status, Json(Refusal { statuscode: status.as_u16(), message, problems, conflict })).into_response()
    }
}
