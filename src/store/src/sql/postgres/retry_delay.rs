//! Delay between attempts to connect to an unreachable database.

use crate::sql::{Error, Result};
use std::time::{Duration, Instant};

const MINIMUM_DELAY: Duration = Duration::from_millis(250);
const MAXIMUM_DELAY: Duration = Duration::from_secs(1);

/// Delay until the next attempt, which doubles with each failure.
#[derive(Default)]
pub(super) struct RetryDelay {
    /// Time of the next attempt, and the reason why the last one failed.
    next: Option<(Instant, String)>,
    last: Duration,
}

impl RetryDelay {
    /// Checks that an attempt is due.
    pub(super) fn check(&self) -> Result<()> {
        match &self.next {
            Some((due, why)) if Instant::now() < *due => Err(Error::Unavailable(why.clone())),
            _ => Ok(()),
        }
    }

    pub(super) fn reset(&mut self) {
        *self = RetryDelay::default();
    }

    pub(super) fn postpone(&mut self, error: &Error) {
        self.last = (self.last * 2).clamp(MINIMUM_DELAY, MAXIMUM_DELAY);
        let why = match error {
            Error::Unavailable(why) => why.clone(),
            error => error.to_string(),
        };
        self.next = Some((Instant::now() + self.last, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_delay_retries_up_to_a_limit() {
        let mut delay = RetryDelay::default();
        assert!(delay.check().is_ok());
        for _ in 0..10 {
            delay.postpone(&Error::Unavailable("refused".to_owned()));
        }
        assert_eq!(delay.last, MAXIMUM_DELAY);
        assert!(delay.check().unwrap_err().to_string().contains("unavailable: refused"));
        delay.reset();
        assert!(delay.check().is_ok());
    }
}
