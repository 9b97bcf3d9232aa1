//! Reads values that name times: days, times of day, dates, time zones, lengths.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::{WrittenValue, WrongValue, read_string, wrong_value};
use crate::raw::WeekDays;
use crate::suggest::nearest_word;

const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Reads a day (`mon`) or a range of days (`mon-fri`, `sat-mon`).
pub fn read_days(written: &WrittenValue<'_>) -> Result<WeekDays, WrongValue> {
    const FORMS: &str = "\"mon\", \"tue\", \"wed\", \"thu\", \"fri\", \"sat\", \"sun\", or a range like \"mon-fri\"";
    let text = read_string(written, FORMS)?;
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let day = |name: &str| DAY_NAMES.iter().position(|known| *known == name);
    let (Some(first), Some(last)) = (day(first), day(last)) else {
        return match nearest_word(text, DAY_NAMES) {
            Some(meant) => wrong_value(format!("is not a day (did you mean {meant:?}?)"), FORMS),
            None => wrong_value("is not a day", FORMS),
        };
    };
    let count = (last + 7 - first) % 7 + 1;
    Ok(WeekDays((0..count).fold(0, |days, step| days | 1 << ((first + step) % 7))))
}

/// Reads a time of day, from `00:00` to `24:00`, in minutes.
pub fn read_clock(written: &WrittenValue<'_>) -> Result<u16, WrongValue> {
    const FORMS: &str = "a time of day from \"00:00\" to \"24:00\"";
    let text = read_string(written, FORMS)?;
    let digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = text.split_once(':').filter(|(hour, minute)| digits(hour) && digits(minute));
    let Some((Ok(hour), Ok(minute))) = parts.map(|(hour, minute)| (hour.parse::<u16>(), minute.parse::<u16>())) else {
        return wrong_value("is not a time of day", FORMS);
    };
    match (hour, minute) {
        (0..=23, 0..=59) | (24, 0) => Ok(hour * 60 + minute),
        _ => wrong_value("is not a time of day", FORMS),
    }
}

/// Reads the name of a time zone.
pub fn read_zone(written: &WrittenValue<'_>) -> Result<TimeZone, WrongValue> {
    const FORMS: &str = "the name of a time zone, like \"Europe/Berlin\" or \"UTC\"";
    let text = read_string(written, FORMS)?;
    TimeZone::get(text).or_else(|_| wrong_value("is not a known time zone", FORMS))
}

/// Reads a date with a time of day.
pub fn read_date_time(written: &WrittenValue<'_>) -> Result<DateTime, WrongValue> {
    const FORMS: &str = "a date with a time of day, like \"2026-12-01 09:00\"";
    let text = read_string(written, FORMS)?;
    // The parser would accept an offset from UTC and ignore it.
    let is_plain = [16, 19].contains(&text.len()) && text.bytes().all(|byte| b"0123456789-: T".contains(&byte));
    match text.parse() {
        Ok(when) if is_plain && !text[10..].contains('-') => Ok(when),
        _ => wrong_value("is not a date with a time of day", FORMS),
    }
}

/// Reads a length of time in seconds, minutes, hours or days, from a minute to a year.
pub fn read_length(written: &WrittenValue<'_>) -> Result<u64, WrongValue> {
    const FORMS: &str = "a length of time from \"1m\" to \"365d\", in s, m, h or d";
    match parse_seconds(read_string(written, FORMS)?) {
        Some(seconds) if (60..=365 * 86_400).contains(&seconds) => Ok(seconds),
        Some(_) => wrong_value("is out of range", FORMS),
        None => wrong_value("is not a length of time", FORMS),
    }
}

/// Returns the seconds of a whole number with a unit: s, m, h or d.
pub(super) fn parse_seconds(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, unit) = text.split_at(digits);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    amount.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_read_one_by_one_and_in_ranges_that_may_pass_sunday() {
        let read = |text| read_days(&WrittenValue::Text(text)).map(|days| days.0);
        assert_eq!(read("mon"), Ok(1));
        assert_eq!(read("mon-fri"), Ok(0b1_1111));
        assert_eq!(read("sat-mon"), Ok(0b110_0001));
        assert!(read("mom").unwrap_err().what.contains("did you mean \"mon\"?"));
        assert!(read("mon-").is_err() && read("").is_err() && read("Monday").is_err());
    }

    #[test]
    fn a_time_of_day_has_two_digits_each_and_ends_at_midnight() {
        let read = |text| read_clock(&WrittenValue::Text(text)).ok();
        assert_eq!((read("00:00"), read("09:30"), read("24:00")), (Some(0), Some(570), Some(1440)));
        for wrong in ["9:30", "24:01", "12:60", "12", "12:3a", "-1:00", "+1:00"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn dates_lengths_and_zones_are_read_in_their_forms() {
        let text = WrittenValue::Text;
        assert!(
            read_date_time(&text("2026-12-01 09:00")).is_ok() && read_date_time(&text("2026-12-01T09:00:30")).is_ok()
        );
        assert!(read_date_time(&text("2026-12-01 09:00+02")).is_err(), "an offset is not ignored");
        assert!(read_date_time(&text("2026-12-01 09:00-02")).is_err());
        assert!(read_date_time(&text("2026-12-01")).is_err() && read_date_time(&text("2026-02-30 09:00")).is_err());
        assert_eq!(read_length(&text("90m")).ok(), Some(5_400));
        assert!(
            read_length(&text("30s")).is_err()
                && read_length(&text("366d")).is_err()
                && read_length(&text("2")).is_err()
        );
        assert!(read_zone(&text("Europe/Berlin")).is_ok() && read_zone(&text("Europe/Berlim")).is_err());
    }
}
