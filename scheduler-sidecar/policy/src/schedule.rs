//! Times of windows: whether one holds at a moment, and when the next one begins or ends.
//!
//! A window is told by the clock on the wall of its time zone. A start or an end in the hour that daylight saving skips
//! is that hour later; one in the hour that comes twice is in the first of the two.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use vgpu_config::schedule::{DAY_MINUTES, WindowPlan};

/// Days that are searched for the next start or end: a week, with a day on each side for windows that pass midnight.
const SEARCHED_DAYS: std::ops::RangeInclusive<i64> = -1..=8;

/// Returns the end of the window, in seconds since 1970, if it holds at `now`.
#[must_use]
pub fn window_end(window: &WindowPlan, now: i64) -> Option<i64> {
    occurrences(window, now, -1..=0).find(|(start, end)| (*start..*end).contains(&now)).map(|(_, end)| end)
}

/// Returns the next start or end of the window after `now`, in seconds since 1970.
#[must_use]
pub fn next_boundary(window: &WindowPlan, now: i64) -> Option<i64> {
    let all = occurrences(window, now, SEARCHED_DAYS);
    all.flat_map(|(start, end)| [start, end]).filter(|boundary| *boundary > now).min()
}

/// Starts and ends of the window that begin on these days, counted from the day of `now`.
fn occurrences(window: &WindowPlan, now: i64, days: std::ops::RangeInclusive<i64>) -> impl Iterator<Item = (i64, i64)> {
    let today = Timestamp::from_second(now).ok().map(|now| window.zone.to_datetime(now).date());
    today.into_iter().flat_map(move |today| {
        days.clone().filter_map(move |day| {
            let date = today.checked_add(day.days()).ok()?;
            let weekday = u8::try_from(date.weekday().to_monday_zero_offset()).ok()?;
            if !window.days.has(weekday) {
                return None;
            }
            let last = if window.to > window.from { date } else { date.tomorrow().ok()? };
            Some((moment(&window.zone, date, window.from)?, moment(&window.zone, last, window.to)?))
        })
    })
}

fn moment(zone: &TimeZone, date: Date, minutes: u16) -> Option<i64> {
    let date = if minutes >= DAY_MINUTES { date.tomorrow().ok()? } else { date };
    let (hour, minute) = (minutes % DAY_MINUTES / 60, minutes % 60);
    let time = Time::new(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, 0, 0).ok()?;
    zone.to_timestamp(date.to_datetime(time)).ok().map(Timestamp::as_second)
}

/// Formats a moment for people: the time of day if it is on the day of `now`, else the date before it.
#[must_use]
pub fn format_moment(zone: &TimeZone, at: i64, now: i64) -> String {
    let local = |second| Timestamp::from_second(second).ok().map(|second| zone.to_datetime(second));
    match (local(at), local(now)) {
        (Some(at), Some(now)) if at.date() == now.date() => at.strftime("%H:%M").to_string(),
        (Some(at), _) => at.strftime("%Y-%m-%d %H:%M").to_string(),
        (None, _) => "an unknown time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use vgpu_config::raw::WeekDays;
    use vgpu_config::schedule::Subjects;

    use super::*;

    fn window(days: u8, from: &str, to: &str, zone: &str) -> WindowPlan {
        let minutes = |text: &str| text[..2].parse::<u16>().unwrap() * 60 + text[3..].parse::<u16>().unwrap();
        WindowPlan {
            name: "w".into(),
            days: WeekDays(days),
            from: minutes(from),
            to: minutes(to),
            zone: TimeZone::get(zone).unwrap(),
            subjects: Subjects::default(),
            change: Default::default(),
            paused: false,
            place: Default::default(),
        }
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn a_window_that_passes_midnight_belongs_to_the_day_on_which_it_begins() {
        // 27 November 2026 is a Friday.
        let friday = window(1 << 4, "22:00", "06:00", "UTC");
        let end = Some(at("2026-11-28T06:00Z"));
        for (now, holds) in [
            ("2026-11-27T21:59:59Z", None),
            ("2026-11-27T22:00Z", end),
            ("2026-11-28T05:59:59Z", end),
            ("2026-11-28T06:00Z", None),
            ("2026-11-27T03:00Z", None),
        ] {
            assert_eq!(window_end(&friday, at(now)), holds, "{now}");
        }
        assert_eq!(next_boundary(&friday, at("2026-11-28T05:00Z")), end);
        assert_eq!(next_boundary(&friday, at("2026-11-28T06:00Z")), Some(at("2026-12-04T22:00Z")));
    }

    #[test]
    fn daylight_saving_keeps_the_time_of_the_wall() {
        let office = window(0x7f, "09:00", "17:00", "Europe/Berlin");
        assert_eq!(window_end(&office, at("2026-07-01T07:00Z")), Some(at("2026-07-01T15:00Z")));
        assert_eq!(window_end(&office, at("2026-12-01T07:00Z")), None);
        assert_eq!(window_end(&office, at("2026-12-01T08:00Z")), Some(at("2026-12-01T16:00Z")));
        // On 29 March 2026 the clock goes from 02:00 to 03:00, on 25 October from 03:00 back to 02:00.
        let early = window(0x7f, "02:30", "04:00", "Europe/Berlin");
        assert_eq!(next_boundary(&early, at("2026-03-29T00:00Z")), Some(at("2026-03-29T01:30Z")), "03:30 on the wall");
        assert_eq!(window_end(&early, at("2026-03-29T01:30Z")), Some(at("2026-03-29T02:00Z")));
        assert_eq!(next_boundary(&early, at("2026-10-25T00:00Z")), Some(at("2026-10-25T00:30Z")), "the first 02:30");
        assert_eq!(window_end(&early, at("2026-10-25T02:59Z")), Some(at("2026-10-25T03:00Z")), "a longer night");
    }

    #[test]
    fn a_window_of_the_whole_day_ends_at_midnight_and_begins_again() {
        let always = window(0x7f, "00:00", "24:00", "America/New_York");
        for day in 0..400 {
            let now = at("2026-01-01T05:00Z") + day * 86_400 + 7;
            let end = window_end(&always, now).unwrap_or_else(|| panic!("day {day}"));
            assert_eq!((next_boundary(&always, now), window_end(&always, end).is_some()), (Some(end), true));
        }
    }

    #[test]
    fn moments_are_told_with_the_date_only_where_it_is_another_day() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let now = at("2026-11-27T12:00Z");
        assert_eq!(format_moment(&berlin, at("2026-11-27T22:59Z"), now), "23:59");
        assert_eq!(format_moment(&berlin, at("2026-11-27T23:00Z"), now), "2026-11-28 00:00");
    }
}
