//! Clock that all servers of a database share: the clock of the server, corrected by its difference to the clock of
//! PostgreSQL. With SQLite, it is the clock of the server.

use crate::ServerState;
use crate::boot_activity::MachineBoot;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Difference between the clock of PostgreSQL and the clock of this server, in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClockOffset(Arc<AtomicI64>);

impl ClockOffset {
    /// Records the time of PostgreSQL's clock, in milliseconds since 1970, which was read now.
    pub(crate) fn record(&self, database_time: i64) {
        let own = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
        self.0.store(database_time - i64::try_from(own).unwrap_or_default(), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc() + time::Duration::milliseconds(self.0.load(Ordering::Relaxed))
    }

    /// Returns the time that has passed since a timestamp in RFC 3339; zero if the timestamp is in the future.
    pub(crate) fn time_since(&self, text: &str) -> Duration {
        let time = OffsetDateTime::parse(text, &Rfc3339).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        (self.now() - time).try_into().unwrap_or(Duration::ZERO)
    }
}

impl ServerState {
    /// Returns the current time, which is the same at all servers of the database.
    pub fn shared_time(&self) -> OffsetDateTime {
        self.heard.clock.now()
    }

    /// Returns the current time as RFC 3339 in UTC, which is the same at all servers of the database.
    pub fn shared_timestamp(&self) -> String {
        self.shared_time().format(&Rfc3339).unwrap_or_default()
    }

    /// Returns the time that has passed since a shared timestamp; zero if the timestamp is in the future.
    pub fn time_since(&self, timestamp: &str) -> Duration {
        self.heard.clock.time_since(timestamp)
    }

    /// Returns the time since the boot was requested; zero if that time is in the future.
    pub fn age_of(&self, boot: &MachineBoot) -> Duration {
        self.heard.clock.time_since(&boot.created)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_of_a_server_is_corrected() {
        let clock = ClockOffset::default();
        assert!((clock.now() - OffsetDateTime::now_utc()).abs() < time::Duration::seconds(5));
        for minutes in [-10, 10] {
            let database = OffsetDateTime::now_utc() + time::Duration::minutes(minutes);
            clock.record(i64::try_from(database.unix_timestamp_nanos() / 1_000_000).unwrap());
            assert!((clock.now() - database).abs() < time::Duration::seconds(5), "{minutes}");
            let text = (database - time::Duration::minutes(3)).format(&Rfc3339).unwrap();
            assert_eq!(clock.time_since(&text).as_secs() / 10, 18, "{minutes}");
            let future = (database + time::Duration::minutes(3)).format(&Rfc3339).unwrap();
            assert_eq!(clock.time_since(&future), Duration::ZERO);
        }
    }
}
