//! Limits of the server that the operator can set. A request that exceeds a limit waits, or is refused with
//! `Retry-After`. It never displaces the requests or records of other machines.

use http_server::request_permits::MAXIMUM_ADDRESS_REQUESTS;
use store::DEFAULT_UNKNOWN_MACHINES_LIMIT;
use store::record_retention::RetentionPolicy;

/// Default retention of events and logs.
const RETAINED: RetentionPolicy = RetentionPolicy { max_age: time::Duration::days(90), max_bytes: 4 << 30 };

/// Limits of clients and of stored records.
#[derive(Debug, Clone)]
pub struct LimitOptions {
    /// Maximum number of open connections; `None` for half of the limit of open files.
    pub connections: Option<u32>,
    pub requests_per_address: u32,
    pub unknown_machines: u32,
    pub retain_events: RetentionPolicy,
    pub retain_logs: RetentionPolicy,
}

impl Default for LimitOptions {
    fn default() -> LimitOptions {
        LimitOptions {
            connections: None,
            requests_per_address: MAXIMUM_ADDRESS_REQUESTS as u32,
            unknown_machines: DEFAULT_UNKNOWN_MACHINES_LIMIT as u32,
            retain_events: RETAINED,
            retain_logs: RETAINED,
        }
    }
}

/// Parses an age, a size, or both: `30d`, `12h`, `500MiB`, `30d,1GiB`. A value that is not specified keeps its default.
pub(crate) fn parse_retention(text: &str) -> Result<RetentionPolicy, String> {
    let mut policy = RETAINED;
    for part in text.split(',') {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, unit) = part.split_at(digits);
        let wrong = || format!("{part:?} is neither an age (30d, 12h) nor a size (500MiB, 4GiB)");
        let number: u32 = number.parse().ok().filter(|number| *number > 0).ok_or_else(wrong)?;
        match unit {
            "d" => policy.max_age = time::Duration::days(number.into()),
            "h" => policy.max_age = time::Duration::hours(number.into()),
            "MiB" => policy.max_bytes = u64::from(number) << 20,
            "GiB" => policy.max_bytes = u64::from(number) << 30,
            _ => return Err(wrong()),
        }
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_is_parsed_from_age_and_size() {
        let parse = |text| parse_retention(text).map(|policy| (policy.max_age.whole_hours(), policy.max_bytes >> 20));
        for (text, expected) in [
            ("90d,4GiB", (2160, 4096)),
            ("30d", (720, 4096)),
            ("12h", (12, 4096)),
            ("500MiB", (2160, 500)),
            ("1GiB,1d", (24, 1024)),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for wrong in ["", "30", "d", "0d", "-1d", "30d,", "4GB", "30 d", "4294967296d", "30d;1GiB"] {
            assert!(parse_retention(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn command_line_defaults_match_the_limit_defaults() {
        #[derive(Debug, clap::Parser)]
        struct Parsed {
            #[command(flatten)]
            serve: crate::ServeArgs,
        }
        let parsed = <Parsed as clap::Parser>::parse_from(["serve", "DIR"]).serve.options.unwrap();
        let limits = crate::ServerConfig::from(parsed).limits;
        assert_eq!(format!("{limits:?}"), format!("{:?}", LimitOptions::default()));
    }
}
