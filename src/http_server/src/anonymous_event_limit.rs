//! Rate limit for events of unregistered clients: a quota per address and minute. Without this limit, such clients
//! could displace the stored events of machines, and fill the log.

use common::sync::lock_mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const LIMIT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of events per address and minute. The machines of a rack that share one address (NAT) may exceed
/// this number when they boot, but lost events are harmless.
pub const EVENTS: u32 = 120;
/// Maximum number of addresses counted per minute. Events of further addresses are dropped.
const MAXIMUM_COUNTED_ADDRESSES: usize = 40_000;

/// Number of events that each address has sent in the current minute.
pub struct AnonymousEvents(Mutex<(Instant, HashMap<IpAddr, u32>)>);

impl Default for AnonymousEvents {
    fn default() -> AnonymousEvents {
        AnonymousEvents(Mutex::new((Instant::now(), HashMap::new())))
    }
}

impl AnonymousEvents {
    /// Counts an event of the address. Returns whether the event is within the quota.
    pub fn count_event(&self, address: IpAddr) -> bool {
        let mut minute = lock_mutex(&self.0);
        let (began, counts) = &mut *minute;
        if began.elapsed() >= LIMIT_INTERVAL {
            (*began, *counts) = (Instant::now(), HashMap::new());
        }
        if counts.len() >= MAXIMUM_COUNTED_ADDRESSES && !counts.contains_key(&address) {
            return false;
        }
        let count = counts.entry(address).or_default();
        *count = count.saturating_add(1);
        *count <= EVENTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_events_are_limited_per_address() {
        let events = AnonymousEvents::default();
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!((0..1000).filter(|_| events.count_event(one)).count(), EVENTS as usize);
        assert!(events.count_event(other));
        let many = (0..50_000u32).map(|number| IpAddr::from(std::net::Ipv4Addr::from(0x0b00_0000 + number)));
        assert_eq!(many.filter(|address| events.count_event(*address)).count(), MAXIMUM_COUNTED_ADDRESSES - 2);
    }
}
