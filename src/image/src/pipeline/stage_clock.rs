//! Measures how long each stage works while an image is written, and how long it waits for other stages. The results
//! show the bottleneck.

use common::sync::lock_mutex;
use model::install_report::StageShare;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Clock that measures how long one thread of a stage waits for other stages. Waiting for the network or a disk counts
/// as work.
#[derive(Debug, Default)]
pub struct StageClock {
    waited_nanoseconds: AtomicU64,
    /// Time at which the measurement was last restarted. Waits before this time are ignored.
    restarted: Mutex<Option<Instant>>,
}

impl StageClock {
    /// Runs `wait`, which only waits for another stage, and adds its duration to the waiting time.
    pub(crate) fn time_wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let began = Some(Instant::now());
        let result = wait();
        let restarted = lock_mutex(&self.restarted);
        let waited = began.max(*restarted).map_or(0, |began| began.elapsed().as_nanos());
        self.waited_nanoseconds.fetch_add(u64::try_from(waited).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }

    fn restart(&self, now: Instant) {
        *lock_mutex(&self.restarted) = Some(now);
        self.waited_nanoseconds.store(0, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_nanoseconds.load(Ordering::Relaxed))
    }
}

/// Clocks of all threads, by stage name.
#[derive(Debug, Clone)]
pub(crate) struct StageClocks {
    began: Arc<Mutex<Instant>>,
    clocks: Arc<Mutex<Vec<NamedClock>>>,
    /// Busy times of stages, as reported by the worker process.
    elsewhere: Arc<Mutex<Vec<(String, Duration)>>>,
}

