//! Problems of the server itself: a database that cannot be written, a filesystem without free space, missing boot
//! files, and requests that the server has failed to complete. A periodic check in the crate `server` finds the first
//! three, and records them here.

use axum::http::{Method, StatusCode};
use axum::response::Response;
use common::error_code::ErrorCode;
use common::format::os_error_messages::without_os_error_numbers;
use common::format::untrusted_text_limits::sanitize_message;
use common::sync::lock_mutex;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Duration for which a failed request is shown as a problem, on the page and by `drophammer_healthy`.
const ERROR_SHOWN: Duration = Duration::from_secs(60);

/// Error message of a response, for the log of the server.
#[derive(Clone)]
pub struct ErrorMessage(pub String);

/// Type of a problem that makes the server unready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    DatabaseUnreadable,
    DatabaseUnwritable,
    LittleFreeSpace,
}

impl FailureKind {
    /// Returns a fixed description for clients without a token. It contains no paths, addresses or error messages.
    pub fn describe(self) -> &'static str {
        match self {
            FailureKind::DatabaseUnreadable => "the database cannot be read",
            FailureKind::DatabaseUnwritable => "the database cannot be written",
            FailureKind::LittleFreeSpace => "little free space",
        }
    }
}

/// Problem that the periodic check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFailure {
    pub kind: FailureKind,
    /// Description for the operator, with all details.
    pub message: String,
}

/// Changes between two periodic checks, as messages for the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProblemChanges {
    /// Problems that are new, or have a new message.
    pub new: Vec<String>,
    /// Problems that no longer exist.
    pub ended: Vec<String>,
    /// Unchanged problems that make the server unready.
    pub remaining: Vec<String>,
}

/// Current problems of the server. Cheap to clone.
#[derive(Clone, Default)]
pub struct ServerHealth(Arc<HealthState>);

#[derive(Default)]
struct HealthState {
    problems: Mutex<HealthProblems>,
    /// Number of requests that the server has failed to complete.
    errors: AtomicU64,
    /// Number of entries of the audit log that could not be written to its file.
    lost_audit_entries: AtomicU64,
}

#[derive(Default)]
struct HealthProblems {
    /// Problems that prevent the server from storing reports and orders.
    failures: Vec<ServerFailure>,
    /// Missing boot files, which do not impair running installations.
    missing: Vec<String>,
    last_error: Option<(Instant, String)>,
    /// Problem of the file of the audit log, which does not impair requests.
    audit_file: Option<String>,
}

impl ServerHealth {
    /// Records a response. If the server has failed to complete the request, returns a line for the log. Status 502 (a
    /// management controller has failed) and status 503 (the client must retry) are not failures of the server.
    pub fn record_response(&self, method: &Method, path: &str, address: IpAddr, response: &Response) -> Option<String> {
        let status = response.status();
        if !status.is_server_error() || [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
            return None;
        }
        self.0.errors.fetch_add(1, Ordering::Relaxed);
        let why = response.extensions().get::<ErrorMessage>().map_or("the reason is unknown", |message| &message.0);
        let line = format!(
            "{method} {path} from {address}: cannot complete the request (status {status}): {why}",
            status = status.as_u16()
        );
        // The whole line is sanitized, because the path comes from the client, and the reason may contain text of other
        // programs.
        let line = ErrorCode::ServerProblem.annotate_uncoded(sanitize_message(&line));
        lock_mutex(&self.0.problems).last_error = Some((Instant::now(), line.clone()));
        Some(line)
    }

    /// Returns the number of requests that the server has failed to complete.
    pub fn count_errors(&self) -> u64 {
        self.0.errors.load(Ordering::Relaxed)
    }

    /// Sets the problem of the audit log's file, and the number of entries that could not be written to this file.
    pub fn set_audit_file(&self, problem: Option<String>, lost: u64) {
        self.0.lost_audit_entries.store(lost, Ordering::Relaxed);
        let problem = problem.map(|problem| without_os_error_numbers(&problem).into_owned());
        lock_mutex(&self.0.problems).audit_file = problem;
    }

    /// Returns the number of entries of the audit log that could not be written to its file.
    pub fn count_lost_audit_entries(&self) -> u64 {
        self.0.lost_audit_entries.load(Ordering::Relaxed)
    }

    /// Returns the types of the problems that make the server unready. Only the periodic check finds such problems. A
    /// failed request does not make the server unready, because other requests can still succeed.
    pub fn readiness_failures(&self) -> Vec<FailureKind> {
        lock_mutex(&self.0.problems).failures.iter().map(|failure| failure.kind).collect()
    }

    /// Returns, for the operator, the problems that the periodic check has found, the problem of the audit log's file,
    /// and the last failed request.
    pub fn failures(&self) -> Vec<String> {
        let problems = lock_mutex(&self.0.problems);
        let error = problems.last_error.as_ref().filter(|(at, _)| at.elapsed() < ERROR_SHOWN);
        let messages = problems.failures.iter().map(|failure| &failure.message);
        messages.chain(&problems.audit_file).chain(error.map(|(_, line)| line)).cloned().collect()
    }

    /// Returns all problems, for the operator.
    pub fn problems(&self) -> Vec<String> {
        let failures = self.failures();
        failures.into_iter().chain(lock_mutex(&self.0.problems).missing.clone()).collect()
    }

