//! Timestamps of databases and logs.

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// Returns the current time as RFC 3339 in UTC, with milliseconds.
pub fn now_in_milliseconds() -> String {
    let now = OffsetDateTime::now_utc();
    format_milliseconds(now)
}

/// Formats a time as RFC 3339 in UTC. Unlike [`Rfc3339`], always writes three digits for the fraction of the second.
fn format_milliseconds(time: OffsetDateTime) -> String {
    let whole = time.replace_nanosecond(0).unwrap_or(time).format(&Rfc3339).unwrap_or_default();
    let milliseconds = time.millisecond();
    whole.strip_suffix('Z').map_or_else(String::new, |whole| format!("{whole}.{milliseconds:03}Z"))
}

/// Shortens a time in RFC 3339 to seconds, without `T`: `2026-11-28 10:00:00Z`. Other text is returned unchanged.
pub fn shorten_time(text: &str) -> String {
    let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) else { return text.to_owned() };
    let time = time.to_offset(UtcOffset::UTC);
    let whole = time.replace_nanosecond(0).unwrap_or(time).format(&Rfc3339);
    whole.map_or_else(|_| text.to_owned(), |whole| whole.replacen('T', " ", 1))
}

/// Returns the current time as RFC 3339 in UTC.
pub fn now() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds_for_programs_and_seconds_for_readers() {
        for (nanoseconds, milliseconds) in [
            (1_795_860_000_000_000_000, "2026-11-28T10:00:00.000Z"),
            (1_795_860_000_012_999_999, "2026-11-28T10:00:00.012Z"),
            (1_795_860_000_999_999_999, "2026-11-28T10:00:00.999Z"),
        ] {
            let time = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).unwrap();
            assert_eq!(format_milliseconds(time), milliseconds);
            assert_eq!(shorten_time(&time.format(&Rfc3339).unwrap()), "2026-11-28 10:00:00Z");
        }
        assert_eq!(shorten_time("2026-11-28T12:00:00.5+02:00"), "2026-11-28 10:00:00Z");
        assert_eq!(shorten_time("yesterday"), "yesterday");
        assert_eq!(now_in_milliseconds().len(), "2026-11-28T10:00:00.012Z".len());
    }
}
