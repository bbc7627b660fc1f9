//! Measures the rate of a download, and chooses the number of *lanes*: ranges of the image that are fetched in
//! parallel. A download starts with one stream. If the network is the bottleneck, two ranges are tried. If two ranges
//! are sufficiently faster, four are tried. If doubling the number does not increase the rate sufficiently, the
//! previous number is used for the rest of the image.

use std::time::{Duration, Instant};

const MAXIMUM_LANES: u64 = 4;

/// Number of measurements in a trial. The trial fails only if the rate is too low in all of them. With a single
/// measurement, a temporarily busy server would limit the rest of the download to fewer lanes.
const TRIAL_MEASUREMENTS: u32 = 3;

/// Thresholds for trying more lanes, and the memory limit of the lanes. Tests use small values.
#[derive(Debug, Clone)]
pub(crate) struct LaneRules {
    /// Duration of a measurement. A warm-up of half this duration precedes the first measurement.
    pub window: Duration,
    /// Minimum number of remaining bytes. If fewer bytes are left, no more lanes are tried.
    pub least_bytes: u64,
    /// Memory limit of all lanes together, in bytes.
    pub memory_bytes: u64,
    /// Threshold for the fraction of time (0 to 1) in which the download waits for the network. Above this threshold,
    /// the network is considered the bottleneck. Below this threshold, the bottleneck is the digest or a later stage.
    pub reading: f64,
    /// Factor by which the rate must increase when the number of lanes is doubled; otherwise the number is halved
    /// again.
    pub growth: f64,
}

impl Default for LaneRules {
    fn default() -> Self {
        let (least_bytes, memory_bytes) = (64 << 20, 16 << 20);
        LaneRules { window: Duration::from_secs(1), least_bytes, memory_bytes, reading: 0.75, growth: 1.2 }
    }
}

/// Measures the download of one image and chooses the number of lanes.
pub(crate) struct LaneChooser {
    rules: LaneRules,
    trial: LaneTrial,
    meter: RateMeter,
}

impl LaneChooser {
    pub fn new(rules: LaneRules) -> LaneChooser {
        LaneChooser { rules, trial: LaneTrial::default(), meter: RateMeter::begin() }
    }

    /// Returns the number of lanes to use; 1 means the plain stream.
    pub(crate) fn lanes(&self) -> u64 {
        self.trial.lanes
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.rules.memory_bytes
    }

    /// Restarts the measurement after the connection or the number of lanes has changed.
    pub(crate) fn restart_measurement(&mut self) {
        self.meter = RateMeter::begin();
    }

    /// Records the number of bytes received, and the time that the read took.
    pub(crate) fn record_received(&mut self, bytes: usize, waited: Duration) {
        self.meter.bytes += bytes as u64;
        self.meter.reading += waited;
    }

    /// Ends the measurement if its duration has passed. Returns whether the number of lanes changes for the remaining
    /// `left_bytes`.
    pub(crate) fn update_choice(&mut self, left_bytes: u64) -> bool {
        let took = self.meter.began.elapsed();
        let is_warm = self.meter.is_warm;
        if took < (if is_warm { self.rules.window } else { self.rules.window / 2 }) {
            return false;
        }
        let network_holds = self.meter.reading.as_secs_f64() >= self.rules.reading * took.as_secs_f64();
        let bytes_per_second = self.meter.bytes as f64 / took.as_secs_f64();
        // If a later stage limits a single stream, the next measurement begins with another warm-up: data has
        // accumulated in network buffers, and arrives faster than usual.
        self.meter = RateMeter { is_warm: network_holds || self.trial.lanes > 1, ..RateMeter::begin() };
        if !is_warm {
            return false;
        }
        let may_grow = network_holds && left_bytes >= self.rules.least_bytes;
        let before = self.trial;
        self.trial = before.next_trial(&RateMeasurement { bytes_per_second, may_grow }, self.rules.growth);
        log_decision(&before, &self.trial, bytes_per_second);
        before.lanes != self.trial.lanes
    }

    /// Falls back to one stream permanently.
    pub(crate) fn fall_back_to_one_lane(&mut self) {
        self.trial = LaneTrial { settled: true, ..LaneTrial::default() };
    }
}

