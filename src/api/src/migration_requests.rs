//! Requests about migrations. `operator_requests` handles the requests of the operator, `machine_requests` handles
//! the requests of the two machines, and `machine_reports` their reports. `migration_assignment` builds the responses
//! to the machines. `machine_migration_view` describes the role of a machine, and `machine_file_update` applies the
//! result to the operator's files. `store::machine_migration` contains the states of a migration and their transitions.

pub mod machine_file_update;
pub mod machine_migration_view;
pub(crate) mod machine_reports;
pub(crate) mod machine_requests;
pub(crate) mod migration_assignment;
pub mod operator_requests;

pub use store::machine_migration::*;

use axum::http::StatusCode;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use site::operator_files::MachineSpec;

/// Returns the refusal of a migration, with all objections to it.
fn refusal_error(problems: &[String], machines: [&MachineSpec; 2]) -> ApiError {
    let lines: Vec<String> = problems.iter().map(|problem| format!("not migrated: {problem}")).collect();
    let error = ApiError::new(StatusCode::CONFLICT, lines.join("\n"));
    match machines.iter().any(|machine| machine.locked.is_some()) {
        true => error.with_error_code(ErrorCode::MachineLocked),
        false => error,
    }
}
