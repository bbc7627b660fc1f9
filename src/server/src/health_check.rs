//! Periodic check of the server itself: of the database, the free space, and the boot files.

use super::start_checks::missing_boot_files;
use api::AppState;
use common::error_code::ErrorCode;
use common::format::format_bytes;
use http_server::server_health::{FailureKind, ServerFailure};
use nix::sys::statvfs::statvfs;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the database, the free space and the boot files are checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Free space in bytes below which the server reports a problem. The reports of a rack fit into this space.
const LEAST_FREE: u64 = 64 << 20;
/// Function that returns the free space of the filesystem that contains a path, in bytes.
pub(crate) type FreeSpace = Arc<dyn Fn(&Path) -> Option<u64> + Send + Sync>;

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
    let remedy = match app.state.is_shared() {
        true => "machines wait until PostgreSQL is available again".to_owned(),
        false => format!("free space, or repair the filesystem of {}", app.dir.display()),
    };
    let database = database.map(|error| ServerFailure {
        kind: FailureKind::DatabaseUnwritable,
        message: format!("{error}: reports and orders cannot be stored; {remedy}"),
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