fn log_decision(before: &LaneTrial, after: &LaneTrial, bytes_per_second: f64) {
    let named = |lanes| if lanes == 1 { "one stream".to_owned() } else { format!("{lanes} parallel range requests") };
    let (was, is, rate) = (named(before.lanes), named(after.lanes), bytes_per_second / 1e6);
    if after.lanes > before.lanes {
        tracing::info!("image: {rate:.1} MB/s with {was}, limited by the network; trying {is}");
    } else if let Some(fewer) = before.fewer_brought.filter(|_| after.settled) {
        let fewer = fewer / 1e6;
        let stays = if after.lanes < before.lanes { "going back to" } else { "staying with" };
        tracing::info!("image: {rate:.1} MB/s with {was}, {fewer:.1} MB/s with half as many; {stays} {is}");
    }
}

/// Measurement in progress.
struct RateMeter {
    began: Instant,
    bytes: u64,
    /// Time spent reading from the network.
    reading: Duration,
    /// Whether the warm-up is over. During the warm-up, rates are not representative, because connections are still
    /// speeding up, and buffers may be empty or full.
    is_warm: bool,
}

impl RateMeter {
    fn begin() -> RateMeter {
        RateMeter { began: Instant::now(), bytes: 0, reading: Duration::ZERO, is_warm: false }
    }
}

/// Result of measuring the rate while the number of lanes was constant.
struct RateMeasurement {
    bytes_per_second: f64,
    /// Whether the network is the bottleneck and enough of the image is left to try more lanes.
    may_grow: bool,
}

/// State of the decision: the current number of lanes, and the result of earlier measurements.
#[derive(Debug, Clone, Copy)]
struct LaneTrial {
    lanes: u64,
    /// Rate with half as many lanes, in bytes per second; `None` if no trial is running.
    fewer_brought: Option<f64>,
    /// Number of measurements of this trial in which the rate did not increase sufficiently.
    misses: u32,
    /// True if the number of lanes is final, and no further trials are made.
    settled: bool,
}

impl Default for LaneTrial {
    fn default() -> Self {
        LaneTrial { lanes: 1, fewer_brought: None, misses: 0, settled: false }
    }
}

