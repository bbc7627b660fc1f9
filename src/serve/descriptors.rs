//! How many connections may be open at once: whoever opens them without end must not take the descriptors with which the
//! server reads its own files.

use super::watch::Watch;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// For the database, the operator's files and the runtime.
const RESERVE: u64 = 128;
/// A connection may send a file.
const BY_CONNECTION: u64 = 2;
/// With less a server is none.
const AT_LEAST: u64 = 16;

/// Every waiting machine is a descriptor, and the usual soft limit is 1024: raises it as far as it goes.
pub fn connections(watch: &Watch) -> usize {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        watch.note(format!("the limit of open files stays as it is: {error}"));
    }
    // The least that POSIX has.
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(20, |(soft, _)| soft);
    within(limit)
}

fn within(limit: u64) -> usize {
    let places = limit.saturating_sub(RESERVE) / BY_CONNECTION;
    // A semaphore's greatest number is far above any machine room, and far below that of a u64.
    usize::try_from(places.clamp(AT_LEAST, 1 << 20)).unwrap_or(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_kept_whatever_the_limit_is() {
        for (limit, expected) in [(20, 16), (1024, 448), (4096, 1984), (u64::MAX, 1 << 20)] {
            assert_eq!(within(limit), expected);
        }
        assert!((1024 - within(1024) * 2) >= 128);
    }
}
