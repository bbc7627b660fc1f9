//! Bounded retries with exponential backoff and jitter.

use common::error::{Error, Result};
use linux::http::add_jitter;
use std::thread;
use std::time::{Duration, Instant};

/// Limits of retries.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Time after which no new attempt is started, measured from the first attempt.
    pub patience: Duration,
    pub first_pause: Duration,
    pub longest_pause: Duration,
}

/// Retries for ten minutes, for requests that must succeed. A restart of the control plane or a reboot of a switch
/// takes less time.
pub(crate) const PATIENT: RetryPolicy = RetryPolicy {
    patience: Duration::from_secs(10 * 60),
    first_pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(30),
};

/// Retries for one minute, for messages whose loss is harmless.
pub(crate) const BRIEF: RetryPolicy = RetryPolicy { patience: Duration::from_secs(60), ..PATIENT };

/// Single attempt.
pub const ONCE: RetryPolicy = RetryPolicy { patience: Duration::ZERO, ..PATIENT };

/// Longest pause that a server can request with `Retry-After`.
const LONGEST_REQUESTED: Duration = Duration::from_secs(120);

/// Result of a single attempt.
pub(crate) enum AttemptResult<T> {
    Done(T),
    /// Transient failure, after which the attempt is repeated.
    Transient(Error),
    /// Permanent failure.
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

/// Pauses between the attempts of one request.
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
    /// `requested`, the pause that the server has requested. It is randomized, so that clients do not retry
    /// simultaneously.
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
        self.pause = (self.pause * 2).min(self.longest);
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
    fn it_ends_with_success() {
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
    fn it_ends_at_once_when_hopeless() {
        let mut calls = 0;
        let result: Result<()> = QUICK.run_attempts(|| {
            calls += 1;
            AttemptResult::Permanent(error())
        });
        assert!(result.is_err());
        assert_eq!(calls, 1);
    }

    #[test]
    fn it_is_bounded_in_time_and_number() {
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
    fn the_pause_that_a_busy_server_requests_is_a_lower_bound() {
        let mut schedule = RetrySchedule::start(PATIENT);
        for requested in [0, 5, 60].map(Duration::from_secs) {
            let pause = schedule.next_pause(error(), requested).unwrap();
            assert!(pause >= requested && pause <= requested.mul_f64(1.5).max(Duration::from_secs(4)), "{pause:?}");
        }
        // A server cannot stop a client for longer.
        let pause = schedule.next_pause(error(), Duration::from_secs(3000)).unwrap();
        assert!(pause >= LONGEST_REQUESTED && pause <= LONGEST_REQUESTED.mul_f64(1.5), "{pause:?}");
        let mut once = RetrySchedule::start(ONCE);
        assert!(once.next_pause(error(), Duration::ZERO).is_err());
    }
}
