//! Job queue of the database's thread. Each client address has its own queue, and the queues are served round-robin:
//! before a client's next job, at most one job of each other address runs. Up to half of the jobs may be jobs of the
//! server itself, because these jobs update the snapshots for which thousands of machines may wait.

use common::sync::lock_mutex;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Origin of a job: the address of the client that caused it, or `None` for jobs of the server itself.
pub(crate) type JobOrigin = Option<IpAddr>;

/// Creates an empty queue.
pub(crate) fn create_queue<T>() -> (JobSender<T>, JobReceiver<T>) {
    let jobs = Arc::new(JobQueue { waiting: Mutex::new(WaitingJobs::new()), arrived: Condvar::new() });
    (JobSender(jobs.clone()), JobReceiver(jobs))
}

/// Sending end of the queue.
pub(crate) struct JobSender<T>(Arc<JobQueue<T>>);

/// Receiving end of the queue.
pub(crate) struct JobReceiver<T>(Arc<JobQueue<T>>);

struct JobQueue<T> {
    waiting: Mutex<WaitingJobs<T>>,
    arrived: Condvar,
}

struct WaitingJobs<T> {
    queues: HashMap<JobOrigin, VecDeque<T>>,
    /// Origins with waiting jobs, in the order in which they are served. The server itself precedes all addresses,
    /// but one job of an address is run between two jobs of the server.
    queue_order: VecDeque<JobOrigin>,
    /// True if the last job was a job of the server itself.
    was_own_job: bool,
    /// Job that is run after all others. Once it is set, no further job is accepted.
    last: Option<T>,
    senders: usize,
    is_closed: bool,
    /// Origin of each job that was run, in the order in which the jobs were run.
    #[cfg(any(test, feature = "testing"))]
    taken: Vec<JobOrigin>,
}

impl<T> WaitingJobs<T> {
    fn new() -> WaitingJobs<T> {
        WaitingJobs {
            queues: HashMap::new(),
            queue_order: VecDeque::new(),
            was_own_job: false,
            last: None,
            senders: 1,
            is_closed: false,
            #[cfg(any(test, feature = "testing"))]
            taken: Vec::new(),
        }
    }

    fn push_job(&mut self, origin: JobOrigin, job: T) {
        let queue = self.queues.entry(origin).or_default();
        match origin {
            _ if !queue.is_empty() => {}
            Some(_) => self.queue_order.push_back(origin),
            None if self.was_own_job => self.queue_order.insert(self.queue_order.len().min(1), None),
            None => self.queue_order.push_front(None),
        }
        queue.push_back(job);
    }

    fn pop_job(&mut self) -> Option<T> {
        let Some(origin) = self.queue_order.pop_front() else { return self.last.take() };
        #[cfg(any(test, feature = "testing"))]
        self.taken.push(origin);
        self.was_own_job = origin.is_none();
        let queue = self.queues.get_mut(&origin)?;
        let job = queue.pop_front();
        match queue.is_empty() {
            true => drop(self.queues.remove(&origin)),
            false if origin.is_none() => self.queue_order.insert(self.queue_order.len().min(1), None),
            false => self.queue_order.push_back(origin),
        }
        job
    }
}

impl<T> JobSender<T> {
    /// Appends a job to the queue of its origin. After [`JobSender::send_last`], the job is dropped.
    pub(crate) fn send(&self, origin: JobOrigin, job: T) {
        let mut waiting = lock_mutex(&self.0.waiting);
        if !waiting.is_closed {
            waiting.push_job(origin, job);
            self.0.arrived.notify_one();
        }
    }

    /// Appends a job that is run after all others. Later jobs are dropped.
    pub(crate) fn send_last(&self, job: T) {
        let mut waiting = lock_mutex(&self.0.waiting);
        if !waiting.is_closed {
            waiting.is_closed = true;
            waiting.last = Some(job);
            self.0.arrived.notify_one();
        }
    }

    /// Returns the origins of the jobs that were run, in the order of the jobs.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn taken_origins(&self) -> Vec<JobOrigin> {
        lock_mutex(&self.0.waiting).taken.clone()
    }

    /// Returns the number of waiting jobs of an origin.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn count_waiting(&self, origin: JobOrigin) -> usize {
        lock_mutex(&self.0.waiting).queues.get(&origin).map_or(0, VecDeque::len)
    }
}