impl LaneTrial {
    fn next_trial(self, seen: &RateMeasurement, growth: f64) -> LaneTrial {
        match self.fewer_brought {
            _ if self.settled => self,
            Some(fewer) if seen.bytes_per_second < fewer * growth => match self.misses + 1 {
                TRIAL_MEASUREMENTS => LaneTrial { lanes: self.lanes / 2, settled: true, ..LaneTrial::default() },
                misses => LaneTrial { misses, ..self },
            },
            _ if self.lanes == MAXIMUM_LANES => LaneTrial { lanes: self.lanes, settled: true, ..LaneTrial::default() },
            _ if seen.may_grow => {
                let fewer_brought = Some(seen.bytes_per_second);
                LaneTrial { lanes: self.lanes * 2, fewer_brought, ..LaneTrial::default() }
            }
            _ => LaneTrial { lanes: self.lanes, ..LaneTrial::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_count_grows_only_with_a_fifth_more_throughput() {
        // Each case contains the measured rates, each with a flag that the network is the bottleneck, and the number of
        // lanes after each measurement.
        type Rates<'a> = &'a [(f64, bool)];
        let cases: [(Rates, &[u64]); 11] = [
            // One stream saturates the link.
            (&[(100.0, true), (101.0, true), (100.0, true), (10.0, true), (10.0, true)], &[2, 2, 2, 1, 1]),
            (&[(100.0, true), (119.9, true), (119.9, true), (119.9, true), (500.0, true)], &[2, 2, 2, 1, 1]),
            // One or two slow measurements do not end a trial.
            (&[(100.0, true), (10.0, true), (190.0, true), (390.0, true)], &[2, 2, 4, 4]),
            (&[(100.0, true), (10.0, true), (10.0, true), (190.0, true), (10.0, true)], &[2, 2, 2, 4, 4]),
            // The rate increases with two lanes and, in two of three cases, with four.
            (&[(100.0, true), (190.0, true), (195.0, true), (195.0, true), (195.0, true)], &[2, 4, 4, 4, 2]),
            (&[(100.0, true), (200.0, true), (400.0, true), (1.0, true)], &[2, 4, 4, 4]),
            (&[(100.0, true), (120.0, true), (144.0, true)], &[2, 4, 4]),
            // Two lanes are slower than one.
            (&[(100.0, true), (60.0, true), (60.0, true), (60.0, true), (100.0, true)], &[2, 2, 2, 1, 1]),
            // A later stage is the bottleneck, so more lanes are not tried.
            (&[(100.0, false), (300.0, false), (5.0, false)], &[1, 1, 1]),
            // A later stage is the bottleneck for a moment.
            (&[(100.0, false), (100.0, true), (180.0, false), (200.0, true), (390.0, true)], &[1, 2, 2, 4, 4]),
            // A later stage becomes the bottleneck with two lanes, which are therefore not faster.
            (&[(100.0, true), (105.0, false), (99.0, false), (105.0, false), (100.0, true)], &[2, 2, 2, 1, 1]),
        ];
        for (seen, lanes) in cases {
            let mut trial = LaneTrial::default();
            let follow = seen.iter().map(|&(bytes_per_second, may_grow)| {
                trial = trial.next_trial(&RateMeasurement { bytes_per_second, may_grow }, LaneRules::default().growth);
                trial.lanes
            });
            assert_eq!(follow.collect::<Vec<_>>(), lanes, "{seen:?}");
        }
    }

    fn choice(window: Duration) -> LaneChooser {
        LaneChooser::new(LaneRules { window, least_bytes: 1000, ..LaneRules::default() })
    }

    /// Simulates that `bytes` bytes were received since the last change. `reading` is the fraction of this time that
    /// was spent reading from the network. Returns whether the number of lanes changes.
    fn pass(choice: &mut LaneChooser, bytes: usize, reading: f64, left_bytes: u64) -> bool {
        std::thread::sleep(Duration::from_millis(3));
        let waited = choice.meter.began.elapsed().mul_f64(reading) + Duration::from_secs(u64::from(reading >= 1.0));
        choice.record_received(bytes, waited);
        choice.update_choice(left_bytes)
    }

    #[test]
    fn stream_warms_up_before_measurement() {
        let mut choice = choice(Duration::from_millis(2));
        assert!(!pass(&mut choice, 1000, 1.0, 1000) && choice.lanes() == 1);
        assert!(pass(&mut choice, 1000, 1.0, 1000) && choice.lanes() == 2);
        choice.restart_measurement();
        assert!(!pass(&mut choice, 1 << 30, 1.0, 1000));
        assert!(pass(&mut choice, 1 << 30, 1.0, 1000) && choice.lanes() == 4);
    }

    #[test]
    fn unfinished_window_yields_no_result() {
        let mut choice = choice(Duration::from_secs(3600));
        for _ in 0..5 {
            assert!(!pass(&mut choice, 1000, 1.0, 1000));
        }
    }

    #[test]
    fn remainder_of_an_image_is_not_measured() {
        let mut choice = choice(Duration::from_millis(2));
        for _ in 0..5 {
            assert!(!pass(&mut choice, 1000, 1.0, 999));
        }
    }

    #[test]
    fn windows_limited_by_later_stages_are_not_measured() {
        let mut choice = choice(Duration::from_millis(2));
        for _ in 0..5 {
            assert!(!pass(&mut choice, 1000, 0.5, 1000));
        }
        assert!(!pass(&mut choice, 1000, 1.0, 1000));
        assert!(pass(&mut choice, 1000, 1.0, 1000));
    }

    #[test]
    fn settled_lane_count_is_not_changed() {
        let mut choice = choice(Duration::from_millis(2));
        pass(&mut choice, 1000, 1.0, 1000);
        assert!(pass(&mut choice, 1000, 1.0, 1000));
        choice.fall_back_to_one_lane();
        for _ in 0..5 {
            assert!(!pass(&mut choice, 1000, 1.0, 1000) && choice.lanes() == 1);
        }
    }
}