    /// Replaces the results of the periodic check. Returns the changes since the previous check.
    pub fn replace_checked(&self, failures: Vec<ServerFailure>, missing: Vec<String>) -> ProblemChanges {
        let mut problems = lock_mutex(&self.0.problems);
        let mut changes = ProblemChanges::default();
        for now in &failures {
            match problems.failures.iter().any(|before| before == now) {
                true => changes.remaining.push(now.message.clone()),
                false => changes.new.push(now.message.clone()),
            }
        }
        // A problem with a new message, such as another amount of free space, has not ended.
        let ended = problems.failures.iter().filter(|before| failures.iter().all(|now| now.kind != before.kind));
        changes.ended.extend(ended.map(|failure| failure.message.clone()));
        changes.new.extend(missing.iter().filter(|now| !problems.missing.contains(now)).cloned());
        changes.ended.extend(problems.missing.iter().filter(|before| !missing.contains(before)).cloned());
        (problems.failures, problems.missing) = (failures, missing);
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_error::ApiError;
    use axum::response::IntoResponse;

    #[test]
    fn only_status_500_counts_as_server_failure() {
        let health = ServerHealth::default();
        let record = |status: StatusCode| {
            let response = ApiError::new(status, "disk full").into_response();
            health.record_response(&Method::POST, "/v1/x", [10, 0, 0, 7].into(), &response)
        };
        for status in [StatusCode::OK, StatusCode::CONFLICT, StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE] {
            assert_eq!(record(status), None, "{status}");
        }
        assert_eq!((health.count_errors(), health.failures()), (0, vec![]));
        let line = record(StatusCode::INTERNAL_SERVER_ERROR).unwrap();
        assert_eq!(line, "POST /v1/x from 10.0.0.7: cannot complete the request (status 500): disk full (DH-714)");
        assert_eq!((health.count_errors(), health.failures()), (1, vec![line]));
        assert_eq!(health.readiness_failures(), [], "a request that fails does not make the server unready");
    }

    #[test]
    fn the_stored_line_is_sanitized_and_truncated() {
        let health = ServerHealth::default();
        let response = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "a\u{1b}[2J".repeat(10_000)).into_response();
        let path = "/v1/\u{202e}x";
        let line = health.record_response(&Method::POST, path, [10, 0, 0, 7].into(), &response).unwrap();
        let stored = line.strip_suffix(" (DH-714)").unwrap();
        assert_eq!(stored, sanitize_message(stored));
        assert!(!line.contains(['\u{1b}', '\u{202e}']) && line.len() < 20_000, "{} bytes", line.len());
        assert_eq!(health.problems(), [line]);
    }

    #[test]
    fn incomplete_audit_file_is_unhealthy_but_not_unready() {
        let health = ServerHealth::default();
        health.set_audit_file(Some("lacks".to_owned()), 3);
        assert_eq!((health.failures(), health.count_lost_audit_entries()), (vec!["lacks".to_owned()], 3));
        assert_eq!(health.readiness_failures(), []);
        health.set_audit_file(None, 3);
        assert_eq!((health.failures(), health.count_lost_audit_entries()), (vec![], 3));
    }

    #[test]
    fn failure_is_resolved_and_missing_files_keep_readiness() {
        let health = ServerHealth::default();
        let full = ServerFailure { kind: FailureKind::LittleFreeSpace, message: "full".to_owned() };
        let changes = health.replace_checked(vec![full], vec!["no kernel".to_owned()]);
        assert_eq!((changes.new, changes.ended.len()), (vec!["full".to_owned(), "no kernel".to_owned()], 0));
        assert_eq!((health.failures(), health.problems().len()), (vec!["full".to_owned()], 2));
        assert_eq!(health.readiness_failures(), [FailureKind::LittleFreeSpace]);
        let changes = health.replace_checked(vec![], vec!["no kernel".to_owned()]);
        assert_eq!(changes, ProblemChanges { ended: vec!["full".to_owned()], ..ProblemChanges::default() });
        assert_eq!((health.failures(), health.problems()), (vec![], vec!["no kernel".to_owned()]));
        assert_eq!(health.readiness_failures(), []);
    }

    #[test]
    fn each_problem_ends_by_itself() {
        let health = ServerHealth::default();
        let failure = |kind, message: &str| ServerFailure { kind, message: message.to_owned() };
        let unwritable = failure(FailureKind::DatabaseUnwritable, "cannot write");
        let space = |message| failure(FailureKind::LittleFreeSpace, message);
        health.replace_checked(vec![unwritable, space("no space")], vec![]);
        // A part of the space was freed: the database can be written, but there is still little space.
        let changes = health.replace_checked(vec![space("little space")], vec![]);
        assert_eq!(
            (&changes.new[..], &changes.ended[..]),
            (&["little space".to_owned()][..], &["cannot write".to_owned()][..])
        );
        assert_eq!(health.readiness_failures(), [FailureKind::LittleFreeSpace]);
        let changes = health.replace_checked(vec![space("little space")], vec![]);
        assert_eq!(changes, ProblemChanges { remaining: vec!["little space".to_owned()], ..ProblemChanges::default() });
        assert_eq!(health.replace_checked(vec![], vec![]).ended, ["little space"]);
        assert_eq!(health.readiness_failures(), []);
    }
}
