//! Periodic check of the database, the free disk space, and the boot files of the server.

use super::start_checks::missing_boot_files;
use api::AppState;
use common::error::{Error, Phase};
use common::error_code::ErrorCode;
use common::format::format_bytes;
use http_server::server_health::{FailureKind, ProblemChanges, ServerFailure};
use nix::sys::statvfs::statvfs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::sql::may_lack_space;

/// Interval at which the database, the free space and the boot files are checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of the checks if other servers share the database.
pub(crate) const SHARED_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive checks without a problem after which the problem counts as resolved. Otherwise, a value
/// close to its limit would be reported and resolved again and again.
const GOOD_CHECKS: u32 = 2;
/// Free space in bytes below which the server reports a problem. The reports of all machines of a rack fit into this
/// space.
const MINIMUM_FREE_BYTES: u64 = 64 << 20;
/// Free space in bytes below which a failure to write the database at the start is attributed to the full filesystem.
const FULL_DISK_BYTES: u64 = 4 << 20;
/// Function that returns the free space of the filesystem that contains a path, in bytes.
pub(crate) type FreeSpace = Arc<dyn Fn(&Path) -> Option<u64> + Send + Sync>;

/// Returns the free space of the filesystem that contains `path`, in bytes, or `None` if it cannot be determined.
pub(crate) fn read_free_space(path: &Path) -> Option<u64> {
    statvfs(path).ok().map(|is| is.blocks_available().saturating_mul(is.fragment_size()))
}

/// Checks the server at regular intervals. Logs each problem when it begins and when it has ended.
pub(crate) async fn watch_health(app: Arc<AppState>, interval: Duration, free_space: FreeSpace) {
    // Files that were already missing at the start of the server have been reported before this task starts.
    let mut failures_tracker = ProblemTracker::new(|failure: &ServerFailure| failure.kind);
    let mut missing_tracker = ProblemTracker::new(String::clone);
    let missing = missing_tracker.update(missing_boot_files(&app.boot));
    drop(app.counters.health.replace_checked(Vec::new(), missing));
    loop {
        let found = find_failures(&app, &free_space, &failures_tracker).await;
        let failures = failures_tracker.update(found);
        let missing = missing_tracker.update(missing_boot_files(&app.boot));
        let (audit_problem, lost_entries) = app.audit.file_health();
        app.counters
            .health
            .set_audit_file(audit_problem.map(|why| ErrorCode::ServerProblem.annotate(why)), lost_entries);
        log_changes(&app, app.counters.health.replace_checked(failures, missing));
        // A database that has become unavailable is reported at once, and checked at the usual interval afterwards.
        let is_failing = !app.counters.health.readiness_failures().is_empty();
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = app.state.wait_for_failure(), if !is_failing => {}
        }
    }
}

/// Logs new problems, and the end of each problem. If other problems remain, they are also logged, because the log may
/// otherwise end with a message that seems to report that the server is ready.
fn log_changes(app: &AppState, changes: ProblemChanges) {
    let ProblemChanges { new, ended, remaining } = changes;
    let is_any_ended = !ended.is_empty();
    ended.iter().for_each(|problem| app.watch.log_note(format!("no longer a problem: {problem}")));
    for problem in new {
        match is_any_ended {
            // The rate limit drops a message that was logged shortly before.
            true => app.watch.log_problem(problem),
            false => app.log_rate_limited(problem),
        }
    }
    remaining
        .iter()
        .filter(|_| is_any_ended)
        .for_each(|problem| app.watch.log_note(format!("still a problem: {problem}")));
}

/// Returns an error that names the directory, the cause and the remedy, if the server could not start because no space
/// is left. All other errors are returned unchanged. `free` is the free space in bytes; `None` if it is unknown.
pub(crate) fn explain_full_disk(error: Error, dir: &Path, free: Option<u64>) -> Error {
    if !may_lack_space(&error) || free.is_some_and(|free| free >= FULL_DISK_BYTES) {
        return error;
    }
    let why = format!(
        "{folder}: cannot start the server: no space is left on the filesystem; free at least {least}, and start the server again",
        folder = dir.display(),
        least = format_bytes(MINIMUM_FREE_BYTES)
    );
    Error::with_source(Phase::Serve, why, error).with_default_code(ErrorCode::ServerProblem)
}

/// Tracks the problems that recent checks have found. A problem is added immediately, and removed after
/// [`GOOD_CHECKS`] checks in which it was not found.
struct ProblemTracker<T, K> {
    /// Function that returns the identity of a problem. A problem replaces an earlier problem with the same identity.
    identify: fn(&T) -> K,
    /// Problems, each with the number of checks that were made since the problem was last found.
    problems: Vec<(T, u32)>,
}

