//! Periodic progress reports of a stream.

use super::download_and_decode::DownloadState;
use model::install_report::TransferProgress;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two calls of the watcher.
const INTERVAL: Duration = Duration::from_millis(200);

/// Time constant of the exponential smoothing of the rate, in seconds.
const SMOOTHING_SECONDS: f64 = 3.0;

/// Duration of the initial period in which the reported rate is the average since the start.
const AVERAGED: Duration = Duration::from_secs(10);

type ProgressWatcher<'a> = &'a (dyn Fn(TransferProgress) + Sync);

/// Runs `work` like [`ProgressMeter::report_while`], for a single stream.
pub(crate) fn report_progress<T>(
    download: &DownloadState,
    total: Option<u64>,
    watch: ProgressWatcher,
    work: impl FnOnce() -> T,
) -> T {
    ProgressMeter::new(total).report_while(download, watch, work)
}

/// Progress over several consecutive streams, with a smoothed rate.
pub(crate) struct ProgressMeter {
    /// Size of all streams together, in bytes, if known.
    total: Option<u64>,
    /// Number of bytes of the streams that have ended.
    before: u64,
    interval: Duration,
    started_at: Instant,
    told_at: Instant,
    told_bytes: u64,
    /// Smoothed rate in bytes per second; `None` before the first measurement.
    rate: Option<f64>,
}

impl ProgressMeter {
    pub fn new(total: Option<u64>) -> ProgressMeter {
        let now = Instant::now();
        ProgressMeter { total, before: 0, interval: INTERVAL, started_at: now, told_at: now, told_bytes: 0, rate: None }
    }

    /// Runs `work`, which processes the next stream. Calls the watcher at each interval while `work` runs, and once
    /// more when `work` has ended.
    pub(crate) fn report_while<T>(
        &mut self,
        download: &DownloadState,
        watch: ProgressWatcher,
        work: impl FnOnce() -> T,
    ) -> T {
        let (done, interval) = (AtomicBool::new(false), self.interval);
        let result = thread::scope(|scope| {
            let teller = scope.spawn(|| {
                let mut last = false;
                while !last {
                    thread::park_timeout(interval);
                    last = done.load(Ordering::Acquire);
                    watch(self.measure(self.before + download.bytes(), Instant::now()));
                }
            });
            let result = work();
            done.store(true, Ordering::Release);
            teller.thread().unpark();
            result
        });
        self.before += download.bytes();
        result
    }

    fn measure(&mut self, bytes: u64, now: Instant) -> TransferProgress {
        let seconds = now.duration_since(self.told_at).as_secs_f64().max(0.001);
        let current = (bytes - self.told_bytes) as f64 / seconds;
        let weight = 1.0 - (-seconds / SMOOTHING_SECONDS).exp();
        let since_start = now.duration_since(self.started_at);
        let average = bytes as f64 / since_start.as_secs_f64().max(0.001);
        // At the beginning, the average since the start is used: the first data only fills buffers, which is faster
        // than writing to the disks, so the rate in a short interval would be too high.
        let rate = match self.rate.filter(|_| since_start > AVERAGED) {
            None => average,
            Some(rate) => rate + (current - rate) * weight,
        };
        (self.rate, self.told_at, self.told_bytes) = (Some(rate), now, bytes);
        let left = self.total.map(|total| total.saturating_sub(bytes));
        TransferProgress {
            bytes,
            total_bytes: self.total,
            bytes_per_second: rate as u64,
            seconds_left: left.filter(|_| rate >= 1.0).map(|left| (left as f64 / rate).ceil() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn rate_is_smoothed_and_yields_the_remaining_time() {
        let mut meter = ProgressMeter::new(Some(20_000));
        let start = meter.told_at;
        let measured = [(10_000, 10), (11_000, 11), (11_000, 12)];
        let measured = measured.map(|(bytes, second)| meter.measure(bytes, start + Duration::from_secs(second)));
        assert_eq!((measured[0].bytes_per_second, measured[0].seconds_left), (1000, Some(10)));
        assert_eq!((measured[1].bytes_per_second, measured[1].seconds_left), (1000, Some(9)));
        assert!(measured[2].bytes_per_second < 1000 && measured[2].bytes_per_second > 500, "{:?}", measured[2]);
        assert!(measured[2].seconds_left > Some(9));
    }

    #[test]
    fn average_since_the_start_applies_for_ten_seconds() {
        let mut meter = ProgressMeter::new(Some(10_000));
        let start = meter.told_at;
        // The buffers are filled within the first second.
        let measured = [(5000, 1), (5000, 5), (5000, 10)];
        let measured = measured.map(|(bytes, second)| meter.measure(bytes, start + Duration::from_secs(second)));
        let rates = measured.map(|progress| (progress.bytes_per_second, progress.seconds_left));
        assert_eq!(rates, [(5000, Some(1)), (1000, Some(5)), (500, Some(10))]);
        assert!(measured.iter().all(|progress| !progress.is_flushing()));
        let end = meter.measure(10_000, start + Duration::from_secs(20));
        assert_eq!(end.to_string(), "10.0 kB of 10.0 kB, flushing");
    }

    /// With an interval of one hour, the test passes only if the end is reported immediately.
    #[test]
    fn end_is_reported_immediately_and_the_next_stream_continues() {
        let mut meter = ProgressMeter { interval: Duration::from_secs(3600), ..ProgressMeter::new(Some(5)) };
        for end in [2, 5] {
            let (download, last) = (DownloadState::default(), Mutex::new(None));
            let watch = |progress: TransferProgress| *last.lock().unwrap() = Some(progress.bytes);
            let result = meter.report_while(&download, &watch, || {
                download.add_fetched(end - if end == 5 { 2 } else { 0 });
                7
            });
            assert_eq!((result, *last.lock().unwrap()), (7, Some(end)));
        }
    }
}
