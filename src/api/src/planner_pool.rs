//! Thread pool for planning. All computations with the inventory of a machine run in this pool, not on the threads
//! that serve requests. A slow computation delays only its own machine.
//!
//! | subject | rule |
//! |---|---|
//! | one machine, or one address that registers machines | occupies at most one thread; has only a few queued jobs |
//! | the queue | has a maximum length; machines are served round-robin |
//! | a job that has waited too long | is not run; the request is answered with 503 and `Retry-After` |
//! | a running job | has no timeout, because limits on the inventory size and the planner's steps bound its duration |

use super::AppState;
use axum::http::StatusCode;
use common::sync::lock_mutex;
use http_server::api_error::ApiError;
use model::inventory::Inventory;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Maximum number of waiting jobs of one machine.
const MAXIMUM_MACHINE_JOBS: usize = 4;
/// Maximum number of waiting jobs of all machines.
const MAXIMUM_WAITING_JOBS: usize = 256;
/// Maximum time that a client waits for the result of its job.
const JOB_TIMEOUT: Duration = Duration::from_secs(15);
/// Time after which a computation is considered stuck. A computation with an inventory that does not exceed the limits
/// takes less than a tenth of this time.
const STUCK_COMPUTATION_TIMEOUT: Duration = Duration::from_secs(120);
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;
/// Stack size of each thread, in bytes. The planner limits the depth of its recursion. Only debug builds, whose stack
/// frames are larger, need a stack of this size.
const STACK_BYTES: usize = 8 << 20;

type PlannerWork = Box<dyn FnOnce() + Send>;

/// Handle of the pool; cheap to clone. The threads exit when the last clone is dropped.
#[derive(Clone)]
pub struct PlannerPool {
    shared: Arc<PoolState>,
    /// Shared by all handles. When the last handle is dropped, the owner stops the threads.
    _owner: Arc<PoolOwner>,
}

struct PoolState {
    deadline: Duration,
    queue: Mutex<PlannerQueue>,
    has_work: Condvar,
    started: Instant,
    /// Start time of each thread's job, in milliseconds since the start of the pool; 0 while the thread is idle.
    busy_since: Vec<AtomicU64>,
}

#[derive(Default)]
struct PlannerQueue {
    /// Waiting jobs of each machine.
    waiting: BTreeMap<String, VecDeque<PlannerJob>>,
    /// Machines with waiting jobs, in the order in which their jobs are run.
    queue_order: VecDeque<String>,
    /// Machines with a running job.
    running: BTreeSet<String>,
    count: usize,
    is_closed: bool,
}

struct PlannerJob {
    is_awaited: Box<dyn Fn() -> bool + Send>,
    work: PlannerWork,
}

/// Owner of the pool. When this value is dropped, the threads stop.
struct PoolOwner(Arc<PoolState>);

impl Drop for PoolOwner {
    fn drop(&mut self) {
        lock_mutex(&self.0.queue).is_closed = true;
        self.0.has_work.notify_all();
    }
}

impl PlannerPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be started.
    pub fn start_threads() -> io::Result<PlannerPool> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        PlannerPool::with_threads(processors.clamp(*THREADS.start(), *THREADS.end()), JOB_TIMEOUT)
    }

    fn with_threads(threads: usize, deadline: Duration) -> io::Result<PlannerPool> {
        let shared = Arc::new(PoolState {
            deadline,
            queue: Mutex::default(),
            has_work: Condvar::new(),
            started: Instant::now(),
            busy_since: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        });
        let planner = PlannerPool { shared: shared.clone(), _owner: Arc::new(PoolOwner(shared.clone())) };
        for thread in 0..threads {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name(format!("planner-{thread}")).stack_size(STACK_BYTES);
            builder.spawn(move || shared.run_jobs(thread))?;
        }
        Ok(planner)
    }

    /// Runs a computation about a machine on one of the threads. The job counts towards the limits of `machine`: the id
    /// of a machine with a machine file, or the address of an unknown client.
    ///
    /// # Errors
    /// Returns status 503 if the queue is full or the result takes too long, and 500 if the computation failed.
    pub async fn run_job<T: Send + 'static>(
        &self,
        machine: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (done, result) = oneshot::channel();
        let done = Arc::new(Mutex::new(Some(done)));
        let awaited = done.clone();
        let job = PlannerJob {
            is_awaited: Box::new(move || lock_mutex(&awaited).as_ref().is_some_and(|done| !done.is_closed())),
            work: Box::new(move || {
                let computed = work();
                if let Some(done) = lock_mutex(&done).take() {
                    // An error is ignored: sending the result fails if the client has disconnected.
                    drop(done.send(computed));
                }
            }),
        };
        self.shared.enqueue_job(machine, job).map_err(|why| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why))?;
        match tokio::time::timeout(self.shared.deadline, result).await {
            Ok(Ok(computed)) => Ok(computed),
            Ok(Err(_)) => {
                let why =
                    format!("machine {machine}: its plan cannot be computed: the planner failed; see the server's log");
                Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why))
            }
            Err(_) => {
                let why = format!(
                    "machine {machine}: its plan cannot be computed within {seconds} s: the server is busy planning; try again later",
                    seconds = self.shared.deadline.as_secs()
                );
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why))
            }
        }
    }

    /// Returns whether at least one thread is idle, or has started its job recently. If this returns false, systemd's
    /// watchdog restarts the server.
    pub fn is_responsive(&self) -> bool {
        self.shared.is_responsive_at(self.shared.elapsed_millis())
    }
}

