//! Clock that all servers of a database share: the clock of PostgreSQL, which each server reads regularly. Between
//! two readings, the monotonic clock measures the elapsed time, so that a step of the server's own clock has no
//! effect. With SQLite, the shared clock is the clock of the server.

use crate::ServerState;
use crate::boot_activity::MachineBoot;
use common::sync::lock_mutex;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Last reading of the clock of PostgreSQL; `None` before the first reading, and with SQLite.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedClock(Arc<Mutex<Option<ClockReading>>>);

/// Time of PostgreSQL's clock, and the instant at which it was read.
#[derive(Debug, Clone, Copy)]
struct ClockReading {
    time: OffsetDateTime,
    instant: Instant,
}

impl SharedClock {
    /// Records that PostgreSQL's clock currently shows `database_time`, in milliseconds since 1970.
    pub(crate) fn record(&self, database_time: i64) {
        if let Ok(time) = OffsetDateTime::from_unix_timestamp_nanos(i128::from(database_time) * 1_000_000) {
            *lock_mutex(&self.0) = Some(ClockReading { time, instant: Instant::now() });
        }
    }

    pub(crate) fn now(&self) -> OffsetDateTime {
        match *lock_mutex(&self.0) {
            Some(reading) => reading.time + reading.instant.elapsed(),
            None => OffsetDateTime::now_utc(),
        }
    }

    /// Returns the time that has passed since a timestamp in RFC 3339; zero if the timestamp is in the future.
    pub(crate) fn time_since(&self, text: &str) -> Duration {
        let time = OffsetDateTime::parse(text, &Rfc3339).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        (self.now() - time).try_into().unwrap_or(Duration::ZERO)
    }

    /// Returns whether the timestamp (RFC 3339) differs from the current time by less than `within`. A timestamp in the
    /// future was recorded while a clock was ahead. If it is too far in the future, the function returns false, as for
    /// a timestamp too far in the past.
    pub(crate) fn is_close_to(&self, text: &str, within: Duration) -> bool {
        let time = OffsetDateTime::parse(text, &Rfc3339).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        (self.now() - time).unsigned_abs() < within
    }
}

impl ServerState {
    /// Returns the current time of the clock that all servers of the database share.
    pub fn shared_time(&self) -> OffsetDateTime {
        self.heard.clock.now()
    }

    /// Returns the current time of the shared clock, as RFC 3339 in UTC.
    pub fn shared_timestamp(&self) -> String {
        self.shared_time().format(&Rfc3339).unwrap_or_default()
    }

    /// Returns the time since a timestamp of the shared clock; zero if the timestamp is in the future.
    pub fn time_since(&self, timestamp: &str) -> Duration {
        self.heard.clock.time_since(timestamp)
    }

    /// Returns the time since the boot was requested; zero if the recorded time of the request is in the future.
    pub fn age_of(&self, boot: &MachineBoot) -> Duration {
        self.heard.clock.time_since(&boot.created)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_clock_is_corrected_by_the_database_clock() {
        let clock = SharedClock::default();
        assert!((clock.now() - OffsetDateTime::now_utc()).abs() < time::Duration::seconds(5));
        for minutes in [-10, 10] {
            let database = OffsetDateTime::now_utc() + time::Duration::minutes(minutes);
            clock.record(i64::try_from(database.unix_timestamp_nanos() / 1_000_000).unwrap());
            assert!((clock.now() - database).abs() < time::Duration::seconds(5), "{minutes}");
            let text = (database - time::Duration::minutes(3)).format(&Rfc3339).unwrap();
            assert_eq!((clock.time_since(&text).as_secs() + 5) / 10, 18, "{minutes}");
            let future = (database + time::Duration::minutes(3)).format(&Rfc3339).unwrap();
            assert_eq!(clock.time_since(&future), Duration::ZERO);
            for text in [&text, &future] {
                assert!(clock.is_close_to(text, Duration::from_secs(240)), "{minutes} {text}");
                assert!(!clock.is_close_to(text, Duration::from_secs(120)), "{minutes} {text}");
            }
            assert!(!clock.is_close_to("yesterday", Duration::from_secs(240)));
        }
    }
}
