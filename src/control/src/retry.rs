//! Bounded retries with exponential backoff and jitter.

use common::error::{Error, Result};
use linux::http::add_jitter;
use std::thread;
use std::time::{Duration, Instant};

/// Policy that limits the retries of a request.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Time since the first attempt after which no further attempt is started.
    pub patience: Duration,
    pub first_pause: Duration,
    pub longest_pause: Duration,
}

/// Policy for requests that must succeed: retries for ten minutes, which is longer than a restart of the control plane
/// or a reboot of a switch takes.
pub(crate) const TEN_MINUTE_RETRIES: RetryPolicy = RetryPolicy {
    patience: Duration::from_secs(10 * 60),
    first_pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(30),
};

/// Policy for messages whose loss is harmless: retries for one minute.
pub(crate) const ONE_MINUTE_RETRIES: RetryPolicy =
    RetryPolicy { patience: Duration::from_secs(60), ..TEN_MINUTE_RETRIES };

/// Policy without retries.
pub const NO_RETRIES: RetryPolicy = RetryPolicy { patience: Duration::ZERO, ..TEN_MINUTE_RETRIES };

/// Maximum pause that a server can request with `Retry-After`.
const LONGEST_REQUESTED: Duration = Duration::from_secs(120);

/// Factor by which the pause grows after each attempt. With this factor, a pause is at most one second longer than a
/// quarter of the time since the first attempt. After a short outage, clients are therefore served again within
/// seconds.
const PAUSE_GROWTH: f64 = 1.25;

/// Result of a single attempt.
pub(crate) enum AttemptResult<T> {
    Done(T),
    /// Transient failure, after which the attempt is repeated.
    Transient(Error),
    /// Permanent failure, after which no further attempt is made.
    Permanent(common::error::Error),
}

impl RetryPolicy {
    /// Calls `attempt` until it succeeds or fails permanently, or until `patience` has elapsed. Logs each retry.
    ///
    /// # Errors
    /// Returns the error of the last attempt.
    pub(crate) fn run_attempts<T>(&self, mut attempt: impl FnMut() -> AttemptResult<T>) -> Result<T> {
        let mut schedule = RetrySchedule::start(*self);
        loop {
            thread::sleep(match attempt() {
                AttemptResult::Done(value) => return Ok(value),
                AttemptResult::Permanent(error) => return Err(error),
                AttemptResult::Transient(error) => schedule.next_pause(error, Duration::ZERO)?,
            });
        }
    }
}

/// State of the retries of one request.
pub(crate) struct RetrySchedule {
    end: Instant,
    pause: Duration,
    longest: Duration,
}

impl RetrySchedule {
    pub(crate) fn start(policy: RetryPolicy) -> RetrySchedule {
        let RetryPolicy { patience, first_pause, longest_pause } = policy;
        RetrySchedule { end: Instant::now() + patience, pause: first_pause, longest: longest_pause }
    }

    /// Returns the pause after an attempt that has failed with `error`, and logs the retry. The pause is at least
    /// `requested`, the pause that the server has requested. The pause is randomized, so that clients do not retry at
    /// the same time.
    ///
    /// # Errors
    /// Returns `error` if the time for retries has elapsed.
    pub(crate) fn next_pause(&mut self, error: Error, requested: Duration) -> Result<Duration> {
        let requested = requested.min(LONGEST_REQUESTED);
        let jittered = match requested >= self.pause {
            true => requested + (requested - add_jitter(requested)),
            false => add_jitter(self.pause).max(requested),
        };
        if Instant::now() + jittered >= self.end {
            return Err(error);
        }
        tracing::warn!("{error}; again in {:.1} s", jittered.as_secs_f64());
        self.pause = self.pause.mul_f64(PAUSE_GROWTH).min(self.longest);
        Ok(jittered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::error::Phase;

    const QUICK: RetryPolicy = RetryPolicy {
        patience: Duration::from_millis(200),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(20),
    };

    fn error() -> Error {
        Error::new(Phase::Control, "connection refused")
    }

    #[test]
    fn attempts_end_with_success() {
        // The timeout suffices even for a very busy host.
        let patient = RetryPolicy { patience: Duration::from_secs(60), ..QUICK };
        let mut calls = 0;
        let result = patient.run_attempts(|| {
            calls += 1;
            if calls < 4 { AttemptResult::Transient(error()) } else { AttemptResult::Done(calls) }
        });
        assert_eq!(result.unwrap(), 4);
    }

    #[test]
    fn permanent_error_ends_attempts_at_once() {
        let mut calls = 0;
        let result: Result<()> = QUICK.run_attempts(|| {
            calls += 1;
            AttemptResult::Permanent(error())
        });
        assert!(result.is_err());
        assert_eq!(calls, 1);
    }

    #[test]
    fn attempts_are_bounded_in_time_and_number() {
        let began = Instant::now();
        let mut calls = 0;
        let result: Result<()> = QUICK.run_attempts(|| {
            calls += 1;
            AttemptResult::Transient(error())
        });
        assert_eq!(result.unwrap_err().to_string(), "connection refused");
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!((1..100).contains(&calls), "{calls}");
    }

    #[test]
    fn pauses_grow_with_the_outage() {
        let mut schedule = RetrySchedule::start(TEN_MINUTE_RETRIES);
        let (mut longest, mut elapsed) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..20 {
            let pause = schedule.next_pause(error(), Duration::ZERO).unwrap();
            // Without the random part, the pause would be at most twice as long, and so would the elapsed time.
            assert!(pause <= (Duration::from_secs(1) + elapsed).min(TEN_MINUTE_RETRIES.longest_pause), "{pause:?}");
            (longest, elapsed) = (longest.max(pause), elapsed + pause);
        }
        assert!(longest >= TEN_MINUTE_RETRIES.longest_pause / 2, "{longest:?}");
    }

    #[test]
    fn pause_respects_minimum_requested_by_busy_server() {
        let mut schedule = RetrySchedule::start(TEN_MINUTE_RETRIES);
        for requested in [0, 5, 60].map(Duration::from_secs) {
            let pause = schedule.next_pause(error(), requested).unwrap();
            assert!(pause >= requested && pause <= requested.mul_f64(1.5).max(Duration::from_secs(4)), "{pause:?}");
        }
        // A server cannot request a longer pause than this.
        let pause = schedule.next_pause(error(), Duration::from_secs(3000)).unwrap();
        assert!(pause >= LONGEST_REQUESTED && pause <= LONGEST_REQUESTED.mul_f64(1.5), "{pause:?}");
        let mut once = RetrySchedule::start(NO_RETRIES);
        assert!(once.next_pause(error(), Duration::ZERO).is_err());
    }
}