/// Name of a stage, and its clock; the clock is `None` for a stage that runs only in another process.
type NamedClock = (&'static str, Option<Arc<StageClock>>);

impl StageClocks {
    /// Starts the measurement.
    pub fn start() -> StageClocks {
        StageClocks { began: Arc::new(Mutex::new(Instant::now())), clocks: Arc::default(), elsewhere: Arc::default() }
    }

    /// Restarts the measurement. Called when the writing of the image begins, because until then the download may have
    /// waited for the preparation of the disks.
    pub(crate) fn restart(&self) {
        let now = Instant::now();
        *lock_mutex(&self.began) = now;
        self.clocks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .flat_map(|(_, clock)| clock)
            .for_each(|clock| clock.restart(now));
    }

    /// Creates a clock for one more thread of a stage. The time from the start of the measurement until now is recorded
    /// as waiting.
    pub(crate) fn add_clock(&self, stage: &'static str) -> Arc<StageClock> {
        let before = lock_mutex(&self.began).elapsed();
        let before = AtomicU64::new(u64::try_from(before.as_nanos()).unwrap_or(u64::MAX));
        let clock = Arc::new(StageClock { waited_nanoseconds: before, ..StageClock::default() });
        lock_mutex(&self.clocks).push((stage, Some(clock.clone())));
        clock
    }

    /// Adds a stage that runs in the worker process. Its busy time is added later, by [`Self::add_busy_times`].
    pub(crate) fn add_external_stage(&self, stage: &'static str) {
        lock_mutex(&self.clocks).push((stage, None));
    }

    /// Returns the load of each stage in percent, averaged over its threads. Stages are in the order in which they were
    /// added. Time in which a thread waits for a CPU core counts as work.
    pub(crate) fn shares(&self) -> Vec<StageShare> {
        self.shares_of(lock_mutex(&self.began).elapsed())
    }

    /// Returns the time that each stage was busy so far, averaged over the threads of the stage.
    pub(crate) fn busy(&self) -> Vec<(&'static str, Duration)> {
        self.busy_of(lock_mutex(&self.began).elapsed())
    }

    fn busy_of(&self, total: Duration) -> Vec<(&'static str, Duration)> {
        let clocks = lock_mutex(&self.clocks);
        let mut sums: Vec<(&'static str, Duration, u32)> = Vec::new();
        for (stage, clock) in clocks.iter() {
            let worked = clock.as_ref().map_or(Duration::ZERO, |clock| total.saturating_sub(clock.waited()));
            match sums.iter_mut().find(|(name, ..)| name == stage) {
                Some((_, sum, threads)) => (*sum, *threads) = (*sum + worked, *threads + 1),
                None => sums.push((*stage, worked, 1)),
            }
        }
        sums.into_iter().map(|(stage, sum, threads)| (stage, sum / threads)).collect()
    }

    /// Adds busy times of stages in the worker process, in nanoseconds. For a stage that runs in both processes, the
    /// larger busy time is used.
    pub(crate) fn add_busy_times(&self, busy: Vec<(&str, u64)>) {
        let busy = busy.into_iter().map(|(stage, nanoseconds)| (stage.to_owned(), Duration::from_nanos(nanoseconds)));
        lock_mutex(&self.elsewhere).extend(busy);
    }

    fn shares_of(&self, total: Duration) -> Vec<StageShare> {
        let elsewhere = lock_mutex(&self.elsewhere);
        let share = |(stage, here): (&str, Duration)| {
            let there = elsewhere.iter().filter(|(name, _)| name == stage).map(|(_, time)| *time);
            let busy = there.max().unwrap_or_default().max(here).as_secs_f64() / total.as_secs_f64().max(1e-9);
            StageShare { stage: stage.to_owned(), percent: (busy * 100.0).round().clamp(0.0, 100.0) as u8 }
        };
        self.busy_of(total).into_iter().map(share).collect()
    }
}

/// Average load of each stage over several consecutive streams, weighted by their durations.
#[derive(Debug, Default)]
pub(crate) struct LoadAverage {
    seconds: f64,
    /// Load in percent multiplied by the duration in seconds, summed over all streams, for each stage.
    sums: Vec<(String, f64)>,
}

impl LoadAverage {
    pub(crate) fn add(&mut self, shares: &[StageShare], took: Duration) {
        self.seconds += took.as_secs_f64();
        for StageShare { stage, percent } in shares {
            let weighted = f64::from(*percent) * took.as_secs_f64();
            match self.sums.iter_mut().find(|(name, _)| name == stage) {
                Some((_, sum)) => *sum += weighted,
                None => self.sums.push((stage.clone(), weighted)),
            }
        }
    }

    pub(crate) fn shares(self) -> Vec<StageShare> {
        let percent = |sum: f64| (sum / self.seconds.max(1e-9)).round().clamp(0.0, 100.0) as u8;
        self.sums.into_iter().map(|(stage, sum)| StageShare { stage, percent: percent(sum) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    #[test]
    fn stage_that_does_not_wait_is_the_bottleneck() {
        let stages = StageClocks::start();
        let (network, one, two) = (stages.add_clock("network"), stages.add_clock("write"), stages.add_clock("write"));
        for (clock, seconds) in [(network, 1), (one, 8), (two, 7)] {
            clock.waited_nanoseconds.store(seconds * 1_000_000_000, Ordering::Relaxed);
        }
        let shares = stages.shares_of(Duration::from_secs(10));
        let shares: Vec<_> = shares.iter().map(|share| (share.stage.as_str(), share.percent)).collect();
        assert_eq!(shares, [("network", 90), ("write", 25)]);
    }

    #[test]
    fn only_time_spent_waiting_is_counted() {
        let clock = StageClock::default();
        clock.time_wait(|| sleep(Duration::from_millis(5)));
        let (waited, began) = (clock.waited(), Instant::now());
        sleep(Duration::from_millis(5));
        assert_eq!(clock.waited(), waited);
        clock.time_wait(|| sleep(Duration::from_millis(5)));
        let second = clock.waited() - waited;
        assert!(waited >= Duration::from_millis(5) && second >= Duration::from_millis(5));
        assert!(second < began.elapsed());
    }

    #[test]
    fn long_stream_has_more_weight_than_a_short_one() {
        let shares = |of: [(&str, u8); 2]| of.map(|(stage, percent)| StageShare { stage: stage.to_owned(), percent });
        let mut average = LoadAverage::default();
        average.add(&shares([("network", 90), ("decode", 10)]), Duration::from_secs(30));
        average.add(&shares([("network", 10), ("decode", 100)]), Duration::from_secs(10));
        assert_eq!(average.shares(), shares([("network", 70), ("decode", 33)]));
        assert_eq!(LoadAverage::default().shares(), []);
    }

    #[test]
    fn wait_before_the_restart_is_not_counted() {
        let stages = StageClocks::start();
        let (before, during) = (stages.add_clock("before"), stages.add_clock("during"));
        before.time_wait(|| sleep(Duration::from_millis(20)));
        let began = Instant::now();
        let restarted = during.time_wait(|| {
            sleep(Duration::from_millis(20));
            let now = Instant::now();
            stages.restart();
            now
        });
        assert!(before.waited().is_zero());
        assert!(during.waited() <= restarted.elapsed() && during.waited() < began.elapsed());
        assert!(stages.shares()[0].percent >= 99);
    }
}