impl<T: Clone, K: PartialEq> ProblemTracker<T, K> {
    fn new(identify: fn(&T) -> K) -> ProblemTracker<T, K> {
        ProblemTracker { identify, problems: Vec::new() }
    }

    /// Returns the current problem with this identity.
    fn find(&self, identity: K) -> Option<T> {
        let mut problems = self.problems.iter().map(|(problem, _)| problem);
        problems.find(|problem| (self.identify)(problem) == identity).cloned()
    }

    /// Adds the result of a check. Returns the current problems.
    fn update(&mut self, found: Vec<T>) -> Vec<T> {
        let is_found = |known: &T| found.iter().any(|new| (self.identify)(new) == (self.identify)(known));
        let absent = self.problems.drain(..).filter(|(known, _)| !is_found(known));
        let lingering: Vec<(T, u32)> =
            absent.map(|(known, checks)| (known, checks + 1)).filter(|(_, checks)| *checks < GOOD_CHECKS).collect();
        self.problems = found.into_iter().map(|new| (new, 0)).chain(lingering).collect();
        self.problems.iter().map(|(problem, _)| problem.clone()).collect()
    }
}

/// Returns the problems that prevent the server from storing reports and orders. If the free space cannot be
/// determined, little free space remains a problem, because only a successful check ends a problem.
async fn find_failures(
    app: &AppState,
    free_space: &FreeSpace,
    tracker: &ProblemTracker<ServerFailure, FailureKind>,
) -> Vec<ServerFailure> {
    let database = app.state.check_pulse().await.err();
    let remedy = |error: &Error| match (app.state.is_shared(), error.code()) {
        (true, _) => "; machines wait until PostgreSQL is available again".to_owned(),
        // The message of the database contains a remedy.
        (false, ErrorCode::DatabaseUnavailable) => String::new(),
        (false, _) => format!("; free space, or repair the filesystem of {folder}", folder = app.dir.display()),
    };
    let database = database.map(|error| ServerFailure {
        kind: FailureKind::DatabaseUnwritable,
        message: format!("reports and orders cannot be stored: {error}{remedy}", remedy = remedy(&error)),
    });
    let (read_space, dir) = (free_space.clone(), app.dir.clone());
    // A network filesystem may respond slowly, so the check runs on a blocking thread.
    let free = tokio::task::spawn_blocking(move || read_space(&dir)).await.ok().flatten();
    let space = free.filter(|free| *free < MINIMUM_FREE_BYTES).map(|free| {
        // The message does not contain the exact number of bytes, because each change of the number would cause a new
        // line in the log.
        let least = format_bytes(MINIMUM_FREE_BYTES);
        let amount = if free == 0 { "no space".to_owned() } else { format!("less than {least}") };
        let message = format!(
            "{folder}: {amount} is free: reports and orders cannot be stored without free space; free at least {least}",
            folder = app.dir.display()
        );
        ServerFailure { kind: FailureKind::LittleFreeSpace, message }
    });
    let unchecked = tracker.find(FailureKind::LittleFreeSpace).filter(|_| free.is_none());
    let failures = database.into_iter().chain(space).chain(unchecked);
    let coded = |failure: ServerFailure| ServerFailure {
        message: ErrorCode::ServerProblem.annotate_uncoded(failure.message),
        ..failure
    };
    failures.map(coded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_resolved_after_two_good_checks() {
        let mut tracker = ProblemTracker::new(|problem: &(u8, &str)| problem.0);
        let (full, fuller) = ((1, "little space"), (1, "no space"));
        let missing = (2, "no kernel");
        for (found, expected) in [
            (vec![], vec![]),
            (vec![full], vec![full]),
            (vec![], vec![full]),
            (vec![full], vec![full]),
            (vec![], vec![full]),
            (vec![fuller], vec![fuller]),
            (vec![missing], vec![missing, fuller]),
            (vec![], vec![missing]),
            (vec![], vec![]),
            (vec![], vec![]),
        ] {
            assert_eq!(tracker.update(found.clone()), expected, "{found:?}");
        }
    }

    #[test]
    fn a_failed_start_on_a_full_disk_names_the_directory_and_the_remedy() {
        let full = || {
            let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
            Error::with_source(Phase::Serve, "write /srv/d/operator.token", error)
        };
        let dir = Path::new("/srv/d");
        for free in [Some(0), Some(4096), None] {
            let text = explain_full_disk(full(), dir, free).to_coded_text();
            let words =
                "/srv/d: cannot start the server: no space is left on the filesystem; free at least 67.1 MB, and";
            assert!(text.starts_with(words) && text.ends_with("(DH-714)"), "{text}");
        }
        for error in [
            explain_full_disk(full(), dir, Some(1 << 30)),
            explain_full_disk(Error::new(Phase::Serve, "port"), dir, Some(0)),
        ] {
            assert!(!error.to_string().contains("no space"), "{error}");
        }
    }
}
