//! Rate limit for audit entries of refused requests: a quota per address and minute, and a quota per minute for all
//! addresses.

use common::sync::lock_mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const LIMIT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of entries per address and minute.
const PER_ADDRESS: u32 = 20;
/// Maximum number of entries per minute.
const MAXIMUM_ENTRIES: u32 = 400;

/// Rate limit, with the numbers of entries in the current minute.
#[derive(Default)]
pub(super) struct RefusalLimit(Mutex<Option<CountedMinute>>);

/// Numbers of entries in one minute.
struct CountedMinute {
    began: Instant,
    total: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl RefusalLimit {
    /// Counts an entry. Returns whether the entry is within the quotas.
    pub(super) fn count_entry(&self, address: IpAddr) -> bool {
        let mut minute = lock_mutex(&self.0);
        let current = minute.take().filter(|minute| minute.began.elapsed() < LIMIT_INTERVAL);
        let fresh = || CountedMinute { began: Instant::now(), total: 0, by_address: HashMap::new() };
        let CountedMinute { total, by_address, .. } = minute.insert(current.unwrap_or_else(fresh));
        if *total >= MAXIMUM_ENTRIES {
            return false;
        }
        let count = by_address.entry(address).or_default();
        if *count >= PER_ADDRESS {
            return false;
        }
        *count += 1;
        *total += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_limited_per_address_and_in_total() {
        let limit = RefusalLimit::default();
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!((0..1000).filter(|_| limit.count_entry(one)).count(), PER_ADDRESS as usize);
        assert!(limit.count_entry(other));
        let many = (0..50_000u32).map(|number| IpAddr::from(std::net::Ipv4Addr::from(0x0b00_0000 + number)));
        assert_eq!(
            many.filter(|address| limit.count_entry(*address)).count(),
            (MAXIMUM_ENTRIES - PER_ADDRESS - 1) as usize
        );
    }
}
