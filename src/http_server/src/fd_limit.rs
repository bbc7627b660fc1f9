//! Limit on open connections, so that clients cannot exhaust the file descriptors that the server needs for its own
//! files.

use crate::server_log::ServerLog;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// File descriptors reserved for the database, the operator's files and the runtime.
const RESERVE: u64 = 128;
/// File descriptors per connection: one for the socket, and one for a file that is sent over the connection.
const FDS_PER_CONNECTION: u64 = 2;
/// Minimum number of connections that the server must be able to accept.
const MINIMUM_CONNECTIONS: u64 = 16;

/// Returns the maximum number of connections: `wanted`, limited by the available file descriptors, or `default` if the
/// operator has not specified a number. `wanted` is limited so that one descriptor is available for each connection,
/// whereas `default` reserves two.
pub fn limit_connections(default: usize, wanted: Option<usize>) -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(20, |(soft, _)| soft);
    let most = usize::try_from(limit.saturating_sub(RESERVE).max(MINIMUM_CONNECTIONS)).unwrap_or(usize::MAX);
    wanted.map_or(default, |wanted| wanted.clamp(1, most))
}

/// Raises the soft limit of open files, usually 1024, to the hard limit, since every waiting machine needs a
/// descriptor. Returns the maximum number of connections.
pub fn raise_fd_limit(watch: &ServerLog) -> usize {
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
    let places = limit.saturating_sub(RESERVE) / FDS_PER_CONNECTION;
    // The number is limited, because the semaphore that counts connections has a maximum. The limit of 2^20 is far
    // below this maximum, and high enough for any site.
    usize::try_from(places.clamp(MINIMUM_CONNECTIONS, 1 << 20)).unwrap_or(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limit_reserves_file_descriptors() {
        for (limit, expected) in [(20, 16), (1024, 448), (4096, 1984), (u64::MAX, 1 << 20)] {
            assert_eq!(max_connections(limit), expected);
        }
        assert!((1024 - max_connections(1024) * 2) >= 128);
        assert_eq!((limit_connections(400, None), limit_connections(400, Some(7))), (400, 7));
        assert!(limit_connections(400, Some(usize::MAX)) < usize::MAX);
    }
}
