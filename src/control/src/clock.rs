//! Setting of the machine's clock, which must be correct before certificates and signatures are verified.
//!
//! The time comes from the time servers in the DHCP lease or in pixie's configuration. If no time server responds, it
//! comes from `drophammer.time=` in the boot script, or from the `Date` header of pixie's response. None of these
//! sources is authenticated. Therefore a time is accepted only if it is later than the build of the ramdisk, by at
//! most [`MAXIMUM_BUILD_AGE`].

mod sntp;

use linux::clock::write_clock;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

/// Maximum number of time servers that are queried.
const SERVERS: usize = 4;

/// Maximum difference between a correct clock and the time of a time server or of a `Date` header. The resolution of a
/// `Date` header is one second.
const PRECISE: Duration = Duration::from_secs(2);

/// Maximum difference between a correct clock and the time of the boot script. It is larger than [`PRECISE`], because
/// the time between the generation of the script and the start of the kernel is unknown.
const BOOT_TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Maximum time between the build of the ramdisk and an accepted time.
const MAXIMUM_BUILD_AGE: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// File that contains the time at which the ramdisk was built, in seconds since 1970.
const BUILD_DATE: &str = "/etc/build-date";

/// Time servers of the ramdisk's DHCP leases, separated by spaces or line breaks.
const DHCP_TIME_SERVERS: &str = "/run/time-servers";

/// Kernel argument with the time of the boot script or of kexec, in seconds since 1970.
pub const BOOT_TIME: &str = "drophammer.time=";

/// Time from one source.
struct SourceTime {
    now: SystemTime,
    /// Description of the source, for messages.
    source: String,
    /// Maximum difference between a correct clock and the time of this source.
    tolerance: Duration,
}

/// Decision about the clock.
#[derive(Debug, PartialEq, Eq)]
enum ClockDecision {
    /// The clock is correct.
    Keep,
    /// The clock must be set. The value is the difference between the clock and the time of the source.
    Set(Duration),
    /// The time is not in the accepted range, so another source must be used. The value is the reason.
    Reject(String),
}

/// Sets the clock from the time servers in the DHCP leases. If none of them responds, uses the time of the boot script.
pub fn set_clock_of_boot(cmdline: &str, say: &dyn Fn(&str)) {
    let servers = fs::read_to_string(DHCP_TIME_SERVERS).unwrap_or_default();
    let servers: Vec<String> = servers.split_whitespace().map(str::to_owned).collect();
    set_clock(&servers, boot_time(cmdline, read_uptime()), say);
}

/// Sets the clock from these time servers. If none of them responds, uses the time of a `Date` header.
pub(crate) fn set_clock_by_date(servers: &[String], date: Option<&str>, say: &dyn Fn(&str)) {
    let date = date.and_then(parse_date);
    let date = date.map(|now| SourceTime { now, source: "pixie's answer".to_owned(), tolerance: PRECISE });
    if servers.is_empty() && date.is_none() {
        return say(
            "clock: no time source is available, so the clock of this machine may be wrong, and valid certificates \
            may be rejected",
        );
    }
    set_clock(servers, date, say);
}

/// Sets the clock if it differs from the time of the source by more than the tolerance, and logs the result. If no
/// source is usable, this is only logged, because the clock may be correct.
fn set_clock(servers: &[String], booted: Option<SourceTime>, say: &dyn Fn(&str)) {
    let by_servers = servers.iter().take(SERVERS).filter_map(|server| {
        let answer = sntp::query_time_server(server, sntp::PORT);
        let now = answer.inspect_err(|why| say(&format!("clock: {why}"))).ok()?;
        Some(SourceTime { now, source: server.clone(), tolerance: PRECISE })
    });
    let built = read_build_date(Path::new(BUILD_DATE));
    for SourceTime { now, source, tolerance } in by_servers.chain(booted) {
        let seconds = match decide(now, SystemTime::now(), tolerance, built) {
            ClockDecision::Keep => return,
            ClockDecision::Set(offset) => offset.as_secs(),
            ClockDecision::Reject(why) => {
                say(&format!("clock: the time of {source} is ignored: {why}"));
                continue;
            }
        };
        return match write_clock(now) {
            Ok(()) => say(&format!("clock: set from {source}; the clock was off by {seconds} s")),
            Err(error) => {
                say(&format!("clock: cannot be set: {error}; the clock is off by {seconds} s according to {source}"));
            }
        };
    }
}

/// Decides whether the clock, which shows the time `here`, must be set to `now`. If the build time of the ramdisk is
/// unknown, as in tests, any time is accepted.
fn decide(now: SystemTime, here: SystemTime, tolerance: Duration, built: Option<SystemTime>) -> ClockDecision {
    if let Some(built) = built.filter(|built| now < *built) {
        let built = OffsetDateTime::from(built).date();
        return ClockDecision::Reject(format!("the time is before {built}, when this ramdisk was built"));
    }
    if let Some(built) = built.filter(|built| now.duration_since(*built).is_ok_and(|age| age > MAXIMUM_BUILD_AGE)) {
        let built = OffsetDateTime::from(built).date();
        return ClockDecision::Reject(format!(
            "the time is more than ten years after {built}, when this ramdisk was built"
        ));
    }
    let offset = now.duration_since(here).unwrap_or_else(|behind| behind.duration());
    if offset <= tolerance { ClockDecision::Keep } else { ClockDecision::Set(offset) }
}

