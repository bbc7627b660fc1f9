//! Limit on the number of requests of one client address that are handled at the same time. A request is handled
//! while it holds a permit. Further requests of the address wait for a permit in the order of their arrival, and do
//! not delay other addresses.
//!
//! While a request waits for something outside of the server (its own body, an allocation, a management controller),
//! it releases its permit: see [`RequestPermit::release_during`].

use common::sync::lock_mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Default limit on concurrent requests from one address. A browser opens six connections.
pub const MAXIMUM_ADDRESS_REQUESTS: usize = 8;

/// Requests that are being handled or are waiting, by address; cheap to clone.
#[derive(Clone)]
pub struct RequestPermits {
    queues: Arc<Mutex<HashMap<IpAddr, AddressQueue>>>,
    at_once: usize,
}

impl Default for RequestPermits {
    fn default() -> RequestPermits {
        RequestPermits::new(MAXIMUM_ADDRESS_REQUESTS)
    }
}

struct AddressQueue {
    /// Permits, granted in the order in which requests arrive.
    permits: Arc<Semaphore>,
    /// Number of requests that are being handled or are waiting.
    requests: usize,
}

/// Permission to handle one request. It is released when this value is dropped.
pub struct RequestPermit {
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    place: QueueGuard,
}

/// Guard that counts a request of an address until the guard is dropped.
struct QueueGuard {
    permits: RequestPermits,
    address: IpAddr,
    queue: Arc<Semaphore>,
}

impl RequestPermits {
    /// Creates a limit of `at_once` simultaneous requests for each address.
    pub fn new(at_once: usize) -> RequestPermits {
        RequestPermits { queues: Arc::default(), at_once: at_once.max(1) }
    }

    /// Waits for a permit of the address.
    pub async fn acquire_request_permit(&self, address: IpAddr) -> RequestPermit {
        let place = self.enter_queue(address);
        let permit = place.acquire_permit().await;
        RequestPermit { permit: Mutex::new(permit), place }
    }

    fn enter_queue(&self, address: IpAddr) -> QueueGuard {
        let mut queues = lock_mutex(&self.queues);
        let queue = queues
            .entry(address)
            .or_insert_with(|| AddressQueue { permits: Arc::new(Semaphore::new(self.at_once)), requests: 0 });
        queue.requests += 1;
        QueueGuard { permits: self.clone(), address, queue: queue.permits.clone() }
    }

    /// Returns how many requests of the address are being handled or are waiting.
    #[cfg(any(test, feature = "testing"))]
    pub fn count_requests(&self, address: IpAddr) -> usize {
        lock_mutex(&self.queues).get(&address).map_or(0, |queue| queue.requests)
    }
}

impl QueueGuard {
    /// Waits for a permit. Returns `None` only if the semaphore is closed, which never happens.
    async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.queue.clone().acquire_owned().await.ok()
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        let mut queues = lock_mutex(&self.permits.queues);
        if let Some(queue) = queues.get_mut(&self.address) {
            queue.requests -= 1;
            if queue.requests == 0 {
                queues.remove(&self.address);
            }
        }
    }
}

impl RequestPermit {
    /// Releases the permit, waits for the end of `work`, and then acquires a new permit.
    pub async fn release_during<T>(&self, work: impl Future<Output = T>) -> T {
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

    type Waiting = std::pin::Pin<Box<dyn Future<Output = RequestPermit>>>;

    fn ask(permits: &RequestPermits, address: IpAddr) -> Waiting {
        let permits = permits.clone();
        Box::pin(async move { permits.acquire_request_permit(address).await })
    }

    fn poll(waiting: &mut Waiting) -> Option<RequestPermit> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_address_does_not_delay_turns_of_others() {
        let permits = RequestPermits::default();
        let mut waiting: Vec<_> = (0..800).map(|_| ask(&permits, FLOOD)).collect();
        let mut taken: Vec<_> = waiting.iter_mut().map(poll).collect();
        assert_eq!(taken.iter().flatten().count(), MAXIMUM_ADDRESS_REQUESTS);
        assert_eq!(permits.count_requests(FLOOD), 800);
        let other = poll(&mut ask(&permits, OTHER));
        assert!(other.is_some(), "the queue of another address does not matter");
        // The next permit is granted to the request that has waited longest.
        taken[0] = None;
        assert!(poll(&mut waiting[MAXIMUM_ADDRESS_REQUESTS + 1]).is_none());
        assert!(poll(&mut waiting[MAXIMUM_ADDRESS_REQUESTS]).is_some());
        drop((waiting, taken, other));
        assert!(lock_mutex(&permits.queues).is_empty(), "no queue remains");
    }

    #[test]
    fn waiting_request_releases_its_permit() {
        let permits = RequestPermits::default();
        let taken: Vec<_> = (0..MAXIMUM_ADDRESS_REQUESTS).map(|_| poll(&mut ask(&permits, FLOOD)).unwrap()).collect();
        let mut next = ask(&permits, FLOOD);
        assert!(poll(&mut next).is_none());
        let (done, wait) = tokio::sync::oneshot::channel();
        let mut resting = std::pin::pin!(taken[0].release_during(wait));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(resting.as_mut().poll(context).is_pending());
        let next = poll(&mut next).expect("the permit of the resting request");
        done.send(()).unwrap();
        assert!(resting.as_mut().poll(context).is_pending(), "no permit is free");
        drop(next);
        assert!(resting.as_mut().poll(context).is_ready());
    }
}
