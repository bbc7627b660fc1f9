//! Fairness, limits and failures of the pool. The tests check which jobs wait for which other jobs, but not durations.

use super::*;
use common::sync::lock_mutex;
use std::sync::mpsc;

/// Returns a job that runs until the returned sender is dropped, with a receiver that reports when the job has started.
fn blocker() -> (mpsc::Sender<()>, oneshot::Receiver<()>, impl FnOnce() + Send + 'static) {
    let (end, ended) = mpsc::channel();
    let (begin, started) = oneshot::channel();
    let work = move || {
        let _ = begin.send(());
        let _ = ended.recv();
    };
    (end, started, work)
}

fn spawn(planner: &PlannerPool, machine: &str, work: impl FnOnce() + Send + 'static) -> tokio::task::JoinHandle<u16> {
    let (planner, machine) = (planner.clone(), machine.to_owned());
    tokio::spawn(async move {
        planner.run_job(&machine, work).await.map_or_else(|error| error.parts().0.as_u16(), |()| 200)
    })
}

async fn settle(planner: &PlannerPool, waiting: usize) {
    while lock_mutex(&planner.shared.queue).count != waiting {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_machine_cannot_occupy_the_whole_planner_pool() {
    let planner = PlannerPool::with_threads(2, JOB_TIMEOUT).unwrap();
    let (end, started, work) = blocker();
    let first = spawn(&planner, "hostile", work);
    started.await.unwrap();
    let waiting: Vec<_> = (0..MAXIMUM_MACHINE_JOBS).map(|_| spawn(&planner, "hostile", || {})).collect();
    settle(&planner, MAXIMUM_MACHINE_JOBS).await;
    let error = planner.run_job("hostile", || ()).await.unwrap_err();
    let (status, why) = error.parts();
    assert_eq!((status.as_u16(), why.contains("4 requests of this machine wait")), (503, true), "{why}");
    for number in 0..10 {
        assert_eq!(planner.run_job(&format!("other-{number}"), move || number).await.unwrap(), number);
    }
    assert!(planner.is_responsive());
    drop(end);
    assert_eq!(first.await.unwrap(), 200);
    for job in waiting {
        assert_eq!(job.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn the_queue_is_bounded_and_machines_take_turns() {
    let planner = PlannerPool::with_threads(1, JOB_TIMEOUT).unwrap();
    let (end, started, work) = blocker();
    let first = spawn(&planner, "first", work);
    started.await.unwrap();
    let (told, order) = mpsc::channel();
    let mut all = Vec::new();
    for (index, machine) in ["a", "a", "a", "b", "c"].into_iter().enumerate() {
        let told = told.clone();
        all.push(spawn(&planner, machine, move || told.send(machine).unwrap()));
        settle(&planner, index + 1).await;
    }
    let others = MAXIMUM_WAITING_JOBS - 5;
    all.extend((0..others).map(|number| spawn(&planner, &format!("m{number}"), || {})));
    settle(&planner, MAXIMUM_WAITING_JOBS).await;
    let (status, why) = planner.run_job("late", || ()).await.unwrap_err().parts();
    assert_eq!((status.as_u16(), why.contains("of all machines wait")), (503, true), "{why}");
    drop(end);
    for job in all {
        assert_eq!(job.await.unwrap(), 200);
    }
    assert_eq!(first.await.unwrap(), 200);
    assert_eq!(order.try_iter().collect::<String>(), "abcaa");
}

#[tokio::test]
async fn canceled_requests_are_not_computed() {
    let planner = PlannerPool::with_threads(1, JOB_TIMEOUT).unwrap();
    let (end, started, work) = blocker();
    let first = spawn(&planner, "first", work);
    started.await.unwrap();
    let (told, ran) = mpsc::channel();
    let gone = spawn(&planner, "second", move || told.send(()).unwrap());
    settle(&planner, 1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    // The next job of the machine takes the free slot in the queue.
    let next = spawn(&planner, "second", || {});
    settle(&planner, 1).await;
    drop(end);
    assert_eq!((first.await.unwrap(), next.await.unwrap()), (200, 200));
    assert!(ran.try_recv().is_err());
}

#[tokio::test]
async fn panic_fails_only_its_own_request() {
    let planner = PlannerPool::with_threads(1, JOB_TIMEOUT).unwrap();
    assert_eq!(spawn(&planner, "a", || panic!("as a test")).await.unwrap(), 500);
    assert_eq!(planner.run_job("a", || 7).await.unwrap(), 7);
}

#[tokio::test]
async fn request_beyond_the_deadline_is_answered_with_503() {
    let planner = PlannerPool::with_threads(1, Duration::ZERO).unwrap();
    // The clients time out before their jobs end, whether the job has started or not.
    let [(first_end, _, first), (second_end, _, second)] = [blocker(), blocker()];
    assert_eq!(spawn(&planner, "a", first).await.unwrap(), 503);
    let (status, why) = planner.run_job("b", second).await.unwrap_err().parts();
    assert_eq!((status.as_u16(), why.contains("try again later")), (503, true), "{why}");
    drop((first_end, second_end));
}

/// The pool is considered stuck only if all of its threads have been busy for too long.
#[tokio::test]
async fn one_idle_thread_is_enough_to_be_responsive() {
    let planner = PlannerPool::with_threads(2, JOB_TIMEOUT).unwrap();
    let now = planner.shared.elapsed_millis();
    assert!(planner.shared.is_responsive_at(now + 10 * STUCK_COMPUTATION_TIMEOUT.as_millis() as u64));
    for thread in &planner.shared.busy_since {
        thread.store(now, Ordering::Relaxed);
        let others = planner.shared.busy_since.iter().any(|thread| thread.load(Ordering::Relaxed) == 0);
        assert!(planner.shared.is_responsive_at(now + STUCK_COMPUTATION_TIMEOUT.as_millis() as u64));
        assert_eq!(planner.shared.is_responsive_at(now + STUCK_COMPUTATION_TIMEOUT.as_millis() as u64 + 1), others);
    }
}

#[tokio::test]
async fn threads_end_with_the_last_handle() {
    let planner = PlannerPool::with_threads(2, JOB_TIMEOUT).unwrap();
    let shared = Arc::downgrade(&planner.shared);
    assert_eq!(planner.run_job("a", || 1).await.unwrap(), 1);
    drop(planner);
    while shared.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
}
