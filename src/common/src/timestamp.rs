//! Timestamps of databases and logs.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Returns the current time as RFC 3339 in UTC.
pub fn now() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default()
}
