//! Parses and formats points in time and months, all in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the present time, in seconds since 1970.
#[must_use]
pub fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(now).unwrap_or(i64::MAX)
}

/// A point in time, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointInTime {
    /// This many seconds before now.
    Ago(i64),
    /// This second since 1970.
    At(i64),
}

const TIME_FORMS: &str = "accepted: a duration before now, like 90m, 24h or 7d; or a day or time in UTC, like 2026-11-01 or \
     2026-11-01T12:00";

impl PointInTime {
    /// Parses a time.
    ///
    /// # Errors
    /// The accepted forms.
    pub fn read(text: &str) -> Result<Self, String> {
        let read = match text.strip_suffix(['s', 'm', 'h', 'd']) {
            Some(amount) => {
                let unit = match text.as_bytes().last() {
                    Some(b's') => 1,
                    Some(b'm') => 60,
                    Some(b'h') => 3600,
                    _ => 86_400,
                };
                let digits = !amount.is_empty() && amount.bytes().all(|byte| byte.is_ascii_digit());
                let amount = amount.parse::<i64>().ok().filter(|_| digits);
                amount.and_then(|amount| amount.checked_mul(unit)).map(Self::Ago)
            }
            None => parse_moment(text).map(Self::At),
        };
        read.ok_or_else(|| TIME_FORMS.to_owned())
    }

    /// Returns the seconds since 1970.
    #[must_use]
    pub fn to_second(self, now: i64) -> i64 {
        match self {
            Self::Ago(seconds) => now.saturating_sub(seconds),
            Self::At(second) => second,
        }
    }
}

/// Parses `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM` into seconds since 1970.
fn parse_moment(text: &str) -> Option<i64> {
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00"));
    let number = |text: &str, digits: usize, most: i64| {
        let right = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| right && *number <= most)
    };
    let mut parts = date.splitn(3, '-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let (year, month, day) = (number(year, 4, 9999)?, number(month, 2, 12)?, number(day, 2, 31)?);
    let (hour, minute) = time.split_once(':')?;
    let (hour, minute) = (number(hour, 2, 23)?, number(minute, 2, 59)?);
    let days = days_since_epoch(year, month, day);
    // A day that its month does not have converts back to another date.
    (month > 0 && date_of(days) == (year, month, day)).then_some(days * 86_400 + hour * 3600 + minute * 60)
}

/// Returns the days since 1970 of a Gregorian date. Years start in March here, so that the leap day is last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Returns the date that is this many days after 1970-01-01.
fn date_of(since: i64) -> (i64, i64, i64) {
    // Estimate with 365.2425 days a year, then correct.
    let mut year = 1970 + since.saturating_mul(10_000).div_euclid(3_652_425);
    while days_since_epoch(year + 1, 1, 1) <= since {
        year += 1;
    }
    while days_since_epoch(year, 1, 1) > since {
        year -= 1;
    }
    let month = (1..=12).rev().find(|month| days_since_epoch(year, *month, 1) <= since).unwrap_or(1);
    (year, month, since - days_since_epoch(year, month, 1) + 1)
}

/// Formats a time: `2026-11-22 21:15`.
#[must_use]
pub fn format_second(second: i64) -> String {
    let (year, month, day) = date_of(second.div_euclid(86_400));
    let minute = second.rem_euclid(86_400) / 60;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minute / 60, minute % 60)
}

/// A month, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MonthArg {
    /// This many months before the present one.
    Before(i64),
    /// A year and the number of a month.
    Of(i64, i64),
}

impl MonthArg {
    /// Parses a month.
    ///
    /// # Errors
    /// The accepted forms.
    pub fn read(text: &str) -> Result<Self, String> {
        match text {
            "this" => Ok(Self::Before(0)),
            "last" => Ok(Self::Before(1)),
            _ => parse_moment(&format!("{text}-01"))
                .map(|second| date_of(second.div_euclid(86_400)))
                .map(|(year, month, _)| Self::Of(year, month))
                .ok_or_else(|| "accepted: a month in UTC like 2026-11, or this, or last".into()),
        }
    }

    /// Returns the month's first second, and the first of the next month.
    #[must_use]
    pub fn to_span(self, now: i64) -> (i64, i64) {
        let months = match self {
            Self::Of(year, month) => year * 12 + month - 1,
            Self::Before(before) => {
                let (year, month, _) = date_of(now.div_euclid(86_400));
                year * 12 + month - 1 - before
            }
        };
        let first = |months: i64| days_since_epoch(months.div_euclid(12), months.rem_euclid(12) + 1, 1) * 86_400;
        (first(months), first(months + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_meant_and_nothing_else_is() {
        assert_eq!(PointInTime::read("24h"), Ok(PointInTime::Ago(86_400)));
        assert_eq!(PointInTime::read("1970-01-02"), Ok(PointInTime::At(86_400)));
        assert_eq!(PointInTime::read("2026-11-22T21:15"), Ok(PointInTime::At(1_795_382_100)));
        assert_eq!(PointInTime::read("2024-02-29"), Ok(PointInTime::At(1_709_164_800)));
        for wrong in
            ["", "h", "-1h", "+1h", "2023-02-29", "2026-13-01", "2026-00-10", "2026-1-1", "2026-11-22T24:00", "x"]
        {
            assert_eq!(PointInTime::read(wrong), Err(TIME_FORMS.to_owned()), "{wrong}");
        }
        for days in [-1, 0, 58, 59, 60, 11_016, 19_782, 20_000, 47_541] {
            let (year, month, day) = date_of(days);
            assert_eq!(super::days_since_epoch(year, month, day), days);
        }
        assert_eq!(format_second(1_795_382_100), "2026-11-22 21:15");
    }

    #[test]
    fn months_have_their_own_lengths_and_this_and_last_are_of_now() {
        let day = 86_400;
        for (text, first, length) in [("2026-11", 20_758, 30), ("2024-02", 19_754, 29), ("2025-12", 20_423, 31)] {
            assert_eq!(MonthArg::read(text).unwrap().to_span(0), (first * day, (first + length) * day), "{text}");
        }
        let now = parse_moment("2026-01-15T10:00").unwrap();
        assert_eq!(MonthArg::read("last").unwrap().to_span(now), MonthArg::read("2025-12").unwrap().to_span(0));
        assert_eq!(MonthArg::read("this").unwrap().to_span(now), MonthArg::read("2026-01").unwrap().to_span(0));
        assert!(["2026", "2026-13", "2026-11-01", "next", ""].iter().all(|text| MonthArg::read(text).is_err()));
    }
}
