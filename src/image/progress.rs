//! Tells now and then how far the stream is.

use crate::control::wire::Progress;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Between two calls of the watcher.
const INTERVAL: Duration = Duration::from_millis(200);

/// Over how many seconds the rate is smoothed.
const SMOOTHING_SECONDS: f64 = 3.0;

/// Passes bytes on, counts them and tells the watcher.
pub struct Meter<'a, R> {
    inner: R,
    watch: &'a (dyn Fn(Progress) + Sync),
    total: Option<u64>,
    bytes: u64,
    told_at: Instant,
    told_bytes: u64,
    /// Bytes a second; none before the first interval is over.
    rate: Option<f64>,
}

impl<'a, R: Read> Meter<'a, R> {
    pub fn new(inner: R, total: Option<u64>, watch: &'a (dyn Fn(Progress) + Sync)) -> Self {
        Meter { inner, watch, total, bytes: 0, told_at: Instant::now(), told_bytes: 0, rate: None }
    }

    /// Tells the last state, whatever the time, and returns the bytes.
    pub fn finish(mut self) -> u64 {
        self.tell(Instant::now());
        self.bytes
    }

    fn tell(&mut self, now: Instant) {
        let seconds = now.duration_since(self.told_at).as_secs_f64().max(0.001);
        let current = (self.bytes - self.told_bytes) as f64 / seconds;
        let weight = 1.0 - (-seconds / SMOOTHING_SECONDS).exp();
        let rate = self.rate.map_or(current, |rate| rate + (current - rate) * weight);
        (self.rate, self.told_at, self.told_bytes) = (Some(rate), now, self.bytes);
        let left = self.total.map(|total| total.saturating_sub(self.bytes));
        (self.watch)(Progress {
            bytes: self.bytes,
            total_bytes: self.total,
            bytes_per_second: rate as u64,
            seconds_left: left.filter(|_| rate >= 1.0).map(|left| (left as f64 / rate).ceil() as u64),
        });
    }
}

impl<R: Read> Read for Meter<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        self.bytes += got as u64;
        let now = Instant::now();
        if now.duration_since(self.told_at) >= INTERVAL {
            self.tell(now);
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn the_rate_is_smoothed_and_gives_the_time_left() {
        let told = Mutex::new(Vec::new());
        let watch = |progress: Progress| told.lock().unwrap().push(progress);
        let mut meter = Meter::new(io::empty(), Some(10_000), &watch);
        let start = meter.told_at;
        for (bytes, second) in [(1000, 1), (2000, 2), (2000, 3)] {
            meter.bytes = bytes;
            meter.tell(start + Duration::from_secs(second));
        }
        let told = told.lock().unwrap();
        assert_eq!((told[0].bytes_per_second, told[0].seconds_left), (1000, Some(9)));
        assert_eq!((told[1].bytes_per_second, told[1].seconds_left), (1000, Some(8)));
        assert!(told[2].bytes_per_second < 1000 && told[2].bytes_per_second > 500, "{:?}", told[2]);
        assert!(told[2].seconds_left > Some(8));
    }

    #[test]
    fn many_reads_are_few_calls_and_the_end_is_always_told() {
        let calls = Mutex::new(Vec::new());
        let watch = |progress: Progress| calls.lock().unwrap().push(progress.bytes);
        let data = [0u8; 5000];
        let mut meter = Meter::new(&data[..], None, &watch);
        let mut byte = [0u8; 1];
        let began = Instant::now();
        while meter.read(&mut byte).unwrap() == 1 {}
        assert_eq!(meter.finish(), 5000);
        let calls = calls.lock().unwrap();
        assert_eq!(calls.last(), Some(&5000));
        assert!(calls.len() as u128 <= began.elapsed().as_millis() / INTERVAL.as_millis() + 1, "{calls:?}");
    }
}
