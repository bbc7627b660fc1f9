//! Bounded retries with exponential backoff and jitter.

use crate::error::Result;
use crate::http::jittered;
use std::thread;
use std::time::{Duration, Instant};

/// Limits of retries.
#[derive(Debug, Clone, Copy)]
pub struct Retries {
    /// Time after which no new attempt is started.
    pub patience: Duration,
    pub first_pause: Duration,
    pub longest_pause: Duration,
}

/// Long retries, in minutes: control planes are restarted and switches rebooted.
pub const PATIENT: Retries = Retries {
    patience: Duration::from_secs(10 * 60),
    first_pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(30),
};

/// Short retries for optional messages.
pub const BRIEF: Retries = Retries { patience: Duration::from_secs(60), ..PATIENT };

/// Single attempt.
pub const ONCE: Retries = Retries { patience: Duration::ZERO, ..PATIENT };

/// Result of an attempt.
pub enum Attempt<T> {
    Done(T),
    /// Transient failure, to be retried.
    Again(crate::error::Error),
    /// Permanent failure.
    Never(crate::error::Error),
}

impl Retries {
    /// Calls `attempt` until it succeeds, fails permanently, or the time is over. Logs each retry.
    ///
    /// # Errors
    /// Returns the error of the last attempt.
    pub fn run<T>(&self, mut attempt: impl FnMut() -> Attempt<T>) -> Result<T> {
        let end = Instant::now() + self.patience;
        let mut pause = self.first_pause;
        loop {
            let error = match attempt() {
                Attempt::Done(value) => return Ok(value),
                Attempt::Never(error) => return Err(error),
                Attempt::Again(error) => error,
            };
            let jittered = jittered(pause);
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
    use crate::error::{Error, Phase};

    const QUICK: Retries = Retries {
        patience: Duration::from_millis(200),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(20),
    };

    fn error() -> Error {
        Error::new(Phase::Control, "connection refused")
    }

    #[test]
    fn it_ends_with_success() {
        // Patience enough for a machine that is very busy.
        let patient = Retries { patience: Duration::from_secs(60), ..QUICK };
        let mut calls = 0;
        let result = patient.run(|| {
            calls += 1;
            if calls < 4 { Attempt::Again(error()) } else { Attempt::Done(calls) }
        });
        assert_eq!(result.unwrap(), 4);
    }

    #[test]
    fn it_ends_at_once_when_hopeless() {
        let mut calls = 0;
        let result: Result<()> = QUICK.run(|| {
            calls += 1;
            Attempt::Never(error())
        });
        assert!(result.is_err());
        assert_eq!(calls, 1);
    }

    #[test]
    fn it_is_bounded_in_time_and_number() {
        let began = Instant::now();
        let mut calls = 0;
        let result: Result<()> = QUICK.run(|| {
            calls += 1;
            Attempt::Again(error())
        });
        assert_eq!(result.unwrap_err().to_string(), "connection refused");
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!((1..100).contains(&calls), "{calls}");
    }
}
