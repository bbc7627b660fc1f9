//! Bounded retries with back-off and jitter: a control plane that is away is asked again, never in a spin.

use crate::error::Result;
use crate::http::jittered;
use std::thread;
use std::time::{Duration, Instant};

/// How long and how often to try.
#[derive(Debug, Clone, Copy)]
pub struct Retries {
    /// No new attempt begins after this long.
    pub patience: Duration,
    pub first_pause: Duration,
    pub longest_pause: Duration,
}

/// Minutes, not seconds: control planes are restarted and switches rebooted.
pub const PATIENT: Retries = Retries {
    patience: Duration::from_secs(10 * 60),
    first_pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(30),
};

/// For what is good to say, but nothing waits for.
pub const BRIEF: Retries = Retries { patience: Duration::from_secs(60), ..PATIENT };

/// One attempt, and no other.
pub const ONCE: Retries = Retries { patience: Duration::ZERO, ..PATIENT };

/// What an attempt came to.
pub enum Attempt<T> {
    Done(T),
    /// Worth another try.
    Again(crate::error::Error),
    /// Asking again will not help.
    Never(crate::error::Error),
}

impl Retries {
    /// Calls `attempt` until it is done, hopeless, or out of patience. Each retry is said on the console.
    ///
    /// # Errors
    /// That of the last attempt.
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
