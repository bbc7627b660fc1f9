//! `GET /v1/problems`: returns the current problems of the server itself.

use crate::AppState;
use crate::access::Identity;
use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Problem of the server itself, such as a full disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ServerProblem {
    /// Description of the problem, with its error code at the end.
    pub message: String,
}

/// Lists the problems of the server itself, without problems of the directory. The list is empty for users with
/// projects, because the problems name files and requests of other machines.
pub(crate) async fn list_problems(
    State(app): State<Arc<AppState>>,
    Extension(identity): Extension<Identity>,
) -> Json<Vec<ServerProblem>> {
    let problems = if identity.is_restricted() { Vec::new() } else { app.counters.health.problems() };
    Json(problems.into_iter().map(|message| ServerProblem { message }).collect())
}
