//! Reads values about the use of a tenant: minutes, thresholds, idle steps, hours of device time.

use std::time::Duration;

use super::moments::parse_seconds;
use super::{WrittenValue, WrongValue, parse_thousandths, read_number, read_string, text_of, wrong_value};
use crate::suggest::nearest_word;
use crate::usage::{IdleStep, StepKind};
use vgpu_core::units::share::{Share, parse_share};

/// Longest time before an idle step, in seconds.
const MAX_STEP_SECONDS: u64 = 365 * 86_400;

/// Milliseconds in a thousandth of a minute.
const MS_PER_THOUSANDTH: u64 = 60;

const NS_PER_THOUSANDTH_HOUR: u64 = 3_600_000_000;

/// Reads a number of minutes.
pub fn read_minutes(written: &WrittenValue<'_>) -> Result<Duration, WrongValue> {
    const FORMS: &str = "minutes from 0.01 to 10080 with at most three decimals, like 2 or 0.5";
    let thousandths = read_number(written, FORMS, 10..=10_080_000)?;
    Ok(Duration::from_millis(u64::from(thousandths) * MS_PER_THOUSANDTH))
}

/// Reads a threshold: a part of what a tenant may use.
pub fn read_threshold(written: &WrittenValue<'_>) -> Result<Share, WrongValue> {
    const FORMS: &str = "a percentage from 1 to 100 like 20 or 12.5";
    match parse_share(text_of(written, FORMS)?) {
        Ok(Some(share)) => Ok(share),
        Ok(None) => wrong_value("is not a percentage", FORMS),
        Err(why) => wrong_value(why.to_string(), FORMS),
    }
}

/// Reads an idle step: a word, with ` after ` and a length of time if the step waits.
pub fn read_idle_step(written: &WrittenValue<'_>) -> Result<IdleStep, WrongValue> {
    const FORMS: &str = "\"event\", \"lower\", \"reclaimable\", \"suspend\", \"terminate\", or one of them with a time \
                         from \"1s\" to \"365d\", like \"terminate after 2h\"";
    let text = read_string(written, FORMS)?;
    let (word, after) = text.split_once(" after ").map_or((text, None), |(word, after)| (word, Some(after)));
    let words = || StepKind::WORDS.iter().map(|(word, _)| *word);
    let Some((_, kind)) = StepKind::WORDS.iter().find(|(known, _)| *known == word) else {
        return match nearest_word(word, words()) {
            Some(meant) => wrong_value(format!("is not a step (did you mean {meant:?}?)"), FORMS),
            None => wrong_value("is not a step", FORMS),
        };
    };
    let seconds = match after {
        None => 0,
        Some(after) => match parse_seconds(after) {
            Some(seconds) if (1..=MAX_STEP_SECONDS).contains(&seconds) => seconds,
            Some(_) => return wrong_value("has a time that is out of range", FORMS),
            None => return wrong_value("has a time that is no length of time", FORMS),
        },
    };
    Ok(IdleStep { kind: *kind, after: Duration::from_secs(seconds) })
}

/// Reads the time between SIGTERM and SIGKILL.
pub fn read_idle_grace(written: &WrittenValue<'_>) -> Result<Duration, WrongValue> {
    super::read_duration(written, &(1_000_000_000..=3_600_000_000_000)).map(Duration::from_nanos)
}

/// Reads hours of device time, in ns.
pub fn read_gpu_hours(written: &WrittenValue<'_>) -> Result<u64, WrongValue> {
    const FORMS: &str = "hours of device time from 0.001 to 1000000 with at most three decimals, like 12 or 0.5";
    let WrittenValue::Number(text) = written else {
        return read_number(written, FORMS, 1..=1).map(u64::from);
    };
    match parse_thousandths(text) {
        Some(thousandths @ 1..=1_000_000_000) => Ok(thousandths * NS_PER_THOUSANDTH_HOUR),
        Some(_) => wrong_value("is out of range", FORMS),
        None => wrong_value("is not such a number", FORMS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_word_with_or_without_its_time() {
        let read = |text| read_idle_step(&WrittenValue::Text(text)).map(|step| (step.kind, step.after.as_secs()));
        assert_eq!(read("event"), Ok((StepKind::Event, 0)));
        assert_eq!(read("suspend after 30m"), Ok((StepKind::Suspend, 1_800)));
        assert_eq!(read("terminate after 2h"), Ok((StepKind::Terminate, 7_200)));
        for (wrong, what) in [
            ("kill", "is not a step"),
            ("terminat", "did you mean \"terminate\"?"),
            ("lower after", "is not a step"),
            ("lower after 5", "no length of time"),
            ("lower after 0s", "out of range"),
            ("lower after 366d", "out of range"),
            ("lower after 999999999999999999999h", "no length of time"),
        ] {
            let told = read(wrong).unwrap_err().what;
            assert!(told.contains(what), "{wrong}: {told}");
        }
    }

    #[test]
    fn minutes_thresholds_and_hours_have_their_ranges() {
        let number = |text: &str| WrittenValue::Number(text.into());
        assert_eq!(read_minutes(&number("0.05")), Ok(Duration::from_secs(3)));
        assert!(read_minutes(&number("0.001")).is_err() && read_minutes(&number("10081")).is_err());
        assert_eq!(read_threshold(&number("12.5")).ok(), Share::from_permille(125));
        assert!(read_threshold(&WrittenValue::Text("unlimited")).is_err() && read_threshold(&number("0")).is_err());
        assert_eq!(read_gpu_hours(&number("1.5")), Ok(5_400_000_000_000));
        assert_eq!(read_gpu_hours(&number("1000000")), Ok(3_600_000_000_000_000_000));
        for wrong in ["0", "0.0001", "1000000.001", "-1", "1e3"] {
            assert!(read_gpu_hours(&number(wrong)).is_err(), "{wrong}");
        }
        assert!(read_gpu_hours(&WrittenValue::Text("3")).is_err());
    }
}
