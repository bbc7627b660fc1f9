//! Limit on the number of requests of one client address that are handled at the same time (turns). Further requests of
//! that address wait in the order of their arrival, and do not delay requests of other addresses.
//!
//! While a request waits for something outside of the server (its own body, an allocation, a management controller), it
//! releases its turn: see [`RequestTurn::rest_during`].

use common::sync::lock_mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Default of the maximum number of requests of one address that are handled at the same time. A browser opens six
/// connections.
pub const OF_ONE_ADDRESS: usize = 8;

/// Requests that are being handled or are waiting, by address; cheap to clone.
#[derive(Clone)]
pub struct RequestTurns {
    queues: Arc<Mutex<HashMap<IpAddr, AddressQueue>>>,
    at_once: usize,
}

impl Default for RequestTurns {
    fn default() -> RequestTurns {
        RequestTurns::new(OF_ONE_ADDRESS)
    }
}

struct AddressQueue {
    /// Permits for turns, granted in the order in which requests arrive.
    turns: Arc<Semaphore>,
    /// Number of requests that are being handled or are waiting.
    requests: usize,
}

/// Permission to process one request. It is returned when this value is dropped.
pub struct RequestTurn {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    place: QueuePlace,
}

/// Guard that counts a request of an address until the guard is dropped.
struct QueuePlace {
    turns: RequestTurns,
    address: IpAddr,
    queue: Arc<Semaphore>,
}

impl RequestTurns {
    /// Creates a limit of `at_once` simultaneous requests for each address.
    pub fn new(at_once: usize) -> RequestTurns {
        RequestTurns { queues: Arc::default(), at_once: at_once.max(1) }
    }

    /// Waits for a turn of the address.
    pub async fn take_turn(&self, address: IpAddr) -> RequestTurn {
        let place = self.enter_queue(address);
        let permit = place.acquire_permit().await;
        RequestTurn { permit: Mutex::new(permit), place }
    }

    fn enter_queue(&self, address: IpAddr) -> QueuePlace {
        let mut queues = lock_mutex(&self.queues);
        let queue = queues
            .entry(address)
            .or_insert_with(|| AddressQueue { turns: Arc::new(Semaphore::new(self.at_once)), requests: 0 });
        queue.requests += 1;
        QueuePlace { turns: self.clone(), address, queue: queue.turns.clone() }
    }

    /// Returns how many requests of the address are being handled or are waiting.
    #[cfg(any(test, feature = "testing"))]
    pub fn count_requests(&self, address: IpAddr) -> usize {
        lock_mutex(&self.queues).get(&address).map_or(0, |queue| queue.requests)
    }
}

impl QueuePlace {
    /// Waits for a permit. The semaphore is never closed.
    async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.queue.clone().acquire_owned().await.ok()
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut queues = lock_mutex(&self.turns.queues);
        if let Some(queue) = queues.get_mut(&self.address) {
            queue.requests -= 1;
            if queue.requests == 0 {
                queues.remove(&self.address);
            }
        }
    }
}

impl RequestTurn {
    /// Releases the turn until the work is done, and then waits for a new turn.
    pub async fn rest_during<T>(&self, work: impl Future<Output = T>) -> T {
        drop(lock_mutex(&self.permit).take());
        let done = work.await;
        let permit = self.place.acquire_permit().await;
        *lock_mutex(&self.permit) = permit;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    const FLOOD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 3));

    type Waiting = std::pin::Pin<Box<dyn Future<Output = RequestTurn>>>;

    fn ask(turns: &RequestTurns, address: IpAddr) -> Waiting {
        let turns = turns.clone();
        Box::pin(async move { turns.take_turn(address).await })
    }

    fn poll(waiting: &mut Waiting) -> Option<RequestTurn> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_address_has_few_turns_and_others_have_theirs_at_once() {
        let turns = RequestTurns::default();
        let mut waiting: Vec<_> = (0..800).map(|_| ask(&turns, FLOOD)).collect();
        let mut taken: Vec<_> = waiting.iter_mut().map(poll).collect();
        assert_eq!(taken.iter().flatten().count(), OF_ONE_ADDRESS);
        assert_eq!(turns.count_requests(FLOOD), 800);
        let other = poll(&mut ask(&turns, OTHER));
        assert!(other.is_some(), "the queue of another address does not matter");
        // The next turn goes to the request that has waited longest.
        taken[0] = None;
        assert!(poll(&mut waiting[OF_ONE_ADDRESS + 1]).is_none());
        assert!(poll(&mut waiting[OF_ONE_ADDRESS]).is_some());
        drop((waiting, taken, other));
        assert!(lock_mutex(&turns.queues).is_empty(), "no address is remembered");
    }

    #[test]
    fn a_request_that_waits_for_something_else_gives_its_turn_back() {
        let turns = RequestTurns::default();
        let taken: Vec<_> = (0..OF_ONE_ADDRESS).map(|_| poll(&mut ask(&turns, FLOOD)).unwrap()).collect();
        let mut next = ask(&turns, FLOOD);
        assert!(poll(&mut next).is_none());
        let (done, wait) = tokio::sync::oneshot::channel();
        let mut resting = std::pin::pin!(taken[0].rest_during(wait));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(resting.as_mut().poll(context).is_pending());
        let next = poll(&mut next).expect("the turn of the one that rests");
        done.send(()).unwrap();
        assert!(resting.as_mut().poll(context).is_pending(), "no turn is free");
        drop(next);
        assert!(resting.as_mut().poll(context).is_ready());
    }
}
