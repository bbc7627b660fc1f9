//! Slots for connections. Any machine on the network can connect, so at the limit a connection that has presented no token is closed: the
//! oldest one of the address with most of them.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Minimum interval between reports of closed connections.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Open connections; cheap to clone.
#[derive(Clone, Default)]
pub struct ConductorPlaces(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    places: Vec<Arc<TakenPlace>>,
    /// Number of connections closed since the last report.
    closed: u64,
    reported: Option<Instant>,
    /// Notified when a slot is freed.
    given_back: Arc<Notify>,
}

struct TakenPlace {
    address: IpAddr,
    has_token: std::sync::atomic::AtomicBool,
    gives_way: Notify,
}

/// Slot of one connection, freed on drop.
pub struct ConductorPlace {
    places: ConductorPlaces,
    place: Arc<TakenPlace>,
}

/// Result for a new connection.
pub enum ConductorEntry {
    Place(ConductorPlace),
    /// The address has too many connections.
    TooManyOfAddress,
    /// All slots are in use; one will be freed soon if a connection can be closed.
    Full,
}

impl ConductorPlaces {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a slot for a connection of that address. If all are in use, closes a connection without a token.
    pub fn enter(&self, address: IpAddr, all: usize, of_one_address: usize) -> ConductorEntry {
        let mut taken = self.taken();
        if taken.of(address) >= of_one_address {
            return ConductorEntry::TooManyOfAddress;
        }
        if taken.places.len() >= all {
            taken.one_gives_way();
            return ConductorEntry::Full;
        }
        let has_token = false.into();
        let place = Arc::new(TakenPlace { address, has_token, gives_way: Notify::new() });
        taken.places.push(place.clone());
        ConductorEntry::Place(ConductorPlace { places: self.clone(), place })
    }

    /// Allocates a slot as [`ConductorPlaces::enter`] does, and waits for one if all are in use. Returns `None` if the address has too many
    /// connections.
    pub async fn wait(&self, address: IpAddr, all: usize, of_one_address: usize) -> Option<ConductorPlace> {
        loop {
            let given_back = self.taken().given_back.clone();
            let given_back = given_back.notified();
            let mut given_back = std::pin::pin!(given_back);
            given_back.as_mut().enable();
            match self.enter(address, all, of_one_address) {
                ConductorEntry::Place(place) => return Some(place),
                ConductorEntry::TooManyOfAddress => return None,
                ConductorEntry::Full => given_back.await,
            }
        }
    }

    /// Returns a report of closed connections, at most once a minute.
    pub fn report(&self) -> Option<String> {
        let mut taken = self.taken();
        if taken.closed == 0 || taken.reported.is_some_and(|time| time.elapsed() < REPORT_EVERY) {
            return None;
        }
        taken.reported = Some(Instant::now());
        let closed = std::mem::take(&mut taken.closed);
        Some(format!(
            "{closed} connections without the conductor's token were closed because the limit of connections was reached"
        ))
    }
}

impl Taken {
    fn of(&self, address: IpAddr) -> usize {
        self.places.iter().filter(|place| place.address == address).count()
    }

    /// Closes the oldest connection without a token, of the address with most of them.
    fn one_gives_way(&mut self) {
        let without_token = || self.places.iter().filter(|place| !place.has_token());
        let of = |address| without_token().filter(|place| place.address == address).count();
        // The first one with the maximum is the oldest.
        let most = without_token().map(|place| of(place.address)).max().unwrap_or_default();
        if let Some(place) = without_token().find(|place| of(place.address) == most) {
            place.gives_way.notify_one();
            self.closed += 1;
        }
    }
}

impl TakenPlace {
    fn has_token(&self) -> bool {
        self.has_token.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl ConductorPlace {
    /// Records that a request on this connection had the conductor's token.
    pub fn note_token(&self) {
        self.place.has_token.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Completes when the connection must be closed.
    pub async fn gives_way(&self) {
        self.place.gives_way.notified().await;
    }
}

impl Drop for ConductorPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.places.retain(|place| !Arc::ptr_eq(place, &self.place));
        taken.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(places: &ConductorPlaces, last: u8) -> Option<ConductorPlace> {
        match places.enter([10, 0, 0, last].into(), 4, 2) {
            ConductorEntry::Place(place) => Some(place),
            ConductorEntry::TooManyOfAddress | ConductorEntry::Full => None,
        }
    }

    fn has_to_give_way(place: &ConductorPlace) -> bool {
        let mut asked = std::pin::pin!(place.gives_way());
        asked.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_connection_of_the_address_with_most_gives_way() {
        let places = ConductorPlaces::default();
        let taken: Vec<_> = [1, 2, 2, 3].map(|last| enter(&places, last).unwrap()).into();
        assert!(matches!(places.enter([10, 0, 0, 2].into(), 4, 2), ConductorEntry::TooManyOfAddress));
        assert!(matches!(places.enter([10, 0, 0, 4].into(), 4, 2), ConductorEntry::Full));
        assert_eq!(taken.iter().map(has_to_give_way).collect::<Vec<_>>(), [false, true, false, false]);
        assert_eq!(
            places.report().as_deref(),
            Some(
                "1 connections without the conductor's token were closed because the limit of connections was reached"
            )
        );
        assert!(places.report().is_none());
        drop(taken);
        assert!(enter(&places, 4).is_some());
    }

    #[test]
    fn a_connection_with_the_token_stays() {
        let places = ConductorPlaces::default();
        let taken: Vec<_> = [1, 1, 2, 3].map(|last| enter(&places, last).unwrap()).into();
        taken[0].note_token();
        taken[1].note_token();
        assert!(enter(&places, 4).is_none());
        assert_eq!(taken.iter().map(has_to_give_way).collect::<Vec<_>>(), [false, false, true, false]);
        taken[2].note_token();
        taken[3].note_token();
        assert!(enter(&places, 4).is_none());
        assert!(!taken.iter().any(has_to_give_way), "all have the token: the next one waits");
    }
}
