//! Hours of the day in which members of a rollout may start.

use serde::{Deserialize, Serialize};
use std::fmt;
use time::{OffsetDateTime, Weekday};

const MINUTES_PER_DAY: u16 = 24 * 60;

/// Abbreviations of the weekdays, beginning with Monday.
const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// Hours in UTC, on all days or on some weekdays: `01:00-05:00`, or `Sat,Sun 22:00-04:00`. If the end is before the
/// beginning, the window ends on the next day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StartWindow {
    /// Weekdays on which the window begins, counted from Monday; all days if empty.
    weekdays: Vec<u8>,
    /// Minutes since midnight.
    from: u16,
    to: u16,
}

impl StartWindow {
    /// Parses a window.
    ///
    /// # Errors
    /// Returns the expected form if the text has another form.
    pub fn parse(text: &str) -> Result<StartWindow, String> {
        let wrong = || {
            format!(
                "{text:?} is not a window: specify hours in UTC, such as 01:00-05:00, or with weekdays, such as \
                 Sat,Sun 01:00-05:00"
            )
        };
        let (days, hours) = text.trim().rsplit_once(' ').unwrap_or(("", text.trim()));
        let (from, to) = hours.split_once('-').ok_or_else(wrong)?;
        let (from, to) = (parse_minutes(from).ok_or_else(wrong)?, parse_minutes(to).ok_or_else(wrong)?);
        let number = |day: &str| WEEKDAYS.iter().position(|name| name.eq_ignore_ascii_case(day.trim()));
        let days = days.split(',').filter(|day| !day.trim().is_empty());
        let numbers: Option<Vec<u8>> = days.map(|day| number(day).and_then(|day| u8::try_from(day).ok())).collect();
        let mut weekdays = numbers.ok_or_else(wrong)?;
        weekdays.sort_unstable();
        weekdays.dedup();
        if from == to || from >= MINUTES_PER_DAY {
            return Err(wrong());
        }
        Ok(StartWindow { weekdays, from, to })
    }

    /// Returns whether the window contains the time.
    pub fn contains(&self, time: OffsetDateTime) -> bool {
        let time = time.to_offset(time::UtcOffset::UTC);
        let minute = u16::from(time.hour()) * 60 + u16::from(time.minute());
        let today = self.begins_on(time.weekday());
        match self.from < self.to {
            true => today && (self.from..self.to).contains(&minute),
            false => (today && minute >= self.from) || (self.begins_on(time.weekday().previous()) && minute < self.to),
        }
    }

    fn begins_on(&self, day: Weekday) -> bool {
        self.weekdays.is_empty() || self.weekdays.contains(&day.number_days_from_monday())
    }
}

/// Parses `HH:MM`, up to 24:00.
fn parse_minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let is_number = |digits: &str| digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(hours) || !is_number(minutes) {
        return None;
    }
    let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
    let total = hours * 60 + minutes;
    (minutes < 60 && total <= MINUTES_PER_DAY).then_some(total)
}

impl fmt::Display for StartWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            self.weekdays.iter().filter_map(|day| WEEKDAYS.get(usize::from(*day)).copied()).collect();
        if !names.is_empty() {
            write!(f, "{} ", names.join(","))?;
        }
        let StartWindow { from, to, .. } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

impl TryFrom<String> for StartWindow {
    type Error = String;

    fn try_from(text: String) -> Result<StartWindow, String> {
        StartWindow::parse(&text)
    }
}

impl From<StartWindow> for String {
    fn from(window: StartWindow) -> String {
        window.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::format_description::well_known::Rfc3339;

    fn contains(window: &str, time: &str) -> bool {
        StartWindow::parse(window).unwrap().contains(OffsetDateTime::parse(time, &Rfc3339).unwrap())
    }

    #[test]
    fn a_window_contains_its_hours() {
        // 2026-11-28 is a Saturday.
        for (window, time, expected) in [
            ("01:00-05:00", "2026-11-28T00:59:59Z", false),
            ("01:00-05:00", "2026-11-28T01:00:00Z", true),
            ("01:00-05:00", "2026-11-28T04:59:59Z", true),
            ("01:00-05:00", "2026-11-28T05:00:00Z", false),
            ("01:00-05:00", "2026-11-28T03:00:00+05:00", false),
            ("22:00-04:00", "2026-11-28T23:00:00Z", true),
            ("22:00-04:00", "2026-11-28T03:59:00Z", true),
            ("22:00-04:00", "2026-11-28T04:00:00Z", false),
            ("22:00-24:00", "2026-11-28T23:59:59Z", true),
            ("Sat 22:00-04:00", "2026-11-29T03:00:00Z", true),
            ("Sat 22:00-04:00", "2026-11-28T03:00:00Z", false),
            ("Sat,Sun 01:00-05:00", "2026-11-29T02:00:00Z", true),
            ("mon, fri 01:00-05:00", "2026-11-29T02:00:00Z", false),
        ] {
            assert_eq!(contains(window, time), expected, "{window} {time}");
        }
    }

    #[test]
    fn windows_are_parsed_and_printed_and_others_refused() {
        for text in ["01:00-05:00", "22:30-24:00", "Mon,Sat 22:00-04:00"] {
            assert_eq!(StartWindow::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            StartWindow::parse("sun,SAT,Sat  1:00-05:00".replace("  1", " 01").as_str()).unwrap().to_string(),
            "Sat,Sun 01:00-05:00"
        );
        for bad in [
            "",
            "01:00",
            "1:00-5:00",
            "01:00-01:00",
            "24:00-01:00",
            "01:60-02:00",
            "25:00-26:00",
            "Sa 01:00-02:00",
            "01:00-05:00 Europe/Berlin",
            "+1:00-02:00",
        ] {
            assert!(StartWindow::parse(bad).unwrap_err().contains("specify hours in UTC"), "{bad}");
        }
    }
}