impl<T> Clone for JobSender<T> {
    fn clone(&self) -> JobSender<T> {
        lock_mutex(&self.0.waiting).senders += 1;
        JobSender(self.0.clone())
    }
}

impl<T> Drop for JobSender<T> {
    fn drop(&mut self) {
        lock_mutex(&self.0.waiting).senders -= 1;
        self.0.arrived.notify_one();
    }
}

impl<T> JobReceiver<T> {
    /// Waits for the next job. Returns `None` if no job is left and all senders were dropped.
    pub(crate) fn receive(&self) -> Option<T> {
        let mut waiting = lock_mutex(&self.0.waiting);
        loop {
            if let Some(job) = waiting.pop_job() {
                return Some(job);
            }
            if waiting.senders == 0 {
                return None;
            }
            waiting = self.0.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> JobReceiver<T> {
    /// Returns the next job if one is waiting.
    pub(crate) fn receive_waiting(&self) -> Option<T> {
        lock_mutex(&self.0.waiting).pop_job()
    }
}

impl<T> Drop for JobReceiver<T> {
    /// Drops the waiting jobs. Their callers then get an error.
    fn drop(&mut self) {
        let mut waiting = lock_mutex(&self.0.waiting);
        let left = std::mem::replace(&mut *waiting, WaitingJobs { is_closed: true, ..WaitingJobs::new() });
        waiting.senders = left.senders;
        drop(waiting);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> JobOrigin {
        Some(IpAddr::from([127, 0, 0, last]))
    }

    #[test]
    fn each_address_is_served_in_turn() {
        let (sender, receiver) = create_queue();
        (0..800).for_each(|number| sender.send(address(2), (2, number)));
        sender.send(address(3), (3, 0));
        sender.send(None, (0, 0));
        sender.send(address(3), (3, 1));
        let order: Vec<_> = (0..6).map(|_| receiver.receive_waiting().unwrap()).collect();
        assert_eq!(order, [(0, 0), (2, 0), (3, 0), (2, 1), (3, 1), (2, 2)]);
        assert_eq!((sender.count_waiting(address(2)), sender.taken_origins().len()), (797, 6));
        drop(sender);
        assert_eq!(std::iter::from_fn(|| receiver.receive()).count(), 797);
    }

    #[test]
    fn own_jobs_alternate_with_jobs_of_addresses() {
        let (sender, receiver) = create_queue();
        (2..6).for_each(|last| sender.send(address(last), (last, 0)));
        (0..3).for_each(|number| sender.send(None, (0, number)));
        let take = |count: usize| (0..count).map(|_| receiver.receive_waiting().unwrap()).collect::<Vec<_>>();
        assert_eq!(take(3), [(0, 0), (2, 0), (0, 1)]);
        // Even if the server sends a job after each response, at most one of its jobs runs before each job of an
        // address.
        sender.send(None, (0, 3));
        assert_eq!(take(3), [(3, 0), (0, 2), (4, 0)]);
        assert_eq!(take(2), [(0, 3), (5, 0)]);
        sender.send(None, (0, 4));
        sender.send(address(2), (2, 1));
        assert_eq!(take(1), [(0, 4)]);
        sender.send(None, (0, 5));
        assert_eq!(take(2), [(2, 1), (0, 5)]);
        assert_eq!(receiver.receive_waiting(), None);
    }

    #[test]
    fn last_job_is_received_after_waiting_jobs() {
        let (sender, receiver) = create_queue();
        sender.send(address(2), 1);
        sender.send_last(9);
        sender.send(address(3), 2);
        let other = sender.clone();
        assert_eq!((receiver.receive(), receiver.receive()), (Some(1), Some(9)));
        assert_eq!(receiver.receive_waiting(), None);
        drop((sender, other));
        assert_eq!(receiver.receive(), None);
    }

    #[test]
    fn jobs_without_a_receiver_are_dropped() {
        let (sender, receiver) = create_queue();
        let job = Arc::new(());
        sender.send(None, job.clone());
        drop(receiver);
        sender.send(None, job.clone());
        assert_eq!(Arc::strong_count(&job), 1);
    }
}
