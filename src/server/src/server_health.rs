//! Problems of the server itself: a database that cannot be written, a filesystem without free space, missing boot files,
//! and requests that the server has failed to complete. A background task checks for the first three.

use super::AppState;
use super::start_checks::missing_boot_files;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use common::error_code::ErrorCode;
use common::format::format_bytes;
use common::format::untrusted_text_limits::sanitize_message;
use common::sync::lock_mutex;
use nix::sys::statvfs::statvfs;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval at which the database, the free space and the boot files are checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Free space in bytes below which the server reports a problem. The reports of a rack fit into this space.
const LEAST_FREE: u64 = 64 << 20;
/// Duration for which the page and `drophammer_healthy` show a problem after it has failed to complete a request.
const ERROR_SHOWN: Duration = Duration::from_secs(60);

/// Error message of a response, for the log of the server.
#[derive(Clone)]
pub(crate) struct ErrorMessage(pub String);

/// Function that returns the free space of the filesystem that contains a path, in bytes.
pub(crate) type FreeSpace = Arc<dyn Fn(&Path) -> Option<u64> + Send + Sync>;

/// Type of a problem because of which the server is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    DatabaseUnreadable,
    DatabaseUnwritable,
    LittleFreeSpace,
}

impl FailureKind {
    /// Returns a fixed description for clients without a token. It contains no paths, addresses or error messages.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            FailureKind::DatabaseUnreadable => "the database cannot be read",
            FailureKind::DatabaseUnwritable => "the database cannot be written",
            FailureKind::LittleFreeSpace => "little free space",
        }
    }
}

/// Problem that the periodic check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerFailure {
    kind: FailureKind,
    /// Description for the operator, with all details.
    message: String,
}

/// Current problems of the server. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct ServerHealth(Arc<HealthState>);

#[derive(Default)]
struct HealthState {
    problems: Mutex<HealthProblems>,
    /// Number of requests that the server has failed to complete.
    errors: AtomicU64,
}

#[derive(Default)]
struct HealthProblems {
    /// Problems that prevent the server from storing reports and orders.
    failures: Vec<ServerFailure>,
    /// Missing boot files, which do not impair running installations.
    missing: Vec<String>,
    last_error: Option<(Instant, String)>,
}

impl ServerHealth {
    /// Records a response. If the server has failed to complete the request, returns a line for the log. The statuses
    /// 502 (a management controller has failed) and 503 (the client must retry) are not failures of the server.
    pub(crate) fn record_response(
        &self,
        method: &Method,
        path: &str,
        address: IpAddr,
        response: &Response,
    ) -> Option<String> {
        let status = response.status();
        if !status.is_server_error() || [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
            return None;
        }
        self.0.errors.fetch_add(1, Ordering::Relaxed);
        let why = response.extensions().get::<ErrorMessage>().map_or("the reason is unknown", |message| &message.0);
        let line =
            format!("{method} {path} from {address}: cannot complete the request (status {}): {why}", status.as_u16());
        // The path comes from the client, and the reason may contain text of other programs.
        let line = ErrorCode::ServerProblem.annotate_uncoded(sanitize_message(&line));
        lock_mutex(&self.0.problems).last_error = Some((Instant::now(), line.clone()));
        Some(line)
    }

    /// Returns the number of requests that the server has failed to complete.
    pub(crate) fn count_errors(&self) -> u64 {
        self.0.errors.load(Ordering::Relaxed)
    }

    /// Returns the types of the problems because of which the server is not ready. Only the periodic check makes the
    /// server unready: a request that always fails does not impair other requests.
    pub(crate) fn readiness_failures(&self) -> Vec<FailureKind> {
        lock_mutex(&self.0.problems).failures.iter().map(|failure| failure.kind).collect()
    }

    /// Returns the problems that the periodic check has found, and the last failed request, for the operator.
    pub(crate) fn failures(&self) -> Vec<String> {
        let problems = lock_mutex(&self.0.problems);
        let error = problems.last_error.as_ref().filter(|(at, _)| at.elapsed() < ERROR_SHOWN);
        let messages = problems.failures.iter().map(|failure| &failure.message);
        messages.chain(error.map(|(_, line)| line)).cloned().collect()
    }