/// Returns the current time according to the boot script: the time in the script plus the time since the start of the
/// kernel.
fn boot_time(cmdline: &str, uptime: Duration) -> Option<SourceTime> {
    let text = cmdline.split_whitespace().filter_map(|word| word.strip_prefix(BOOT_TIME)).next_back()?;
    let now = parse_epoch(text)?.checked_add(uptime)?;
    Some(SourceTime { now, source: "the kernel command line".to_owned(), tolerance: BOOT_TOLERANCE })
}

/// Parses a time in seconds since 1970; `None` if it is too large. The limit is far beyond the lifetime of any
/// ramdisk, and the kernel accepts all times below it.
fn parse_epoch(text: &str) -> Option<SystemTime> {
    let seconds: u64 = text.trim().parse().ok().filter(|seconds| *seconds < 1 << 36)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn read_build_date(file: &Path) -> Option<SystemTime> {
    parse_epoch(&fs::read_to_string(file).ok()?)
}

/// Returns the time since the start of the kernel; zero if it cannot be read.
fn read_uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or_default())
}

/// Parses the value of a `Date` header, such as `Tue, 24 Nov 2026 10:00:00 GMT`. Adds half a second, because the header
/// contains whole seconds.
fn parse_date(text: &str) -> Option<SystemTime> {
    let date = OffsetDateTime::parse(text, &Rfc2822).ok()?;
    Some(SystemTime::from(date) + Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn wrong_clock_is_corrected_within_bounds() {
        let built = 20_000 * DAY;
        let now = built + 100 * DAY;
        for (here, offset) in [
            (0, now),
            (built, 100 * DAY),
            // The clock was set to local time instead of UTC.
            (now - 2 * 3600, 2 * 3600),
            (now + 8 * 3600, 8 * 3600),
            (now - 301, 301),
            (now + 301, 301),
            (now + 365 * DAY, 365 * DAY),
        ] {
            let expected = ClockDecision::Set(Duration::from_secs(offset));
            assert_eq!(decide(at(now), at(here), BOOT_TOLERANCE, Some(at(built))), expected, "{here}");
        }
        for here in [now, now - 300, now + 300] {
            assert_eq!(decide(at(now), at(here), BOOT_TOLERANCE, Some(at(built))), ClockDecision::Keep, "{here}");
        }
        assert_eq!(decide(at(now), at(now + 3), PRECISE, Some(at(built))), ClockDecision::Set(Duration::from_secs(3)));
        assert_eq!(decide(at(5), at(now), BOOT_TOLERANCE, None), ClockDecision::Set(Duration::from_secs(now - 5)));
    }

    #[test]
    fn time_outside_bounds_is_rejected_for_every_clock() {
        let built = 20_000 * DAY;
        let last = built + MAXIMUM_BUILD_AGE.as_secs();
        for here in [0, built, built + DAY, last, last + DAY] {
            for (now, is_accepted) in [(0, false), (built - 1, false), (built, true), (last, true), (last + 1, false)] {
                let decision = decide(at(now), at(here), BOOT_TOLERANCE, Some(at(built)));
                assert_eq!(!matches!(decision, ClockDecision::Reject(_)), is_accepted, "{now} {here}: {decision:?}");
            }
        }
        let ClockDecision::Reject(why) = decide(at(0), at(0), BOOT_TOLERANCE, Some(at(built))) else { panic!() };
        assert_eq!(why, "the time is before 2024-10-04, when this ramdisk was built");
    }

    #[test]
    fn the_boot_script_contains_the_time() {
        let uptime = Duration::from_secs(40);
        let time = |cmdline: &str| boot_time(cmdline, uptime).map(|time| time.now);
        assert_eq!(time("quiet drophammer.time=1795806607 panic=-1"), Some(at(1_795_806_647)));
        assert_eq!(time("drophammer.time=1 drophammer.time=1795806607"), Some(at(1_795_806_647)), "as the operator's");
        for none in
            ["quiet", "drophammer.time=", "drophammer.time=-5", "drophammer.time=1e9", "drophammer.time=68719476736"]
        {
            assert_eq!(time(none), None, "{none}");
        }
    }

    #[test]
    fn date_header_of_response_is_parsed() {
        let expected = SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_500);
        assert_eq!(parse_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(expected));
        assert_eq!(parse_date("yesterday"), None);
    }

    #[test]
    fn clock_is_unchanged_without_a_time_source() {
        let said = std::cell::RefCell::new(Vec::new());
        set_clock_by_date(&[], Some("yesterday"), &|line| said.borrow_mut().push(line.to_owned()));
        assert_eq!(
            *said.borrow(),
            ["clock: no time source is available, so the clock of this machine may be wrong, and valid \
                certificates may be rejected"]
        );
        said.borrow_mut().clear();
        set_clock_of_boot("quiet", &|line| said.borrow_mut().push(line.to_owned()));
        assert!(said.borrow().is_empty());
    }
}
