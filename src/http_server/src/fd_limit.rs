//! Limit on open connections. Because of this limit, clients cannot exhaust the file descriptors that the server needs
//! for its own files.

use crate::server_log::StatusLog;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// File descriptors reserved for the database, the operator's files and the runtime.
const RESERVE: u64 = 128;
/// File descriptors per connection: one for the socket, and one for a file that is sent over the connection.
const BY_CONNECTION: u64 = 2;
/// Minimum number of connections that the server must be able to accept.
const AT_LEAST: u64 = 16;

/// Returns the number of connections that the server accepts: `wanted`, but at most as many as the file descriptors
/// suffice for. `default` applies if the operator has not set a number; it reserves a second descriptor for each
/// connection.
pub fn limit_connections(default: usize, wanted: Option<usize>) -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(20, |(soft, _)| soft);
    let most = usize::try_from(limit.saturating_sub(RESERVE).max(AT_LEAST)).unwrap_or(usize::MAX);
    wanted.map_or(default, |wanted| wanted.clamp(1, most))
}

/// Raises the soft limit of open files, usually 1024, to the hard limit, since every waiting machine needs a descriptor. Returns the
/// maximum number of connections.
pub fn raise_fd_limit(watch: &StatusLog) -> usize {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        watch.log_note(format!("cannot raise the limit of open files: {error}"));
    }
    // If the limit cannot be read, the minimum that POSIX requires is assumed.
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(20, |(soft, _)| soft);
    max_connections(limit)
}

fn max_connections(limit: u64) -> usize {
    let places = limit.saturating_sub(RESERVE) / BY_CONNECTION;
    // The upper bound is far below the maximum of a semaphore, and sufficient for any site.
    usize::try_from(places.clamp(AT_LEAST, 1 << 20)).unwrap_or(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_kept_whatever_the_limit_is() {
        for (limit, expected) in [(20, 16), (1024, 448), (4096, 1984), (u64::MAX, 1 << 20)] {
            assert_eq!(max_connections(limit), expected);
        }
        assert!((1024 - max_connections(1024) * 2) >= 128);
        assert_eq!((limit_connections(400, None), limit_connections(400, Some(7))), (400, 7));
        assert!(limit_connections(400, Some(usize::MAX)) < usize::MAX);
    }
}
