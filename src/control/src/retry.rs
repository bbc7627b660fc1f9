//! Bounded retries with exponential backoff and jitter.

use common::error::Result;
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

/// Retries for ten minutes, for requests that must succeed. This is long enough for a restart of the control plane or a
/// reboot of a switch.
pub(crate) const PATIENT: RetryPolicy = RetryPolicy {
    patience: Duration::from_secs(10 * 60),
    first_pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(30),
};

/// Retries for one minute, for messages whose loss is harmless.
pub(crate) const BRIEF: RetryPolicy = RetryPolicy { patience: Duration::from_secs(60), ..PATIENT };

/// Single attempt.
pub const ONCE: RetryPolicy = RetryPolicy { patience: Duration::ZERO, ..PATIENT };

/// Result of a single attempt.
pub(crate) enum AttemptResult<T> {
    Done(T),
    /// Transient failure, after which the attempt is repeated.
    Transient(common::error::Error),
    /// Permanent failure.
    Permanent(common::error::Error),
}

impl RetryPolicy {
    /// Calls `attempt` until it succeeds or fails permanently, or until `patience` has elapsed. Logs each retry.
    ///
    /// # Errors
    /// Returns the error of the last attempt.
    pub(crate) fn run_attempts<T>(&self, mut attempt: impl FnMut() -> AttemptResult<T>) -> Result<T> {
        let end = Instant::now() + self.patience;
        let mut pause = self.first_pause;
        loop {
            let error = match attempt() {
                AttemptResult::Done(value) => return Ok(value),
                AttemptResult::Permanent(error) => return Err(error),
                AttemptResult::Transient(error) => error,
            };
            let jittered = add_jitter(pause);
            if Instant::now() + jittered >= end {
                return Err(error);
            }
            tracing::warn!("{error}; again in {:.1} s", jittered.as_secs_f64());
            thread::sleep(jittered);
            pause = (pause * 2).min(self.longest_pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::error::{Error, Phase};

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
}