impl AppState {
    /// Returns the inventory in the machine's last registration, or `None` if the machine has not registered, or this
    /// version does not support the inventory.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read, or [`PlannerPool::run_job`] fails.
    pub(crate) async fn read_inventory(&self, machine: &str) -> Result<Option<Inventory>, ApiError> {
        let Some(registered) = self.state.find_registration(machine).await? else { return Ok(None) };
        self.planner.run_job(machine, move || registered.parse_inventory()).await
    }
}

impl PoolState {
    fn elapsed_millis(&self) -> u64 {
        // 1 is added, so that the result is never 0, which stands for an idle thread.
        self.started.elapsed().as_millis() as u64 + 1
    }

    fn is_responsive_at(&self, now: u64) -> bool {
        let stuck = |since: u64| since != 0 && now.saturating_sub(since) > STUCK_COMPUTATION_TIMEOUT.as_millis() as u64;
        self.busy_since.iter().any(|since| !stuck(since.load(Ordering::Relaxed)))
    }

    fn enqueue_job(&self, machine: &str, job: PlannerJob) -> Result<(), String> {
        let mut queue = lock_mutex(&self.queue);
        queue.drop_abandoned(machine);
        let own = queue.waiting.get(machine).map_or(0, VecDeque::len);
        if own >= MAXIMUM_MACHINE_JOBS || queue.count >= MAXIMUM_WAITING_JOBS {
            let whose = if own >= MAXIMUM_MACHINE_JOBS { "this machine" } else { "all machines" };
            let count = if own >= MAXIMUM_MACHINE_JOBS { own } else { queue.count };
            return Err(format!(
                "machine {machine}: its plan cannot be computed now: {count} requests of {whose} wait for the planner; try again later"
            ));
        }
        if own == 0 {
            queue.queue_order.push_back(machine.to_owned());
        }
        queue.waiting.entry(machine.to_owned()).or_default().push_back(job);
        queue.count += 1;
        drop(queue);
        self.has_work.notify_one();
        Ok(())
    }

    /// Runs jobs until the pool is closed.
    fn run_jobs(&self, thread: usize) {
        loop {
            let mut queue = lock_mutex(&self.queue);
            let (machine, job) = loop {
                if queue.is_closed {
                    return;
                }
                if let Some(next) = queue.take_next() {
                    break next;
                }
                queue = self.has_work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            if (job.is_awaited)() {
                self.busy_since[thread].store(self.elapsed_millis(), Ordering::Relaxed);
                // A job that panics must not end the server. The panic drops the channel to the client, which then
                // receives status 500.
                drop(catch_unwind(AssertUnwindSafe(job.work)));
                self.busy_since[thread].store(0, Ordering::Relaxed);
            }
            lock_mutex(&self.queue).running.remove(&machine);
            // The next waiting job of this machine can start now, so a thread is woken.
            self.has_work.notify_one();
        }
    }
}

impl PlannerQueue {
    /// Returns the next job of the first machine in the queue that has no running job. If the machine has further jobs,
    /// it moves to the end of the queue.
    fn take_next(&mut self) -> Option<(String, PlannerJob)> {
        let at = self.queue_order.iter().position(|machine| !self.running.contains(machine))?;
        let machine = self.queue_order.remove(at)?;
        let jobs = self.waiting.get_mut(&machine)?;
        let job = jobs.pop_front()?;
        self.count -= 1;
        match jobs.is_empty() {
            true => drop(self.waiting.remove(&machine)),
            false => self.queue_order.push_back(machine.clone()),
        }
        self.running.insert(machine.clone());
        Some((machine, job))
    }

    /// Drops the waiting jobs of a machine if their clients have disconnected.
    fn drop_abandoned(&mut self, machine: &str) {
        let Some(jobs) = self.waiting.get_mut(machine) else { return };
        let before = jobs.len();
        jobs.retain(|job| (job.is_awaited)());
        self.count -= before - jobs.len();
        if jobs.is_empty() {
            self.waiting.remove(machine);
            self.queue_order.retain(|queued| queued != machine);
        }
    }
}

#[cfg(test)]
mod tests;
