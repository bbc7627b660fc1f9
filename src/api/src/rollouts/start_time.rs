//! Start time of a rollout: RFC 3339, or a duration from now.

use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime, UtcOffset};

/// Maximum time between the request and the start.
const MAXIMUM_START_DELAY: Duration = Duration::days(366);

/// Returns the start as RFC 3339 in UTC.
///
/// # Errors
/// Returns an error if the text is neither a time nor a duration, or the time has passed or is too far away.
pub(super) fn parse_start(text: &str, now: OffsetDateTime) -> Result<String, String> {
    let wrong =
        || format!("{text:?} is not a time: specify RFC 3339, such as 2026-12-01T02:00Z, or a duration, such as +2h");
    let time = match text.strip_prefix('+') {
        // A long duration is shortened, because the addition could overflow otherwise. The resulting time is still too
        // far away, and is refused below.
        Some(duration) => {
            let duration = parse_duration(duration).ok_or_else(wrong)?;
            now.checked_add(duration.min(MAXIMUM_START_DELAY * 2)).ok_or_else(wrong)?
        }
        None => parse_time(text).ok_or_else(wrong)?,
    };
    if time < now {
        return Err(format!("the start time {text} has passed; to begin immediately, omit the start time"));
    }
    if time > now + MAXIMUM_START_DELAY {
        return Err(format!("the start time {text} is more than a year away"));
    }
    time.to_offset(UtcOffset::UTC).format(&Rfc3339).map_err(|_| wrong())
}

/// Parses a number with the unit `m`, `h` or `d`.
fn parse_duration(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    let count: u32 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    let minutes = match unit {
        'm' => 1,
        'h' => 60,
        'd' => 24 * 60,
        _ => return None,
    };
    Some(Duration::minutes(i64::from(count) * minutes))
}

/// Parses RFC 3339. The seconds may be omitted.
fn parse_time(text: &str) -> Option<OffsetDateTime> {
    let with_seconds = || {
        let (minutes, zone) = (text.get(..16)?, text.get(16..)?);
        OffsetDateTime::parse(&format!("{minutes}:00{zone}"), &Rfc3339).ok()
    };
    OffsetDateTime::parse(text, &Rfc3339).ok().or_else(with_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_durations_are_converted_to_utc() {
        let now = parse_time("2026-11-28T18:00:00Z").unwrap();
        for (text, expected) in [
            ("2026-12-01T02:00Z", "2026-12-01T02:00:00Z"),
            ("2026-12-01T02:00:30+01:00", "2026-12-01T01:00:30Z"),
            ("2026-12-01T02:00+01:00", "2026-12-01T01:00:00Z"),
            ("+90m", "2026-11-28T19:30:00Z"),
            ("+2h", "2026-11-28T20:00:00Z"),
            ("+1d", "2026-11-29T18:00:00Z"),
            ("2026-11-28T18:00Z", "2026-11-28T18:00:00Z"),
        ] {
            assert_eq!(parse_start(text, now).as_deref(), Ok(expected), "{text}");
        }
        for (text, words) in [
            ("2026-11-28T17:59Z", "has passed"),
            ("2028-11-28T17:59Z", "more than a year"),
            ("+4000000000d", "more than a year"),
            ("tomorrow", "is not a time"),
            ("2026-12-01", "is not a time"),
            ("2026-12-01T02:00", "is not a time"),
            ("+h", "is not a time"),
            ("+-2h", "is not a time"),
            ("+2 h", "is not a time"),
            ("+2ü", "is not a time"),
            ("+", "is not a time"),
            ("", "is not a time"),
        ] {
            assert!(
                parse_start(text, now).is_err_and(|why| why.contains(words)),
                "{text}: {:?}",
                parse_start(text, now)
            );
        }
    }
}
