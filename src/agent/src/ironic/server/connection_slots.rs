//! Slots for connections. Any machine on the network can connect, and so occupy slots. Therefore, if all slots are in
//! use, one connection without a token is closed: the oldest one from the address with the most such connections.

use common::sync::lock_mutex;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Minimum interval between reports of closed connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Table of the open connections. Clones refer to the same table.
#[derive(Clone, Default)]
pub(crate) struct ConnectionSlots(Arc<Mutex<SlotTable>>);

#[derive(Default)]
struct SlotTable {
    slots: Vec<Arc<OpenSlot>>,
    /// Number of connections closed since the last report.
    closed: u64,
    reported: Option<Instant>,
    /// Notified when a slot is freed.
    given_back: Arc<Notify>,
}

struct OpenSlot {
    address: IpAddr,
    has_token: std::sync::atomic::AtomicBool,
    gives_way: Notify,
}

/// Slot of one connection. The slot is freed when this value is dropped.
pub(crate) struct ConnectionSlot {
    slots: ConnectionSlots,
    place: Arc<OpenSlot>,
}

/// Result of allocating a slot for a new connection.
pub(crate) enum SlotResult {
    Acquired(ConnectionSlot),
    /// The address has too many connections.
    TooManyOfAddress,
    /// All slots are in use. If a connection can be closed, a slot will be freed soon.
    Full,
}

impl ConnectionSlots {
    /// Allocates a slot for a connection from this address. If all slots are in use, closes a connection without a
    /// token.
    pub(crate) fn try_allocate(&self, address: IpAddr, all: usize, of_one_address: usize) -> SlotResult {
        let mut taken = lock_mutex(&self.0);
        if taken.count_of_address(address) >= of_one_address {
            return SlotResult::TooManyOfAddress;
        }
        if taken.slots.len() >= all {
            taken.close_oldest_unauthenticated();
            return SlotResult::Full;
        }
        let has_token = false.into();
        let place = Arc::new(OpenSlot { address, has_token, gives_way: Notify::new() });
        taken.slots.push(place.clone());
        SlotResult::Acquired(ConnectionSlot { slots: self.clone(), place })
    }

    /// Allocates a slot with [`ConnectionSlots::try_allocate`], and waits as long as all slots are in use. Returns
    /// `None` if the address has too many connections.
    pub(crate) async fn wait_for_slot(
        &self,
        address: IpAddr,
        all: usize,
        of_one_address: usize,
    ) -> Option<ConnectionSlot> {
        loop {
            let given_back = lock_mutex(&self.0).given_back.clone();
            let given_back = given_back.notified();
            let mut given_back = std::pin::pin!(given_back);
            given_back.as_mut().enable();
            match self.try_allocate(address, all, of_one_address) {
                SlotResult::Acquired(place) => return Some(place),
                SlotResult::TooManyOfAddress => return None,
                SlotResult::Full => given_back.await,
            }
        }
    }

    /// Returns a report of closed connections, at most once a minute.
    pub(crate) fn report_closed(&self) -> Option<String> {
        let mut taken = lock_mutex(&self.0);
        if taken.closed == 0 || taken.reported.is_some_and(|time| time.elapsed() < REPORT_INTERVAL) {
            return None;
        }
        taken.reported = Some(Instant::now());
        let closed = std::mem::take(&mut taken.closed);
        Some(format!(
            "{closed} connections without the conductor's token were closed because the connection limit was reached"
        ))
    }
}

impl SlotTable {
    fn count_of_address(&self, address: IpAddr) -> usize {
        self.slots.iter().filter(|place| place.address == address).count()
    }

    /// Closes a connection without a token: the oldest one from the address with the most such connections.
    fn close_oldest_unauthenticated(&mut self) {
        let without_token = || self.slots.iter().filter(|place| !place.has_token());
        let of = |address| without_token().filter(|place| place.address == address).count();
        // Connections are in the order in which they were opened, so the first match is the oldest.
        let most = without_token().map(|place| of(place.address)).max().unwrap_or_default();
        if let Some(place) = without_token().find(|place| of(place.address) == most) {
            place.gives_way.notify_one();
            self.closed += 1;
        }
    }
}

impl OpenSlot {
    fn has_token(&self) -> bool {
        self.has_token.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl ConnectionSlot {
    /// Records that a request on this connection had the conductor's token, so that the connection is not closed to
    /// free a slot.
    pub(crate) fn record_token(&self) {
        self.place.has_token.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Waits until this connection must be closed to free its slot.
    pub(crate) async fn wait_until_closed(&self) {
        self.place.gives_way.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = lock_mutex(&self.slots.0);
        taken.slots.retain(|place| !Arc::ptr_eq(place, &self.place));
        taken.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(slots: &ConnectionSlots, last: u8) -> Option<ConnectionSlot> {
        match slots.try_allocate([10, 0, 0, last].into(), 4, 2) {
            SlotResult::Acquired(place) => Some(place),
            SlotResult::TooManyOfAddress | SlotResult::Full => None,
        }
    }

    fn has_to_give_way(place: &ConnectionSlot) -> bool {
        let mut closed = std::pin::pin!(place.wait_until_closed());
        closed.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn oldest_connection_of_the_busiest_address_is_closed() {
        let slots = ConnectionSlots::default();
        let taken: Vec<_> = [1, 2, 2, 3].map(|last| enter(&slots, last).unwrap()).into();
        assert!(matches!(slots.try_allocate([10, 0, 0, 2].into(), 4, 2), SlotResult::TooManyOfAddress));
        assert!(matches!(slots.try_allocate([10, 0, 0, 4].into(), 4, 2), SlotResult::Full));
        assert_eq!(taken.iter().map(has_to_give_way).collect::<Vec<_>>(), [false, true, false, false]);
        assert_eq!(
            slots.report_closed().as_deref(),
            Some("1 connections without the conductor's token were closed because the connection limit was reached")
        );
        assert!(slots.report_closed().is_none());
        drop(taken);
        assert!(enter(&slots, 4).is_some());
    }

    #[test]
    fn connection_with_the_token_is_kept() {
        let slots = ConnectionSlots::default();
        let taken: Vec<_> = [1, 1, 2, 3].map(|last| enter(&slots, last).unwrap()).into();
        taken[0].record_token();
        taken[1].record_token();
        assert!(enter(&slots, 4).is_none());
        assert_eq!(taken.iter().map(has_to_give_way).collect::<Vec<_>>(), [false, false, true, false]);
        taken[2].record_token();
        taken[3].record_token();
        assert!(enter(&slots, 4).is_none());
        assert!(!taken.iter().any(has_to_give_way), "all have the token: the next one waits");
    }
}