    /// Returns all problems, for the operator.
    pub(crate) fn problems(&self) -> Vec<String> {
        let failures = self.failures();
        failures.into_iter().chain(lock_mutex(&self.0.problems).missing.clone()).collect()
    }

    /// Replaces the results of the check. Returns the previous results.
    fn replace_checked(&self, failures: Vec<ServerFailure>, missing: Vec<String>) -> Vec<String> {
        let mut problems = lock_mutex(&self.0.problems);
        let before = std::mem::replace(&mut problems.failures, failures);
        let before = before.into_iter().map(|failure| failure.message);
        before.chain(std::mem::replace(&mut problems.missing, missing)).collect()
    }
}

/// Returns the free space of the filesystem that contains `path`, in bytes, or `None` if it cannot be determined.
pub(crate) fn read_free_space(path: &Path) -> Option<u64> {
    statvfs(path).ok().map(|is| is.blocks_available().saturating_mul(is.fragment_size()))
}

/// Checks the server at regular intervals. Logs each problem when it begins, and a note when it has ended.
pub(crate) async fn watch_health(app: Arc<AppState>, interval: Duration, free_space: FreeSpace) {
    // Files that are missing at the start were reported before this task was started.
    app.counters.health.replace_checked(Vec::new(), missing_boot_files(&app.boot));
    loop {
        let failures = find_failures(&app, &free_space).await;
        let missing = missing_boot_files(&app.boot);
        let now: BTreeSet<String> = failures.iter().map(|failure| &failure.message).chain(&missing).cloned().collect();
        let before: BTreeSet<String> = app.counters.health.replace_checked(failures, missing).into_iter().collect();
        now.difference(&before).for_each(|problem| app.log_rate_limited(problem.clone()));
        before.difference(&now).for_each(|problem| app.alarms.log_note(format!("no longer a problem: {problem}")));
        tokio::time::sleep(interval).await;
    }
}

/// Returns the problems that prevent the server from storing reports and orders.
async fn find_failures(app: &AppState, free_space: &FreeSpace) -> Vec<ServerFailure> {
    let database = app.state.check_pulse().await.err();
    let database = database.map(|error| ServerFailure {
        kind: FailureKind::DatabaseUnwritable,
        message: format!(
            "{error}: reports and orders cannot be stored; free space, or repair the filesystem of {}",
            app.dir.display()
        ),
    });
    let (read_space, dir) = (free_space.clone(), app.dir.clone());
    // A network filesystem may respond slowly.
    let free = tokio::task::spawn_blocking(move || read_space(&dir)).await.ok().flatten();
    let space = free.filter(|free| *free < LEAST_FREE).map(|free| {
        // The exact number changes all the time, and each change would be a new line of the log.
        let least = format_bytes(LEAST_FREE);
        let amount = if free == 0 { "no space".to_owned() } else { format!("less than {least}") };
        let message = format!(
            "{}: {amount} is free: reports and orders cannot be stored without free space; free at least {least}",
            app.dir.display()
        );
        ServerFailure { kind: FailureKind::LittleFreeSpace, message }
    });
    let failures = database.into_iter().chain(space);
    let coded = |failure: ServerFailure| ServerFailure {
        message: ErrorCode::ServerProblem.annotate_uncoded(failure.message),
        ..failure
    };
    failures.map(coded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_error::ApiError;
    use axum::response::IntoResponse;

    #[test]
    fn only_failures_of_the_server_count() {
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
    fn a_failure_ends_and_missing_files_do_not_make_the_server_unready() {
        let health = ServerHealth::default();
        let full = ServerFailure { kind: FailureKind::LittleFreeSpace, message: "full".to_owned() };
        assert_eq!(health.replace_checked(vec![full], vec!["no kernel".to_owned()]), Vec::<String>::new());
        assert_eq!((health.failures(), health.problems().len()), (vec!["full".to_owned()], 2));
        assert_eq!(health.readiness_failures(), [FailureKind::LittleFreeSpace]);
        assert_eq!(health.replace_checked(vec![], vec!["no kernel".to_owned()]), ["full", "no kernel"]);
        assert_eq!((health.failures(), health.problems()), (vec![], vec!["no kernel".to_owned()]));
        assert_eq!(health.readiness_failures(), []);
    }
}
