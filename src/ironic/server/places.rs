//! Places for connections of the conductor. Any machine on the network can connect, so a connection that has shown no token gives way
//! when all places are taken: the oldest one of the address that has most of them.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Closed connections are reported once in that time.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Open connections; cheap to clone.
#[derive(Clone, Default)]
pub struct ConductorPlaces(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    places: Vec<Arc<TakenPlace>>,
    /// Connections that gave way since the last report.
    closed: u64,
    reported: Option<Instant>,
    /// Notified when a place is given back.
    given_back: Arc<Notify>,
}

struct TakenPlace {
    address: IpAddr,
    has_token: std::sync::atomic::AtomicBool,
    gives_way: Notify,
}

/// Place of one connection, which is given back when this is dropped.
pub struct ConductorPlace {
    places: ConductorPlaces,
    place: Arc<TakenPlace>,
}

/// Answer to a new connection.
pub enum ConductorEntry {
    Place(ConductorPlace),
    /// The address has as many connections as one address may have.
    TooManyOfAddress,
    /// Every place is taken; one is given back soon if a connection gives way.
    Full,
}

impl ConductorPlaces {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection of that address. If all are taken, a connection without a token gives way.
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

    /// Takes a place as [`ConductorPlaces::enter`], and waits for one if all are taken; `None` for too many connections of that address.
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

    /// Returns the line about connections that gave way, at most once a minute.
    pub fn report(&self) -> Option<String> {
        let mut taken = self.taken();
        if taken.closed == 0 || taken.reported.is_some_and(|time| time.elapsed() < REPORT_EVERY) {
            return None;
        }
        taken.reported = Some(Instant::now());
        let closed = std::mem::take(&mut taken.closed);
        Some(format!("{closed} connections without the conductor's token were closed: all places were taken"))
    }
}

impl Taken {
    fn of(&self, address: IpAddr) -> usize {
        self.places.iter().filter(|place| place.address == address).count()
    }

    /// Asks the oldest connection without a token to give way, of the address that has most of them.
    fn one_gives_way(&mut self) {
        let without_token = || self.places.iter().filter(|place| !place.has_token());
        let of = |address| without_token().filter(|place| place.address == address).count();
        // The first of those with the greatest number is the oldest.
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
    /// Notes that a request on this connection had the conductor's token.
    pub fn note_token(&self) {
        self.place.has_token.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Ready when the connection has to give way.
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
            Some("1 connections without the conductor's token were closed: all places were taken")
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
